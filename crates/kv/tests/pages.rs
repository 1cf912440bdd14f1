//! Methods that choose pages within a step: what attention sees is what they chose, and that is what the query wants.

mod prompts;

use std::collections::BTreeSet;

use prompts::{Prompt, SCALE, layout, noise, shape};
use proptest::prelude::*;
use wnw_kv::policies::budget::Budget;
use wnw_kv::policies::registry::find;
use wnw_kv::{
    Arena, HeadId, HeadSelection, KvDtype, KvStore, LayerView, PAGE_ROWS, Pager, Role, Segments,
    StoreOptions, SwapMode, SwapPlan,
};

/// What a head sees, by the plans alone.
struct Seen(Vec<BTreeSet<u32>>); // (n_layers * n_kv_heads)

impl Seen {
    /// Follows the plans of a layer's heads, and returns the segments that came.
    fn follow(&mut self, first: usize, plans: &[SwapPlan]) -> usize {
        let mut came = 0;
        for (seen, plan) in self.0[first..].iter_mut().zip(plans) {
            for release in &plan.release {
                assert!(seen.remove(&release.segment), "only what is seen can leave");
            }
            came += plan.wanted.iter().filter(|page| seen.insert(**page)).count();
        }
        came
    }
}

/// A store that pages, and the same pager again to ask.
fn paged(
    prompt: &Prompt,
    name: &str,
    budget: Budget,
    options: &[(&str, &str)],
    store: &StoreOptions,
) -> (KvStore, Option<Box<dyn Pager>>) {
    let entry = find(name).unwrap();
    let mut policy = prompt.policy(entry, budget, options).unwrap();
    let (_, mut store) = prompt.prefill_into(policy.as_mut(), store);
    store.set_pager(policy.pager()).unwrap();
    let mut twin = prompt.policy(entry, budget, options).unwrap();
    prompt.prefill(twin.as_mut());
    (store, twin.pager())
}

fn f32_store() -> StoreOptions {
    StoreOptions { dtype: KvDtype::F32, ..StoreOptions::default() }
}

