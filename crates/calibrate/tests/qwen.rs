//! Head scores of Qwen2.5-Omni (biases) and Qwen3-ASR (normalised heads) against PyTorch (tools/goldens/qwen.py).

#[path = "../../model/tests/common/qwen.rs"]
mod qwen;

use std::ops::ControlFlow;
use std::path::Path;

use serde_json::Value;
use wnw_calibrate::forced::ForcedAnswer;
use wnw_calibrate::sensitivity;
use wnw_calibrate::voice::VoiceProbe;
use wnw_kv::{KvStore, PromptLayout, StoreOptions};
use wnw_model::prompt::Prompt;
use wnw_model::{LoadOptions, ModelFiles, WeightDtype};

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

#[test]
fn scores_are_pytorchs() {
    for name in ["omni-release", "asr-release"] {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../model/tests/data/qwen/{name}.json"));
        let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let draw = qwen::Draw { seed: golden["seed"].as_u64().unwrap() as u32, embed: 1.0, final_norm: 1.0 };
        qwen::write(dir.path(), &golden["config"], golden["layout"].as_str().unwrap(), draw);
        let files = ModelFiles::open(dir.path()).unwrap();
        let options = LoadOptions { dtype: Some(WeightDtype::F32) };
        let (encoder, decoder) = files.load_parts(&options, |_, _| {}).unwrap();

        let (mut ids, mut stretch, mut audio) = (Vec::new(), 0..0, Vec::new());
        for part in golden["prompt"].as_array().unwrap() {
            let Some(frames) = part.as_array() else {
                ids.push(part.as_u64().unwrap() as u32);
                continue;
            };
            let seed = golden["mel_seed"].as_u64().unwrap() as u32;
            let mel = qwen::mel(seed, frames[0].as_u64().unwrap() as usize);
            audio = encoder.embed(&mel, &mut |_, _| ControlFlow::Continue(())).unwrap();
            stretch = ids.len()..ids.len() + audio.len() / files.decoder.hidden_size;
            ids.resize(stretch.end, golden["pad"].as_u64().unwrap() as u32);
        }
        let layout = PromptLayout::new(ids.len(), std::iter::once(stretch).collect()).unwrap();
        let scores = &golden["scores"];
        let eos = scores["eos"].as_u64().unwrap() as u32;
        let answer = ForcedAnswer::new(&Prompt { ids, layout }, &numbers(&scores["answer"]), eos).unwrap();
        let x = decoder.embed_prompt(&answer.sequence, &audio).unwrap();

        let spans = scores["spans"].as_array().unwrap().iter().map(numbers);
        let watched: Vec<_> = answer.queries().zip(spans.map(|s| s[0] as usize..s[1] as usize)).collect();
        let shape = decoder.kv_shape();
        let mut probe = VoiceProbe::new(shape, scores["top_k"].as_u64().unwrap() as usize, &watched);
        let mut store = KvStore::new(shape, answer.sequence.layout.clone(), &StoreOptions::default());
        let go = &mut |_| ControlFlow::Continue(());
        decoder.prefill(x.clone(), 1, &mut store, &mut probe, go).unwrap();
        let hits: Vec<u64> = numbers(&scores["hits"]).into_iter().map(u64::from).collect();
        assert_eq!(probe.count.hits, hits, "{name}");
        assert!(hits.iter().sum::<u64>() > 20, "{name}");

        let go = &mut |_, _| ControlFlow::Continue(());
        let found = sensitivity::measure(&files.decoder, &files.checkpoint, &answer, x, go).unwrap();
        let loss = scores["loss"].as_f64().unwrap();
        assert!((found.loss / loss - 1.0).abs() < 1e-5, "{name}: loss {} for {loss}", found.loss);
        let wanted: Vec<f64> = scores["hs"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        assert_eq!(found.per_head().len(), wanted.len());
        for (found, wanted) in found.per_head().iter().zip(&wanted) {
            assert!((found / wanted - 1.0).abs() < 1e-4, "{name}: {found} for {wanted}");
        }
    }
}
