//! Calibration of the embedded model on its sample recording.

mod common;

use std::ops::ControlFlow;

use common::{GUIDED, files, shipped};
use wnw_calibrate::CalibrateError;
use wnw_calibrate::sample::{self, Sample, SampleOptions, SamplePhase};
use wnw_calibrate::scores::HeadScores;
use wnw_kv::profile::ranking;
use wnw_model::LoadOptions;
use wnw_model::prompt::Task;

/// The model knows this recording by heart, so its loss is small; every token of the reference has a word; and the heads
/// that were guided to the audio look where the word is said.
#[test]
fn the_sample_recording_is_measured() {
    let (samples, reference, words) = shipped(12.0);
    let model = files().load(&LoadOptions::default(), |_, _| {}).unwrap();
    let task = Task::transcribe(Some("en")).unwrap();
    let sample = Sample::labelled("shipped", &samples, &task, model.tokenizer(), &reference, &words).unwrap();
    assert!(sample.times.iter().all(Option::is_some));
    assert!(sample.times.is_sorted_by_key(|t| t.map(|t| t.start)));

    let mut heard = Vec::new();
    let mut listen = |phase, share: f64| {
        assert!((0.0..=1.0).contains(&share));
        if heard.last() != Some(&phase) {
            heard.push(phase);
        }
        ControlFlow::Continue(())
    };
    let options = SampleOptions::default();
    let found = sample::measure(&model, &files(), &sample, &options, &mut listen).unwrap();
    assert_eq!(heard, [SamplePhase::Encode, SamplePhase::Listen, SamplePhase::Differentiate]);
    assert!(found.loss < 0.3, "loss {}", found.loss);
    assert_eq!((found.answer_tokens, found.voice_tokens), (sample.answer.len() as u64, found.answer_tokens));
    let scores = HeadScores::mean(&[found], model.decoder().kv_shape(), options.top_k).unwrap();
    println!("VS {:.2?}\nHS {:.6?}", scores.voice, scores.sensitivity);
    assert!(scores.sensitivity.iter().all(|h| *h > 0.0));
    let mut best = ranking(&scores.voice)[..4].to_vec();
    best.sort_unstable();
    assert_eq!(best, GUIDED);
    assert!(GUIDED.iter().all(|h| scores.voice[*h] > 0.3));

    for stop in [SamplePhase::Encode, SamplePhase::Listen, SamplePhase::Differentiate] {
        let mut until =
            |phase, _| if phase == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let ended = sample::measure(&model, &files(), &sample, &options, &mut until);
        assert!(matches!(ended, Err(CalibrateError::Cancelled)), "{stop:?}");
    }
}
