//! Calibration of the embedded model on its sample recording.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use wnw_audio::{AudioStream, DecodeOptions, Source};
use wnw_calibrate::alignment::AlignedWord;
use wnw_calibrate::forced::ForcedAnswer;
use wnw_calibrate::{mapping, sensitivity};
use wnw_model::prompt::Task;
use wnw_model::{EmbeddedModel, LoadOptions, ModelFiles};

fn files() -> ModelFiles {
    let files = EmbeddedModel {
        name: "tiny",
        config: wnw_tiny::CONFIG,
        tekken: wnw_tiny::TEKKEN,
        weights: wnw_tiny::WEIGHTS,
    };
    ModelFiles::embedded(&files).unwrap()
}

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples").join(name)
}

/// The shipped recording cut after the last prompt that ends before `seconds`: samples, reference, words.
fn shipped(seconds: f64) -> (Vec<f32>, String, Vec<AlignedWord>) {
    let audio =
        AudioStream::open(Source::Path(sample("prompts-en.flac")), &DecodeOptions::default()).unwrap();
    let mut samples = audio.read_all().unwrap().samples;
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(sample("prompts-en.words.json")).unwrap()).unwrap();
    let prompts: Vec<_> =
        json["prompts"].as_array().unwrap().iter().filter(|p| p["end"].as_f64().unwrap() < seconds).collect();
    let end = prompts.last().unwrap()["end"].as_f64().unwrap() + 0.2;
    samples.truncate((end * 16_000.0) as usize);
    let text: Vec<&str> = prompts.iter().map(|p| p["text"].as_str().unwrap()).collect();
    let words = prompts.iter().flat_map(|p| p["words"].as_array().unwrap());
    let words = words.map(|w| AlignedWord {
        text: w["word"].as_str().unwrap().into(),
        start: w["start"].as_f64(),
        end: w["end"].as_f64(),
        confidence: None,
    });
    (samples, text.join(" "), words.collect())
}

/// The model knows this recording by heart, so its loss is small; every token of the reference has a word.
#[test]
fn the_sample_recording_is_mapped_and_has_gradients() {
    let (samples, reference, words) = shipped(12.0);
    let model = files().load(&LoadOptions::default(), |_, _| {}).unwrap();
    let files = files();
    let answer = model.tokenizer().encode(&reference);
    let times = mapping::token_times(model.tokenizer(), &answer, &words);
    assert!(times.iter().all(Option::is_some) && times.is_sorted_by_key(|t| t.map(|t| t.start)));

    let prompt = model.prompt(&Task::transcribe(Some("en")).unwrap(), samples.len());
    let forced = ForcedAnswer::new(&prompt, &answer, model.eos()).unwrap();
    let audio = model.embed_audio(&samples, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let x = model.decoder().embed_prompt(&forced.sequence, &audio).unwrap();
    let go = &mut |_, _| ControlFlow::Continue(());
    let found = sensitivity::measure(&files.config.decoder, &files.checkpoint, &forced, x, go).unwrap();
    assert!(found.loss < 0.3, "loss {}", found.loss);
    assert_eq!(found.per_head().len(), 32);
    assert!(found.per_head().iter().all(|h| *h > 0.0));
}
