//! Whole recordings through the embedded model: windows, events, limits, cancellation.

mod common;

use std::ops::ControlFlow;

use common::{engine, english, shipped, stream, words};
use wnw_engine::{EngineError, Event, FinishReason, Phase, Request, Transcript};

const RATE: f64 = wnw_audio::SAMPLE_RATE as f64;

/// Above the word error rate that the embedded model has on these recordings (its card says which), with room for the
/// rounding of other processors; a lost or doubled window would exceed it.
const MAX_WER: f64 = 0.15;

/// Word errors (substitutions, deletions, insertions) of a hypothesis.
fn word_errors(reference: &[String], hypothesis: &[String]) -> usize {
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
    row[hypothesis.len()]
}

fn run(samples: &[f32], request: &Request) -> (Transcript, Vec<Event>) {
    let mut events = Vec::new();
    let transcript = engine()
        .transcribe(stream(samples), request, &mut |event| {
            events.push(event);
            ControlFlow::Continue(())
        })
        .unwrap();
    (transcript, events)
}

#[test]
fn the_shipped_recording_is_transcribed_in_one_pass() {
    let (samples, prompts) = shipped();
    let (transcript, events) = run(&samples, &english());
    let reference: Vec<String> = prompts.iter().flat_map(|p| words(&p.0)).collect();
    let errors = word_errors(&reference, &words(&transcript.text));
    println!("WER of the shipped recording: {errors} / {}", reference.len());
    assert_eq!(transcript.statistics.windows, 1);
    assert_eq!(transcript.finish_reason, FinishReason::Stop);
    assert!(errors as f64 <= MAX_WER * reference.len() as f64, "{errors} errors: {}", transcript.text);

    let spoken: String = events
        .iter()
        .filter_map(|e| if let Event::Text(delta) = e { Some(delta.as_str()) } else { None })
        .collect();
    assert_eq!(spoken, transcript.text, "the deltas are the text");
    assert!(matches!(events.first(), Some(Event::Started { .. })));
    assert!(matches!(events.last(), Some(Event::Finished(t)) if **t == transcript));
    for phase in [Phase::Encode, Phase::Prefill, Phase::Decode] {
        assert!(events.iter().any(|e| matches!(e, Event::Progress(p) if p.phase == phase)), "{phase:?}");
    }
}

