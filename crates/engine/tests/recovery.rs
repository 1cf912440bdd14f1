//! Beginning again where the model lost its place, with the embedded model.

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::{engine, english, shipped, stream, words};
use wnw_engine::times::TimeOptions;
use wnw_engine::{
    Event, FinishReason, GuardConfig, Method, RecoveryConfig, Request, Roles, Timing, Transcript,
};
use wnw_kv::HeadId;
use wnw_kv::profile::WnwOptions;

const RATE: usize = wnw_audio::SAMPLE_RATE as usize;

/// The anchors of the embedded model's profile.
fn anchors() -> Vec<HeadId> {
    [(6, 0), (4, 0), (4, 1), (2, 0)].map(|(layer, kv_head)| HeadId { layer, kv_head }).to_vec()
}

fn request(recovery: Option<RecoveryConfig>) -> Request {
    Request { watch: anchors(), times: Some(TimeOptions::default()), recovery, ..english() }
}

/// The transcript, after checks that hold for all: what was told is what came of it.
fn run(samples: &[f32], request: &Request) -> Transcript {
    let mut spoken = String::new();
    let mut t = engine()
        .transcribe(stream(samples), request, &mut |event| {
            if let Event::Text(delta) = event {
                spoken.push_str(&delta);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    // What differs from run to run is not compared.
    t.timing = Timing::default();
    assert_eq!(spoken, t.text, "the deltas are the text");
    assert_eq!(t.statistics.new_tokens, t.tokens.len());
    assert!((t.duration - samples.len() as f64 / RATE as f64).abs() < 1e-9);
    if let Some(timed) = &t.words {
        let said: String = timed.iter().flat_map(|w| w.word.chars()).collect();
        assert_eq!(said, t.text.split_whitespace().collect::<String>(), "words are the text");
        assert!(timed.windows(2).all(|w| w[0].end <= w[1].start), "words are in order");
    } else {
        let joined: Vec<&str> =
            t.segments.iter().map(|s| s.text.as_str()).filter(|s| !s.is_empty()).collect();
        assert_eq!(joined.join(" "), t.text, "segments are the text");
        assert!(t.segments.windows(2).all(|s| s[0].end == s[1].start), "segments are the recording");
    }
    t
}

fn restarts(t: &Transcript) -> usize {
    t.warnings.iter().filter(|w| w.kind == "restart").count()
}

/// Whether no more was given to the model than the cost allows, besides the padding of each window to 30 s.
fn assert_bounded(t: &Transcript) {
    let seconds = t.statistics.audio_tokens as f64 / 12.5 - 30.0 * t.statistics.windows as f64;
    assert!(seconds <= (1.0 + RecoveryConfig::default().cost + 1.0) * t.duration, "{seconds} s");
}

/// Word errors per reference word.
fn error_rate(reference: &[String], hypothesis: &[String]) -> f64 {
    let mut row: Vec<usize> = (0..=hypothesis.len()).collect();
    for (i, r) in reference.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, h) in hypothesis.iter().enumerate() {
            let substituted = diagonal + usize::from(r != h);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[hypothesis.len()] as f64 / reference.len() as f64
}

/// The first two minutes, and what is said in them.
fn two_minutes() -> (Vec<f32>, Vec<String>) {
    let (samples, prompts) = shipped();
    let end = prompts.iter().map(|p| p.2).rfind(|end| *end < 120.0).unwrap() + 0.2;
    let said = prompts.iter().filter(|p| p.2 < end).flat_map(|p| words(&p.0)).collect();
    (samples[..(end * RATE as f64) as usize].to_vec(), said)
}

#[test]
fn text_that_hits_its_cap_goes_on_in_a_new_window() {
    let (samples, said) = two_minutes();
    // A third of the tokens that the window needs.
    let capped = |recovery| Request { tokens_per_second: 0.5, ..request(recovery) };
    let without = run(&samples, &capped(None));
    assert_eq!((without.finish_reason, restarts(&without)), (FinishReason::Length, 0));
    let config = RecoveryConfig { cost: 5.0, ..RecoveryConfig::default() };
    let with = run(&samples, &capped(Some(config)));
    assert_eq!(with.finish_reason, FinishReason::Stop, "{:?}", with.warnings);
    assert!(restarts(&with) >= 2);
    let rate = error_rate(&said, &words(&with.text));
    assert!(rate < 0.15, "{rate}: {}", with.text);
    assert!(error_rate(&said, &words(&without.text)) > 0.3);
    // Also with words streamed in small blocks and the method that recalls.
    let profile = serde_json::from_slice(wnw_tiny::PROFILE).unwrap();
    let options = WnwOptions { r_gpu: 0.4, ..WnwOptions::default() };
    let method = Method::Wnw { roles: Roles::Profile(Arc::new(profile)), options, fixed_r_gpu: true };
    let wnw = run(&samples, &Request { method, times: None, ..capped(Some(config)) });
    assert_eq!(wnw.finish_reason, FinishReason::Stop, "{:?}", wnw.warnings);
    assert_eq!(run(&samples, &capped(Some(config))), with, "twice the same");
}

#[test]
fn speech_behind_an_early_end_is_not_lost() {
    let (samples, said) = two_minutes();
    let plain = run(&samples, &request(None));
    let with = run(&samples, &request(Some(RecoveryConfig::default())));
    let (before, after) = (error_rate(&said, &words(&plain.text)), error_rate(&said, &words(&with.text)));
    assert!(after <= before + 1e-9, "{before} {after}");
}

#[test]
fn noise_is_not_said_to_be_transcribed_again() {
    let mut state = 1u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 * 0.4 - 0.2
    };
    let samples: Vec<f32> = (0..60 * RATE).map(|_| noise()).collect();
    let t = run(&samples, &request(Some(RecoveryConfig::default())));
    assert_eq!(t.statistics.windows, 1);
    let cut: Vec<&str> =
        t.warnings.iter().filter(|w| w.kind == "restart").map(|w| w.message.as_str()).collect();
    assert!(!cut.is_empty(), "the model makes words up, and goes back or hangs: {}", t.text);
    assert!(cut.iter().all(|message| message.contains("no speech follows")), "{cut:?}");
}

#[test]
fn constant_false_alarms_end_and_agree() {
    let (samples, said) = two_minutes();
    // Every long word is taken for a skip, until the cost is used up.
    let nervous =
        RecoveryConfig { skip_seconds: 0.0, confirm: 1, held_back: 12, ..RecoveryConfig::default() };
    for times in [None, Some(TimeOptions::default())] {
        let t = run(&samples, &Request { times, ..request(Some(nervous)) });
        assert!(restarts(&t) >= 1, "{:?}", t.warnings);
        assert_bounded(&t);
        assert!(error_rate(&said, &words(&t.text)) < 0.5, "{}", t.text);
    }
}

#[test]
fn a_guard_that_sees_run_aways_everywhere_gives_up_in_bounded_time() {
    let (samples, _) = two_minutes();
    let guard = GuardConfig { ratio_window: 4, min_distinct: 2.0, ..GuardConfig::default() };
    let t = run(&samples, &Request { guard: Some(guard), ..request(Some(RecoveryConfig::default())) });
    assert_eq!(t.finish_reason, FinishReason::Repetition);
    assert!(t.warnings.iter().any(|w| w.kind == "repetition"));
    assert_bounded(&t);
}

#[test]
fn without_anchors_or_with_a_cap_of_the_caller_nothing_is_begun_again() {
    let (samples, _) = two_minutes();
    let on = Some(RecoveryConfig::default());
    let blind =
        |recovery| Request { watch: Vec::new(), times: None, tokens_per_second: 0.5, ..request(recovery) };
    assert_eq!(run(&samples, &blind(on)), run(&samples, &blind(None)));
    let capped = |recovery| Request { max_new_tokens: Some(50), ..request(recovery) };
    assert_eq!(run(&samples, &capped(on)), run(&samples, &capped(None)));
}
