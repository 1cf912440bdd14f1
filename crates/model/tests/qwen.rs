//! Qwen2.5-Omni and Qwen3-ASR against transformers 5.24 on random weights: audio embeddings, prompt logits, greedy tokens.
//!
//! `cargo test --release --workspace --test qwen -- --nocapture` prints the table.

#[path = "common/qwen.rs"]
mod qwen;

use std::ops::ControlFlow;
use std::path::Path;

use qwen::{Draw, mel};
use serde_json::Value;
use wnw_kv::policies::Full;
use wnw_kv::{KvDtype, KvStore, PromptLayout, StoreOptions};
use wnw_model::prompt::Prompt;
use wnw_model::{AudioEncoder, Family, LoadOptions, ModelFiles, WeightDtype, families};

/// Largest difference allowed in f32, relative to the largest value of the reference.
const TOLERANCE: f32 = 1e-4;
const CASES: [&str; 8] = [
    "omni-release",
    "omni-tied",
    "omni-thinker",
    "omni-three",
    "asr-release",
    "asr-tied",
    "asr-long",
    "asr-three",
];

fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/qwen/{name}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

/// The largest difference of a matrix from the sampled reference, relative to the reference's largest value.
fn difference(name: &str, golden: &Value, whole: &[f32], width: usize) -> f32 {
    let (rows, every) =
        (golden["rows"].as_u64().unwrap() as usize, golden["every"].as_u64().unwrap() as usize);
    assert_eq!(whole.len(), rows * width, "{name}: rows");
    let want: Vec<f32> =
        golden["values"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
    assert_eq!(want.len(), whole.len().div_ceil(every), "{name}: sampled values");
    let worst = whole.iter().step_by(every).zip(&want).fold(0f32, |worst, (a, b)| {
        let d = (a - b).abs();
        if d.is_nan() { f32::INFINITY } else { worst.max(d) }
    });
    worst / golden["largest"].as_f64().unwrap() as f32
}

fn embed(encoder: &dyn AudioEncoder, seed: u32, frames: usize) -> Vec<f32> {
    encoder.embed(&mel(seed, frames), &mut |_, _| ControlFlow::Continue(())).unwrap()
}

fn open(golden: &Value, dir: &Path) -> ModelFiles {
    let draw = Draw {
        seed: golden["seed"].as_u64().unwrap() as u32,
        embed: golden["embed"].as_f64().unwrap(),
        final_norm: golden["final_norm"].as_f64().unwrap(),
    };
    qwen::write(dir, &golden["config"], golden["layout"].as_str().unwrap(), draw);
    ModelFiles::open(dir).unwrap()
}

#[test]
fn f32_agrees_with_transformers() {
    println!("{:<14} embeddings  logits  64th step  tokens  lengths", "f32, relative");
    for name in CASES {
        let golden = golden(name);
        let dir = tempfile::tempdir().unwrap();
        let files = open(&golden, dir.path());
        let options = LoadOptions { dtype: Some(WeightDtype::F32) };
        let (encoder, decoder) = files.load_parts(&options, |_, _| {}).unwrap();
        let (h, vocab) = (files.decoder.hidden_size, files.decoder.vocab_size);
        let seed = golden["mel_seed"].as_u64().unwrap() as u32;

        // Several recordings in one prompt, each encoded alone; the reference encodes them as a batch too.
        let (mut ids, mut stretches, mut audio) = (Vec::new(), Vec::new(), Vec::new());
        for part in golden["prompt"].as_array().unwrap() {
            let Some(frames) = part.as_array() else {
                ids.push(part.as_u64().unwrap() as u32);
                continue;
            };
            let embeddings = embed(
                encoder.as_ref(),
                seed + 10 * stretches.len() as u32,
                frames[0].as_u64().unwrap() as usize,
            );
            let start = ids.len();
            ids.resize(start + embeddings.len() / h, golden["pad"].as_u64().unwrap() as u32);
            stretches.push(start..ids.len());
            audio.extend(embeddings);
        }
        let embeddings = difference(name, &golden["embeddings"], &audio, h);
        let prompt = Prompt { layout: PromptLayout::new(ids.len(), stretches).unwrap(), ids };
        let n = prompt.ids.len();
        let x = decoder.embed_prompt(&prompt, &audio).unwrap();
        let options = StoreOptions { dtype: KvDtype::F32, ..StoreOptions::default() };
        let mut store = KvStore::new(decoder.kv_shape(), prompt.layout.clone(), &options);
        let go = &mut |_| ControlFlow::Continue(());
        let hidden = decoder.prefill(x, n, &mut store, &mut Full, go).unwrap();
        let all = decoder.logits(&hidden);
        let logits = difference(name, &golden["logits"], &all, vocab);
        let mut next = all[(n - 1) * vocab..].to_vec();
        let last = difference(name, &golden["last"], &next, vocab);

        let greedy = numbers(&golden["greedy"]);
        assert_eq!(greedy.len(), 64);
        let mut buffers = decoder.step_buffers();
        let mut equal = 0;
        for (i, want) in greedy.iter().enumerate() {
            let best = (0..vocab).rev().max_by(|a, b| next[*a].total_cmp(&next[*b])).unwrap();
            equal += usize::from(best as u32 == *want);
            next = decoder.step(*want, n + i, &mut store, &mut buffers).unwrap().to_vec();
        }
        let mut lengths = 0f32;
        for length in golden["lengths"].as_array().unwrap() {
            let frames = length["frames"].as_u64().unwrap() as usize;
            let out = embed(encoder.as_ref(), seed + 7, frames);
            lengths = lengths.max(difference(&format!("{name}, {frames} frames"), length, &out, h));
        }
        println!("{name:<14} {embeddings:.1e}     {logits:.1e} {last:.1e}    {equal}/64   {lengths:.1e}");
        for (what, difference) in
            [("embeddings", embeddings), ("logits", logits), ("last logits", last), ("lengths", lengths)]
        {
            assert!(difference <= TOLERANCE, "{name}: {what} differ by {difference:e}");
        }
        assert_eq!(equal, 64, "{name}");
    }
}

/// Qwen3-ASR's features: short recordings are padded to half a second, and the last incomplete frame is left out.
#[test]
fn features_are_those_of_the_reference() {
    let config = golden("asr-release")["config"].to_string();
    let family = families::open(config.as_bytes(), Path::new("config.json")).unwrap();
    for case in golden("asr-features").as_array().unwrap() {
        let n = case["samples"].as_u64().unwrap() as usize;
        let mut state = 12_345u32;
        let noise = (0..n).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 16) as i32 - 32_768) as f32 / 65_536.0
        });
        let mut samples: Vec<f32> = noise.collect();
        samples.resize(n.max(family.least_samples()), 0.0);
        let mel = family.features().compute(&samples).unwrap();
        let worst = difference(&format!("{n} samples"), case, &mel.data, mel.n_frames);
        assert!(worst <= TOLERANCE, "{n} samples: {worst:e}");
        assert_eq!(family.audio_tokens(n), rows("asr", mel.n_frames));
    }
}

