//! WnW on a store: what is resident is what the method says, and attention sees exactly that.

use std::sync::Arc;

use half::bf16;
use proptest::prelude::*;
use wnw_kv::attention::{StepScratch, attend_pieces};
use wnw_kv::policies::wnw::{Made, ReleaseReading, Selection, WnwParams};
use wnw_kv::policies::{Full, Wnw};
use wnw_kv::{
    Arena, HeadId, HeadSelection, HostPlace, KvDtype, KvShape, KvStore, LayerView, Policy, PromptLayout,
    Release, Role, Segments, StoreError, StoreOptions, SwapMode, SwapPlan,
};

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((s >> 40) as f32 / (1u64 << 24) as f32) * 4.0 - 2.0
        })
        .collect()
}

/// Keys, values and observed queries of a whole prompt, made of noise.
struct Prompt {
    shape: KvShape,
    layout: PromptLayout,
    k: Vec<Vec<f32>>, // per layer (n_kv_heads, len, head_dim)
    v: Vec<Vec<f32>>,
    q: Vec<Vec<f32>>, // per layer (observed, n_q_heads, head_dim)
}

impl Prompt {
    fn new(shape: KvShape, layout: PromptLayout, seed: u64) -> Self {
        let size = shape.n_kv_heads * layout.len() * shape.head_dim;
        let q_size = layout.len() * shape.n_q_heads * shape.head_dim;
        let many = |size: usize, salt: u64| {
            (0..shape.n_layers as u64).map(|l| noise(size, seed ^ (salt + 97 * l))).collect()
        };
        Self { shape, layout, k: many(size, 1), v: many(size, 2), q: many(q_size, 3) }
    }

    fn fill(&self, policy: &mut dyn Policy, options: &StoreOptions) -> Result<KvStore, StoreError> {
        let options = StoreOptions { segment_rows: policy.segment_rows(), ..options.clone() };
        let mut store = KvStore::new(self.shape, self.layout.clone(), &options);
        let observed = policy.observes(&self.layout);
        for layer in 0..self.shape.n_layers {
            let q = &self.q[layer][..observed.len() * self.shape.n_q_heads * self.shape.head_dim];
            let view = LayerView {
                layer,
                shape: self.shape,
                layout: &self.layout,
                k: &self.k[layer],
                v: &self.v[layer],
                observed: &observed,
                q,
                scale: 0.4,
            };
            let selection = policy.after_prefill(&view);
            store.admit(&view, &selection)?;
            store.check_integrity()?;
        }
        Ok(store)
    }

    /// Attention of one head over the audio rows with `resident` ordinals and all text, in order of position.
    fn plain(&self, layer: usize, kv_head: usize, resident: &[usize], steps: usize, q: &[f32]) -> Vec<f32> {
        let (n, hd, g) = (self.layout.len(), self.shape.head_dim, self.shape.group());
        let mut rows = Vec::new();
        let mut first = 0;
        for (stretch, is_audio) in self.layout.stretches() {
            for (i, position) in stretch.clone().enumerate() {
                if !is_audio || resident.contains(&(first + i)) {
                    rows.push(position);
                }
            }
            first += if is_audio { stretch.len() } else { 0 };
        }
        let pick = |x: &[f32], salt: u64| -> Vec<bf16> {
            let prompt = rows.iter().flat_map(|p| x[(kv_head * n + p) * hd..][..hd].to_vec());
            let answer =
                (0..steps).flat_map(|s| text_row(self.shape, layer, s, salt)[kv_head * hd..][..hd].to_vec());
            prompt.chain(answer).map(bf16::from_f32).collect()
        };
        let (k, v) = (pick(&self.k[layer], 5), pick(&self.v[layer], 6));
        let (mut scratch, mut out) = (StepScratch::default(), vec![f32::NAN; g * hd]);
        let q = &q[kv_head * g * hd..][..g * hd];
        attend_pieces(
            q,
            k.chunks(11 * hd).zip(v.chunks(11 * hd)),
            k.len() / hd,
            hd,
            0.4,
            &mut scratch,
            &mut out,
        );
        out
    }
}

fn text_row(shape: KvShape, layer: usize, step: usize, salt: u64) -> Vec<f32> {
    noise(shape.n_kv_heads * shape.head_dim, 1000 * step as u64 + 10 * layer as u64 + salt)
}

fn append(store: &mut KvStore, step: usize) {
    for layer in 0..store.shape().n_layers {
        let (k, v) = (text_row(store.shape(), layer, step, 5), text_row(store.shape(), layer, step, 6));
        store.append(layer, &k, &v).unwrap();
    }
}

