//! Recordings whose steps run together have the transcripts that they have alone.

mod common;

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{engine, english, shipped, stream};
use wnw_engine::{EngineError, Event, KvOptions, Method, Request, Roles, Sampling, Transcript};
use wnw_kv::profile::WnwOptions;

const RATE: usize = wnw_audio::SAMPLE_RATE as usize;

/// Pieces of the shipped recording of different lengths, with different methods.
fn jobs() -> Vec<(Vec<f32>, Request)> {
    let (samples, _) = shipped();
    let wnw = |r_gpu| {
        let roles = Roles::Uniform { tokens_per_second: 12.5 };
        let options = WnwOptions { r_gpu, n_anchor: Some(3), n_voice: Some(16), ..WnwOptions::default() };
        Request { method: Method::Wnw { roles, options, fixed_r_gpu: true }, ..english() }
    };
    let tight = KvOptions { budget: Some(1 << 20), ..KvOptions::default() };
    let sampled = Sampling::TopP { temperature: 0.7, top_p: 0.9, seed: 11 };
    let piece = |from: usize, to: usize| samples[from * RATE..to * RATE].to_vec();
    vec![
        (piece(0, 20), english()),
        (piece(20, 60), wnw(0.3)),
        (piece(5, 12), Request { sampling: sampled, ..english() }),
        // Two windows, the second of which joins the group anew.
        (piece(30, 75), Request { window_seconds: Some(25.0), ..english() }),
        (piece(60, 80), Request { kv: tight, ..english() }), // refused: too little for a full cache
        (vec![0.0; 5 * RATE], english()),                    // silence
        (piece(80, 115), wnw(0.5)),
    ]
}

/// Everything but the times.
fn essence(result: Result<Transcript, EngineError>) -> Result<Transcript, String> {
    let timeless = |mut t: Transcript| {
        t.timing = wnw_engine::Timing::default();
        t
    };
    result.map(timeless).map_err(|e| e.to_string())
}

#[test]
fn transcripts_do_not_depend_on_who_steps_along() {
    let (engine, jobs) = (engine(), jobs());
    let alone: Vec<_> = jobs
        .iter()
        .map(|(samples, request)| {
            let go_on = &mut |_| ControlFlow::Continue(());
            essence(engine.transcribe(stream(samples), request, go_on))
        })
        .collect();
    assert_eq!(alone.iter().filter(|r| r.is_ok()).count(), jobs.len() - 1, "{alone:?}");
    for lanes in [1, 3, jobs.len()] {
        let group = engine.step_group();
        let (next, results) = (AtomicUsize::new(0), Mutex::new(vec![None; jobs.len()]));
        std::thread::scope(|scope| {
            for _ in 0..lanes {
                scope.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        let Some((samples, request)) = jobs.get(i) else { break };
                        let go_on = &mut |_| ControlFlow::Continue(());
                        let result = engine.transcribe_in(&group, stream(samples), request, go_on);
                        results.lock().unwrap()[i] = Some(essence(result));
                    }
                });
            }
        });
        for (i, (together, alone)) in results.into_inner().unwrap().iter().zip(&alone).enumerate() {
            assert_eq!(together.as_ref(), Some(alone), "job {i}, {lanes} at a time");
        }
    }
}

#[test]
fn one_that_is_cancelled_does_not_hold_up_the_others() {
    let (samples, _) = shipped();
    let (engine, request) = (engine(), english());
    let want = engine.transcribe(stream(&samples[..20 * RATE]), &request, &mut |_| ControlFlow::Continue(()));
    let group = engine.step_group();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let audio = stream(&samples[..20 * RATE]);
            engine.transcribe_in(&group, audio, &request, &mut |_| ControlFlow::Continue(()))
        });
        let mut words = 0;
        let cancelled =
            engine.transcribe_in(&group, stream(&samples[20 * RATE..60 * RATE]), &request, &mut |event| {
                words += usize::from(matches!(event, Event::Text(_)));
                if words > 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        assert!(matches!(cancelled, Err(EngineError::Cancelled)));
        assert_eq!(other.join().unwrap().unwrap().text, want.unwrap().text);
    });
}
