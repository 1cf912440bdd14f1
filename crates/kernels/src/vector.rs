//! Dot products and scaled sums over KV rows.

use crate::dispatch::{MulAdd, kernel};
use crate::kv_row::LANES;
use crate::{KvElement, KvRow};

/// Width of the accumulators.
const W: usize = LANES;

/// Value rows that [`mix_rows`] widens at a time for all queries of a group.
const MIX_BLOCK: usize = 64;

kernel! {
    /// Scores of `g` query rows against `n` key rows of one KV head: `scores[j * stride + i] = scale · q_j · k_i`.
    ///
    /// `q` is `(g, head_dim)`, `k` is `(n, row_len)`, and `scores` has room for `n` values every `stride` from
    /// `offset`. Each key row is read, and widened, once for the whole group.
    pub fn score_rows / score_rows_with<T: KvRow>(q: &[f32], k: &[T], head_dim: usize, scale: f32, scores: &mut [f32], stride: usize, offset: usize) = score_rows_body
}

#[inline(always)]
fn score_rows_body<M: MulAdd, T: KvRow>(
    m: M,
    q: &[f32],
    k: &[T],
    head_dim: usize,
    scale: f32,
    scores: &mut [f32],
    stride: usize,
    offset: usize,
) {
    let g = q.len() / head_dim;
    let mut first = 0;
    // Groups of up to four queries keep the accumulators in registers.
    while first < g {
        let rest = &q[first * head_dim..];
        let out = &mut scores[first * stride..];
        let done = match g - first {
            1 => score_group::<M, T, 1>(m, rest, k, head_dim, scale, out, stride, offset),
            2 | 3 => score_group::<M, T, 2>(m, rest, k, head_dim, scale, out, stride, offset),
            _ => score_group::<M, T, 4>(m, rest, k, head_dim, scale, out, stride, offset),
        };
        first += done;
    }
}

#[inline(always)]
fn score_group<M: MulAdd, T: KvRow, const G: usize>(
    m: M,
    q: &[f32],
    k: &[T],
    head_dim: usize,
    scale: f32,
    scores: &mut [f32],
    stride: usize,
    offset: usize,
) -> usize {
    for (i, row) in k.chunks_exact(T::row_len(head_dim)).enumerate() {
        let mut acc = [[0f32; W]; G];
        let mut tail = [0f32; G];
        let mut d = 0;
        while d + W <= head_dim {
            let wide = T::lanes(row, head_dim, d);
            for (j, acc) in acc.iter_mut().enumerate() {
                let qd = &q[j * head_dim + d..j * head_dim + d + W];
                for lane in 0..W {
                    acc[lane] = m.mul_add(qd[lane], wide[lane], acc[lane]);
                }
            }
            d += W;
        }
        for (j, tail) in tail.iter_mut().enumerate() {
            for e in d..head_dim {
                *tail = m.mul_add(q[j * head_dim + e], T::element(row, head_dim, e), *tail);
            }
        }
        for j in 0..G {
            scores[j * stride + offset + i] = (sum(&acc[j]) + tail[j]) * scale;
        }
    }
    G
}

/// Pairwise sum of the lanes: a fixed order, so that the result does not depend on the instruction set's width.
#[inline(always)]
fn sum(acc: &[f32; W]) -> f32 {
    let mut a = *acc;
    let mut n = W / 2;
    while n > 0 {
        for i in 0..n {
            a[i] += a[i + n];
        }
        n /= 2;
    }
    a[0]
}

/// Partial sums of [`mix_rows`]: row `i` of all rows goes into partial sum `i % MIX_LANES`, which hides the latency of
/// the multiply-add chain and makes the result independent of the pieces in which the rows come.
pub const MIX_LANES: usize = 4;

kernel! {
    /// Adds weighted value rows to partial sums: `acc[j, (offset + i) % MIX_LANES] += p[j * stride + offset + i] · v_i`.
    ///
    /// `acc` is `(g, MIX_LANES, head_dim)` and `v` is `(n, row_len)`. [`fold_mix`] adds the partial sums up.
    pub fn mix_rows / mix_rows_with<T: KvRow>(p: &[f32], stride: usize, offset: usize, v: &[T], head_dim: usize, acc: &mut [f32]) = mix_rows_body
}