/// Thirteen minutes of known prompts in new orders: more than three times what the model takes in one pass.
#[test]
fn long_recordings_are_cut_in_pauses_and_no_word_is_doubled_or_lost() {
    let (source, prompts) = shipped();
    let mut samples = vec![0f32; 8000];
    let mut placed: Vec<(usize, f64, f64)> = Vec::new(); // (prompt, start, end)
    let mut state = 7u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    'fill: for round in 0.. {
        // A different order each round: step through the prompts with a stride that shares no factor with their count.
        let n = prompts.len();
        let stride = (2 * round + 3..).find(|s| gcd(*s, n) == 1).unwrap();
        for i in 0..n {
            let (_, start, end) = prompts[i * stride % n];
            let cut =
                ((start - 0.04) * RATE).max(0.0) as usize..(((end + 0.04) * RATE) as usize).min(source.len());
            placed.push((
                i * stride % n,
                samples.len() as f64 / RATE,
                (samples.len() + cut.len()) as f64 / RATE,
            ));
            samples.extend_from_slice(&source[cut]);
            samples.extend((0..6400).map(|_| 0.0));
            if samples.len() as f64 > 13.0 * 60.0 * RATE {
                break 'fill;
            }
        }
    }
    samples.iter_mut().for_each(|x| *x += 1e-3 * noise());

    let (transcript, _) = run(&samples, &english());
    assert!((transcript.duration - samples.len() as f64 / RATE).abs() < 1e-6);
    assert!(transcript.segments.len() >= 4, "{} windows", transcript.segments.len());
    assert_eq!(transcript.segments[0].start, 0.0);
    assert_eq!(transcript.segments.last().unwrap().end, transcript.duration);
    let (mut total, mut edges) = ((0, 0), Vec::new());
    for (i, segment) in transcript.segments.iter().enumerate() {
        assert!(segment.end - segment.start <= 240.0);
        if let Some(next) = transcript.segments.get(i + 1) {
            assert_eq!(segment.end, next.start, "windows touch");
            let inside = placed
                .iter()
                .find(|(_, start, end)| *start + 0.03 < segment.end && segment.end < *end - 0.03);
            assert_eq!(inside, None, "the cut at {} falls into a prompt", segment.end);
        }
        let spoken = placed.iter().filter(|(_, start, _)| (segment.start..segment.end).contains(start));
        let reference: Vec<String> = spoken.flat_map(|(p, ..)| words(&prompts[*p].0)).collect();
        let errors = word_errors(&reference, &words(&segment.text));
        println!("window {i}: {errors} / {} word errors", reference.len());
        // What stands next to the cut is there, once: nothing was lost with it or heard again.
        let edge = 3.min(reference.len());
        let (ours, n) = (words(&segment.text), reference.len());
        let (mut head, mut tail) = (0, 0);
        if ours.len() >= edge {
            head = word_errors(&reference[..edge], &ours[..edge]);
            tail = word_errors(&reference[n - edge..], &ours[ours.len() - edge..]);
        }
        edges.extend([head, tail]);
        total = (total.0 + errors, total.1 + reference.len());
    }
    let joined: Vec<&str> = transcript.segments.iter().map(|s| s.text.as_str()).collect();
    assert_eq!(transcript.text, joined.join(" "));
    assert!(total.0 as f64 <= MAX_WER * total.1 as f64, "{total:?}");
    let wrong = edges.iter().filter(|e| **e > 1).count();
    assert!(wrong <= edges.len() / 5, "words beside the cuts: {edges:?}");
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[test]
fn cancelling_ends_within_one_step_of_any_phase() {
    let (samples, _) = shipped();
    for (phase, at) in [(Phase::Encode, 2), (Phase::Prefill, 3), (Phase::Decode, 5)] {
        let mut seen = 0;
        let mut after = 0;
        let result = engine().transcribe(stream(&samples), &english(), &mut |event| {
            after += usize::from(seen >= at);
            seen += usize::from(matches!(event, Event::Progress(p) if p.phase == phase));
            if seen >= at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(result, Err(EngineError::Cancelled)), "{phase:?}");
        assert_eq!(after, 0, "{phase:?}: events after the break");
    }
}

#[test]
fn silence_is_not_given_to_the_model() {
    let (transcript, _) = run(&vec![0.0; 20 * 16_000], &english());
    assert_eq!((transcript.text.as_str(), transcript.tokens.len()), ("", 0));
    assert_eq!(transcript.warnings[0].kind, "silence");
    assert_eq!(transcript.segments.len(), 1);
}

#[test]
fn silent_windows_in_a_row_are_one_warning() {
    let mut samples = vec![0.0; 60 * 16_000];
    samples[35 * 16_000..36 * 16_000]
        .iter_mut()
        .enumerate()
        .for_each(|(i, x)| *x = (i as f32 * 0.1).sin() * 0.3);
    let request = Request { window_seconds: Some(10.0), max_new_tokens: Some(2), ..english() };
    let (transcript, events) = run(&samples, &request);
    let silences: Vec<_> = transcript.warnings.iter().filter(|w| w.kind == "silence").collect();
    assert_eq!(silences.len(), 2, "{silences:?}");
    assert_eq!(silences[0].start, Some(0.0));
    assert_eq!(
        (silences[1].start, silences[1].end),
        (transcript.segments.iter().find(|s| s.start > 35.0).map(|s| s.start), Some(60.0))
    );
    let told = events.iter().filter(|e| matches!(e, Event::Warning(w) if w.kind == "silence")).count();
    assert_eq!(told, 2);
    assert!(transcript.segments.len() >= 6);
}

#[test]
fn a_reached_cap_is_a_finish_reason_and_a_warning() {
    let (samples, _) = shipped();
    let request = Request { max_new_tokens: Some(5), ..english() };
    let (transcript, _) = run(&samples[..16_000 * 30], &request);
    assert_eq!((transcript.finish_reason, transcript.tokens.len()), (FinishReason::Length, 5));
    assert_eq!(transcript.warnings[0].kind, "length");
}

#[test]
fn tiny_and_odd_lengths_end_well() {
    for n in [1usize, 160, 8_000, 479_999, 480_000, 480_001] {
        let samples: Vec<f32> = (0..n).map(|i| (i as f32 * 0.11).cos() * 0.3).collect();
        let (transcript, _) = run(&samples, &Request { max_new_tokens: Some(4), ..english() });
        assert_eq!(transcript.statistics.audio_tokens, n.div_ceil(480_000) * 375, "{n} samples");
        assert_eq!(transcript.duration, n as f64 / RATE);
    }
}

#[test]
fn windows_that_cannot_be_are_refused() {
    let request = Request { window_seconds: Some(0.0), ..english() };
    let result = engine().transcribe(stream(&[0.1; 100]), &request, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(result, Err(EngineError::Request(_))));
}