/// Placeholders of a prompt and rows of the encoder, for lengths of samples that a generator draws.
#[test]
fn placeholders_are_as_many_as_embeddings() {
    for name in ["omni-three", "asr-three"] {
        let golden = golden(name);
        let dir = tempfile::tempdir().unwrap();
        let files = open(&golden, dir.path());
        let family: &dyn Family = files.family.as_ref();
        let features = family.features();
        let options = LoadOptions { dtype: Some(WeightDtype::F32) };
        let (encoder, _) = files.load_parts(&options, |_, _| {}).unwrap();
        let mut state = 1u32;
        for i in 0..1000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Mostly around the edges of frames, chunks and windows; some far longer, by the formulas alone.
            let samples = match i % 4 {
                0 => state as usize >> 20,
                1 => 32_000 * (1 + i % 3) + (state as usize >> 22) - 512,
                2 => 16_000 * (1 + i % 9) + (state as usize >> 24) - 128,
                _ => state as usize >> 12,
            };
            let samples = samples.max(1);
            let frames = features.frames(samples.max(family.least_samples()));
            let tokens = family.audio_tokens(samples);
            let parts: usize = (0..frames.div_ceil(encoder.block_frames()))
                .map(|block| {
                    let rest = frames - block * encoder.block_frames();
                    rows(name, rest.min(encoder.block_frames()))
                })
                .sum();
            assert_eq!(tokens, parts, "{name}: {samples} samples");
            if frames <= 450 {
                let rows = embed(encoder.as_ref(), i as u32, frames).len() / files.decoder.hidden_size;
                assert_eq!(rows, tokens, "{name}: {samples} samples");
            }
        }
    }
}

/// Tokens of so many frames, by the processors' formulas.
fn rows(name: &str, frames: usize) -> usize {
    let l = frames as i64;
    let halved = |l: i64| (l - 1).div_euclid(2) + 1;
    let rows = if name.starts_with("omni") {
        (halved(l) - 2).div_euclid(2) + 1
    } else {
        halved(halved(halved(l % 100))) + l / 100 * 13
    };
    rows as usize
}