/// Attention of a store that has just these rows, taken over from the prefill.
fn plain(prompt: &Prompt, layer: usize, kept: &[Vec<u32>], dtype: KvDtype, q: &[f32]) -> Vec<f32> {
    let options = StoreOptions { dtype, ..StoreOptions::default() };
    let mut store = KvStore::new(prompt.shape, prompt.layout.clone(), &options);
    let selection: Vec<HeadSelection> = kept.iter().cloned().map(HeadSelection::Only).collect();
    for layer in 0..prompt.shape.n_layers {
        let view = LayerView {
            layer,
            shape: prompt.shape,
            layout: &prompt.layout,
            k: &prompt.k[layer],
            v: &prompt.v[layer],
            observed: &[],
            q: &[],
            scale: SCALE,
        };
        store.admit(&view, &selection).unwrap();
    }
    let mut out = vec![f32::NAN; q.len()];
    store.attend(layer, q, SCALE, &mut out).unwrap();
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Over a random run with queries that turn more or less, and for every method: attention is, bit for bit, that of a store
    /// that has just the pages of the plans, so what comes back from the host is what went there; no head ever has more
    /// pages than its budget; bytes recalled are those of the pages that came; rows on the device and rows read are told apart.
    #[test]
    fn attention_sees_the_pages_that_were_chosen(
        kv_heads in 1usize..4, group in prop::sample::select(vec![1usize, 4, 8]), hd in 1usize..7, before in 0usize..3,
        audio in prop::sample::select(vec![0usize, 1, 31, 32, 33, 77, 149]), between in 0usize..3, audio2 in 0usize..60, after in 1usize..4,
        page in 1usize..40, share in 0.0f64..1.0, name in prop::sample::select(vec!["arkvale", "quest", "freekv"]), per_head: bool,
        top in 1usize..5, sinks in 0usize..2, dense in 0usize..2, tau in -1.0f32..1.0, turn in 0.0f32..2.0, sync: bool,
        dtype in prop::sample::select(KvDtype::ALL.to_vec()), seed: u64,
    ) {
        let shape = shape(2, kv_heads, group, hd);
        let prompt = Prompt::new(shape, layout(&[before, audio, between, audio2, after]), seed);
        let n_audio = prompt.layout.n_audio();
                let (page_text, top, sinks_text, dense_text, per_head_text, tau) =
            (page.to_string(), top.to_string(), sinks.to_string(), dense.to_string(), per_head.to_string(), tau.to_string());
        let mut options = vec![("page", page_text.as_str()), ("dense_layers", dense_text.as_str())];
        if name != "quest" {
            options.extend([("sink_pages", sinks_text.as_str()), ("window_pages", "1")]);
        }
        match name {
            "arkvale" => options.extend([("top_pages", top.as_str()), ("per_head", per_head_text.as_str())]),
            "freekv" => options.push(("tau", tau.as_str())),
            _ => {}
        }
        let swap = if sync { SwapMode::Sync } else { SwapMode::Overlap };
        let store = StoreOptions { dtype, swap, ..StoreOptions::default() };
        let (mut store, mut twin) = paged(&prompt, name, Budget::Ratio(share), &options, &store);
        store.check_integrity().unwrap();
        prop_assert_eq!(store.report().swaps.recalled_bytes, 0, "the first pages are no recall");
        let pages = Segments::new(&prompt.layout, page);
        let rows = |seen: &BTreeSet<u32>| -> Vec<u32> {
            seen.iter().flat_map(|p| pages.ranges()[*p as usize].clone()).map(|row| row as u32).collect()
        };
        let whole: Vec<bool> = store.roles().iter().map(|role| *role == Role::Whole).collect();
        let all: BTreeSet<u32> = (0..pages.len() as u32).collect();
        let start = |whole: &bool| if *whole { all.clone() } else { BTreeSet::new() };
        let mut seen = Seen(whole.iter().map(start).collect());
        for layer in 0..2 {
            let plans = twin.as_mut().map_or(Vec::new(), |twin| twin.at_first(layer));
            seen.follow(layer * kv_heads, &plans);
        }
        for (head, seen) in seen.0.iter().enumerate() {
            prop_assert_eq!(store.head_rows()[head], rows(seen).len() as u64);
        }
        let (mut q, mut bytes) = (noise(shape.n_q_heads * hd, seed), 0);
        for step in 0..6 {
            q.iter_mut().zip(noise(shape.n_q_heads * hd, seed ^ (7 * step + 1))).for_each(|(q, x)| *q = *q * (2.0 - turn) + turn * x);
            for layer in 0..2 {
                let first = layer * kv_heads;
                let recalled = |seen: &BTreeSet<u32>| rows(seen).len();
                let held = |seen: &Seen| seen.0[first..first + kv_heads].iter().map(recalled).sum::<usize>();
                let plans = twin.as_mut().map_or(Vec::new(), |twin| twin.before_attention(layer, &q));
                let mut left: Vec<BTreeSet<u32>> = seen.0[first..first + kv_heads].to_vec();
                seen.follow(first, &plans);
                for (old, new) in left.iter().zip(&seen.0[first..]) {
                    bytes += rows(&new.difference(old).copied().collect()).len();
                }
                let kept: Vec<Vec<u32>> = seen.0[first..first + kv_heads].iter().map(rows).collect();
                let mut out = vec![f32::NAN; q.len()];
                store.attend(layer, &q, SCALE, &mut out).unwrap();
                store.check_integrity().unwrap();
                if dtype == KvDtype::F32 {
                    prompt.check_attention(name, layer, &q, &out, &kept);
                }
                let want = plain(&prompt, layer, &kept, dtype, &q);
                prop_assert!(out == want || kept.iter().all(Vec::is_empty) && prompt.layout.len() == n_audio);
                let plans = twin.as_mut().map_or(Vec::new(), |twin| twin.after_attention(layer, &q));
                left.clone_from_slice(&seen.0[first..first + kv_heads]);
                seen.follow(first, &plans);
                for (old, new) in left.iter().zip(&seen.0[first..]) {
                    bytes += rows(&new.difference(old).copied().collect()).len();
                }
                prop_assert!(held(&seen) <= kv_heads * n_audio);
                for kv_head in 0..kv_heads {
                    let (head, seen) = (first + kv_head, &seen.0[first + kv_head]);
                    prop_assert_eq!(store.head_rows()[head], rows(seen).len() as u64);
                    if name != "quest" && dense == 0 && !whole[head] {
                        let budget = (share * n_audio as f64).round();
                        let most = if budget == 0.0 { 0.0 } else { ((budget + page as f64 / 2.0) / page as f64).max(1.0) };
                        prop_assert!(seen.len() as f64 <= most, "{} pages of {}", seen.len(), most);
                    }
                    if name == "arkvale" && !per_head {
                        prop_assert_eq!(&rows(seen), &kept[0], "a layer's heads share their pages");
                    }
                }
            }
        }
        let report = store.report();
        let everything = (2 * kv_heads * n_audio) as u64;
        prop_assert_eq!(report.r_gpu_cpu, 1.0, "all audio stays within reach");
        prop_assert_eq!(report.read_rows, seen.0.iter().map(|seen| rows(seen).len() as u64).sum::<u64>());
        if name == "quest" {
            prop_assert_eq!((report.audio_rows, report.swaps.recalled_bytes, report.host_bytes), (everything, 0, 0));
        } else {
            prop_assert_eq!(report.audio_rows, report.read_rows);
            prop_assert_eq!(report.swaps.recalled_bytes, (bytes * 2 * dtype.row_bytes(hd)) as u64);
            let paged = whole.iter().filter(|whole| !**whole).count() * n_audio;
            prop_assert_eq!(report.host_bytes, (paged * 2 * dtype.row_bytes(hd)) as u64, "a mirror of all audio");
        }
    }

    /// What a head attends to can be watched although its rows come and go.
    #[test]
    fn attention_of_heads_with_pages_is_told(audio in 1usize..90, audio2 in 0usize..40, page in 1usize..20, share in 0.0f64..1.0, name in prop::sample::select(vec!["arkvale", "quest", "freekv"]), seed: u64) {
        let shape = shape(1, 2, 4, 4);
        let prompt = Prompt::new(shape, layout(&[1, audio, 1, audio2, 2]), seed);
        let page_text = page.to_string();
        let mut options = vec![("page", page_text.as_str())];
        if name != "arkvale" {
            options.push(("dense_layers", "0"));
        }
        let (mut store, mut twin) = paged(&prompt, name, Budget::Ratio(share), &options, &f32_store());
        store.watch(vec![HeadId { layer: 0, kv_head: 1 }]).unwrap();
        let pages = Segments::new(&prompt.layout, page);
        let mut seen: BTreeSet<u32> = if twin.is_none() || name == "quest" { (0..pages.len() as u32).collect() } else { BTreeSet::new() };
        let go = |plans: Vec<SwapPlan>, seen: &mut BTreeSet<u32>| if let Some(plan) = plans.get(1) {
            plan.release.iter().for_each(|release| { seen.remove(&release.segment); });
            seen.extend(&plan.wanted);
        };
        twin.iter_mut().for_each(|twin| go(twin.at_first(0), &mut seen));
        let (positions, first) = (prompt.positions(), 4 * 4);
        for step in 0..3 {
            let q = noise(8 * 4, seed ^ step);
            twin.iter_mut().for_each(|twin| go(twin.before_attention(0, &q), &mut seen));
            store.begin_step();
            store.attend(0, &q, SCALE, &mut vec![0.0; q.len()]).unwrap();
            let here: Vec<bool> = pages.ranges().iter().enumerate()
                .flat_map(|(page, rows)| vec![seen.contains(&(page as u32)); rows.len()]).collect();
            let visible: Vec<usize> =
                (0..prompt.layout.len()).filter(|p| positions.binary_search(p).map_or(true, |row| here[row])).collect();
            let mut want = vec![0.0; positions.len()];
            for q in q[first..].chunks_exact(4) {
                for (p, weight) in visible.iter().zip(prompt.weights(0, 1, q, &visible)) {
                    if let Ok(row) = positions.binary_search(p) { want[row] += weight; }
                }
            }
            for (got, want) in store.attention().iter().zip(want) {
                prop_assert!((f64::from(*got) - want).abs() < 1e-5, "{got} for {want}");
            }
            twin.iter_mut().for_each(|twin| go(twin.after_attention(0, &q), &mut seen));
        }
    }
}

