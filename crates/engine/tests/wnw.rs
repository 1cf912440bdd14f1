//! WnW through the embedded model: equal to the full cache where it must be, within its budget everywhere.

mod common;

use std::ops::ControlFlow;

use common::{engine, english, shipped, stream};
use wnw_engine::{
    EngineError, Event, FinishReason, KvOptions, Method, MethodError, Request, Roles, Sampling, Transcript,
};
use wnw_kv::profile::WnwOptions;
use wnw_kv::{HeadId, HostPlace, KvDtype, Role, SwapMode};

const RATE: usize = wnw_audio::SAMPLE_RATE as usize;
/// KV bytes of one position of the embedded model in bf16: 8 layers, 4 KV heads, 32 elements, keys and values.
const POSITION: u64 = 8 * 4 * 32 * 2 * 2;

/// WnW without a profile: roles do not matter for what is tested here.
fn wnw(options: WnwOptions) -> Request {
    let roles = Roles::Uniform { tokens_per_second: 12.5 };
    Request { method: Method::Wnw { roles, options, fixed_r_gpu: true }, ..english() }
}

fn at(r_gpu: f64) -> WnwOptions {
    WnwOptions { r_gpu, n_anchor: Some(3), ..WnwOptions::default() }
}

fn run(request: &Request, seconds: usize) -> Result<Transcript, EngineError> {
    let (samples, _) = shipped();
    engine().transcribe(stream(&samples[..seconds * RATE]), request, &mut |_| ControlFlow::Continue(()))
}

#[test]
fn all_retention_or_all_recall_is_the_full_cache_token_for_token() {
    let full = run(&english(), 45).unwrap();
    assert!(full.tokens.len() > 40, "{}", full.text);
    let whole = run(&wnw(at(1.0)), 45).unwrap();
    assert_eq!(full.tokens, whole.tokens);
    assert_eq!(whole.statistics.kv.r_gpu, 1.0);
    assert_eq!(whole.statistics.kv.kv_bytes, full.statistics.kv.kv_bytes);
    // Every chunk wanted from the first step on and none ever released; nothing is fixed.
    let everything =
        WnwOptions { top_chunks: usize::MAX, release_after: u32::MAX, n_voice: Some(32), ..at(0.3) };
    let recalled = run(&wnw(everything), 45).unwrap();
    assert_eq!(full.tokens, recalled.tokens);
    assert_eq!(recalled.statistics.kv.r_gpu, 1.0);
    assert!(recalled.statistics.kv.swaps.recalled_segments > 0);
}

#[test]
fn copying_beside_the_computation_changes_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let mut transcripts = Vec::new();
    for (swap, host) in [
        (SwapMode::Overlap, HostPlace::Ram),
        (SwapMode::Sync, HostPlace::Ram),
        (SwapMode::Overlap, HostPlace::File(dir.path().into())),
    ] {
        let kv = KvOptions { swap, host, ..KvOptions::default() };
        transcripts
            .push(run(&Request { kv, ..wnw(WnwOptions { n_voice: Some(24), ..at(0.3) }) }, 60).unwrap());
    }
    assert!(transcripts[0].statistics.kv.swaps.recalled_segments > 20);
    for other in &transcripts[1..] {
        assert_eq!(transcripts[0].tokens, other.tokens);
        assert_eq!(transcripts[0].statistics, other.statistics);
    }
}

