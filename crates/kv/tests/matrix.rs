//! What every method must do, whichever it is: all that the registry has run through the same tests.

mod prompts;

use std::collections::BTreeMap;

use prompts::{Prompt, SCALE, layout, noise, shape};
use proptest::prelude::*;
use wnw_kv::policies::METHODS;
use wnw_kv::policies::budget::Budget;
use wnw_kv::policies::registry::{BuildError, Entry, Inputs, Keeps, find};
use wnw_kv::{KvDtype, Segments};

/// Checks one method on one prompt; `false` where the profile allows no such budget.
fn run(prompt: &Prompt, entry: &Entry, budget: Budget) -> bool {
    let name = entry.name;
    let mut policy = match prompt.policy(entry, budget, &[]) {
        Ok(policy) => policy,
        Err(BuildError::Profile(_)) => return false,
        Err(error) => panic!("{name}: {error}"),
    };
    assert_eq!(policy.name(), name);
    let (shape, n_audio) = (prompt.shape, prompt.layout.n_audio());
    let (kept, mut store) = prompt.prefill(policy.as_mut());
    let (total, all) = (kept.iter().map(Vec::len).sum::<usize>(), kept.len() * n_audio);
    match entry.keeps {
        Keeps::Everything => assert_eq!(total, all),
        Keeps::Budget => assert_eq!(total, budget.total(shape, n_audio), "{name}: {budget}"),
        Keeps::Pages => {
            assert!(total == 0 || budget.total(shape, n_audio) + 2 * 32 * kept.len() >= all, "{name}")
        }
        Keeps::Merged => {
            let least = kept.len() * prompt.layout.audio().len();
            assert!(total <= budget.total(shape, n_audio).max(least), "{name}: {budget}: {total}");
        }
        Keeps::AtMost => {
            assert!(total as f64 <= budget.share(shape, n_audio) * all as f64 + 1e-3, "{name}: {total}");
        }
    }
    let again = prompt.prefill(prompt.policy(entry, budget, &[]).unwrap().as_mut()).0;
    assert_eq!(kept, again, "{name}: the same inputs, the same selection");

    // The store has just these rows, and attention sees just these and all text.
    assert_eq!(store.report().audio_rows, total as u64, "{name}");
    assert_eq!(store.report().text_rows as usize, kept.len() * (prompt.layout.len() - n_audio), "{name}");
    let q = noise(shape.n_q_heads * shape.head_dim, 77);
    for (layer, kept) in kept.chunks_exact(shape.n_kv_heads).enumerate() {
        let mut out = vec![f32::NAN; q.len()];
        store.attend(layer, &q, SCALE, &mut out).unwrap();
        prompt.check_attention(name, layer, &q, &out, kept);
    }
    // What it does within and between steps leaves a sound store, and what decides at prefill is not changed.
    store.watch(policy.watches()).unwrap();
    store.set_pager(policy.pager()).unwrap();
    store.check_integrity().unwrap();
    store.swap(&policy.before_decode()).unwrap();
    store.check_integrity().unwrap();
    for step in 0..3 {
        let row = noise(shape.n_kv_heads * shape.head_dim, step);
        let q = noise(shape.n_q_heads * shape.head_dim, 100 + step);
        store.begin_step();
        for layer in 0..shape.n_layers {
            let mut out = vec![f32::NAN; q.len()];
            store.append(layer, &row, &row).unwrap();
            store.attend(layer, &q, SCALE, &mut out).unwrap();
            assert!(out.iter().all(|x| x.is_finite()), "{name}");
        }
        store.check_integrity().unwrap();
        let report = store.report();
        match entry.keeps {
            Keeps::Everything | Keeps::Budget | Keeps::Merged => {
                assert_eq!(report.audio_rows, total as u64, "{name}")
            }
            // To the nearest page of 32 in every head, and to one page where there is a row.
            Keeps::Pages => {
                let rows = budget.total(shape, n_audio).div_ceil(kept.len());
                let most = if rows == 0 { 0 } else { (rows + 16).max(32) };
                assert!(report.audio_rows as usize <= kept.len() * most.min(n_audio), "{name}: {report:?}");
            }
            Keeps::AtMost => {}
        }
        assert!(report.read_rows <= report.audio_rows, "{name}");
        store.swap(&policy.after_step(store.attention())).unwrap();
        store.check_integrity().unwrap();
    }
    true
}

