//! AffPool: groups as numpy finds them (`tools/goldens/affpool.py`), and what must hold for any states.

mod prompts;

use std::ops::Range;

use prompts::{Prompt, layout, noise, shape};
use proptest::prelude::*;
use serde::Deserialize;
use wnw_kv::policies::budget::Budget;
use wnw_kv::policies::grouping::Neighbours;
use wnw_kv::policies::registry::find;
use wnw_kv::{Merge, MergedPosition, PromptLayout, PromptRows};

#[derive(Deserialize)]
struct Case {
    x: Vec<Vec<f32>>,
    width: usize,
    stretches: Vec<Range2>,
    window: usize,
    thresholds: Vec<Threshold>,
    /// Groups that there may be, and that there are.
    most: Vec<(usize, usize)>,
}

#[derive(Deserialize)]
struct Range2(usize, usize);

#[derive(Deserialize)]
struct Threshold {
    tau: f64,
    groups: Vec<Vec<usize>>,
    means: Vec<Vec<f64>>,
}

#[test]
fn groups_and_means_are_those_of_numpy() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("data/affpool.json")).unwrap();
    assert_eq!(cases.len(), 4);
    for case in &cases {
        let stretches: Vec<Range<usize>> = case.stretches.iter().map(|r| r.0..r.1).collect();
        let x: Vec<f32> = case.x.concat();
        let layout = PromptLayout::new(case.x.len(), stretches.clone()).unwrap();
        let neighbours = Neighbours::new(&x, case.width, stretches.clone(), case.window);
        for Threshold { tau, groups, means } in &case.thresholds {
            let mut joins = vec![false; case.x.len()];
            let places = stretches.iter().cloned().flatten();
            places.zip(neighbours.joins(*tau)).for_each(|(row, join)| joins[row] = join);
            let (mut rows, mut merged) = (PromptRows::new(case.x.len()), x.clone());
            rows.merge(&Merge { joins, position: MergedPosition::First }, &layout, &mut merged).unwrap();
            let audio: Vec<usize> = rows.audio(&layout).into_iter().flatten().collect();
            let got: Vec<Vec<usize>> = audio.iter().map(|row| rows.spans()[*row].clone().collect()).collect();
            assert_eq!(&got, groups, "tau {tau}");
            for (row, mean) in audio.iter().zip(means) {
                for (got, want) in merged[row * case.width..].iter().zip(mean) {
                    assert!((f64::from(*got) - want).abs() < 1e-6, "{got} for {want}");
                }
            }
        }
        for (most, groups) in &case.most {
            assert_eq!(neighbours.groups(neighbours.threshold(*most)), *groups, "at most {most}");
        }
    }
}

/// Worked example "AffPool groups": τ = 0.75, ω = 1 → {0,1,2} {3} {4,5}; ω = 3 → {0,1,2,3} {4,5}.
#[test]
fn worked_example_affpool_groups() {
    let x = [1.0, 0.0, 0.9, 0.1, 0.7, 0.7, 0.95, 0.05, 0.0, 1.0, 0.1, 1.0];
    let joins = |window, tau| Neighbours::new(&x, 2, std::iter::once(0..6).collect(), window).joins(tau);
    // cos((.9,.1), (.7,.7)) is 0.7809, cos((.7,.7), (.95,.05)) is 0.7433.
    assert_eq!(joins(1, 0.75), [false, true, true, false, false, true]);
    assert_eq!(joins(3, 0.75), [false, true, true, true, false, true]);
    assert_eq!(joins(1, 0.8), [false, true, false, false, false, true]);
    assert_eq!(joins(3, 1.1), [false; 6]);
}

