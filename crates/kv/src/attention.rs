//! Attention on slices: over a whole prompt in query blocks, and over resident rows for one step.

use rayon::prelude::*;
use wnw_kernels::KvRow;
use wnw_kernels::elementwise::{exp_sub_sum, max, scale};
use wnw_kernels::matmul::{MatRef, matmul_ab, matmul_abt};
use wnw_kernels::vector::{MIX_LANES, fold_mix, mix_rows, score_rows};

/// Query rows of one task, and key rows of one tile, of [`prefill_attention`].
const QUERY_BLOCK: usize = 32;
const KEY_TILE: usize = 256;

/// Which keys a query may see in [`prefill_attention`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// Query row `i` sees keys `0 ..= first + i`: the queries are positions `first..` of the sequence.
    Causal {
        /// Position of the first query row.
        first: usize,
    },
    /// Every query sees every key (encoders).
    None,
}

/// Head counts and strides of a prefill attention call.
#[derive(Clone, Copy, Debug)]
pub struct PrefillShape {
    /// Query rows.
    pub n_q: usize,
    /// Key rows.
    pub n_k: usize,
    /// Query heads.
    pub n_q_heads: usize,
    /// KV heads; divides `n_q_heads`.
    pub n_kv_heads: usize,
    /// Elements of a head's row.
    pub head_dim: usize,
}

/// Softmax attention of a block of queries over all keys, tile by tile with a running maximum (Milakov and Gimelshein
/// 2018; Dao et al. 2022), so that no more than a `QUERY_BLOCK × KEY_TILE` piece of the score matrix exists per thread.
///
/// `q` and `out` are `(n_q, n_q_heads, head_dim)` as projections give and take them; `k` and `v` are
/// `(n_kv_heads, n_k, head_dim)`. Scores are multiplied by `scale`. The result does not depend on the thread count.
///
/// # Panics
/// When a slice's length does not fit `shape`.
pub fn prefill_attention(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    shape: PrefillShape,
    mask: Mask,
    scale_by: f32,
    out: &mut [f32],
) {
    let PrefillShape { n_q, n_k, n_q_heads, n_kv_heads, head_dim } = shape;
    let row = n_q_heads * head_dim;
    assert_eq!((q.len(), out.len()), (n_q * row, n_q * row), "prefill attention: queries");
    assert_eq!((k.len(), v.len()), (n_kv_heads * n_k * head_dim, k.len()), "prefill attention: keys");
    let group = n_q_heads / n_kv_heads;
    out.par_chunks_mut(QUERY_BLOCK * row).enumerate().for_each(|(block, out)| {
        let first_row = block * QUERY_BLOCK;
        let rows = out.len() / row;
        let mut tile = AttentionTile::new(rows, head_dim);
        for head in 0..n_q_heads {
            let q = MatRef::new(&q[first_row * row + head * head_dim..], rows, head_dim, row);
            let kv = head / group * n_k * head_dim;
            let (k, v) = (&k[kv..kv + n_k * head_dim], &v[kv..kv + n_k * head_dim]);
            tile.run(
                q,
                k,
                v,
                n_k,
                |i| match mask {
                    Mask::Causal { first } => (first + first_row + i + 1).min(n_k),
                    Mask::None => n_k,
                },
                scale_by,
            );
            for (i, acc) in tile.acc.chunks_exact(head_dim).enumerate() {
                let target = &mut out[i * row + head * head_dim..][..head_dim];
                target.copy_from_slice(acc);
                scale(target, 1.0 / tile.sum[i]);
            }
        }
    });
}

/// One thread's buffers for a block of query rows of one head.
struct AttentionTile {
    rows: usize,
    head_dim: usize,
    scores: Vec<f32>, // (rows, KEY_TILE)
    acc: Vec<f32>,    // (rows, head_dim)
    max: Vec<f32>,    // (rows)
    sum: Vec<f32>,    // (rows)
}

