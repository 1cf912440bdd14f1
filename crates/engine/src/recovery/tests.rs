//! The rules on made-up places and sounds.

use proptest::prelude::*;

use super::detector::{Begins, Cut, Fault, Loss, cut, early_end, front, jump, still};
use super::loudness::Loudness;
use super::{MOST_TRIES, RecoveryConfig, Tries};

/// Seconds of speech for a token.
const PACE: f64 = 0.25;

fn config() -> RecoveryConfig {
    RecoveryConfig::default()
}

/// Sentences of 1.8 s with pauses of 0.4 s; silence in the stretches given, in seconds.
fn recording(seconds: f64, silent: &[(f64, f64)]) -> Loudness {
    let samples: Vec<f32> = (0..(seconds * 16_000.0) as usize)
        .map(|i| {
            let at = i as f64 / 16_000.0;
            let quiet = at % 2.2 > 1.8 || silent.iter().any(|(from, to)| (*from..*to).contains(&at));
            (i as f32 * 0.3).sin() * if quiet { 0.001 } else { 0.3 }
        })
        .collect();
    Loudness::new(&samples)
}

fn steady(from: f64, to: f64) -> Vec<Option<f64>> {
    (0..((to - from) / PACE) as usize).map(|i| Some(from + i as f64 * PACE)).collect()
}

/// The first alarm, with the number of tokens that it took.
fn first(places: &[Option<f64>], loudness: &Loudness) -> Option<(usize, Loss)> {
    (1..=places.len()).find_map(|n| Some((n, jump(&places[..n], Some(0.0), 0, loudness, &config(), false)?)))
}

#[test]
fn steady_speech_is_left_alone() {
    let loudness = recording(120.0, &[]);
    assert_eq!(first(&steady(0.0, 120.0), &loudness), None);
    // Tokens that look elsewhere are not on the path.
    let strays: Vec<_> =
        steady(0.0, 120.0).into_iter().enumerate().map(|(i, p)| p.filter(|_| i % 5 != 0)).collect();
    assert_eq!(first(&strays, &loudness), None);
    // Slow speech: a token for each half second, and one that spells for two seconds.
    let slow: Vec<_> = (0..200).map(|i| Some(i as f64 * 0.5)).collect();
    assert_eq!(first(&slow, &loudness), None);
    // A little back and forth, as translations do.
    let wavering: Vec<_> =
        steady(0.0, 60.0).iter().enumerate().map(|(i, p)| p.map(|p| p + [0.0, 1.5][i % 2])).collect();
    assert_eq!(first(&wavering, &loudness), None);
}

#[test]
fn pauses_are_no_skips() {
    let loudness = recording(200.0, &[(0.0, 30.0), (40.0, 130.0)]);
    let places = [steady(30.0, 40.0), steady(130.0, 150.0)].concat();
    assert_eq!(first(&places, &loudness), None);
}

#[test]
fn a_skip_is_found_once_it_is_confirmed() {
    let loudness = recording(120.0, &[]);
    let places = [steady(0.0, 20.0), steady(43.0, 60.0)].concat();
    let (n, loss) = first(&places, &loudness).unwrap();
    assert_eq!((n, loss.fault, loss.last_good), (80 + config().confirm, Fault::Skip, Some(79)));
    assert_eq!((loss.from, loss.to), (19.75, 43.0));
    // One that touches down on its way begins where it left.
    let places = [steady(0.0, 20.0), vec![Some(25.0), Some(33.0)], steady(43.0, 60.0)].concat();
    let (_, loss) = first(&places, &loudness).unwrap();
    assert_eq!((loss.last_good, loss.from), (Some(79), 19.75));
    // From the very beginning.
    let (_, loss) = first(&steady(12.0, 40.0), &loudness).unwrap();
    assert_eq!((loss.fault, loss.last_good, loss.from), (Fault::Skip, None, 0.0));
    // Not where the beginning is not known, nor what was passed on already.
    assert_eq!(jump(&steady(12.0, 40.0), None, 0, &loudness, &config(), false), None);
    let places = [steady(0.0, 20.0), steady(43.0, 60.0)].concat();
    assert_eq!(jump(&places, Some(0.0), 81, &loudness, &config(), false), None);
    // At the end of the answer a few tokens are enough.
    let places = [steady(0.0, 20.0), steady(43.0, 44.0)].concat();
    assert_eq!(jump(&places, Some(0.0), 0, &loudness, &config(), false), None);
    assert!(jump(&places, Some(0.0), 0, &loudness, &config(), true).is_some());
}