#[inline(always)]
fn mix_rows_body<M: MulAdd, T: KvRow>(
    m: M,
    p: &[f32],
    stride: usize,
    offset: usize,
    v: &[T],
    head_dim: usize,
    acc: &mut [f32],
) {
    let len = T::row_len(head_dim);
    let n = v.len() / len;
    let mut d = 0;
    while d + W <= head_dim {
        let lanes = |i: usize| T::lanes(&v[i * len..(i + 1) * len], head_dim, d);
        if T::QUANTISED {
            let mut wide = [[0f32; W]; MIX_BLOCK];
            for start in (0..n).step_by(MIX_BLOCK) {
                let wide = &mut wide[..MIX_BLOCK.min(n - start)];
                wide.iter_mut().enumerate().for_each(|(i, wide)| *wide = lanes(start + i));
                for (j, acc) in acc.chunks_exact_mut(MIX_LANES * head_dim).enumerate() {
                    let weights = &p[j * stride + offset + start..][..wide.len()];
                    mix_lanes(m, weights, offset + start, |i| wide[i], head_dim, &mut acc[d..]);
                }
            }
        } else {
            for (j, acc) in acc.chunks_exact_mut(MIX_LANES * head_dim).enumerate() {
                let weights = &p[j * stride + offset..][..n];
                mix_lanes(m, weights, offset, lanes, head_dim, &mut acc[d..]);
            }
        }
        d += W;
    }
    for (j, acc) in acc.chunks_exact_mut(MIX_LANES * head_dim).enumerate() {
        let weights = &p[j * stride + offset..][..n];
        for (i, (row, weight)) in v.chunks_exact(len).zip(weights).enumerate() {
            let acc = &mut acc[(offset + i) % MIX_LANES * head_dim..][..head_dim];
            for (e, acc) in acc.iter_mut().enumerate().skip(d) {
                *acc = m.mul_add(*weight, T::element(row, head_dim, e), *acc);
            }
        }
    }
}

/// Adds `W` elements of each row, `lanes(i)`, times its weight to one query's partial sums: `out` has `W` elements of
/// each partial sum every `head_dim`.
#[inline(always)]
fn mix_lanes<M: MulAdd>(
    m: M,
    weights: &[f32],
    offset: usize,
    lanes: impl Fn(usize) -> [f32; W],
    head_dim: usize,
    out: &mut [f32],
) {
    let n = weights.len();
    let mut acc = [[0f32; W]; MIX_LANES];
    for (lane, acc) in acc.iter_mut().enumerate() {
        acc.copy_from_slice(&out[lane * head_dim..lane * head_dim + W]);
    }
    let one = |acc: &mut [f32; W], i: usize| {
        let row = lanes(i);
        for lane in 0..W {
            acc[lane] = m.mul_add(weights[i], row[lane], acc[lane]);
        }
    };
    // Rows before the first that belongs to partial sum 0.
    let lead = ((MIX_LANES - offset % MIX_LANES) % MIX_LANES).min(n);
    (0..lead).for_each(|i| one(&mut acc[(offset + i) % MIX_LANES], i));
    let mut i = lead;
    while i + MIX_LANES <= n {
        for (lane, acc) in acc.iter_mut().enumerate() {
            one(acc, i + lane);
        }
        i += MIX_LANES;
    }
    (i..n).for_each(|i| one(&mut acc[(offset + i) % MIX_LANES], i));
    for (lane, acc) in acc.iter().enumerate() {
        out[lane * head_dim..lane * head_dim + W].copy_from_slice(acc);
    }
}

/// Adds up the partial sums of [`mix_rows`]: `acc` is `(g, MIX_LANES, head_dim)`, `out` is `(g, head_dim)`.
pub fn fold_mix(acc: &[f32], head_dim: usize, out: &mut [f32]) {
    for (acc, out) in acc.chunks_exact(MIX_LANES * head_dim).zip(out.chunks_exact_mut(head_dim)) {
        for (d, out) in out.iter_mut().enumerate() {
            let lane = |lane: usize| acc[lane * head_dim + d];
            *out = (lane(0) + lane(1)) + (lane(2) + lane(3));
        }
    }
}

kernel! {
    /// Widens a slice to f32.
    pub fn widen / widen_with<T: KvElement>(src: &[T], dst: &mut [f32]) = widen_body
}

#[inline(always)]
fn widen_body<M: MulAdd, T: KvElement>(_: M, src: &[T], dst: &mut [f32]) {
    for (d, s) in dst.iter_mut().zip(src) {
        *d = s.widen();
    }
}

kernel! {
    /// Stores a row, `(head_dim)`, as `(row_len)` units of the storage type.
    pub fn encode_row / encode_row_with<T: KvRow>(x: &[f32], row: &mut [T]) = encode_row_body
}

