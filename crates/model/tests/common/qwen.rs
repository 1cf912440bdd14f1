//! Checkpoints of Qwen2.5-Omni and Qwen3-ASR with random weights, computed as `tools/goldens/qwen.py` computes them.
#![allow(dead_code, clippy::unwrap_used)] // no test file uses all of it

use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use wnw_audio::Mel;
use wnw_model::checkpoint::Naming;
use wnw_model::families;

pub const MELS: usize = 128;

fn mixed(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |h, byte| (h ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The mel frames of a seed.
pub fn mel(seed: u32, frames: usize) -> Mel {
    let n = frames as u32;
    let data = (0..MELS as u32).flat_map(|m| {
        (0..n).map(move |t| {
            let fine = mixed((m * n + t) ^ seed) >> 22;
            let patch = mixed((m / 8 * 65_536 + t / 50) ^ (seed + 1)) >> 22;
            (3 * patch + fine) as f32 / 2048.0 - 0.75
        })
    });
    Mel { data: data.collect(), n_mels: MELS, n_frames: frames }
}

/// How weights are drawn.
#[derive(Clone, Copy)]
pub struct Draw {
    pub seed: u32,
    pub embed: f64,
    pub final_norm: f64,
}

/// Scale and shift of a tensor's weights.
fn spread(name: &str, shape: &[usize], draw: Draw) -> (f32, f32) {
    let inputs = shape[1..].iter().product::<usize>() as f64;
    let (scale, shift) = if name.contains("norm") || name.contains("ln_post") {
        let last = if name == "language_model.model.norm.weight" { draw.final_norm } else { 1.0 };
        if name.ends_with("bias") { (0.26, 0.0) } else { (0.26 * last, last) }
    } else if name.ends_with("bias") {
        (0.34, 0.0)
    } else if name.contains("embed_tokens") {
        (1.73 * draw.embed, 0.0)
    } else {
        let gains = [
            ("lm_head", 3.5),
            ("q_proj", 3.0),
            ("k_proj", 3.0),
            ("down_proj", 5.2),
            ("o_proj", 2.6),
            ("projector", 2.8),
        ];
        let gain = gains.iter().find(|(part, _)| name.contains(part)).map_or(1.73, |(_, gain)| *gain);
        (gain / inputs.sqrt(), 0.0)
    };
    (scale as f32, shift as f32)
}

/// Canonical names and shapes of all tensors of a configuration.
pub fn tensors(config: &Value) -> Vec<(String, Vec<usize>)> {
    let family = families::open(config.to_string().as_bytes(), Path::new("config.json")).unwrap();
    let mut out = family.encoder_tensors(Naming::HuggingFace);
    let d = family.decoder();
    let (h, i, hd) = (d.hidden_size, d.intermediate_size, d.head_dim);
    let (q, kv) = (d.n_q_heads * hd, d.n_kv_heads * hd);
    let mut add = |name: String, shape: &[usize]| out.push((name, shape.to_vec()));
    add("language_model.model.embed_tokens.weight".into(), &[d.vocab_size, h]);
    add("language_model.model.norm.weight".into(), &[h]);
    if !d.tied {
        add("language_model.lm_head.weight".into(), &[d.vocab_size, h]);
    }
    for l in 0..d.n_layers {
        let mut add =
            |part: &str, shape: &[usize]| add(format!("language_model.model.layers.{l}.{part}"), shape);
        add("input_layernorm.weight", &[h]);
        add("post_attention_layernorm.weight", &[h]);
        add("self_attn.q_proj.weight", &[q, h]);
        add("self_attn.k_proj.weight", &[kv, h]);
        add("self_attn.v_proj.weight", &[kv, h]);
        add("self_attn.o_proj.weight", &[h, q]);
        add("mlp.gate_proj.weight", &[i, h]);
        add("mlp.up_proj.weight", &[i, h]);
        add("mlp.down_proj.weight", &[h, i]);
        if d.qkv_bias {
            add("self_attn.q_proj.bias", &[q]);
            add("self_attn.k_proj.bias", &[kv]);
            add("self_attn.v_proj.bias", &[kv]);
        }
        if d.qk_norm {
            add("self_attn.q_norm.weight", &[hd]);
            add("self_attn.k_norm.weight", &[hd]);
        }
    }
    out
}

/// A canonical name as a checkpoint spells it: `release`, `thinker` (a thinker alone) or `transformers5`.
pub fn spelled(name: &str, layout: &str, asr: bool) -> String {
    let name = match name.strip_prefix("language_model.") {
        Some("lm_head.weight") => "lm_head.weight".to_owned(),
        Some(part) if layout == "transformers5" => part.replacen("model.", "model.language_model.", 1),
        Some(part) => part.to_owned(),
        None if layout == "transformers5" && asr => format!("model.{name}"),
        None => {
            let tower = name
                .replace("multi_modal_projector.proj.", "audio_tower.proj.")
                .replace("multi_modal_projector.linear_", "audio_tower.proj");
            if layout == "transformers5" { format!("model.{tower}") } else { tower }
        }
    };
    if layout == "release" { format!("thinker.{name}") } else { name }
}

/// Puts the small tokenizer beside a checkpoint, and its ids into the checkpoint's configuration: that of the goldens has its
/// own.
pub fn add_tokenizer(dir: &Path) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/qwen");
    std::fs::copy(data.join("tokenizer.json"), dir.join("tokenizer.json")).unwrap();
    let path = dir.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    state_tokens(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
}

/// Puts the small tokenizer's ids into a configuration.
pub fn state_tokens(config: &mut Value) {
    let asr = config["model_type"] == "qwen3_asr";
    let part = if config["thinker_config"].is_object() { &mut config["thinker_config"] } else { config };
    if asr { part["audio_token_id"] = 307.into() } else { part["audio_token_index"] = 303.into() }
}

/// Writes `config.json` and weights. The `release` layout gets the parts that are skipped too, `thinker` two shards, of
/// whose third, all vision, only the index knows.
pub fn write(dir: &Path, config: &Value, layout: &str, draw: Draw) {
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let asr = config["model_type"] == "qwen3_asr";
    let mut all: Vec<(String, Vec<usize>, Vec<u8>)> = tensors(config)
        .into_iter()
        .map(|(name, shape)| {
            let (scale, shift) = spread(&name, &shape, draw);
            let seed = draw.seed ^ fnv1a(&name);
            let value = |i: u32| {
                let u = (mixed(i ^ seed) >> 8) as f32 / 8_388_608.0 - 1.0;
                u * scale + shift
            };
            let n = shape.iter().product::<usize>() as u32;
            (spelled(&name, layout, asr), shape, (0..n).flat_map(|i| value(i).to_le_bytes()).collect())
        })
        .collect();
    let skipped = ["talker.model.norm.weight", "token2wav.x", "thinker.visual.merger.ln_q.weight"];
    if layout == "release" && !asr {
        all.extend(skipped.map(|name| (name.to_owned(), vec![1], vec![0; 4])));
        all.push(("thinker.audio_tower.audio_bos_eos_token.weight".into(), vec![2, 1], vec![0; 8]));
    }
    let save = |file: &str, part: &[(String, Vec<usize>, Vec<u8>)]| {
        let views: Vec<_> = part
            .iter()
            .map(|(name, shape, bytes)| {
                (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
            })
            .collect();
        std::fs::write(dir.join(file), safetensors::serialize(views, None).unwrap()).unwrap();
    };
    if layout != "thinker" {
        return save("model.safetensors", &all);
    }
    let (first, second) = all.split_at(all.len() / 2);
    let mut map = serde_json::Map::new();
    for (file, part) in [("model-1-of-3.safetensors", first), ("model-2-of-3.safetensors", second)] {
        save(file, part);
        map.extend(part.iter().map(|(name, ..)| (name.clone(), file.into())));
    }
    map.insert("visual.blocks.0.norm1.weight".into(), "model-3-of-3.safetensors".into());
    let index = serde_json::json!({ "weight_map": map });
    std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
}
