//! Calibration without labels, on the embedded model and a part of the shipped recording, beside the labelled one.

mod common;

use std::ops::ControlFlow;

use common::{GUIDED, files, shipped};
use wnw_calibrate::CalibrateError;
use wnw_calibrate::journal::{Journal, Run};
use wnw_calibrate::sample::{self, Sample, SampleOptions};
use wnw_calibrate::scores::HeadScores;
use wnw_calibrate::self_label::{Entry, MIN_CONFIDENCE, Recording, SelfLabel, Step};
use wnw_engine::Engine;
use wnw_kv::profile::ranking;
use wnw_model::prompt::Task;
use wnw_model::{LoadOptions, WeightDtype};

fn product(scores: &HeadScores) -> Vec<f64> {
    scores.voice.iter().zip(&scores.sensitivity).map(|(v, h)| v * h).collect()
}

/// Correlation of two lists (Pearson).
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let (ma, mb) = (mean(a), mean(b));
    let sum = |f: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(x, y)| f(x - ma, y - mb)).sum::<f64>();
    sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt()
}

/// Cut at a prompt's end, a recording is one that the embedded model hears almost without error; its guided heads are
/// found without any label, and score about as they do with labels.
#[test]
fn the_model_labels_a_recording_itself() {
    let (samples, reference, words) = shipped(31.0);
    let load = LoadOptions { dtype: Some(WeightDtype::F32) };
    let engine = Engine::new(files().load(&load, |_, _| {}).unwrap());
    let files = files();
    let task = Task::transcribe(Some("en")).unwrap();
    let options = SampleOptions { min_confidence: MIN_CONFIDENCE, ..SampleOptions::default() };
    let labeller = SelfLabel { engine: &engine, files: &files, task: &task, options, n_anchor: 5 };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let run = Run { model: engine.model().fingerprint().into(), options: "self".into() };
    let open = || Journal::<Entry>::open(&path, &run).unwrap();
    let silence = vec![0.0; 16_000];
    let recordings =
        [Recording { name: "silence", samples: &silence }, Recording { name: "shipped", samples: &samples }];

    let mut last = 0.0;
    let mut listen = |_: Step, share: f64| {
        assert!((last..=1.0).contains(&share), "{share} after {last}");
        last = share;
        ControlFlow::Continue(())
    };
    let found = labeller.run(&recordings, &mut open(), &mut listen).unwrap();
    assert!(found.left_out[0].as_ref().is_some_and(|r| r.contains("no words")), "{:?}", found.left_out);
    assert_eq!(found.left_out[1], None);

    let shape = engine.model().decoder().kv_shape();
    let tokenizer = engine.model().tokenizer();
    let sample = Sample::labelled("shipped", &samples, &task, tokenizer, &reference, &words).unwrap();
    let mut go = |_, _| ControlFlow::Continue(());
    let labelled =
        sample::measure(engine.model(), &files, &sample, &SampleOptions::default(), &mut go).unwrap();
    let labelled = HeadScores::mean(&[labelled], shape, options.top_k).unwrap();
    println!("monotone {:.3?}\ntimes from {:?}", found.monotone, found.time_heads);
    println!("VS self     {:.3?} over {} tokens", found.scores.voice, found.scores.tokens);
    println!("VS labelled {:.3?} over {} tokens", labelled.voice, labelled.tokens);
    println!("HS self     {:.6?}\nHS labelled {:.6?}", found.scores.sensitivity, labelled.sensitivity);
    println!(
        "ranking self {:?}\nlabelled {:?}",
        &ranking(&product(&found.scores))[..8],
        &ranking(&product(&labelled))[..8]
    );
    let r = correlation(&found.scores.voice, &labelled.voice);
    println!("correlation of VS {r:.4}");

    let mut best = ranking(&found.monotone)[..4].to_vec();
    best.sort_unstable();
    assert_eq!(best, GUIDED, "the most monotone heads");
    let anchors = &ranking(&product(&found.scores))[..5];
    assert!(GUIDED.iter().all(|h| anchors.contains(h)), "anchors {anchors:?}");
    assert!(r > 0.95, "correlation of VS {r}");
    for head in GUIDED {
        let (ours, theirs) = (found.scores.voice[head], labelled.voice[head]);
        assert!((ours - theirs).abs() < 0.15, "head {head}: VS {ours} for {theirs}");
    }
    assert!(found.scores.tokens * 10 >= labelled.tokens * 7, "{} tokens", found.scores.tokens);

    // Everything is in the journal: another run computes nothing, and says the same.
    let mut never = |_: Step, _: f64| -> ControlFlow<()> { panic!("computed again") };
    assert_eq!(labeller.run(&recordings, &mut open(), &mut never).unwrap(), found);
    // A run cut off anywhere goes on to the same.
    let bytes = std::fs::read(&path).unwrap();
    let lines = bytes.split_inclusive(|b| *b == b'\n').map(<[u8]>::len);
    let ends: Vec<usize> = lines
        .scan(0, |at, n| {
            *at += n;
            Some(*at)
        })
        .collect();
    std::fs::write(&path, &bytes[..ends[2] + 5]).unwrap();
    assert_eq!(labeller.run(&recordings, &mut open(), &mut |_, _| ControlFlow::Continue(())).unwrap(), found);
    assert_eq!(std::fs::read(&path).unwrap(), bytes);

    // What asks to stop is heard in every step, and leaves what is done.
    std::fs::remove_file(&path).unwrap();
    let mut stop =
        |_: Step, share: f64| if share > 0.3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let ended = labeller.run(&recordings, &mut open(), &mut stop);
    assert!(matches!(ended, Err(CalibrateError::Cancelled)), "{ended:?}");
    let kept = open();
    assert!(matches!(kept.entries(), [Entry::LeftOut { .. }]), "{:?}", kept.entries());
    drop(kept);
    let nothing = labeller.run(&recordings[..1], &mut open(), &mut |_, _| ControlFlow::Continue(()));
    let message = nothing.unwrap_err().to_string();
    assert!(message.starts_with("none of the 1 recordings can be used"), "{message}");
}