fn attend(store: &mut KvStore, layer: usize, q: &[f32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; q.len()];
    store.attend(layer, q, 0.4, &mut out).unwrap();
    out
}

/// Every head tidal with a seeded subset.
struct Tiered {
    seed: u64,
    rows: usize,
}

impl Tiered {
    fn kept(&self, head: usize, n_audio: usize) -> Vec<u32> {
        let dice = noise(n_audio, self.seed ^ (head as u64 + 5));
        let threshold = noise(1, self.seed ^ (head as u64) << 21)[0];
        (0..n_audio as u32).filter(|i| dice[*i as usize] > threshold).collect()
    }
}

impl Policy for Tiered {
    fn name(&self) -> &'static str {
        "tiered"
    }
    fn segment_rows(&self) -> usize {
        self.rows
    }
    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let head = |h: usize| view.layer * view.shape.n_kv_heads + h;
        let n_audio = view.layout.n_audio();
        (0..view.shape.n_kv_heads).map(|h| HeadSelection::Tiered(self.kept(head(h), n_audio))).collect()
    }
}

fn layout(before: usize, audio: usize, between: usize, audio2: usize, after: usize) -> PromptLayout {
    let second = before + audio + between;
    PromptLayout::new(second + audio2 + after, vec![before..before + audio, second..second + audio2]).unwrap()
}

