//! The embedded model and its sample recording.

use std::path::{Path, PathBuf};

use wnw_audio::{AudioStream, DecodeOptions, Source};
use wnw_calibrate::alignment::AlignedWord;
use wnw_model::{EmbeddedModel, ModelFiles};

pub fn files() -> ModelFiles {
    let files = EmbeddedModel {
        name: "tiny",
        config: wnw_tiny::CONFIG,
        tekken: wnw_tiny::TEKKEN,
        weights: wnw_tiny::WEIGHTS,
    };
    ModelFiles::embedded(&files).unwrap()
}

fn shipped_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples").join(name)
}

/// The shipped recording cut after the last prompt that ends before `seconds`: samples, reference, words.
pub fn shipped(seconds: f64) -> (Vec<f32>, String, Vec<AlignedWord>) {
    let audio =
        AudioStream::open(Source::Path(shipped_file("prompts-en.flac")), &DecodeOptions::default()).unwrap();
    let mut samples = audio.read_all().unwrap().samples;
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(shipped_file("prompts-en.words.json")).unwrap()).unwrap();
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

/// The four KV heads whose attention was guided to the audio in training, layer · 4 + head; see the model's card.
pub const GUIDED: [usize; 4] = [8, 16, 17, 24];
