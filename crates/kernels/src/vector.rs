//! Dot products and scaled sums over KV rows.

use crate::dispatch::{LANES, MulAdd, kernel, pairwise_sum as sum};
use crate::{KvElement, KvRow};

/// Width of the accumulators.
const W: usize = LANES;
/// Elements of a row that [`score_rows`] widens for sixteen rows at a time; longer rows go one by one.
const SCORE_WIDTH: usize = 256;
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
    let len = T::row_len(head_dim);
    let whole = head_dim - head_dim % W;
    let q_tail = |j: usize| &q[j * head_dim + whole..(j + 1) * head_dim];
    // Sixteen rows at a time, so that their sums over the lanes are formed together; four are widened at a time.
    let mut blocks = k.chunks_exact(if whole <= SCORE_WIDTH { W * len } else { usize::MAX });
    let mut wide = [[0f32; W]; 4 * SCORE_WIDTH / W];
    let wide = &mut wide[..4 * (whole / W).min(SCORE_WIDTH / W)];
    let mut acc = [[[0f32; W]; W]; G]; // (G, rows, lanes)
    let mut i = offset;
    for block in &mut blocks {
        for first in (0..W).step_by(4) {
            for (t, wide) in wide.chunks_exact_mut((whole / W).max(1)).enumerate() {
                let row = &block[(first + t) * len..(first + t + 1) * len];
                for (b, wide) in wide.iter_mut().enumerate() {
                    *wide = T::lanes(m, row, head_dim, b * W);
                }
            }
            m.products::<G>(q, head_dim, wide, &mut acc, first);
        }
        for (j, acc) in acc.iter().enumerate() {
            let mut sums = m.sums(acc);
            if whole < head_dim {
                for (sum, row) in sums.iter_mut().zip(block.chunks_exact(len)) {
                    *sum += tail(m, q_tail(j), row, head_dim);
                }
            }
            for (score, sum) in scores[j * stride + i..j * stride + i + W].iter_mut().zip(sums) {
                *score = sum * scale;
            }
        }
        i += W;
    }
    for row in blocks.remainder().chunks_exact(len) {
        for (j, acc) in lane_sums::<M, T, G>(m, q, row, head_dim).iter().enumerate() {
            let tail = if whole < head_dim { tail(m, q_tail(j), row, head_dim) } else { 0.0 };
            scores[j * stride + i] = (sum(acc) + tail) * scale;
        }
        i += 1;
    }
    G
}

/// Products of a key row with `G` queries, summed lane by lane, as far as lanes are whole.
#[inline(always)]
fn lane_sums<M: MulAdd, T: KvRow, const G: usize>(
    m: M,
    q: &[f32],
    row: &[T],
    head_dim: usize,
) -> [[f32; W]; G] {
    let mut acc = [[0f32; W]; G];
    let mut d = 0;
    while d + W <= head_dim {
        let wide = T::lanes(m, row, head_dim, d);
        for (j, acc) in acc.iter_mut().enumerate() {
            let qd = &q[j * head_dim + d..j * head_dim + d + W];
            for lane in 0..W {
                acc[lane] = m.mul_add(qd[lane], wide[lane], acc[lane]);
            }
        }
        d += W;
    }
    acc
}

/// The rest of the product of a key row with a query, `q` being the elements past the last whole lanes.
#[inline(always)]
fn tail<M: MulAdd, T: KvRow>(m: M, q: &[f32], row: &[T], head_dim: usize) -> f32 {
    let first = head_dim - q.len();
    q.iter().enumerate().fold(0f32, |sum, (e, q)| m.mul_add(*q, T::element(row, head_dim, first + e), sum))
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
    let mut wide = [[0f32; W]; MIX_BLOCK];
    let mut d = 0;
    while d + W <= head_dim {
        for start in (0..n).step_by(MIX_BLOCK) {
            let wide = &mut wide[..MIX_BLOCK.min(n - start)];
            for (i, wide) in wide.iter_mut().enumerate() {
                *wide = T::lanes(m, &v[(start + i) * len..(start + i + 1) * len], head_dim, d);
            }
            // Groups of up to four queries keep their partial sums in registers.
            let mut first = 0;
            for acc in acc.chunks_mut(4 * MIX_LANES * head_dim) {
                let (p, g) = (&p[first * stride..], acc.len() / (MIX_LANES * head_dim));
                let (from, acc) = (offset + start, &mut acc[d..]);
                match g {
                    4 => mix_group::<M, 4>(m, p, stride, from, wide, head_dim, acc),
                    3 => mix_group::<M, 3>(m, p, stride, from, wide, head_dim, acc),
                    2 => mix_group::<M, 2>(m, p, stride, from, wide, head_dim, acc),
                    _ => mix_group::<M, 1>(m, p, stride, from, wide, head_dim, acc),
                }
                first += g;
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

/// Adds `W` elements of each row times its weights to the partial sums of `G` queries: query `j` has its weights in `p` from
/// `j * stride + from` on, and `W` elements of each of its partial sums every `head_dim` in `out`.
#[inline(always)]
fn mix_group<M: MulAdd, const G: usize>(
    m: M,
    p: &[f32],
    stride: usize,
    from: usize,
    rows: &[[f32; W]],
    head_dim: usize,
    out: &mut [f32],
) {
    let mut acc = [[[0f32; W]; MIX_LANES]; G];
    for (at, acc) in acc.as_flattened_mut().iter_mut().enumerate() {
        acc.copy_from_slice(&out[at * head_dim..at * head_dim + W]);
    }
    let weights = std::array::from_fn(|j| &p[j * stride + from..j * stride + from + rows.len()]);
    m.mix::<G>(weights, from, rows, &mut acc);
    for (at, acc) in acc.as_flattened().iter().enumerate() {
        out[at * head_dim..at * head_dim + W].copy_from_slice(acc);
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
    use crate::dispatch::Separate;
    use crate::{Int4, Int8, Isa};
    use half::{bf16, f16};
    use proptest::prelude::*;

    /// Scores one by one, in the order that all instruction sets keep; those with fused multiply-add give the same bits.
    fn fused_twin<T: KvRow>(q: &[f32], rows: &[T], head_dim: usize, (stride, offset): (usize, usize)) {
        let g = q.len() / head_dim;
        let mut want = vec![0f32; g * stride];
        for (j, q) in q.chunks_exact(head_dim).enumerate() {
            for (i, row) in rows.chunks_exact(T::row_len(head_dim)).enumerate() {
                let (mut acc, mut tail) = ([0f32; W], 0f32);
                for (d, q) in q.iter().enumerate() {
                    let x = T::element(row, head_dim, d);
                    let to = if d < head_dim / W * W { &mut acc[d % W] } else { &mut tail };
                    *to = q.mul_add(x, *to);
                }
                want[j * stride + offset + i] = (sum(&acc) + tail) * 0.5;
            }
        }
        for isa in [Isa::Avx2, Isa::Avx512] {
            let mut scores = vec![0f32; g * stride];
            score_rows_with(isa, q, rows, head_dim, 0.5, &mut scores, stride, offset);
            assert_eq!(scores, want, "{isa:?}");
        }
    }

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
                assert_eq!(T::lanes(Separate, row, head_dim, d).to_vec(), each);
            }
        }
        let (stride, offset) = (n + 3, 2);
        if crate::isa() != Isa::Portable {
            fused_twin(&q, &rows, head_dim, (stride, offset));
        }
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