/// One layer of two KV heads; audio rows 105 of head 0 and 247 of head 1 point one way, 31 and 8 another.
fn two_places() -> Prompt {
    let mut prompt = Prompt::new(shape(1, 2, 4, 4), layout(&[2, 300, 4]), 3);
    prompt.k[0].iter_mut().for_each(|x| *x *= 0.1);
    for (kv_head, row, channel) in [(0, 105, 0), (1, 247, 0), (0, 31, 1), (1, 8, 1)] {
        prompt.k[0][(kv_head * 306 + 2 + row) * 4 + channel] = 5.0;
    }
    prompt
}

/// A query that looks one way in every head.
fn look(channel: usize) -> Vec<f32> {
    (0..8 * 4).map(|i| if i % 4 == channel { 4.0 } else { 0.0 }).collect()
}

/// Heads that look at one key each see its page in the very step in which they look.
#[test]
fn what_the_query_wants_is_seen_at_once() {
    for (name, options) in [
        ("arkvale", vec![("page", "10"), ("per_head", "true")]),
        ("quest", vec![("page", "10"), ("dense_layers", "0")]),
        ("freekv", vec![("page", "10")]),
    ] {
        let prompt = two_places();
        let (mut store, mut twin) = paged(&prompt, name, Budget::Ratio(0.1), &options, &f32_store());
        for (channel, wanted) in [(0, [10, 24]), (1, [3, 0]), (0, [10, 24])] {
            let q = look(channel);
            let plans = twin.as_mut().unwrap().before_attention(0, &q);
            for (plan, wanted) in plans.iter().zip(wanted) {
                assert!(plan.wanted.len() == 3 && plan.wanted.contains(&wanted), "{name}: {plan:?}");
            }
            twin.as_mut().unwrap().after_attention(0, &q);
            let mut out = vec![0.0; q.len()];
            store.attend(0, &q, SCALE, &mut out).unwrap();
        }
        let moved = store.report().swaps.recalled_bytes;
        assert_eq!(moved > 0, name != "quest", "Quest moves nothing: {moved}");
    }
}

