//! The store against plain attention, for heads of different lengths, and its invariants.

use half::{bf16, f16};
use proptest::prelude::*;
use wnw_kernels::vector::encode_row;
use wnw_kernels::{Int4, Int8, KvRow};
use wnw_kv::attention::{StepScratch, attend_pieces};
use wnw_kv::policies::Full;
use wnw_kv::{
    HeadSelection, KvDtype, KvShape, KvStore, LayerView, Policy, PromptLayout, StoreError, StoreOptions,
};

/// Rows of a page. Plain attention below is cut into other pieces: only the order of rows may matter.
const PAGE_ROWS: usize = 64;
const PIECE_ROWS: usize = 37;

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((s >> 40) as f32 / (1u64 << 24) as f32) * 4.0 - 2.0
        })
        .collect()
}

/// Keeps of every head a different, seeded subset: a policy made to be ragged.
struct Ragged {
    seed: u64,
}

impl Ragged {
    fn kept(&self, layer: usize, kv_head: usize, n_audio: usize) -> Vec<u32> {
        let dice = noise(n_audio, self.seed ^ (layer * 31 + kv_head + 1) as u64);
        let threshold = noise(1, self.seed ^ (kv_head as u64) << 20)[0];
        (0..n_audio as u32).filter(|i| dice[*i as usize] > threshold).collect()
    }
}

impl Policy for Ragged {
    fn name(&self) -> &'static str {
        "ragged"
    }
    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        (0..view.shape.n_kv_heads)
            .map(|h| HeadSelection::Only(self.kept(view.layer, h, view.layout.n_audio())))
            .collect()
    }
}

struct Filled {
    store: KvStore,
    k: Vec<Vec<f32>>, // per layer (n_kv_heads, len, head_dim)
    v: Vec<Vec<f32>>,
}

fn fill(shape: KvShape, dtype: KvDtype, layout: &PromptLayout, policy: &mut dyn Policy, seed: u64) -> Filled {
    let mut store = KvStore::new(shape, layout.clone(), &StoreOptions { dtype, ..StoreOptions::default() });
    let (mut ks, mut vs) = (Vec::new(), Vec::new());
    for layer in 0..shape.n_layers {
        let size = shape.n_kv_heads * layout.len() * shape.head_dim;
        let (k, v) = (noise(size, seed + 2 * layer as u64), noise(size, seed + 2 * layer as u64 + 1));
        let view = LayerView { layer, shape, layout, k: &k, v: &v, observed: &[], q: &[], scale: 1.0 };
        let selection = policy.after_prefill(&view);
        store.admit(&view, &selection).unwrap();
        store.check_integrity().unwrap();
        ks.push(k);
        vs.push(v);
    }
    Filled { store, k: ks, v: vs }
}

fn layout(before: usize, audio: usize, between: usize, audio2: usize, after: usize) -> PromptLayout {
    let second = before + audio + between;
    PromptLayout::new(second + audio2 + after, vec![before..before + audio, second..second + audio2]).unwrap()
}

/// Attention over rows, `(n, head_dim)`, that are stored one by one: `q` and the result are `(g, head_dim)`.
fn plain_as<T: KvRow>(q: &[f32], k: &[f32], v: &[f32], hd: usize, scale: f32) -> Vec<f32> {
    let len = T::row_len(hd);
    let stored = |x: &[f32]| {
        let mut rows = vec![T::STALE; x.len() / hd * len];
        x.chunks_exact(hd).zip(rows.chunks_exact_mut(len)).for_each(|(x, row)| encode_row(x, row));
        rows
    };
    let (n, k, v) = (k.len() / hd, stored(k), stored(v));
    let (mut scratch, mut out) = (StepScratch::default(), vec![f32::NAN; q.len()]);
    let pieces = k.chunks(PIECE_ROWS * len).zip(v.chunks(PIECE_ROWS * len));
    attend_pieces(q, pieces, n, hd, scale, &mut scratch, &mut out);
    out
}