#[test]
fn a_stretch_read_twice_is_found() {
    let loudness = recording(120.0, &[]);
    let places = [steady(0.0, 40.0), steady(34.0, 60.0)].concat();
    let (n, loss) = first(&places, &loudness).unwrap();
    assert_eq!((n, loss.fault, loss.last_good), (160 + config().confirm, Fault::Back, Some(159)));
    assert_eq!((loss.from, loss.to), (39.75, 34.0));
}

#[test]
fn a_stand_still_needs_repeated_text() {
    let places = [steady(0.0, 20.0), vec![Some(19.9); 40]].concat();
    let repeated: Vec<bool> = (0..120).map(|i| i >= 90).collect();
    let loss = still(&places, &repeated, &config()).unwrap();
    assert_eq!((loss.fault, loss.last_good), (Fault::Still, Some(78)));
    assert_eq!(still(&places, &[false; 120], &config()), None);
    assert_eq!(still(&places[..100], &repeated[..100], &config()), None);
    assert_eq!(still(&steady(0.0, 30.0), &[true; 120], &config()), None);
    assert_eq!(still(&[None, None], &[true; 2], &config()), None);
    assert_eq!(front(&[]), None);
}

#[test]
fn an_early_end_is_told_from_a_silent_one() {
    let silent = recording(60.0, &[(20.0, 60.0)]);
    assert_eq!(early_end(&steady(0.0, 20.0), &silent, &config()), None);
    let spoken = recording(60.0, &[]);
    let loss = early_end(&steady(0.0, 20.0), &spoken, &config()).unwrap();
    assert_eq!((loss.fault, loss.from, loss.last_good), (Fault::End, 19.75, Some(79)));
    let all = cut(&loss, &steady(0.0, 20.0), &[Begins::Word; 80], 40, &spoken);
    assert_eq!(all.tokens, 80);
    assert!((19.75..20.75).contains(&all.at));
    assert_eq!(early_end(&steady(0.0, 59.5), &spoken, &config()), None);
    // A model that says nothing.
    assert_eq!(early_end(&[], &spoken, &config()).unwrap().last_good, None);
}

#[test]
fn cuts_fall_between_sentences_if_they_can() {
    let loudness = recording(60.0, &[]);
    let places = steady(0.0, 20.0);
    let loss = Loss { fault: Fault::Skip, last_good: Some(79), from: 19.75, to: 40.0 };
    // Every second token begins a word, and a sentence where the middle of a pause lies just before it.
    let sentence = |i: usize| {
        let (before, at) = ((i as f64 - 1.0) * PACE, i as f64 * PACE);
        (0..10).map(|k| f64::from(k) * 2.2 + 2.0).any(|pause| (before..at).contains(&pause))
    };
    let begins: Vec<Begins> = (0..80)
        .map(|i| match i % 2 {
            1 => Begins::Nothing,
            _ if sentence(i) => Begins::Sentence,
            _ => Begins::Word,
        })
        .collect();
    let found = cut(&loss, &places, &begins, 40, &loudness);
    assert_eq!(found.tokens, 70);
    assert!(loudness.is_pause(found.at), "{found:?}");
    // Without sentences the last pause will do, without a pause any word.
    let words: Vec<Begins> = begins.iter().map(|b| (*b).min(Begins::Word)).collect();
    assert!(loudness.is_pause(cut(&loss, &places, &words, 40, &loudness).at));
    let noise = Loudness::new(&(0..320_000).map(|i| (i as f32 * 0.3).sin() * 0.3).collect::<Vec<_>>());
    assert_eq!(cut(&loss, &places, &words, 76, &noise).tokens % 2, 0);
    // Never behind what was passed on, and all again where the first token is bad.
    assert_eq!(cut(&loss, &places, &begins, 80, &loudness), Cut { tokens: 80, at: 19.75 });
    let none = Loss { last_good: None, ..loss };
    assert_eq!(cut(&none, &places, &begins, 0, &loudness), Cut { tokens: 0, at: 0.0 });
}