#[test]
fn relatives_are_refused_by_name() {
    let refuse = |config: Value| {
        families::open(config.to_string().as_bytes(), Path::new("config.json")).unwrap_err().to_string()
    };
    for (kind, says) in [
        ("qwen2_audio", "Qwen2-Audio"),
        ("qwen3_omni_moe", "mixture of experts"),
        ("qwen2_5_vl", "sees and does not listen"),
        ("voxtral_realtime", "Realtime"),
        ("voxtral_tts", "TTS"),
        ("whisper", "'whisper'"),
        ("qwen3_forced_aligner", "aligner"),
    ] {
        let error = refuse(serde_json::json!({"model_type": kind}));
        assert!(error.contains(says) && error.contains("config.json"), "{error}");
        assert!(
            ["Voxtral-Mini-3B-2507", "Qwen2.5-Omni-3B", "Qwen3-ASR-0.6B"].iter().all(|n| error.contains(n))
        );
    }
    assert!(refuse(serde_json::json!({})).contains("without model_type"));
    let mut aligner = golden("asr-release")["config"].clone();
    aligner["thinker_config"]["classify_num"] = 5000.into();
    assert!(refuse(aligner).contains("aligner"));
    for (name, field, value, says) in [
        ("omni-release", "n_window", 101, "even"),
        ("omni-release", "output_dim", 7, "audio embeddings of 7"),
        ("omni-release", "num_mel_bins", 80, "80 mel bins"),
        ("asr-release", "n_window_infer", 810, "multiple"),
        ("asr-release", "n_window", 0, "is 0; it must be"),
        ("asr-release", "encoder_attention_heads", 0, "encoder heads is 0"),
    ] {
        let mut config = golden(name)["config"].clone();
        config["thinker_config"]["audio_config"][field] = value.into();
        let error = refuse(config);
        assert!(error.contains(says), "{error}");
    }
    let mut config = golden("omni-release")["config"].clone();
    config["thinker_config"]["text_config"]["use_sliding_window"] = true.into();
    assert!(refuse(config).contains("sliding_window"));
}

#[test]
fn wrong_mixed_and_truncated_checkpoints_are_errors() {
    let draw = Draw { seed: 1, embed: 1.0, final_norm: 1.0 };
    let omni = golden("omni-thinker");
    let dir = tempfile::tempdir().unwrap();
    let fail = || ModelFiles::open(dir.path()).err().map(|e| e.to_string()).unwrap_or_default();
    qwen::write(dir.path(), &omni["config"], "thinker", draw);
    assert_eq!(fail(), "");
    // A shard that is cut off, and one that is gone.
    let shard = dir.path().join("model-2-of-3.safetensors");
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() - 5]).unwrap();
    assert!(fail().contains("model-2-of-3.safetensors") && fail().contains("not a complete"), "{}", fail());
    std::fs::remove_file(&shard).unwrap();
    assert!(fail().contains("model-2-of-3.safetensors"), "{}", fail());
    std::fs::write(&shard, &bytes).unwrap();
    // The configuration of another model.
    let other = golden("omni-tied")["config"].to_string();
    std::fs::write(dir.path().join("config.json"), other).unwrap();
    assert!(fail().contains("do not fit the configuration"), "{}", fail());
    let other = tempfile::tempdir().unwrap();
    qwen::write(other.path(), &golden("omni-release")["config"], "release", draw);
    let asr = golden("asr-release")["config"].to_string();
    std::fs::write(other.path().join("config.json"), asr).unwrap();
    let error = ModelFiles::open(other.path()).err().unwrap().to_string();
    assert!(error.contains("missing: thinker.audio_tower.conv2d1"), "{error}");
    // The same tensor under two spellings.
    let twice = tempfile::tempdir().unwrap();
    let config = &golden("asr-tied")["config"];
    qwen::write(twice.path(), config, "transformers5", draw);
    std::fs::rename(twice.path().join("model.safetensors"), twice.path().join("a.safetensors")).unwrap();
    qwen::write(twice.path(), config, "release", draw);
    std::fs::rename(twice.path().join("model.safetensors"), twice.path().join("b.safetensors")).unwrap();
    let index = r#"{"weight_map":{"model.language_model.norm.weight":"a.safetensors","thinker.model.norm.weight":"b.safetensors"}}"#;
    std::fs::write(twice.path().join("model.safetensors.index.json"), index).unwrap();
    let error = ModelFiles::open(twice.path()).err().unwrap().to_string();
    assert!(error.contains("there twice"), "{error}");
    // Weights, and no tokenizer.
    qwen::write(dir.path(), &omni["config"], "thinker", draw);
    let error = ModelFiles::open(dir.path()).unwrap().load(&LoadOptions::default(), |_, _| {}).err().unwrap();
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
}