fn plain(dtype: KvDtype, q: &[f32], k: &[f32], v: &[f32], hd: usize, scale: f32) -> Vec<f32> {
    match dtype {
        KvDtype::F32 => plain_as::<f32>(q, k, v, hd, scale),
        KvDtype::Bf16 => plain_as::<bf16>(q, k, v, hd, scale),
        KvDtype::F16 => plain_as::<f16>(q, k, v, hd, scale),
        KvDtype::Int8 => plain_as::<Int8>(q, k, v, hd, scale),
        KvDtype::Int4 => plain_as::<Int4>(q, k, v, hd, scale),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn store_attention_is_plain_attention_over_the_kept_rows_bit_for_bit(
        before in 0usize..4, audio in 0usize..150, between in 0usize..3, audio2 in 0usize..40, after in 1usize..4,
        kv_heads in 1usize..4, group in 1usize..5, hd in 1usize..40, steps in 0usize..70,
        dtype in prop::sample::select(KvDtype::ALL.to_vec()), seed: u64,
    ) {
        let seed = seed >> 1;
        let shape = KvShape { n_layers: 2, n_q_heads: kv_heads * group, n_kv_heads: kv_heads, head_dim: hd };
        let layout = layout(before, audio, between, audio2, after);
        let positions: Vec<usize> = layout.audio().iter().flat_map(Clone::clone).collect();
        for ragged in [false, true] {
            let mut policy: Box<dyn Policy> = if ragged { Box::new(Ragged { seed }) } else { Box::new(Full) };
            let mut filled = fill(shape, dtype, &layout, policy.as_mut(), seed);
            for step in 0..steps {
                for layer in 0..2 {
                    let (k, v) = (noise(kv_heads * hd, seed + 100 + step as u64), noise(kv_heads * hd, seed + 900));
                    filled.store.append(layer, &k, &v).unwrap();
                }
            }
            filled.store.check_integrity().unwrap();
            let q = noise(shape.n_q_heads * hd, seed + 7);
            for layer in 0..2 {
                let mut out = vec![f32::NAN; q.len()];
                filled.store.attend(layer, &q, 0.5, &mut out).unwrap();
                for h in 0..kv_heads {
                    let audio_kept: Vec<usize> = if ragged {
                        Ragged { seed }.kept(layer, h, layout.n_audio()).iter().map(|o| positions[*o as usize]).collect()
                    } else {
                        positions.clone()
                    };
                    let rows = (0..layout.len()).filter(|p| !positions.contains(p) || audio_kept.contains(p));
                    let pick = |x: &[f32], answer: &dyn Fn(usize) -> Vec<f32>| -> Vec<f32> {
                        rows.clone()
                            .flat_map(|p| x[(h * layout.len() + p) * hd..][..hd].to_vec())
                            .chain((0..steps).flat_map(|s| answer(s)[h * hd..][..hd].to_vec()))
                            .collect()
                    };
                    let k = pick(&filled.k[layer], &|s| noise(kv_heads * hd, seed + 100 + s as u64));
                    let v = pick(&filled.v[layer], &|_| noise(kv_heads * hd, seed + 900));
                    let heads = h * group * hd..(h + 1) * group * hd;
                    prop_assert_eq!(&out[heads.clone()], &plain(dtype, &q[heads], &k, &v, hd, 0.5)[..]);
                    prop_assert_eq!(filled.store.resident_rows(layer, h), k.len() / hd);
                }
            }
        }
    }

    #[test]
    fn the_report_counts_what_is_there(
        audio in 1usize..300, kv_heads in 1usize..4, dtype in prop::sample::select(KvDtype::ALL.to_vec()), seed: u64,
    ) {
        let seed = seed >> 1;
        let shape = KvShape { n_layers: 3, n_q_heads: kv_heads, n_kv_heads: kv_heads, head_dim: 8 };
        let layout = layout(3, audio, 0, 0, 2);
        let mut policy = Ragged { seed };
        let filled = fill(shape, dtype, &layout, &mut policy, seed);
        let kept: usize = (0..3).flat_map(|l| (0..kv_heads).map(move |h| (l, h)))
            .map(|(l, h)| policy.kept(l, h, audio).len()).sum();
        let report = filled.store.report();
        prop_assert_eq!(report.audio_rows, kept as u64);
        prop_assert_eq!(report.text_rows, (3 * kv_heads * 5) as u64);
        prop_assert!((report.r_gpu - kept as f64 / (3 * kv_heads * audio) as f64).abs() < 1e-12);
        let pages: usize = (0..3).flat_map(|l| (0..kv_heads).map(move |h| (l, h)))
            .map(|(l, h)| (policy.kept(l, h, audio).len() + 5).div_ceil(PAGE_ROWS)).sum();
        let row = match dtype {
            KvDtype::F32 => 32,
            KvDtype::Bf16 | KvDtype::F16 => 16,
            KvDtype::Int8 => 4 + 8,
            KvDtype::Int4 => 2 + 2 + 4,
        };
        prop_assert_eq!(report.device_bytes, (pages * PAGE_ROWS * 2 * row) as u64);
    }
}

/// Enough rows that the heads are shared out between threads.
#[test]
fn many_rows_give_the_same_as_plain_attention() {
    let shape = KvShape { n_layers: 1, n_q_heads: 4, n_kv_heads: 2, head_dim: 128 };
    let layout = layout(2, 900, 0, 0, 3);
    for dtype in KvDtype::ALL {
        let mut filled = fill(shape, dtype, &layout, &mut Full, 3);
        let q = noise(4 * 128, 9);
        let mut out = vec![f32::NAN; q.len()];
        filled.store.attend(0, &q, 0.1, &mut out).unwrap();
        for h in 0..2 {
            let rows = h * 905 * 128..(h + 1) * 905 * 128;
            let (k, v) = (&filled.k[0][rows.clone()], &filled.v[0][rows]);
            assert_eq!(out[h * 256..][..256], plain(dtype, &q[h * 256..][..256], k, v, 128, 0.1), "{dtype}");
        }
    }
}

#[test]
fn layers_out_of_order_and_broken_selections_are_refused() {
    let shape = KvShape { n_layers: 2, n_q_heads: 2, n_kv_heads: 2, head_dim: 4 };
    let layout = layout(1, 4, 0, 0, 1);
    let (k, v) = (noise(2 * 6 * 4, 1), noise(2 * 6 * 4, 2));
    let options = StoreOptions { dtype: KvDtype::F16, ..StoreOptions::default() };
    let mut store = KvStore::new(shape, layout.clone(), &options);
    let view =
        |layer| LayerView { layer, shape, layout: &layout, k: &k, v: &v, observed: &[], q: &[], scale: 1.0 };
    assert!(matches!(
        store.admit(&view(1), &[HeadSelection::All, HeadSelection::All]),
        Err(StoreError::LayerOrder { got: 1, want: 0 })
    ));
    assert!(store.append(0, &k[..8], &v[..8]).is_err(), "no step before the prefill is complete");
    for bad in [
        vec![HeadSelection::All],
        vec![HeadSelection::All, HeadSelection::Only(vec![1, 1])],
        vec![HeadSelection::Only(vec![2, 1]), HeadSelection::All],
        vec![HeadSelection::Only(vec![4]), HeadSelection::All],
    ] {
        assert!(matches!(store.admit(&view(0), &bad), Err(StoreError::Selection(_))), "{bad:?}");
        assert_eq!(store.report().device_bytes, 0, "a refused selection leaves nothing behind");
    }
    store.admit(&view(0), &[HeadSelection::Only(vec![]), HeadSelection::Only(vec![0, 3])]).unwrap();
    assert_eq!((store.resident_rows(0, 0), store.resident_rows(0, 1)), (2, 4));
}

/// What overflows or is damaged is not hidden by quantisation: it shows in every output of the head's queries.
#[test]
fn a_row_that_is_not_finite_shows_in_the_output() {
    let shape = KvShape { n_layers: 1, n_q_heads: 2, n_kv_heads: 2, head_dim: 20 };
    for dtype in KvDtype::ALL {
        let mut filled = fill(shape, dtype, &layout(2, 90, 0, 0, 3), &mut Full, 3);
        let (mut k, v, q) = (noise(40, 1), noise(40, 2), noise(40, 3));
        k[7] = f32::INFINITY;
        filled.store.append(0, &k, &v).unwrap();
        let mut out = vec![0.0; 40];
        filled.store.attend(0, &q, 0.1, &mut out).unwrap();
        let quantised = matches!(dtype, KvDtype::Int8 | KvDtype::Int4);
        assert!(!quantised || out[..20].iter().all(|x| x.is_nan()), "{dtype}: {out:?}");
        assert!(out[20..].iter().all(|x| x.is_finite()), "{dtype}: {out:?}");
    }
}