#[test]
fn the_last_try_is_taken_as_it_is() {
    let (mut tries, config) = (Tries::default(), config());
    let mut shorter = Vec::new();
    for _ in 1..MOST_TRIES {
        assert!(tries.mends());
        assert!(!tries.restart(0.5, &config));
        shorter.push(tries.next_window(&config).is_some());
    }
    assert!(!tries.mends());
    assert!(tries.restart(0.5, &config), "one run-away too many");
    assert!(tries.mends() && tries.next_window(&config).is_none());
    assert_eq!(shorter, [true, true]);
    tries.restart(0.5, &config);
    assert!(!tries.restart(9.0, &config) && tries.next_window(&config).is_none(), "it got on");
}

proptest! {
    /// Whatever happens in the windows, a recording comes to its end, and what is given to the model stays bounded.
    #[test]
    fn every_recording_ends(length in 1f64..2000.0, limit in 5f64..600.0, faults in prop::collection::vec((0f64..1.2, 0f64..1.0), 1..50)) {
        let (mut tries, config) = (Tries::default(), config());
        let (mut start, mut given, mut next) = (0f64, 0f64, None);
        let mut faults = faults.iter().cycle();
        for step in 0.. {
            prop_assert!(step < 20_000, "no end");
            let end = length.min(start + f64::min(limit, next.unwrap_or(limit)));
            tries.begin(start, end);
            given += end - start;
            let (fault, place) = *faults.next().unwrap();
            let at = place * (end - start);
            next = None;
            if tries.affordable(&config) && fault < 1.0 {
                let beyond = tries.restart(at, &config).then(|| (at + config.give_up_seconds).min(end - start));
                next = tries.next_window(&config);
                start += beyond.unwrap_or(at);
            } else {
                tries.done();
                start = end;
            }
            if start >= length {
                break;
            }
        }
        prop_assert!(given <= (1.0 + config.cost) * length + 2.0 * limit, "{given} of {length}");
    }

    /// A cut keeps at least what was passed on, and never begins behind the place that was lost.
    #[test]
    fn cuts_stay_in_bounds(n in 1usize..80, last in 0usize..80, least in 0usize..80, begins in prop::collection::vec(0u8..3, 80), known in prop::collection::vec(any::<bool>(), 80)) {
        let loudness = recording(30.0, &[]);
        let places: Vec<Option<f64>> = steady(0.0, 20.0)[..n].iter().zip(&known).map(|(p, k)| p.filter(|_| *k)).collect();
        let begins: Vec<Begins> = begins[..n].iter().map(|b| [Begins::Nothing, Begins::Word, Begins::Sentence][*b as usize]).collect();
        let (last, least) = (last.min(n - 1), least.min(n));
        let from = last as f64 * PACE;
        let loss = Loss { fault: Fault::Skip, last_good: Some(last), from, to: from + 5.0 };
        let found = cut(&loss, &places, &begins, least, &loudness);
        prop_assert!(found.tokens >= least && found.tokens <= least.max(last));
        prop_assert!(found.at >= 0.0 && found.at <= from + PACE, "{found:?}");
    }
}