/// A random plan: what it wants and releases, by dice.
fn dice_plan(n_segments: usize, seed: u64, whole: bool) -> SwapPlan {
    let dice = noise(n_segments, seed);
    let wanted = (0..n_segments as u32).filter(|s| dice[*s as usize] > 0.8).collect();
    let release =
        (0..n_segments as u32).filter(|s| dice[*s as usize] < -0.8).map(|segment| Release { segment, whole });
    SwapPlan { wanted, release: release.collect() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is recalled and released, attention equals plain attention over exactly the rows that are then
    /// resident, bit for bit; both copy modes and both host places; and the store never contradicts itself.
    #[test]
    fn attention_sees_what_is_resident(
        before in 0usize..3, audio in 0usize..130, between in 0usize..3, audio2 in 0usize..50, after in 1usize..4,
        rows in 1usize..40, kv_heads in 1usize..3, group in 1usize..4, hd in 1usize..20, whole: bool, overlap: bool, file: bool, seed: u64,
    ) {
        let shape = KvShape { n_layers: 2, n_q_heads: kv_heads * group, n_kv_heads: kv_heads, head_dim: hd };
        let prompt = Prompt::new(shape, layout(before, audio, between, audio2, after), seed);
        let n_audio = prompt.layout.n_audio();
        let mut policy = Tiered { seed, rows };
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            swap: if overlap { SwapMode::Overlap } else { SwapMode::Sync },
            host_place: if file { HostPlace::File(dir.path().into()) } else { HostPlace::Ram },
            ..StoreOptions::default()
        };
        let mut store = prompt.fill(&mut policy, &options).unwrap();
        let segments = Segments::new(&prompt.layout, rows);
        let mut recalled = vec![false; segments.len()];
        let mut hidden = vec![false; segments.len()];
        for step in 0..8 {
            let plan = dice_plan(segments.len(), seed.wrapping_add(step as u64), whole);
            store.swap(&plan).unwrap();
            store.check_integrity().unwrap();
            plan.wanted.iter().for_each(|s| (recalled[*s as usize], hidden[*s as usize]) = (true, false));
            plan.release.iter().for_each(|r| (recalled[r.segment as usize], hidden[r.segment as usize]) = (false, whole));
            append(&mut store, step);
            let q = noise(shape.n_q_heads * hd, seed ^ step as u64);
            for layer in 0..2 {
                let out = attend(&mut store, layer, &q);
                for h in 0..kv_heads {
                    let head = layer * kv_heads + h;
                    let kept = policy.kept(head, n_audio);
                    let resident: Vec<usize> = segments.ranges().iter().enumerate().flat_map(|(s, range)| {
                        let (kept, recalled, hidden) = (&kept, recalled[s], hidden[s]);
                        range.clone().filter(move |o| {
                            if kept.binary_search(&(*o as u32)).is_ok() { !hidden } else { recalled }
                        })
                    }).collect();
                    let plain = prompt.plain(layer, h, &resident, step + 1, &q);
                    prop_assert_eq!(&out[h * group * hd..][..group * hd], &plain[..]);
                    prop_assert_eq!(store.head_rows()[head], resident.len() as u64);
                    let inside = |range: &std::ops::Range<usize>| resident.iter().filter(|o| range.contains(o)).count() as u32;
                    let want: Vec<u32> = segments.ranges().iter().map(inside).collect();
                    prop_assert_eq!(store.segment_rows(HeadId { layer, kv_head: h }), Some(want));
                }
            }
            store.check_integrity().unwrap();
        }
        prop_assert_eq!(store.report().r_gpu_cpu, 1.0);
    }

    /// With everything recalled a tidal head is a full head, bit for bit: rows come back from either place as they would
    /// have been stored on the device, in every KV type.
    #[test]
    fn recalling_everything_is_the_full_cache(
        audio in 1usize..200, rows in 1usize..40, group in 1usize..4, hd in 1usize..50,
        dtype in prop::sample::select(KvDtype::ALL.to_vec()), file: bool, seed: u64,
    ) {
        let shape = KvShape { n_layers: 1, n_q_heads: 2 * group, n_kv_heads: 2, head_dim: hd };
        let prompt = Prompt::new(shape, layout(2, audio, 0, 0, 2), seed);
        let dir = tempfile::tempdir().unwrap();
        let host_place = if file { HostPlace::File(dir.path().into()) } else { HostPlace::Ram };
        let options = StoreOptions { dtype, host_place, ..StoreOptions::default() };
        let mut tiered = prompt.fill(&mut Tiered { seed, rows }, &options).unwrap();
        let mut full = prompt.fill(&mut Full, &options).unwrap();
        let host_rows = tiered.roles().len() * audio - tiered.report().audio_rows as usize;
        prop_assert_eq!(tiered.report().host_bytes, (host_rows * 2 * dtype.row_bytes(hd)) as u64);
        let n = tiered.segments().len() as u32;
        tiered.swap(&SwapPlan { wanted: (0..n).collect(), release: vec![] }).unwrap();
        append(&mut tiered, 0);
        append(&mut full, 0);
        let q = noise(2 * group * hd, seed);
        prop_assert_eq!(attend(&mut tiered, 0, &q), attend(&mut full, 0, &q));
        prop_assert_eq!(tiered.report().audio_rows, full.report().audio_rows);
    }

    /// The invariants of section 2 of the method over a whole random run.
    #[test]
    fn a_run_keeps_the_methods_promises(
        before in 0usize..3, audio in 0usize..160, audio2 in 0usize..60, after in 1usize..5, rows in 1usize..30,
        top in 1usize..4, delta in 1u32..5, global: bool, whole: bool, warm: bool, seed: u64,
    ) {
        let shape = KvShape { n_layers: 3, n_q_heads: 4, n_kv_heads: 2, head_dim: 4 };
        let prompt = Prompt::new(shape, layout(before, audio, 1, audio2, after), seed);
        let n_audio = prompt.layout.n_audio();
        let share = noise(6, seed ^ 8);
        let mut roles = vec![Role::Fixed, Role::Tidal, Role::Anchor, Role::Tidal, Role::Fixed, Role::Tidal];
        roles.rotate_left((seed % 6) as usize);
        let retention: Vec<f64> = roles.iter().zip(&share)
            .map(|(r, s)| if *r == Role::Anchor { 1.0 } else { f64::from(s.abs() / 2.0) }).collect();
        let params = WnwParams {
            roles: roles.clone(), retention: retention.clone(), segment_rows: rows, chunk_segments: 2, top_chunks: top,
            release_after: delta, selection: if global { Selection::Global } else { Selection::PerSegment },
            release: if whole { ReleaseReading::Whole } else { ReleaseReading::Complement }, warm_start: warm,
            made: Made::default(),
        };
        params.check(6).unwrap();
        let mut policy = Wnw::new(Arc::new(params));
        let mut store = prompt.fill(&mut policy, &StoreOptions::default()).unwrap();
        store.watch(policy.watches()).unwrap();
        let segments = Segments::new(&prompt.layout, rows);
        let kept = |head: usize| -> u64 {
            let floor = |n: usize| ((retention[head] * n as f64 + 1e-9).floor() as u64).min(n as u64);
            segments.ranges().iter().map(|s| floor(s.len())).sum()
        };
        let after_prefill = store.head_rows();
        for head in 0..6 {
            prop_assert_eq!(after_prefill[head], if roles[head] == Role::Anchor { n_audio as u64 } else { kept(head) });
        }
        store.swap(&policy.before_decode()).unwrap();
        let mut last_wanted: Vec<Option<usize>> = vec![None; segments.len()];
        let q = |step: usize, layer: usize| noise(4 * 4, seed ^ (step * 3 + layer) as u64);
        for step in 0..10 {
            store.begin_step();
            append(&mut store, step);
            for layer in 0..3 {
                attend(&mut store, layer, &q(step, layer));
            }
            let plan = policy.after_step(store.attention());
            prop_assert!(plan.wanted.len() <= top * 2);
            prop_assert_eq!(plan.wanted.is_empty(), segments.is_empty());
            plan.wanted.iter().for_each(|s| last_wanted[*s as usize] = Some(step));
            // Whatever was wanted δ steps ago, and not since, leaves now.
            for (segment, last) in last_wanted.iter().enumerate() {
                let leaves = plan.release.iter().any(|r| r.segment as usize == segment);
                prop_assert_eq!(leaves && last.is_some(), last.is_some_and(|last| step - last == delta as usize));
            }
            for released in &plan.release {
                if let Some(last) = last_wanted[released.segment as usize] {
                    prop_assert_eq!(step - last, delta as usize, "released exactly δ steps after it was last wanted");
                }
            }
            store.swap(&plan).unwrap();
            store.check_integrity().unwrap();
            let now = store.head_rows();
            for head in 0..6 {
                match roles[head] {
                    Role::Tidal if !whole => prop_assert!(now[head] >= after_prefill[head]),
                    Role::Tidal => {}
                    _ => prop_assert_eq!(now[head], after_prefill[head], "anchors and fixed heads do not change"),
                }
            }
            let fixed: u64 = (0..6).filter(|h| roles[*h] == Role::Fixed).map(|h| after_prefill[h]).sum();
            let reachable = if n_audio == 0 { 1.0 } else { (fixed as f64 / n_audio as f64 + 4.0) / 6.0 };
            prop_assert!((store.report().r_gpu_cpu - reachable).abs() < 1e-12);
        }
        // Whatever was recalled, a release of everything leaves the prefill's subset.
        if !whole {
            let release = (0..segments.len() as u32).map(|segment| Release { segment, whole: false }).collect();
            store.swap(&SwapPlan { wanted: vec![], release }).unwrap();
            store.check_integrity().unwrap();
            prop_assert_eq!(store.head_rows(), after_prefill);
        }
    }
}