fn budgets() -> impl Strategy<Value = Budget> {
    prop_oneof![
        (0.0..=1.0).prop_map(Budget::Ratio),
        (0usize..120).prop_map(Budget::Rows),
        (0u64..40_000).prop_map(|bytes| Budget::Bytes { bytes, dtype: KvDtype::Bf16 }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_method_keeps_its_budget_and_attends_to_what_it_kept(
        n_layers in 1usize..4, kv_heads in 1usize..4, group in prop::sample::select(vec![1usize, 4, 8]), hd in 1usize..7,
        before in 0usize..3, audio in 0usize..90, between in 0usize..3, audio2 in 0usize..40, after in 0usize..50,
        budget in budgets(), seed: u64,
    ) {
        let layout = layout(&[before, audio, between, audio2, after]);
        let prompt = Prompt::new(shape(n_layers, kv_heads, group, hd), layout, seed);
        for entry in METHODS {
            run(&prompt, entry, budget);
        }
    }

    /// A row that all of a head's queries attend to is kept, in the head that attends to it.
    #[test]
    fn the_best_scored_rows_survive(
        group in prop::sample::select(vec![1usize, 4, 8]), kv_heads in 1usize..4, rows in prop::collection::vec(8usize..190, 9),
        cut in 0usize..=20, seed: u64,
    ) {
        // Whole segments: of a last, shorter one WnW keeps ⌊retention · length⌋ rows, which may be none.
        let layout = layout(&[2, 10 * cut, 1, 200 - 10 * cut, 70]);
        let mut prompt = Prompt::new(shape(3, kv_heads, group, 4), layout, seed);
        let (n, hd) = (prompt.layout.len(), 4);
        let positions = prompt.positions();
        for layer in 0..3 {
            // Noise, but for the first number of queries and keys.
            prompt.q[layer].iter_mut().enumerate().for_each(|(i, x)| *x = if i % hd == 0 { 8.0 } else { *x / 4.0 });
            prompt.k[layer].iter_mut().enumerate().for_each(|(i, x)| *x = if i % hd == 0 { 0.0 } else { *x / 4.0 });
            for kv_head in 0..kv_heads {
                prompt.k[layer][(kv_head * n + positions[rows[layer * 3 + kv_head]]) * hd] = 6.0;
            }
        }
        for entry in METHODS.iter().filter(|entry| entry.by_attention) {
            let kept = prompt.kept(entry, Budget::Ratio(0.6), &[]);
            for layer in 0..3 {
                for kv_head in 0..kv_heads {
                    let (kept, row) = (&kept[layer * kv_heads + kv_head], rows[layer * 3 + kv_head] as u32);
                    prop_assert!(kept.contains(&row), "{}: row {row} of layer {layer}, head {kv_head}: {kept:?}", entry.name);
                }
            }
        }
    }
}

#[test]
fn short_and_odd_prompts_are_safe() {
    let shapes = [shape(1, 1, 1, 2), shape(2, 2, 4, 3), shape(3, 1, 8, 1)];
    let prompts: [&[usize]; 12] = [
        &[3],
        &[1, 0, 1],
        &[0, 1],
        &[1, 1, 1],
        &[0, 2],
        &[2, 3, 1],
        &[0, 7, 0, 2],
        &[1, 1, 1, 1, 1, 1, 1],
        &[4, 31, 1],
        &[1, 2, 60],
        &[0, 1, 1, 40, 3, 1],
        &[1, 8, 1, 1, 2, 9, 33, 2],
    ];
    for (i, lengths) in prompts.iter().enumerate() {
        for shape in shapes {
            let prompt = Prompt::new(shape, layout(lengths), i as u64);
            let bytes = Budget::Bytes { bytes: 100, dtype: KvDtype::F32 };
            for budget in [0.0, 0.1, 0.5, 1.0].map(Budget::Ratio).into_iter().chain([Budget::Rows(1), bytes])
            {
                for entry in METHODS {
                    run(&prompt, entry, budget);
                }
            }
        }
    }
}

#[test]
fn everything_and_nothing_are_just_that() {
    let prompt = Prompt::new(shape(2, 2, 4, 4), layout(&[2, 50, 1, 9, 4]), 5);
    for entry in METHODS {
        let all = prompt.kept(entry, Budget::Ratio(1.0), &[]);
        assert!(all.iter().all(|rows| rows.len() == 59), "{}", entry.name);
        if entry.keeps == Keeps::Budget {
            assert!(prompt.kept(entry, Budget::Rows(0), &[]).iter().all(Vec::is_empty), "{}", entry.name);
        }
    }
}

/// Query heads of a group count alike: their order says nothing, and equal ones are one.
#[test]
fn groups_of_query_heads_share_one_selection() {
    for (group, seed) in [(4, 1), (8, 2), (4, 3), (8, 4)] {
        let one = Prompt::new(shape(2, 2, 1, 4), layout(&[2, 70, 5]), seed);
        let mut many = Prompt::new(shape(2, 2, group, 4), layout(&[2, 70, 5]), seed);
        (many.k, many.v) = (one.k.clone(), one.v.clone());
        let mut turned = Prompt::new(many.shape, many.layout.clone(), seed);
        (turned.k, turned.v) = (one.k.clone(), one.v.clone());
        for layer in 0..2 {
            for (q, turned) in
                many.q[layer].chunks_exact(4 * group).zip(turned.q[layer].chunks_exact_mut(4 * group))
            {
                turned.copy_from_slice(q);
                turned.rotate_left(4);
            }
        }
        for entry in METHODS {
            let budget = Budget::Ratio(0.4);
            assert_eq!(
                many.kept(entry, budget, &[]),
                turned.kept(entry, budget, &[]),
                "{}: heads turned round",
                entry.name
            );
        }
        for layer in 0..2 {
            many.q[layer] = one.q[layer].chunks_exact(4).flat_map(|q| q.repeat(group)).collect();
        }
        for entry in METHODS {
            let budget = Budget::Ratio(0.4);
            assert_eq!(
                many.kept(entry, budget, &[]),
                one.kept(entry, budget, &[]),
                "{}: {group} equal heads",
                entry.name
            );
        }
    }
}

/// Where all rows have the same score, the lower ones are kept, in every head and segment.
#[test]
fn of_equal_scores_the_lower_rows_stay() {
    for lengths in [vec![2, 70, 70], vec![0, 33, 2, 41, 66]] {
        let mut prompt = Prompt::new(shape(2, 2, 4, 4), layout(&lengths), 9);
        prompt.q.iter_mut().for_each(|q| q.fill(0.0));
        for entry in METHODS.iter().filter(|entry| entry.by_attention) {
            // Pooling by averages makes rows at the edges less than equal.
            let pools = entry.options.iter().any(|(name, _)| *name == "kernel");
            let options: &[(&str, &str)] = if pools { &[("kernel", "1")] } else { &[] };
            let mut policy = prompt.policy(entry, Budget::Rows(20), options).unwrap();
            let kept = prompt.prefill(policy.as_mut()).0;
            let groups = match entry.keeps {
                Keeps::AtMost => Segments::new(&prompt.layout, policy.segment_rows()).ranges().to_vec(),
                _ => std::iter::once(0..prompt.layout.n_audio()).collect(),
            };
            for rows in &kept {
                for range in &groups {
                    let inside: Vec<usize> =
                        rows.iter().map(|r| *r as usize).filter(|r| range.contains(r)).collect();
                    let lowest: Vec<usize> = range.clone().take(inside.len()).collect();
                    assert_eq!(inside, lowest, "{}", entry.name);
                }
            }
        }
    }
}

/// Selections against scores that are computed by the definition, with the audio of the window kept.
#[test]
fn selections_follow_their_formulas() {
    let prompt = Prompt::new(shape(2, 2, 4, 4), layout(&[3, 60, 2, 30, 6]), 21);
    let (n, n_audio, window) = (prompt.layout.len(), 90, 12);
    let inside = 90 - prompt.positions().iter().filter(|p| **p < n - window).count();
    assert_eq!(inside, 6, "the window reaches into the audio");
    let best = |scores: &[f64], inside: usize, budget: usize| -> Vec<u32> {
        let mut order: Vec<u32> = (0..(n_audio - inside) as u32).collect();
        order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
        order.truncate(budget - inside);
        order.extend((n_audio - inside) as u32..n_audio as u32);
        order.sort_unstable();
        order
    };
    let total = |heads: Vec<Vec<f64>>| -> Vec<f64> {
        (0..n_audio).map(|row| heads.iter().map(|head| head[row]).sum()).collect()
    };
    let kept =
        |name: &str, options: &[(&str, &str)]| prompt.kept(find(name).unwrap(), Budget::Rows(25), options);
    let last: Vec<usize> = (n - window..n).collect();
    let everyone: Vec<usize> = (0..n).collect();
    let snapkv = kept("snapkv", &[("window", "12"), ("kernel", "1")]);
    let h2o = kept("h2o", &[("recent", "12")]);
    let mean = kept("h2o", &[("keep_window", "false"), ("per_query", "true")]);
    let tova = kept("tova", &[]);
    for layer in 0..2 {
        let both = [0, 1].map(|kv_head| total(prompt.sums(layer, kv_head, &[n - 1])));
        for kv_head in 0..2 {
            let head = layer * 2 + kv_head;
            assert_eq!(snapkv[head], best(&total(prompt.sums(layer, kv_head, &last)), inside, 25));
            let all = total(prompt.sums(layer, kv_head, &everyone));
            assert_eq!(h2o[head], best(&all, inside, 25));
            let seen = |(score, position): (&f64, usize)| score / (n - position) as f64;
            let per_query: Vec<f64> = all.iter().zip(prompt.positions()).map(seen).collect();
            assert_eq!(mean[head], best(&per_query, 0, 25));
            assert_eq!(tova[head], best(&total(both.to_vec()), 0, 25));
        }
    }
}

#[test]
fn the_registry_is_sound() {
    let prompt = Prompt::new(shape(2, 2, 4, 4), layout(&[2, 50, 4]), 5);
    let none = BTreeMap::new();
    for entry in METHODS {
        assert_eq!(METHODS.iter().filter(|other| other.name == entry.name).count(), 1, "{}", entry.name);
        assert_eq!(find(entry.name).unwrap().name, entry.name);
        let error = prompt.policy(entry, Budget::Ratio(0.5), &[("nonsense", "1")]).err().unwrap();
        assert!(error.to_string().contains("no option nonsense"), "{error}");
        assert!(prompt.policy(entry, Budget::Ratio(f64::NAN), &[]).is_err());
        let inputs = Inputs {
            shape: prompt.shape,
            layout: &prompt.layout,
            budget: Budget::Ratio(0.5),
            profile: None,
            options: &none,
        };
        assert_eq!(entry.policy(&inputs).is_err(), entry.needs_profile, "{}", entry.name);
        for (option, about) in entry.options {
            assert!(!about.is_empty());
            let bad = prompt.policy(entry, Budget::Ratio(0.5), &[(option, "purple")]).err();
            assert!(bad.is_some_and(|e| e.to_string().contains(option)), "{}: {option}", entry.name);
        }
        // What a method takes as an option it reports, so that a run can be repeated from its report.
        if entry.keeps != Keeps::AtMost {
            let told = prompt.policy(entry, Budget::Ratio(0.5), &[]).unwrap().parameters();
            for (option, _) in entry.options.iter().filter(|(option, _)| *option != "scores") {
                let (_, value) =
                    told.iter().find(|(name, _)| name == option).unwrap_or_else(|| panic!("{option}"));
                prompt.policy(entry, Budget::Ratio(0.5), &[(option, value)]).unwrap();
            }
        }
    }
    assert!(find("nonsense").unwrap_err().to_string().contains("snapkv"));
    for (name, option, value) in [
        ("snapkv", "kernel", "4"),
        ("snapkv", "window", "0"),
        ("adakv", "floor_alpha", "1.5"),
        ("audiokv", "rho", "NaN"),
        ("headkv", "beta", "0.5"),
        ("pyramidkv", "beta", "inf"),
        ("wnw", "top_chunks", "0"),
        ("arkvale", "page", "0"),
        ("arkvale", "top_pages", "0"),
        ("quest", "page", "0"),
        ("freekv", "tau", "1.5"),
        ("freekv", "tau", "NaN"),
        ("affpool", "tau", "NaN"),
        ("affpool", "tau", "-1.01"),
        ("affpool", "deep_share", "0"),
        ("affpool", "deep_window", "0"),
        ("affpool", "input_window", "0"),
        ("affpool", "position", "last"),
        ("audiokv", "scores", "loud"),
    ] {
        let error = prompt.policy(find(name).unwrap(), Budget::Ratio(0.5), &[(option, value)]).err().unwrap();
        assert!(error.to_string().contains(option), "{name}: {error}");
    }
}
