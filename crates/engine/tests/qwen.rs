//! WnW and its rivals on checkpoints of Qwen2.5-Omni and Qwen3-ASR with random weights, through the engine.

#[path = "../../model/tests/common/qwen.rs"]
mod qwen;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::Value;
use wnw_audio::{AudioStream, DecodeOptions, PcmFormat, Source};
use wnw_engine::{Engine, EngineError, KvOptions, Method, Request, Roles, Transcript};
use wnw_kv::KvDtype;
use wnw_kv::policies::METHODS;
use wnw_kv::profile::WnwOptions;
use wnw_model::prompt::Task;
use wnw_model::{LoadOptions, ModelError, ModelFiles, WeightDtype};

const FAMILIES: [&str; 2] = ["omni-release", "asr-release"];

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/qwen")
}

/// A checkpoint with random weights and the small tokenizer; `change` may alter its configuration.
fn engine(name: &str, change: impl FnOnce(&mut Value)) -> (tempfile::TempDir, Engine) {
    let golden: Value =
        serde_json::from_slice(&std::fs::read(data().join(format!("{name}.json"))).unwrap()).unwrap();
    let mut config = golden["config"].clone();
    change(&mut config);
    let dir = tempfile::tempdir().unwrap();
    let draw = qwen::Draw { seed: 11, embed: 1.0, final_norm: 1.0 };
    qwen::write(dir.path(), &config, golden["layout"].as_str().unwrap(), draw);
    qwen::add_tokenizer(dir.path());
    let options = LoadOptions { dtype: Some(WeightDtype::F32) };
    let model = ModelFiles::open(dir.path()).unwrap().load(&options, |_, _| {}).unwrap();
    (dir, Engine::new(model))
}

/// Noise whose loudness changes, so that the encoder has something to tell apart.
fn stream(seconds: f64) -> AudioStream {
    let mut state = 1u32;
    let bytes: Vec<u8> = (0..(seconds * 16_000.0) as usize)
        .flat_map(|i| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let loud = (1 + (i / 1600 * 7) % 10) as f32 / 10.0;
            (((state >> 16) as f32 / 65_536.0 - 0.5) * loud).to_le_bytes()
        })
        .collect();
    let pcm: PcmFormat = "f32le:16000:1".parse().unwrap();
    let options = DecodeOptions { pcm: Some(pcm), ..DecodeOptions::default() };
    AudioStream::open(Source::Bytes(bytes.into()), &options).unwrap()
}

fn request(method: Method) -> Request {
    Request {
        task: Task::transcribe(Some("en")).unwrap(),
        method,
        kv: KvOptions { dtype: KvDtype::F32, ..KvOptions::default() },
        max_new_tokens: Some(24),
        guard: None,
        ..Request::default()
    }
}

fn run(engine: &Engine, request: &Request, seconds: f64) -> Result<Transcript, EngineError> {
    engine.transcribe(stream(seconds), request, &mut |_| ControlFlow::Continue(()))
}

fn wnw(engine: &Engine, options: WnwOptions) -> Request {
    let roles = Roles::Uniform { tokens_per_second: engine.model().audio_tokens_per_second() };
    request(Method::Wnw { roles, options, fixed_r_gpu: true })
}

#[test]
fn every_method_works_on_every_family() {
    for name in FAMILIES {
        let (_dir, engine) = engine(name, |_| {});
        let seconds = 21.3;
        let full = run(&engine, &request(Method::Full), seconds).unwrap();
        let audio_tokens = if name.starts_with("omni") { 532 } else { 277 };
        assert_eq!(full.statistics.audio_tokens, audio_tokens, "{name}");
        assert!(!full.tokens.is_empty() && full.language.as_deref() == Some("en"));
        let options = |r_gpu| WnwOptions { r_gpu, n_anchor: Some(1), ..WnwOptions::default() };
        let whole = run(&engine, &wnw(&engine, options(1.0)), seconds).unwrap();
        assert_eq!((&whole.tokens, whole.statistics.kv.r_gpu), (&full.tokens, 1.0), "{name}");
        // Recall of everything from the first step on is the full cache too.
        let heads = engine.model().decoder().kv_shape();
        let heads = heads.n_layers * heads.n_kv_heads;
        let everything = WnwOptions {
            top_chunks: usize::MAX,
            release_after: u32::MAX,
            n_voice: Some(heads),
            ..options(0.3)
        };
        assert_eq!(run(&engine, &wnw(&engine, everything), seconds).unwrap().tokens, full.tokens, "{name}");
        // One head recalls beside the anchor: what it adds to the retention is bounded.
        let few = WnwOptions { n_voice: Some(2), ..options(0.3) };
        let part = run(&engine, &wnw(&engine, few), seconds).unwrap();
        let bound = 0.3 + 2.0 / heads as f64;
        assert!((0.25..=bound).contains(&part.statistics.kv.r_gpu), "{name}: {}", part.statistics.kv.r_gpu);
        let mut rivals = 0;
        for entry in METHODS.iter().filter(|entry| !entry.needs_profile && !entry.is_full()) {
            let named = |r_gpu| Method::Named { entry, r_gpu, profile: None, options: BTreeMap::new() };
            let got = run(&engine, &request(named(Some(0.3))), seconds)
                .unwrap_or_else(|error| panic!("{name}, {}: {error}", entry.name));
            assert!(got.statistics.kv.r_gpu <= 1.0, "{name}, {}", entry.name);
            assert_eq!(got.statistics.audio_tokens, audio_tokens);
            rivals += 1;
        }
        assert!(rivals >= 8, "{rivals}");
    }
}