#[test]
fn a_fifth_of_the_audio_is_a_fifth_of_the_bytes() {
    // Few tidal heads: without a profile nobody knows what their recall will add.
    let options = WnwOptions { n_voice: Some(6), ..at(0.2) };
    let (full, part) = (run(&english(), 90).unwrap(), run(&wnw(options), 90).unwrap());
    let (full, part) = (full.statistics, part.statistics);
    assert!((part.kv.r_gpu - 0.2).abs() < 0.05, "{}", part.kv.r_gpu);
    assert!(part.kv.r_gpu_cpu > part.kv.r_gpu);
    let text =
        |s: &wnw_engine::Statistics| (s.prompt_tokens - s.audio_tokens + s.new_tokens) as u64 * POSITION;
    // Whole pages: each of the 32 heads may leave most of one empty.
    let rounding = 32 * 63 * 128;
    let audio = part.audio_tokens as u64 * POSITION;
    assert!(full.kv.kv_bytes >= audio + text(&full) - POSITION);
    let most = (0.25 * audio as f64) as u64 + text(&part) + rounding;
    assert!(part.kv.kv_bytes <= most, "{} > {most}", part.kv.kv_bytes);
    // During prefill there is one layer in full (in f32) beside what was kept of the layers so far.
    let layer = part.prompt_tokens as u64 * POSITION / 8 * 2;
    let bound = layer + part.kv.kv_bytes;
    assert!(
        part.kv.kv_peak_bytes <= bound && part.kv.kv_peak_bytes >= layer,
        "{} > {bound}",
        part.kv.kv_peak_bytes
    );
    let heads = |role| part.kv.roles.iter().find(|r| r.role == role).map(|r| (r.heads, r.r_gpu));
    assert_eq!(heads(Role::Anchor), Some((3, 1.0)));
    assert!(heads(Role::Tidal).unwrap().1 < 0.5);
}

#[test]
fn a_budget_decides_the_retention_or_is_refused_with_the_least_that_works() {
    let budgeted = |budget: u64| {
        let roles = Roles::Uniform { tokens_per_second: 12.5 };
        let method = Method::Wnw { roles, options: at(0.2), fixed_r_gpu: false };
        Request { method, kv: KvOptions { budget: Some(budget), ..KvOptions::default() }, ..english() }
    };
    let full = run(&english(), 60).unwrap();
    // Room for everything: then it is the full cache.
    let roomy = run(&budgeted(64 << 20), 60).unwrap();
    assert_eq!((roomy.tokens, roomy.statistics.kv.r_gpu), (full.tokens, 1.0));
    for share in [0.55, 0.75] {
        let budget = (share * (60.0 * 12.5 + 400.0) * POSITION as f64) as u64;
        let got = run(&budgeted(budget), 60).unwrap();
        let used = got.statistics.kv.kv_bytes;
        assert!(used <= budget && used > budget / 2, "{used} of {budget}");
        assert_eq!(got.statistics.kv.swaps.denied, 0);
    }
    let error = run(&budgeted(1 << 20), 60).unwrap_err();
    let EngineError::Method(MethodError::Budget { least, .. }) = error else { panic!("{error}") };
    assert!(run(&budgeted(least), 60).is_ok(), "the least that is named must work");
    assert!(run(&budgeted(least - 1), 60).is_err());
    let kv = KvOptions { budget: Some(1 << 20), ..KvOptions::default() };
    let error = run(&Request { kv, ..english() }, 60).unwrap_err().to_string();
    assert!(error.contains("--kv-budget") && error.contains("full"), "{error}");
}

#[test]
fn a_budget_that_fills_up_ends_the_text_with_a_warning() {
    // The least budget has room for as many tokens as speech has; a model that babbles writes more.
    let babble = |budget: u64, seed: u64| {
        let kv = KvOptions { budget: Some(budget), ..KvOptions::default() };
        let sampling = Sampling::TopP { temperature: 9.0, top_p: 1.0, seed };
        Request { kv, sampling, guard: None, ..wnw(at(0.2)) }
    };
    let error = run(&babble(1, 0), 20).unwrap_err();
    let EngineError::Method(MethodError::Budget { least, .. }) = error else { panic!("{error}") };
    // Babble may end by itself; most does not.
    let mut babbles = (0..20).map(|seed| run(&babble(least, seed), 20).unwrap());
    let got = babbles.find(|t| t.finish_reason != FinishReason::Stop).unwrap();
    assert_eq!(got.finish_reason, FinishReason::Length);
    assert!(got.warnings.iter().any(|w| w.message.contains("KV budget was full")), "{:?}", got.warnings);
    let expected = 20 * 5 + 64;
    assert!(got.tokens.len() >= expected, "{}", got.tokens.len());
    // All that was recalled made room first.
    assert!(got.statistics.kv.swaps.evicted > 0, "{:?}", got.statistics.kv.swaps);
    assert!(got.statistics.kv.kv_bytes <= least);
}