/// Six segments of two rows; chunk c covers segments c and c + 1.
#[test]
fn chunks_are_chosen_by_mean_attention_and_released_after_delta_steps() {
    let shape = KvShape { n_layers: 1, n_q_heads: 2, n_kv_heads: 2, head_dim: 4 };
    let prompt = Prompt::new(shape, layout(1, 11, 0, 0, 1), 7);
    let params = WnwParams {
        roles: vec![Role::Anchor, Role::Tidal],
        retention: vec![1.0, 0.5],
        segment_rows: 2,
        chunk_segments: 2,
        top_chunks: 1,
        release_after: 2,
        selection: Selection::PerSegment,
        release: ReleaseReading::Complement,
        warm_start: false,
        made: Made::default(),
    };
    let mut policy = Wnw::new(Arc::new(params));
    let store = prompt.fill(&mut policy, &StoreOptions::default()).unwrap();
    assert_eq!(policy.watches(), [HeadId { layer: 0, kv_head: 0 }]);
    assert_eq!(store.head_rows(), [11, 5], "⌊0.5 · 2⌋ of five segments, ⌊0.5 · 1⌋ of the last");
    let mut attention = vec![0.0; 11];
    attention[4] = 1.0; // segment 2: chunks 1 and 2 tie, the earlier wins
    assert_eq!(policy.after_step(&attention), SwapPlan { wanted: vec![1, 2], release: vec![] });
    attention[10] = 1.0; // the last chunk has three rows: mean 1/3 against 1/4
    assert_eq!(policy.after_step(&attention).wanted, [4, 5]);
    let plan = policy.after_step(&attention);
    let release = |segment| Release { segment, whole: false };
    assert_eq!(plan.release, [release(1), release(2)], "not wanted in two steps");
    assert!(policy.after_step(&[0.0; 11]).release.is_empty(), "ties go to chunk 0");
    assert_eq!(policy.after_step(&[0.0; 11]).release, [release(4), release(5)]);
}