#[inline(always)]
fn encode_row_body<M: MulAdd, T: KvRow>(_: M, x: &[f32], row: &mut [T]) {
    T::encode(x, row);
}

/// Dot products of `R` weight rows with one activation row, for [`crate::half_linear`].
#[inline(always)]
pub(crate) fn dot_rows<M: MulAdd, T: KvElement, const R: usize>(
    m: M,
    rows: [&[T]; R],
    x: &[f32],
) -> [f32; R] {
    let k = x.len();
    let mut acc = [[0f32; W]; R];
    let mut tail = [0f32; R];
    let mut d = 0;
    while d + W <= k {
        let xd = &x[d..d + W];
        for (acc, row) in acc.iter_mut().zip(rows) {
            let row = &row[d..d + W];
            for lane in 0..W {
                acc[lane] = m.mul_add(xd[lane], row[lane].widen(), acc[lane]);
            }
        }
        d += W;
    }
    for (tail, row) in tail.iter_mut().zip(rows) {
        for e in d..k {
            *tail = m.mul_add(x[e], row[e].widen(), *tail);
        }
    }
    let mut out = [0f32; R];
    for r in 0..R {
        out[r] = sum(&acc[r]) + tail[r];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Int4, Int8, Isa};
    use half::{bf16, f16};
    use proptest::prelude::*;

    fn check<T: KvRow + PartialEq + std::fmt::Debug>(g: usize, n: usize, head_dim: usize, seed: u64) {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0
        };
        let q: Vec<f32> = (0..g * head_dim).map(|_| next()).collect();
        let len = T::row_len(head_dim);
        let mut rows = vec![T::STALE; n * len];
        for row in rows.chunks_exact_mut(len) {
            let x: Vec<f32> = (0..head_dim).map(|_| next()).collect();
            encode_row(&x, row);
            for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
                let mut other = vec![T::STALE; len];
                encode_row_with(isa, &x, &mut other);
                assert_eq!(row, other, "{isa:?}");
            }
            for d in (0..head_dim / W).map(|block| block * W) {
                let each: Vec<f32> = (d..d + W).map(|d| T::element(row, head_dim, d)).collect();
                assert_eq!(T::lanes(row, head_dim, d).to_vec(), each);
            }
        }
        let (stride, offset) = (n + 3, 2);
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            let mut scores = vec![0f32; g * stride];
            score_rows_with(isa, &q, &rows, head_dim, 0.5, &mut scores, stride, offset);
            // The same rows in two pieces give the same bits.
            let (mut out, mut cut) = (vec![0f32; g * head_dim], vec![0f32; g * head_dim]);
            let mut acc = vec![0f32; g * MIX_LANES * head_dim];
            mix_rows_with(isa, &scores, stride, offset, &rows, head_dim, &mut acc);
            fold_mix(&acc, head_dim, &mut out);
            acc.fill(0.0);
            let (first, rest) = rows.split_at(n / 3 * len);
            mix_rows_with(isa, &scores, stride, offset, first, head_dim, &mut acc);
            mix_rows_with(isa, &scores, stride, offset + n / 3, rest, head_dim, &mut acc);
            fold_mix(&acc, head_dim, &mut cut);
            assert_eq!(out, cut, "{isa:?}");
            for j in 0..g {
                let mut mixed = vec![0f64; head_dim];
                for i in 0..n {
                    let row = &rows[i * len..(i + 1) * len];
                    let s: f64 = (0..head_dim)
                        .map(|d| f64::from(q[j * head_dim + d]) * f64::from(T::element(row, head_dim, d)))
                        .sum::<f64>()
                        * 0.5;
                    assert!((f64::from(scores[j * stride + offset + i]) - s).abs() < 1e-4, "{isa:?}");
                    for (d, mixed) in mixed.iter_mut().enumerate() {
                        *mixed += f64::from(scores[j * stride + offset + i])
                            * f64::from(T::element(row, head_dim, d));
                    }
                }
                for d in 0..head_dim {
                    assert!((f64::from(out[j * head_dim + d]) - mixed[d]).abs() < 1e-3, "{isa:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn scores_and_mixes_agree_with_f64(g in 1usize..9, n in 0usize..90, head_dim in 1usize..70, seed: u64) {
            check::<f32>(g, n, head_dim, seed);
            check::<bf16>(g, n, head_dim, seed);
            check::<f16>(g, n, head_dim, seed);
            check::<Int8>(g, n, head_dim, seed);
            check::<Int4>(g, n, head_dim, seed);
        }
    }
}
