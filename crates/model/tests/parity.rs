//! The whole model against transformers 5.24 on random weights: encoder, projector, prompt logits, greedy tokens.
//!
//! `cargo test --release -p wnw-model --test parity -- --nocapture` prints the table.

#[path = "common/golden.rs"]
mod golden;

use std::ops::ControlFlow;

use golden::{AUDIO_ID, CASES, Case, FRAMES, MELS};
use wnw_audio::Mel;
use wnw_kv::policies::Full;
use wnw_kv::{KvDtype, KvStore, PromptLayout, StoreOptions};
use wnw_model::prompt::Prompt;
use wnw_model::{LoadOptions, ModelFiles, WeightDtype};

/// Largest difference allowed in f32, relative to the largest value of the reference.
const TOLERANCE: f32 = 1e-4;

struct Outcome {
    encoder: f32,
    projector: f32,
    logits: f32,
    last_logits: f32,
    equal_tokens: usize,
}

fn prompt(ids: &[u32]) -> Prompt {
    let mut audio = Vec::new();
    let mut at = 0;
    while let Some(start) = ids[at..].iter().position(|id| *id == AUDIO_ID).map(|i| at + i) {
        let end = ids[start..].iter().position(|id| *id != AUDIO_ID).map_or(ids.len(), |i| start + i);
        audio.push(start..end);
        at = end;
    }
    Prompt { ids: ids.to_vec(), layout: PromptLayout::new(ids.len(), audio).unwrap() }
}

/// Runs a case and compares; differences are relative to the reference's largest value.
fn run(case: &Case, dtype: WeightDtype, kv_dtype: KvDtype) -> Outcome {
    let files = ModelFiles::open(&case.dir).unwrap();
    let (encoder, decoder) = files.load_parts(&LoadOptions { dtype: Some(dtype) }, |_, _| {}).unwrap();
    let mel = case.mel();
    let mut states = Vec::new();
    for chunk in mel.chunks_exact(MELS * FRAMES) {
        let chunk = Mel { data: chunk.to_vec(), n_mels: MELS, n_frames: FRAMES };
        states.extend(encoder.encode(&chunk, 0..FRAMES, &mut || ControlFlow::Continue(())).unwrap());
    }
    let audio = encoder.project(&states);

    let prompt = prompt(&case.prompt);
    let n = prompt.ids.len();
    let x = decoder.embed_prompt(&prompt, &audio).unwrap();
    let options = StoreOptions { dtype: kv_dtype, ..StoreOptions::default() };
    let mut store = KvStore::new(decoder.kv_shape(), prompt.layout.clone(), &options);
    let hidden = decoder.prefill(x, n, &mut store, &mut Full, &mut |_| ControlFlow::Continue(())).unwrap();
    let logits = decoder.logits(&hidden);

    // Teacher forced after a difference, so that one near tie does not hide the rest.
    let mut buffers = decoder.step_buffers();
    let vocab = case.logits.width;
    let mut next = logits[(n - 1) * vocab..].to_vec();
    let mut equal_tokens = 0;
    for (i, want) in case.greedy.iter().enumerate() {
        let best = (0..vocab).rev().max_by(|a, b| next[*a].total_cmp(&next[*b])).unwrap();
        equal_tokens += usize::from(best as u32 == *want);
        next = decoder.step(*want, n + i, &mut store, &mut buffers).unwrap().to_vec();
    }
    store.check_integrity().unwrap();
    assert!(next.iter().all(|x| x.is_finite()));
    let largest = case.last_logits.iter().fold(0f32, |m, x| m.max(x.abs()));
    let last = next.iter().zip(&case.last_logits).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    Outcome {
        encoder: case.encoder.max_difference(&states) / case.encoder.max_abs(),
        projector: case.projector.max_difference(&audio) / case.projector.max_abs(),
        logits: case.logits.max_difference(&logits) / case.logits.max_abs(),
        last_logits: last / largest,
        equal_tokens,
    }
}

fn describe(case: &Case) -> String {
    let d = ModelFiles::open(&case.dir).unwrap().decoder;
    format!(
        "{:<17} h {:>3}, {:>2} q / {} kv × {:>2}, {} chunk{}, {:<6}",
        case.name,
        d.hidden_size,
        d.n_q_heads,
        d.n_kv_heads,
        d.head_dim,
        case.chunks,
        if case.chunks == 1 { " " } else { "s" },
        if d.tied { "tied" } else { "untied" },
    )
}

#[test]
fn f32_agrees_with_transformers() {
    println!(
        "{:<62} encoder projector  logits  64th step  tokens",
        "f32, max |difference| / max |reference|"
    );
    for name in CASES {
        let case = Case::read(name);
        let o = run(&case, WeightDtype::F32, KvDtype::F32);
        println!(
            "{:<62} {:.1e} {:.1e}   {:.1e} {:.1e}    {}/64",
            describe(&case),
            o.encoder,
            o.projector,
            o.logits,
            o.last_logits,
            o.equal_tokens
        );
        for (what, difference) in [
            ("encoder", o.encoder),
            ("projector", o.projector),
            ("logits", o.logits),
            ("64th step", o.last_logits),
        ] {
            assert!(difference <= TOLERANCE, "{name}: {what} differs by {difference:e}");
        }
        assert_eq!(o.equal_tokens, 64, "{name}");
    }
}

/// Narrower types: the error is reported, and bounded by what their significands allow.
#[test]
fn narrow_types_stay_close_to_transformers() {
    println!("{:<17} weights  kv    logits   tokens", "case");
    for name in CASES {
        let case = Case::read(name);
        for (dtype, kv_dtype, limit) in [
            (WeightDtype::Bf16, KvDtype::Bf16, 0.06),
            (WeightDtype::F16, KvDtype::F16, 0.01),
            (WeightDtype::Q8_0, KvDtype::Bf16, 0.15),
        ] {
            let o = run(&case, dtype, kv_dtype);
            println!(
                "{name:<17} {:<8} {:<5} {:.1e}  {}/64",
                dtype.to_string(),
                kv_dtype.to_string(),
                o.logits,
                o.equal_tokens
            );
            assert!(o.logits <= limit, "{name} {dtype}: logits differ by {:e}", o.logits);
        }
    }
}
