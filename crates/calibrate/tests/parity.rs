//! Head scores against PyTorch on random weights; `tools/goldens/calibration.py` makes the references.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use wnw_calibrate::forced::ForcedAnswer;
use wnw_calibrate::sensitivity;
use wnw_calibrate::voice::{ObservedLayer, VoiceCount};
use wnw_kv::PromptLayout;
use wnw_model::ModelFiles;
use wnw_model::checkpoint::Checkpoint;
use wnw_model::config::DecoderConfig;
use wnw_model::prompt::Prompt;

const AUDIO_ID: u32 = 24;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

struct Golden {
    config: DecoderConfig,
    checkpoint: Checkpoint,
    bytes: Vec<u8>,
    info: serde_json::Value,
}

impl Golden {
    fn read() -> Self {
        let info: serde_json::Value =
            serde_json::from_slice(&std::fs::read(data().join("golden.json")).unwrap()).unwrap();
        let number = |name: &str| info["decoder"][name].as_f64().unwrap();
        let size = |name: &str| number(name) as usize;
        let config = DecoderConfig {
            hidden_size: size("hidden_size"),
            intermediate_size: size("intermediate_size"),
            n_layers: size("num_hidden_layers"),
            n_q_heads: size("num_attention_heads"),
            n_kv_heads: size("num_key_value_heads"),
            head_dim: size("head_dim"),
            vocab_size: size("vocab_size"),
            rms_norm_eps: number("rms_norm_eps") as f32,
            rope_theta: number("rope_theta"),
            tied: false,
            max_positions: size("max_position_embeddings"),
        };
        Self {
            config,
            checkpoint: Checkpoint::open(&data().join("checkpoint")).unwrap(),
            bytes: std::fs::read(data().join("golden.safetensors")).unwrap(),
            info,
        }
    }

    fn raw<const N: usize>(&self, name: &str) -> Vec<[u8; N]> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        tensors.tensor(name).unwrap().data().as_chunks::<N>().0.to_vec()
    }

    fn f32s(&self, name: &str) -> Vec<f32> {
        self.raw(name).into_iter().map(f32::from_le_bytes).collect()
    }

    fn f64s(&self, name: &str) -> Vec<f64> {
        self.raw(name).into_iter().map(f64::from_le_bytes).collect()
    }

    fn u32s(&self, name: &str) -> Vec<u32> {
        self.raw(name).into_iter().map(u32::from_le_bytes).collect()
    }

    fn spans(&self) -> Vec<Range<usize>> {
        self.u32s("spans").chunks_exact(2).map(|s| s[0] as usize..s[1] as usize).collect()
    }

    fn answer(&self) -> ForcedAnswer {
        let eos = self.info["eos"].as_u64().unwrap() as u32;
        ForcedAnswer::new(&prompt(self.u32s("prompt")), &self.u32s("answer"), eos).unwrap()
    }

    /// The embedded sequence: rows of the embedding table, and the audio's where they go.
    fn embedded(&self, answer: &ForcedAnswer) -> Vec<f32> {
        let h = self.config.hidden_size;
        let table =
            self.checkpoint.get("language_model.model.embed_tokens.weight").unwrap().to_f32().unwrap();
        let audio = self.f32s("audio");
        let mut audio = audio.chunks_exact(h);
        let row = |id: u32| &table[id as usize * h..][..h];
        let ids = answer.sequence.ids.iter();
        ids.flat_map(|id| if *id == AUDIO_ID { audio.next().unwrap() } else { row(*id) }).copied().collect()
    }
}

/// A prompt whose audio positions are those of the placeholder.
fn prompt(ids: Vec<u32>) -> Prompt {
    let start = ids.iter().position(|id| *id == AUDIO_ID).unwrap();
    let end = start + ids.iter().filter(|id| **id == AUDIO_ID).count();
    let layout = PromptLayout::new(ids.len(), std::iter::once(start..end).collect()).unwrap();
    Prompt { ids, layout }
}