impl AttentionTile {
    fn new(rows: usize, head_dim: usize) -> Self {
        Self {
            rows,
            head_dim,
            scores: vec![0.0; rows * KEY_TILE],
            acc: vec![0.0; rows * head_dim],
            max: vec![0.0; rows],
            sum: vec![0.0; rows],
        }
    }

    /// `visible(i)` is the number of keys that query row `i` sees, ascending in `i`.
    fn run(
        &mut self,
        q: MatRef<'_>,
        k: &[f32],
        v: &[f32],
        n_k: usize,
        visible: impl Fn(usize) -> usize,
        scale_by: f32,
    ) {
        let hd = self.head_dim;
        self.acc.fill(0.0);
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        let last = visible(self.rows - 1).min(n_k);
        for start in (0..last).step_by(KEY_TILE) {
            let keys = KEY_TILE.min(last - start);
            let k = MatRef::new(&k[start * hd..], keys, hd, hd);
            matmul_abt(q, k, scale_by, &mut self.scores, KEY_TILE);
            for i in 0..self.rows {
                let seen = visible(i).saturating_sub(start).min(keys);
                let scores = &mut self.scores[i * KEY_TILE..i * KEY_TILE + keys];
                scores[seen..].fill(0.0);
                if seen == 0 {
                    continue;
                }
                let scores = &mut scores[..seen];
                let new_max = max(scores).max(self.max[i]);
                let rescale = (self.max[i] - new_max).exp();
                self.sum[i] = self.sum[i] * rescale + exp_sub_sum(scores, new_max);
                if rescale != 1.0 {
                    scale(&mut self.acc[i * hd..(i + 1) * hd], rescale);
                }
                self.max[i] = new_max;
            }
            let p = MatRef::new(&self.scores, self.rows, keys, KEY_TILE);
            let v = MatRef::new(&v[start * hd..], keys, hd, hd);
            matmul_ab(p, v, 1.0, &mut self.acc, hd);
        }
    }
}

/// Buffers of one KV head's [`attend_pieces`], kept from step to step.
#[derive(Debug, Default)]
pub struct StepScratch {
    /// Softmax weights of the last call, `(g, n)`, in the order of the rows.
    pub weights: Vec<f32>,
    mixed: Vec<f32>, // (g, MIX_LANES, head_dim)
}

