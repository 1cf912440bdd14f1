//! Head scores against PyTorch on random weights; `tools/goldens/calibration.py` makes the references.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use wnw_calibrate::forced::ForcedAnswer;
use wnw_calibrate::sensitivity;
use wnw_calibrate::voice::VoiceProbe;
use wnw_kv::{KvStore, PromptLayout, StoreOptions};
use wnw_model::prompt::Prompt;
use wnw_model::{Decoder, LoadOptions, ModelFiles, WeightDtype};

const AUDIO_ID: u32 = 24;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

struct Golden {
    files: ModelFiles,
    bytes: Vec<u8>,
    info: serde_json::Value,
}

impl Golden {
    fn read() -> Self {
        Self {
            files: ModelFiles::open(&data().join("checkpoint")).unwrap(),
            bytes: std::fs::read(data().join("golden.safetensors")).unwrap(),
            info: serde_json::from_slice(&std::fs::read(data().join("golden.json")).unwrap()).unwrap(),
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

    fn decoder(&self) -> Decoder {
        let exact = LoadOptions { dtype: Some(WeightDtype::F32) };
        self.files.load_parts(&exact, |_, _| {}).unwrap().1
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
    let x = golden.decoder().embed_prompt(&answer.sequence, &golden.f32s("audio")).unwrap();
    let go = &mut |_, _| ControlFlow::Continue(());
    let (config, checkpoint) = (&golden.files.decoder, &golden.files.checkpoint);
    let found = sensitivity::measure(config, checkpoint, &answer, x, go).unwrap();
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
    let decoder = golden.decoder();
    let shape = decoder.kv_shape();
    let answer = golden.answer();
    let observed: Vec<usize> = golden.u32s("observed").into_iter().map(|o| o as usize).collect();
    let queries = answer.queries();
    assert_eq!(observed, (queries.start..queries.end - 1).collect::<Vec<_>>());
    let watched: Vec<_> = observed.into_iter().zip(golden.spans()).collect();
    let mut probe = VoiceProbe::new(shape, golden.info["top_k"].as_u64().unwrap() as usize, &watched);
    let x = decoder.embed_prompt(&answer.sequence, &golden.f32s("audio")).unwrap();
    let layout = answer.sequence.layout.clone();
    let mut store = KvStore::new(shape, layout, &StoreOptions::default());
    decoder.prefill(x, 1, &mut store, &mut probe, &mut |_| ControlFlow::Continue(())).unwrap();
    let count = probe.count;
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
        let config = &files.decoder;
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