/// FreeKV reads what the step before chose, unless the query has turned by more than τ allows.
#[test]
fn speculation_is_a_step_late_and_correction_is_not() {
    let prompt = two_places();
    for (tau, corrected) in [("-1", false), ("0.5", true)] {
        let options = [("page", "10"), ("tau", tau)];
        let (_, twin) = paged(&prompt, "freekv", Budget::Ratio(0.1), &options, &f32_store());
        let mut pager = twin.unwrap();
        let mut seen = Seen(vec![BTreeSet::new(); 2]);
        seen.follow(0, &pager.at_first(0));
        seen.follow(0, &pager.after_attention(0, &look(0)));
        assert!(seen.0[0].contains(&10) && seen.0[1].contains(&24));
        // The same way again: nothing to correct, whatever τ.
        assert!(pager.before_attention(0, &look(0)).is_empty());
        // Another way: at a right angle to the last.
        seen.follow(0, &pager.before_attention(0, &look(1)));
        assert_eq!(seen.0[0].contains(&3) && seen.0[1].contains(&0), corrected, "τ = {tau}");
        seen.follow(0, &pager.after_attention(0, &look(1)));
        assert!(seen.0[0].contains(&3) && seen.0[1].contains(&0), "a step later in any case");
        // One head turns, the other does not: only the one is corrected.
        let mixed: Vec<f32> = [&look(0)[..16], &look(1)[16..]].concat();
        let plans = pager.before_attention(0, &mixed);
        assert_eq!(plans.first().is_some_and(|plan| plan.wanted.contains(&10)), corrected);
        assert!(plans.get(1).is_none_or(|plan| *plan == SwapPlan::default()));
    }
}

/// A budget in bytes holds pages, digests and text, and nothing is ever allocated beyond it.
#[test]
fn a_budget_in_bytes_is_never_exceeded() {
    let prompt = Prompt::new(shape(2, 2, 4, 8), layout(&[2, 300, 1, 100, 3]), 4);
    for (name, dtype) in [
        ("arkvale", KvDtype::Bf16),
        ("freekv", KvDtype::F16),
        ("arkvale", KvDtype::F32),
        ("freekv", KvDtype::Int8),
        ("arkvale", KvDtype::Int4),
    ] {
        // Audio, and for each of four heads a page of text.
        let row = (2 * dtype.row_bytes(8)) as u64;
        let (audio, text) = (4 * 150 * row, 4 * PAGE_ROWS as u64 * row);
        let device = Arena::new(Some(audio + text));
        let options = StoreOptions { dtype, device: device.clone(), ..StoreOptions::default() };
        let (mut store, _) = paged(&prompt, name, Budget::Bytes { bytes: audio, dtype }, &[], &options);
        for step in 0..8 {
            for layer in 0..2 {
                store.append(layer, &noise(16, step), &noise(16, step + 50)).unwrap();
                let q = noise(8 * 8, step ^ 9);
                store.attend(layer, &q, SCALE, &mut vec![0.0; q.len()]).unwrap();
            }
            let report = store.report();
            assert!(report.device_bytes <= audio + text, "{report:?}");
            assert_eq!(report.device_bytes, device.used());
            // Digests are f32 whatever the rows are: of 4-bit rows they leave little room.
            assert!(report.audio_rows >= 4 * 32, "{report:?}");
            assert_eq!((report.swaps.denied, report.swaps.evicted), (0, 0), "all that it asks for fits");
        }
        drop(store);
        assert_eq!(device.used(), 0);
    }
}

#[test]
fn with_room_for_everything_pages_are_the_full_cache() {
    let prompt = Prompt::new(shape(2, 2, 4, 6), layout(&[2, 90, 1, 40, 3]), 8);
    let q = noise(8 * 6, 5);
    let attend = |name: &str, budget: f64| {
        let (mut store, _) = paged(&prompt, name, Budget::Ratio(budget), &[], &f32_store());
        let mut out = vec![0.0; q.len()];
        (0..2).for_each(|layer| store.attend(layer, &q, SCALE, &mut out).unwrap());
        out
    };
    let full = attend("full", 1.0);
    for name in ["arkvale", "quest", "freekv"] {
        assert_eq!(attend(name, 1.0), full);
    }
    assert_ne!(attend("arkvale", 0.3), full);
    assert_ne!(attend("freekv", 0.3), full);
}