/// Softmax attention of one step for one KV head: `g` query rows over rows that lie in pieces.
///
/// `q` and `out` are `(g, head_dim)`; each piece is a pair of key and value rows as stored, `(rows, row_len)`, and `n` is
/// the number of rows of all pieces. The result depends on the rows and their order alone, not on where the pieces end.
pub fn attend_pieces<'a, T: KvRow>(
    q: &[f32],
    pieces: impl Iterator<Item = (&'a [T], &'a [T])> + Clone,
    n: usize,
    head_dim: usize,
    scale_by: f32,
    scratch: &mut StepScratch,
    out: &mut [f32],
) {
    let (g, row_len) = (q.len() / head_dim, T::row_len(head_dim));
    let StepScratch { weights, mixed } = scratch;
    // Every element is overwritten below, so only growth costs anything.
    weights.resize(g * n, 0.0);
    let mut at = 0;
    let (mut next, first) = (pieces.clone().skip(1), pieces.clone().next());
    for (k, _) in pieces.clone() {
        // After the last keys come the first values.
        let ahead = next.next().map(|(k, _)| k).or(first.map(|(_, v)| v)).unwrap_or(&[]);
        score_rows(q, k, ahead, head_dim, scale_by, weights, n, at);
        at += k.len() / row_len;
    }
    debug_assert_eq!(at, n);
    for weights in weights.chunks_exact_mut(n.max(1)) {
        let top = max(weights);
        let sum = exp_sub_sum(weights, top);
        scale(weights, 1.0 / sum);
    }
    mixed.clear();
    mixed.resize(g * MIX_LANES * head_dim, 0.0);
    let mut at = 0;
    let mut next = pieces.clone().skip(1);
    for (_, v) in pieces {
        let ahead = next.next().map_or(&[][..], |(_, v)| v);
        mix_rows(weights, n, at, v, ahead, head_dim, mixed);
        at += v.len() / row_len;
    }
    fold_mix(mixed, head_dim, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut s = seed | 1;
        (0..n)
            .map(|_| {
                s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((s >> 40) as f32 / (1u64 << 24) as f32) * 4.0 - 2.0
            })
            .collect()
    }

    /// Attention in f64, straight from the definition.
    fn naive(q: &[f32], k: &[f32], v: &[f32], s: PrefillShape, mask: Mask, scale: f64) -> Vec<f64> {
        let mut out = vec![0.0; q.len()];
        for i in 0..s.n_q {
            let visible = match mask {
                Mask::Causal { first } => first + i + 1,
                Mask::None => s.n_k,
            };
            for h in 0..s.n_q_heads {
                let kv = h / (s.n_q_heads / s.n_kv_heads);
                let at = (i * s.n_q_heads + h) * s.head_dim;
                let row = |x: &[f32], j: usize, d: usize| f64::from(x[(kv * s.n_k + j) * s.head_dim + d]);
                let e: Vec<f64> = (0..visible)
                    .map(|j| {
                        ((0..s.head_dim).map(|d| f64::from(q[at + d]) * row(k, j, d)).sum::<f64>() * scale)
                            .exp()
                    })
                    .collect();
                let total: f64 = e.iter().sum();
                for d in 0..s.head_dim {
                    out[at + d] = (0..visible).map(|j| e[j] / total * row(v, j, d)).sum();
                }
            }
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn prefill_agrees_with_the_definition(
            n_q in 1usize..80, before in 0usize..300, kv_heads in 1usize..3, group in 1usize..4, hd in 1usize..20, causal: bool, seed: u64,
        ) {
            let n_k = n_q + before;
            let shape = PrefillShape { n_q, n_k, n_q_heads: kv_heads * group, n_kv_heads: kv_heads, head_dim: hd };
            let mask = if causal { Mask::Causal { first: before } } else { Mask::None };
            let q = noise(n_q * kv_heads * group * hd, seed);
            let (k, v) = (noise(kv_heads * n_k * hd, seed ^ 1 << 33), noise(kv_heads * n_k * hd, seed ^ 1 << 34));
            let mut out = vec![f32::NAN; q.len()];
            prefill_attention(&q, &k, &v, shape, mask, 0.3, &mut out);
            for (a, b) in out.iter().zip(naive(&q, &k, &v, shape, mask, f64::from(0.3f32))) {
                prop_assert!((f64::from(*a) - b).abs() < 2e-5, "{a} {b}");
            }
        }

        #[test]
        fn a_step_agrees_with_the_definition(n in 1usize..200, piece in 1usize..70, group in 1usize..9, hd in 1usize..40, seed: u64) {
            let shape = PrefillShape { n_q: 1, n_k: n, n_q_heads: group, n_kv_heads: 1, head_dim: hd };
            let (q, k, v) = (noise(group * hd, seed), noise(n * hd, seed ^ 1 << 33), noise(n * hd, seed ^ 1 << 34));
            let (mut scratch, mut out) = (StepScratch::default(), vec![f32::NAN; q.len()]);
            attend_pieces(&q, k.chunks(piece * hd).zip(v.chunks(piece * hd)), n, hd, 0.3, &mut scratch, &mut out);
            for (a, b) in out.iter().zip(naive(&q, &k, &v, shape, Mask::None, f64::from(0.3f32))) {
                prop_assert!((f64::from(*a) - b).abs() < 2e-5, "{a} {b}");
            }
            for w in scratch.weights.chunks_exact(n) {
                prop_assert!((w.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            }
        }
    }
}