#[test]
fn the_steps_are_told_for_charts() {
    let mut steps = Vec::new();
    let request = Request {
        record_steps: true,
        kv: KvOptions { dtype: KvDtype::F16, ..KvOptions::default() },
        ..wnw(at(0.3))
    };
    let (samples, _) = shipped();
    let transcript = engine()
        .transcribe(stream(&samples[..20 * RATE]), &request, &mut |event| {
            if let Event::Step(step) = event {
                steps.push(step);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(steps.len(), transcript.tokens.len());
    for step in &steps {
        assert_eq!(step.attention.len(), 375);
        assert_eq!(step.segments.len(), 15);
        let mass: f32 = step.attention.iter().sum();
        assert!(mass > 0.0 && mass <= 3.0 * 2.0 + 1e-3, "3 anchors of 2 query heads each: {mass}");
        assert!((1..=6).contains(&step.wanted.len()));
        assert_eq!(step.watched, 6);
        assert!(step.device_bytes < step.full_bytes);
        // The first head that recalls: what was recalled is whole in it, and no segment has more rows than it is long.
        assert!(step.head.is_some());
        let rows = step.segments.iter().zip(&step.resident);
        assert!(rows.clone().all(|(segment, rows)| *rows as usize <= segment.len()));
        for segment in &step.recalled {
            assert_eq!(step.resident[*segment as usize] as usize, step.segments[*segment as usize].len());
        }
    }
    let wanted_before = steps.windows(2).all(|w| w[0].wanted.iter().all(|s| w[1].recalled.contains(s)));
    assert!(wanted_before, "what a step wants is there in the next one");
}

#[test]
fn a_full_cache_is_its_own_reference() {
    let mut steps = Vec::new();
    let head = HeadId { layer: 1, kv_head: 2 };
    let request = Request {
        record_steps: true,
        record_head: Some(head),
        watch: vec![head],
        max_new_tokens: Some(70),
        ..english()
    };
    let (samples, _) = shipped();
    let mut hear = |event| {
        if let Event::Step(step) = event {
            steps.push(step);
        }
        ControlFlow::Continue(())
    };
    engine().transcribe(stream(&samples[..20 * RATE]), &request, &mut hear).unwrap();
    assert!(steps.len() > 40);
    for step in &steps {
        assert_eq!(step.device_bytes, step.full_bytes);
        assert_eq!((step.head, step.watched, step.r_gpu), (Some(head), 2, 1.0));
        assert!(step.wanted.is_empty() && step.recalled.is_empty());
        assert_eq!(step.resident.iter().sum::<u32>(), 375);
    }
    let absent = Request { record_head: Some(HeadId { layer: 0, kv_head: 99 }), ..request };
    let error = engine().transcribe(stream(&samples[..RATE]), &absent, &mut |_| ControlFlow::Continue(()));
    assert!(error.unwrap_err().to_string().contains("no KV head 0.99"));
}

#[test]
fn one_window_of_a_recording_is_that_window() {
    let (samples, _) = shipped();
    let samples = &samples[..20 * RATE];
    let mut silence = |_| ControlFlow::Continue(());
    let whole = Request { window_seconds: Some(8.0), max_new_tokens: Some(6), ..english() };
    let all = engine().transcribe(stream(samples), &whole, &mut silence).unwrap();
    assert!(all.segments.len() >= 3);
    let only = Request { only_window: Some(1), ..whole.clone() };
    let one = engine().transcribe(stream(samples), &only, &mut silence).unwrap();
    assert_eq!(one.text, all.segments[1].text);
    assert_eq!((one.segments.len(), &one.segments[1]), (2, &all.segments[1]));
    let absent = Request { only_window: Some(all.segments.len()), ..whole };
    let error = engine().transcribe(stream(samples), &absent, &mut silence).unwrap_err();
    assert!(error.to_string().contains("no window"), "{error}");
}
