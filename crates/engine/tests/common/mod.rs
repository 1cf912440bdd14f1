//! What the engine's tests share: the embedded model and the shipped recording.
#![allow(dead_code)] // no test file uses all of it

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use wnw_audio::{AudioStream, DecodeOptions, PcmFormat, Source};
use wnw_engine::{Engine, Request};
use wnw_model::prompt::Task;
use wnw_model::{EmbeddedModel, LoadOptions, ModelFiles};

pub fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let files = EmbeddedModel {
            name: "tiny",
            config: wnw_tiny::CONFIG,
            tekken: wnw_tiny::TEKKEN,
            weights: wnw_tiny::WEIGHTS,
        };
        let model = ModelFiles::embedded(&files).unwrap().load(&LoadOptions::default(), |_, _| {}).unwrap();
        Engine::new(model)
    })
}

pub fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples").join(name)
}

/// The shipped recording: samples, and its prompts with start and end in seconds.
pub fn shipped() -> (Vec<f32>, Vec<(String, f64, f64)>) {
    let audio =
        AudioStream::open(Source::Path(sample("prompts-en.flac")), &DecodeOptions::default()).unwrap();
    let json = std::fs::read(sample("prompts-en.words.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let prompts = json["prompts"].as_array().unwrap().iter();
    let prompts = prompts
        .map(|p| {
            (p["text"].as_str().unwrap().to_owned(), p["start"].as_f64().unwrap(), p["end"].as_f64().unwrap())
        })
        .collect();
    (audio.read_all().unwrap().samples, prompts)
}

pub fn stream(samples: &[f32]) -> AudioStream {
    let bytes: Vec<u8> = samples.iter().flat_map(|x| x.to_le_bytes()).collect();
    let pcm: PcmFormat = "f32le:16000:1".parse().unwrap();
    let options = DecodeOptions { pcm: Some(pcm), ..DecodeOptions::default() };
    AudioStream::open(Source::Bytes(bytes.into()), &options).unwrap()
}

pub fn english() -> Request {
    Request { task: Task::transcribe(Some("en")).unwrap(), ..Request::default() }
}

pub fn words(text: &str) -> Vec<String> {
    let keep = |c: char| c.is_alphanumeric() || c == '\'';
    text.to_lowercase().split(|c| !keep(c)).filter(|w| !w.is_empty()).map(str::to_owned).collect()
}