#[test]
fn head_sensitivity_is_pytorchs() {
    let golden = Golden::read();
    let answer = golden.answer();
    let x = golden.embedded(&answer);
    let go = &mut |_, _| ControlFlow::Continue(());
    let found = sensitivity::measure(&golden.config, &golden.checkpoint, &answer, x, go).unwrap();
    let loss = golden.info["loss"].as_f64().unwrap();
    assert!((found.loss / loss - 1.0).abs() < 1e-5, "loss {} for {loss}", found.loss);

    let relative = |a: f64, b: f64| (a / b - 1.0).abs();
    let hs = golden.f64s("hs");
    assert_eq!(found.per_head().len(), hs.len());
    let worst = found.per_head().iter().zip(&hs).fold(0.0, |m: f64, (a, b)| m.max(relative(*a, *b)));
    let norms = golden.f32s("norms");
    assert_eq!(found.norms.len(), norms.len());
    let pairs = found.norms.iter().zip(&norms);
    let worst_norm = pairs.fold(0.0, |m: f64, (a, b)| m.max(relative(f64::from(*a), f64::from(*b))));
    println!("HS: largest relative error {worst:.1e}; of single positions {worst_norm:.1e}; loss {loss}");
    assert!(worst < 1e-4 && worst_norm < 1e-3);
}

#[test]
fn voice_score_is_pytorchs() {
    let golden = Golden::read();
    let shape = golden.config.kv_shape();
    let answer = golden.answer();
    let observed: Vec<usize> = golden.u32s("observed").into_iter().map(|o| o as usize).collect();
    let queries = answer.queries();
    assert_eq!(observed, (queries.start..queries.end - 1).collect::<Vec<_>>());
    let (q, k, spans) = (golden.f32s("q"), golden.f32s("k"), golden.spans());
    let mut count = VoiceCount::new(shape, golden.info["top_k"].as_u64().unwrap() as usize);
    count.tokens = observed.len() as u64;
    let q_layer = observed.len() * shape.n_q_heads * shape.head_dim;
    let k_layer = k.len() / shape.n_layers;
    for layer in 0..shape.n_layers {
        let view = ObservedLayer {
            shape,
            layout: &answer.sequence.layout,
            observed: &observed,
            q: &q[layer * q_layer..(layer + 1) * q_layer],
            k: &k[layer * k_layer..(layer + 1) * k_layer],
        };
        count.add_layer(layer, &view, &spans);
    }
    let hits: Vec<u64> = golden.u32s("hits").into_iter().map(u64::from).collect();
    assert_eq!(count.hits, hits);
    for (found, wanted) in count.per_kv_head(shape.group()).iter().zip(golden.f64s("vs")) {
        assert!((found - wanted).abs() < 1e-15, "{found} for {wanted}");
    }
}

/// The same weights in Hugging Face's and in Mistral's order of rotary pairs have the same gradients.
#[test]
fn both_orders_of_rotary_pairs_give_the_same() {
    let voxtral = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/voxtral");
    let run = |name: &str| {
        let files = ModelFiles::open(&voxtral.join(name)).unwrap();
        let config = &files.config.decoder;
        let prompt = prompt([&[1, 3, 25][..], &[AUDIO_ID; 20], &[4, 34]].concat());
        let answer = ForcedAnswer::new(&prompt, &[60, 61, 62, 63], 2).unwrap();
        let x: Vec<f32> = (0..answer.sequence.ids.len() * config.hidden_size)
            .map(|i| (i * 7919 % 2003) as f32 / 1001.0 - 1.0)
            .collect();
        let go = &mut |_, _| ControlFlow::Continue(());
        sensitivity::measure(config, &files.checkpoint, &answer, x, go).unwrap()
    };
    assert_eq!(run("mha"), run("mha-consolidated"));
}