#[test]
fn recordings_longer_than_the_model_was_made_for_go_by_windows() {
    for name in FAMILIES {
        let (_dir, engine) = engine(name, |config| config["max_audio_seconds"] = 5.into());
        assert_eq!(engine.model().max_audio_seconds(), 5.0);
        let got = run(&engine, &Request { max_new_tokens: Some(4), ..request(Method::Full) }, 17.0).unwrap();
        assert!(got.statistics.windows >= 4, "{}", got.statistics.windows);
        let seconds = got.statistics.audio_tokens as f64 / engine.model().audio_tokens_per_second();
        assert!((seconds - 17.0).abs() < 0.5, "{seconds} s of audio were heard");
    }
    // A clip of Qwen2.5-Omni is 300 s, whatever window is asked for: refused, not cut off.
    let (_dir, engine) = engine("omni-three", |_| {});
    let request = Request { window_seconds: Some(400.0), max_new_tokens: Some(1), ..request(Method::Full) };
    let error = run(&engine, &request, 1.0).unwrap_err().to_string();
    assert_eq!(error, "Qwen2.5-Omni takes at most 5m of audio in one pass; use --window 5m or less");
}

/// What makes a prompt too long is what the advice speaks of.
#[test]
fn a_prompt_that_does_not_fit_says_what_is_too_long() {
    let with_positions = |name: &str, max: usize| {
        engine(name, |config| {
            let nested = config["thinker_config"].is_object();
            let part = if nested { &mut config["thinker_config"] } else { config };
            part["text_config"]["max_position_embeddings"] = max.into();
        })
    };
    let chat = Request { task: Task::Chat { instruction: "a ".repeat(400) }, ..request(Method::Full) };
    let context = Task::transcribe(Some("en")).unwrap().with_context("a ".repeat(400));
    let context = Request { task: context, ..request(Method::Full) };
    let ordinary = request(Method::Full);
    let words = "use a shorter --prompt or --context";
    for (name, max, request, seconds, says) in [
        ("omni-release", 300, &chat, 2.0, words),
        ("omni-release", 700, &chat, 20.0, words),
        ("asr-release", 300, &context, 2.0, words),
        ("omni-release", 300, &ordinary, 20.0, "use a shorter --window"),
        ("omni-release", 5, &ordinary, 1.0, "max_position_embeddings of its configuration is too small"),
    ] {
        let (_dir, engine) = with_positions(name, max);
        let error = run(&engine, request, seconds).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains(&format!("the model has {max},")), "{error}");
    }
}

#[test]
fn too_short_a_recording_is_refused_with_a_reason() {
    let (_dir, omni) = engine("omni-release", |_| {});
    let error = run(&omni, &request(Method::Full), 0.02).unwrap_err();
    assert!(matches!(error, EngineError::Model(ModelError::TooShort { samples: 320, .. })), "{error}");
    assert!(run(&omni, &request(Method::Full), 0.03).is_ok());
    // Qwen3-ASR pads to half a second.
    let (_dir, asr) = engine("asr-release", |_| {});
    assert_eq!(run(&asr, &request(Method::Full), 0.01).unwrap().statistics.audio_tokens, 7);
}

#[test]
fn tasks_that_a_family_does_not_know_are_refused() {
    let (_dir, asr) = engine("asr-release", |_| {});
    let ask = |engine: &Engine, task: Task| {
        let error = run(engine, &Request { task, ..request(Method::Full) }, 1.0).err();
        error.map(|e| e.to_string()).unwrap_or_default()
    };
    let translate = || Task::translate("fr").unwrap();
    assert!(ask(&asr, translate()).contains("only transcribes"));
    assert!(ask(&asr, Task::Chat { instruction: "What?".into() }).contains("only transcribes"));
    let words = || Task::transcribe(None).unwrap().with_context("Waxing".into());
    assert_eq!(ask(&asr, words()), "");
    let (_dir, omni) = engine("omni-release", |_| {});
    assert_eq!(ask(&omni, translate()), "");
    assert!(ask(&omni, words()).contains("context"));
}

/// The header of an answer is not text: it says the language, or that nothing was said.
#[test]
fn the_header_of_an_answer_gives_the_language() {
    let (_dir, engine) = engine("asr-release", |_| {});
    let model = engine.model();
    let tokenizer = model.tokenizer();
    let read = |task: &Task, header: &str, text: &str| {
        let mut ids = tokenizer.encode(header).unwrap();
        ids.push(tokenizer.special("<asr_text>").unwrap());
        let header_tokens = ids.len();
        ids.extend(tokenizer.encode(text).unwrap());
        let mut reader = model.answer_reader(task);
        let mut out: String = ids.iter().map(|id| reader.push(*id)).collect();
        out.push_str(&reader.finish());
        let header = reader.header();
        assert!(reader.header_tokens() == header_tokens || reader.header_tokens() == 0);
        (out, header.language.clone(), header.no_speech)
    };
    let heard = Task::transcribe(None).unwrap();
    let (en, none) = (Some("en".to_owned()), None::<String>);
    assert_eq!(read(&heard, "language English", "What is said?"), ("What is said?".into(), en, false));
    assert_eq!(read(&heard, "language None", ""), (String::new(), none.clone(), true));
    // When the language is given, the header is part of the prompt and all that comes is text.
    let given = Task::transcribe(Some("en")).unwrap();
    assert_eq!(read(&given, "a", "b"), ("a<asr_text>b".into(), none, false));
    // An answer without a header is text as a whole.
    let mut reader = model.answer_reader(&heard);
    let out: String = tokenizer.encode("What").unwrap().iter().map(|id| reader.push(*id)).collect();
    assert_eq!((out.as_str(), reader.finish().as_str()), ("", "What"));
}