/// Rows are ranked by what the text after the audio attends to.
#[test]
fn prefill_keeps_what_the_prompt_attends_to() {
    let shape = KvShape { n_layers: 1, n_q_heads: 2, n_kv_heads: 1, head_dim: 2 };
    let layout = layout(1, 8, 0, 0, 1);
    // The audio is at positions 1 to 8. Three of its four best rows are in the second segment.
    let mut k = vec![0.0; 20];
    (k[6], k[12], k[14], k[16]) = (1.5, 4.0, 1.0, 3.0);
    let params = |selection, retention| WnwParams {
        roles: vec![Role::Fixed],
        retention: vec![retention],
        segment_rows: 4,
        chunk_segments: 2,
        top_chunks: 1,
        release_after: 1,
        selection,
        release: ReleaseReading::Complement,
        warm_start: false,
        made: Made::default(),
    };
    for (selection, retention, want) in [
        (Selection::PerSegment, 0.25, vec![2, 5]),
        (Selection::PerSegment, 0.5, vec![0, 2, 5, 7]),
        (Selection::Global, 0.5, vec![2, 5, 6, 7]),
        (Selection::Global, 0.25, vec![5, 7]),
        (Selection::PerSegment, 0.24, vec![]),
    ] {
        let mut policy = Wnw::new(Arc::new(params(selection, retention)));
        let observed = policy.observes(&layout);
        assert_eq!(observed, [9], "only text after the audio");
        let view = LayerView {
            layer: 0,
            shape,
            layout: &layout,
            k: &k,
            v: &k,
            observed: &observed,
            q: &[1.0, 0.0, 0.5, 0.0],
            scale: 1.0,
        };
        assert_eq!(policy.after_prefill(&view), [HeadSelection::Only(want)], "{selection:?} {retention}");
    }
}

#[test]
fn a_full_budget_refuses_rows_and_denies_recalls_without_harm() {
    let shape = KvShape { n_layers: 1, n_q_heads: 1, n_kv_heads: 1, head_dim: 8 };
    let prompt = Prompt::new(shape, layout(1, 100, 0, 0, 1), 3);
    let row = 2 * 8 * 2;
    let device = Arena::new(Some(2 * 64 * row + 10 * row));
    let options =
        StoreOptions { device: Arc::clone(&device), dtype: KvDtype::Bf16, ..StoreOptions::default() };
    assert!(matches!(
        prompt.fill(&mut Full, &StoreOptions { device: Arena::new(Some(64 * row)), ..options.clone() }),
        Err(StoreError::Device(_))
    ));
    let mut policy = Tiered { seed: 5, rows: 10 };
    let mut store = prompt.fill(&mut policy, &options).unwrap();
    let mut other = prompt.fill(&mut policy, &StoreOptions::default()).unwrap();
    let n = store.segments().len() as u32;
    store.swap(&SwapPlan { wanted: (0..n).collect(), release: vec![] }).unwrap();
    store.check_integrity().unwrap();
    let swaps = store.report().swaps;
    let fits = (device.capacity().unwrap() - device.used()) / (10 * row);
    assert_eq!(fits, 0, "blocks fill what pages left");
    assert!(swaps.denied > 0 && swaps.recalled_segments > 0, "{swaps:?}");
    assert!(device.used() <= device.capacity().unwrap());
    // Text goes on until a page is needed that does not fit; the other session is untouched.
    let mut refused = None;
    for step in 0..200 {
        let (k, v) = (text_row(shape, 0, step, 5), text_row(shape, 0, step, 6));
        if let Err(error) = store.append(0, &k, &v) {
            refused = Some(error);
            break;
        }
    }
    assert!(matches!(refused, Some(StoreError::Device(_))), "{refused:?}");
    store.check_integrity().unwrap();
    let report = store.report();
    assert_eq!(report.swaps.evicted, swaps.recalled_segments, "recalled rows made room for text");
    assert_eq!(store.resident_rows(0, 0), 2 * 64, "pages fill the budget before text is refused");
    append(&mut other, 0);
    assert!(attend(&mut other, 0, &noise(8, 1)).iter().all(|x| x.is_finite()));
    drop(store);
    assert_eq!(device.used(), 0);
}

#[test]
fn broken_plans_and_watches_are_refused() {
    let shape = KvShape { n_layers: 1, n_q_heads: 1, n_kv_heads: 1, head_dim: 4 };
    let prompt = Prompt::new(shape, layout(1, 20, 0, 0, 1), 3);
    let mut store = prompt.fill(&mut Tiered { seed: 5, rows: 5 }, &StoreOptions::default()).unwrap();
    let release = |segment| Release { segment, whole: false };
    for plan in [
        SwapPlan { wanted: vec![4], release: vec![] },
        SwapPlan { wanted: vec![1, 1], release: vec![] },
        SwapPlan { wanted: vec![], release: vec![release(2), release(1)] },
        SwapPlan { wanted: vec![1], release: vec![release(1)] },
    ] {
        assert!(matches!(store.swap(&plan), Err(StoreError::Selection(_))), "{plan:?}");
    }
    for (layer, kv_head) in [(0, 1), (1, 0)] {
        assert!(store.watch(vec![HeadId { layer, kv_head }]).is_err(), "no such head");
    }
}