#[test]
fn both_places_share_the_budget_and_the_deep_one_has_fewer() {
    let prompt = Prompt::new(shape(6, 2, 4, 3), layout(&[2, 60, 1, 40, 4]), 3);
    let rows = |options: &[(&str, &str)], budget| -> Vec<usize> {
        let kept = prompt.kept(find("affpool").unwrap(), budget, options);
        kept.chunks(2).for_each(|heads| assert_eq!(heads[0], heads[1], "heads of a layer see the same"));
        kept.chunks(2).map(|heads| heads[0].len()).collect()
    };
    // 6 · 50 = 3 · n + 3 · n / 2 at n = 66, and what is left over goes to the last layers.
    assert_eq!(rows(&[], Budget::Ratio(0.5)), [66, 66, 66, 34, 34, 34]);
    // 5 · 54 + 30 is the budget; the largest number up to 30 that a threshold leaves of 54 rows may be smaller.
    let one = rows(&[("deep_layers", "1")], Budget::Ratio(0.5));
    assert_eq!(one[..5], [54; 5]);
    assert!(one[5] > 15 && one[5] <= 30, "{one:?}");
    assert_eq!(rows(&[("deep_layers", "0")], Budget::Ratio(0.5)), [50; 6]);
    assert_eq!(rows(&[("deep_share", "1")], Budget::Ratio(0.5)), [50; 6]);
    assert_eq!(rows(&[("deep_layers", "99")], Budget::Ratio(0.5))[0], 85, "never the first layer");
    assert_eq!(rows(&[], Budget::Rows(0)), [2; 6], "one row of each recording is the least");
    // More than the input can keep: the last layers get the rest.
    assert_eq!(rows(&[], Budget::Ratio(0.9)), [100, 100, 100, 80, 80, 80]);
    // A threshold instead of the budget.
    assert_eq!(rows(&[("tau", "-1")], Budget::Ratio(1.0)), [2; 6]);
    let some = rows(&[("tau", "0.6")], Budget::Rows(0));
    assert!(some[0] > 2 && some[0] < 100 && some[5] <= some[0] && some[2] == some[0] && some[3] == some[5]);
    assert_eq!(rows(&[("tau", "0.6")], Budget::Rows(0)), rows(&[("tau", "0.6")], Budget::Ratio(1.0)));
}

/// Every row is like every other: no threshold leaves any number between one and all.
#[test]
fn what_is_all_alike_becomes_one_row() {
    let mut prompt = Prompt::new(shape(2, 1, 1, 2), layout(&[1, 20, 1]), 3);
    prompt.x.fill(0.25);
    assert!(
        prompt.kept(find("affpool").unwrap(), Budget::Ratio(0.5), &[]).iter().all(|rows| rows.len() == 1)
    );
    // Silence without any direction is like nothing.
    prompt.x.fill(0.0);
    let kept = prompt.kept(find("affpool").unwrap(), Budget::Ratio(0.9), &[("tau", "0.5")]);
    assert!(kept.iter().all(|rows| rows.len() == 20));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn groups_grow_with_the_threshold_and_the_bisection_finds_the_best(
        a in 0usize..30, b in 0usize..30, width in 1usize..5, window in 1usize..5, most in 0usize..70, coarse: bool, seed: u64,
    ) {
        let mut x = noise((a + b + 1) * width, seed);
        if coarse {
            // Many equal cosines.
            x.iter_mut().for_each(|x| *x = x.round());
        }
        let stretches = vec![0..a, a + 1..a + 1 + b];
        let neighbours = Neighbours::new(&x, width, stretches, window);
        let taus: Vec<f64> = (-105..=105).map(|tau| f64::from(tau) / 100.0).collect();
        let all: Vec<Vec<bool>> = taus.iter().map(|tau| neighbours.joins(*tau)).collect();
        for pair in all.windows(2) {
            prop_assert!(pair[0].iter().zip(&pair[1]).all(|(low, high)| *low || !*high), "what a larger τ joins a smaller does");
        }
        let least = usize::from(a > 0) + usize::from(b > 0);
        let got = neighbours.groups(neighbours.threshold(most));
        prop_assert_eq!(neighbours.groups(-2.0), least);
        prop_assert!(got <= most.max(least));
        for tau in &taus {
            let groups = neighbours.groups(*tau);
            prop_assert!(groups > most || groups <= got, "τ {} leaves {} groups, not {}", tau, groups, got);
        }
        if !coarse && window == 1 && width > 1 {
            prop_assert_eq!(got, most.max(least).min(a + b), "without ties every number can be had");
        }
    }
}
