//! The decoder over rows that a method merges, against transformers' layers over the same rows (`tools/goldens/affpool.py`).

use std::ops::ControlFlow;
use std::path::Path;

use serde::Deserialize;
use wnw_kv::policies::Full;
use wnw_kv::policies::aff_pool::AffPool;
use wnw_kv::policies::budget::Budget;
use wnw_kv::{
    HeadSelection, KvDtype, KvStore, LayerView, Merge, MergedPosition, Policy, PromptLayout, PromptRows,
    StoreOptions,
};
use wnw_model::{Decoder, LoadOptions, ModelError, ModelFiles, WeightDtype};

#[derive(Deserialize)]
struct Case {
    stretches: Vec<(usize, usize)>,
    rows: usize,
    tau: f64,
    windows: (usize, usize),
    position: String,
    answer: Vec<u32>,
    /// Audio rows left by the input merge and by the deep one.
    left: (usize, usize),
    /// After the prompt, and after each token of the answer: the first logits.
    logits: Vec<Vec<f32>>,
}

fn decoder() -> Decoder {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/voxtral/gqa4-tied");
    let files = ModelFiles::open(&dir).unwrap();
    files.load_parts(&LoadOptions { dtype: Some(WeightDtype::F32) }, |_, _| {}).unwrap().1
}

fn embeddings(rows: usize, width: usize) -> Vec<f32> {
    let unit = |n: usize| {
        let mut x = n as u32;
        x ^= x >> 16;
        x = x.wrapping_mul(0x7feb_352d);
        x ^= x >> 15;
        x = x.wrapping_mul(0x846c_a68b);
        x ^= x >> 16;
        (x >> 22) as f32 / 1024.0 - 0.5
    };
    let at = |p: usize, i: usize| unit(2 * (2 * p / 7 * width + i)) + unit(2 * (p * width + i) + 1);
    (0..rows).flat_map(|p| (0..width).map(move |i| at(p, i))).collect()
}

fn layout_of(case: &Case) -> PromptLayout {
    PromptLayout::new(case.rows, case.stretches.iter().map(|s| s.0..s.1).collect()).unwrap()
}

fn store(decoder: &Decoder, layout: &PromptLayout) -> KvStore {
    let options = StoreOptions { dtype: KvDtype::F32, ..StoreOptions::default() };
    KvStore::new(decoder.kv_shape(), layout.clone(), &options)
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("data/affpool.json")).unwrap()
}

#[test]
fn merged_rows_agree_with_transformers() {
    let decoder = decoder();
    let (shape, h) = (decoder.kv_shape(), decoder.hidden_size());
    let cases = cases();
    assert_eq!(cases.len(), 3);
    for case in &cases {
        let layout = layout_of(case);
        let mut policy = AffPool::new(Budget::Ratio(1.0), shape, layout.clone());
        policy.tau = Some(case.tau);
        (policy.input_window, policy.deep_window) = case.windows;
        policy.deep_layers = 1;
        policy.position = if case.position == "mean" { MergedPosition::Mean } else { MergedPosition::First };
        let mut store = store(&decoder, &layout);
        let mut last = (0, 0);
        let x = embeddings(case.rows, h);
        let states = decoder
            .prefill(x, 1, &mut store, &mut policy, &mut |p| {
                assert!(p.done <= p.total && p.done > last.0, "{} of {}", p.done, p.total);
                last = (p.done, p.total);
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(last.0, last.1, "all blocks that there are were done");
        store.check_integrity().unwrap();
        let (first, deep) = case.left;
        assert!(deep < first && first < layout.n_audio(), "both merges do something: {:?}", case.left);
        let mut want = vec![first as u64; shape.n_layers * shape.n_kv_heads];
        want[(shape.n_layers - 1) * shape.n_kv_heads..].fill(deep as u64);
        assert_eq!(store.head_rows(), want);
        let report = store.report();
        let all = (shape.n_layers * shape.n_kv_heads * layout.n_audio()) as f64;
        assert_eq!(report.r_gpu, want.iter().sum::<u64>() as f64 / all);
        let text = layout.len() - layout.n_audio();
        assert_eq!(report.text_rows as usize, text * shape.n_layers * shape.n_kv_heads);

        let mut buffers = decoder.step_buffers();
        let mut logits = decoder.logits(&states);
        let largest = case.logits.concat().iter().fold(0f32, |max, x| max.max(x.abs()));
        for (i, want) in case.logits.iter().enumerate() {
            let worst = logits.iter().zip(want).fold(0f32, |max, (a, b)| max.max((a - b).abs()));
            assert!(worst <= 1e-4 * largest, "{} {}: {worst} of {largest}", case.position, i);
            if let Some(token) = case.answer.get(i) {
                logits = decoder.step(*token, case.rows + i, &mut store, &mut buffers).unwrap().to_vec();
            }
        }
    }
}

#[test]
fn a_merge_of_nothing_is_the_full_cache_bit_for_bit() {
    let decoder = decoder();
    let case = &cases()[2];
    let layout = layout_of(case);
    let mut whole = AffPool::new(Budget::Ratio(1.0), decoder.kv_shape(), layout.clone());
    let mut apart = whole.clone();
    apart.tau = Some(1.0);
    let policies: [&mut dyn Policy; 3] = [&mut Full, &mut whole, &mut apart];
    let outcomes = policies.map(|policy| {
        let mut store = store(&decoder, &layout);
        let x = embeddings(case.rows, decoder.hidden_size());
        let states = decoder.prefill(x, 3, &mut store, policy, &mut |_| ControlFlow::Continue(())).unwrap();
        let mut buffers = decoder.step_buffers();
        let logits = decoder.step(30, case.rows, &mut store, &mut buffers).unwrap().to_vec();
        (states, logits, store.report().r_gpu)
    });
    assert_eq!(outcomes[0].2, 1.0);
    assert!(outcomes[1] == outcomes[0] && outcomes[2] == outcomes[0]);
}

/// Merges in its own way.
struct Odd {
    text: bool,
    observed: bool,
    selection: HeadSelection,
}

impl Policy for Odd {
    fn name(&self) -> &'static str {
        "odd"
    }

    fn observes(&self, _layout: &PromptLayout) -> Vec<usize> {
        if self.observed { vec![0] } else { Vec::new() }
    }

    fn before_layer(&mut self, layer: usize, rows: &PromptRows, _x: &[f32]) -> Option<Merge> {
        let mut joins = vec![false; rows.len()];
        joins[if self.text { 1 } else { 10 }] = true;
        (layer == 0).then_some(Merge { joins, position: MergedPosition::First })
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        vec![self.selection.clone(); view.shape.n_kv_heads]
    }
}

#[test]
fn what_cannot_be_merged_or_kept_is_an_error() {
    let decoder = decoder();
    let layout = layout_of(&cases()[0]);
    let run = |text, observed, selection| {
        let mut policy = Odd { text, observed, selection };
        let mut store = store(&decoder, &layout);
        let x = embeddings(layout.len(), decoder.hidden_size());
        decoder.prefill(x, 1, &mut store, &mut policy, &mut |_| ControlFlow::Continue(()))
    };
    run(false, false, HeadSelection::Only(vec![0, 6])).unwrap();
    for (text, observed, selection) in [
        (true, false, HeadSelection::All),
        (false, true, HeadSelection::All),
        // Position 10 is audio row 7, and gone.
        (false, false, HeadSelection::Only(vec![7])),
        (false, false, HeadSelection::Tiered(vec![0])),
    ] {
        let result = run(text, observed, selection.clone());
        assert!(matches!(result, Err(ModelError::Input(_))), "{text} {observed} {selection:?}");
    }
}
