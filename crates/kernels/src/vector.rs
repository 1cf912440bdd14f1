//! Dot products and scaled sums over KV rows.

use crate::dispatch::{LANES, MulAdd, kernel};
use crate::registers::Registers;
use crate::{KvElement, KvRow};

/// Width of the accumulators.
const W: usize = LANES;
/// Value rows that [`mix_rows`] reads at a time, again and again for each part of a row: they stay in the first cache.
const MIX_BLOCK: usize = 64;
/// Elements of a head's row in most models.
const USUAL: usize = 128;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes by which [`score_rows`] asks for keys before it reads them.
const AHEAD: usize = 2048;

kernel! {
    /// Scores of `g` query rows against `n` key rows of one KV head: `scores[j * stride + i] = scale · q_j · k_i`.
    ///
    /// `q` is `(g, head_dim)`, `k` is `(n, row_len)`, and `scores` has room for `n` values every `stride` from
    /// `offset`. Each key row is read from memory once for the whole group; `next` is what will be read after `k`, and is
    /// fetched meanwhile.
    pub fn score_rows / score_rows_with<T: KvRow>(q: &[f32], k: &[T], next: &[T], head_dim: usize, scale: f32, scores: &mut [f32], stride: usize, offset: usize) = score_rows_body
}

#[inline(always)]
fn score_rows_body<M: Registers, T: KvRow>(
    m: M,
    q: &[f32],
    k: &[T],
    next: &[T],
    head_dim: usize,
    scale: f32,
    scores: &mut [f32],
    stride: usize,
    offset: usize,
) {
    // Of the length that most models have there is a copy with its loops unrolled.
    if head_dim == USUAL {
        score_groups(m, q, k, next, USUAL, scale, scores, stride, offset);
    } else {
        score_groups(m, q, k, next, head_dim, scale, scores, stride, offset);
    }
}

#[inline(always)]
fn score_groups<M: Registers, T: KvRow>(
    m: M,
    q: &[f32],
    k: &[T],
    next: &[T],
    head_dim: usize,
    scale: f32,
    scores: &mut [f32],
    stride: usize,
    offset: usize,
) {
    let g = q.len() / head_dim;
    let (mut first, mut ahead) = (0, next);
    // As many rows at a time as keep one accumulator in a register for each query of up to four.
    while first < g {
        let rest = &q[first * head_dim..];
        let out = &mut scores[first * stride..];
        first += match (g - first, M::WIDTH == W) {
            (1, true) => {
                score_queries::<M, T, 1, 16>(m, rest, k, ahead, head_dim, scale, out, stride, offset)
            }
            (1, false) => {
                score_queries::<M, T, 1, 8>(m, rest, k, ahead, head_dim, scale, out, stride, offset)
            }
            (2 | 3, true) => {
                score_queries::<M, T, 2, 8>(m, rest, k, ahead, head_dim, scale, out, stride, offset)
            }
            (2 | 3, false) => {
                score_queries::<M, T, 2, 4>(m, rest, k, ahead, head_dim, scale, out, stride, offset)
            }
            (_, true) => score_queries::<M, T, 4, 4>(m, rest, k, ahead, head_dim, scale, out, stride, offset),
            (_, false) => {
                score_queries::<M, T, 4, 2>(m, rest, k, ahead, head_dim, scale, out, stride, offset)
            }
        };
        ahead = &[];
    }
}

/// Scores of `G` queries, `R` rows at a time; `G · R` is the register's width. Returns `G`.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // The indices are those of registers.
fn score_queries<M: Registers, T: KvRow, const G: usize, const R: usize>(
    m: M,
    q: &[f32],
    k: &[T],
    next: &[T],
    head_dim: usize,
    scale: f32,
    scores: &mut [f32],
    stride: usize,
    offset: usize,
) -> usize {
    let (len, whole) = (T::row_len(head_dim), head_dim - head_dim % W);
    let n = k.len() / len;
    assert!(G * R == M::WIDTH && G * head_dim <= q.len());
    let mut sums = [0f32; W]; // (G, R)
    let rows_ahead = AHEAD / T::row_bytes(head_dim).max(1);
    for first in (0..n).step_by(R) {
        let row = first + rows_ahead;
        if row < n {
            prefetch(k[row * len..].as_ptr(), R * len);
        } else if let Some(next) = next.get((row - n) * len..) {
            prefetch(next.as_ptr(), R * len);
        }
        // The last rows may be fewer: the last one then stands for those that are missing.
        let mut rows = [k.as_ptr(); R];
        for r in 0..R {
            rows[r] = k[(first + r).min(n - 1) * len..][..len].as_ptr();
        }
        let mut total = [[m.splat(0.0); R]; G];
        for part in 0..W / M::WIDTH {
            let mut acc = [[m.splat(0.0); R]; G];
            let mut d = part * M::WIDTH;
            while d < whole {
                let mut wide = [m.splat(0.0); R];
                for r in 0..R {
                    // SAFETY: the row is whole, and the sixteen elements around `d` exist.
                    wide[r] = unsafe { T::lanes(m, rows[r], head_dim, d) };
                }
                for j in 0..G {
                    // SAFETY: there are `G` queries of `head_dim` elements, as asserted.
                    let q = unsafe { m.load(q.as_ptr().add(j * head_dim + d)) };
                    for r in 0..R {
                        acc[j][r] = m.fma(q, wide[r], acc[j][r]);
                    }
                }
                d += W;
            }
            for j in 0..G {
                for r in 0..R {
                    total[j][r] = if part == 0 { acc[j][r] } else { m.add(total[j][r], acc[j][r]) };
                }
            }
        }
        let mut of_lanes = m.sums(|at| total[at / R][at % R]);
        if whole == head_dim {
            of_lanes = m.mul(of_lanes, m.splat(scale));
        }
        // SAFETY: there are sixteen places.
        unsafe { m.store(sums.as_mut_ptr(), of_lanes) };
        let taken = R.min(n - first);
        if whole < head_dim {
            for (at, sum) in sums[..G * R].iter_mut().enumerate() {
                let row = (first + at % R).min(n - 1) * len;
                let q = &q[at / R * head_dim + whole..(at / R + 1) * head_dim];
                *sum = (*sum + tail(m, q, &k[row..row + len], head_dim)) * scale;
            }
        }
        for j in 0..G {
            let to = &mut scores[j * stride + offset + first..][..taken];
            let sums = &sums[j * R..(j + 1) * R];
            match <&mut [f32; R]>::try_from(to) {
                Ok(to) => to.copy_from_slice(sums),
                Err(_) => scores[j * stride + offset + first..][..taken].copy_from_slice(&sums[..taken]),
            }
        }
    }
    G
}

/// Asks for `n` units from `at` on, which will be read soon.
#[inline(always)]
fn prefetch<T>(at: *const T, n: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..n * size_of::<T>()).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching reads nothing that the program sees, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>().wrapping_add(line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, n);
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
    /// `acc` is `(g, MIX_LANES, head_dim)` and `v` is `(n, row_len)`; `next` is what will be read after `v`, and is fetched
    /// meanwhile. [`fold_mix`] adds the partial sums up.
    pub fn mix_rows / mix_rows_with<T: KvRow>(p: &[f32], stride: usize, offset: usize, v: &[T], next: &[T], head_dim: usize, acc: &mut [f32]) = mix_rows_body
}

#[inline(always)]
fn mix_rows_body<M: Registers, T: KvRow>(
    m: M,
    p: &[f32],
    stride: usize,
    offset: usize,
    v: &[T],
    next: &[T],
    head_dim: usize,
    acc: &mut [f32],
) {
    if head_dim == USUAL {
        mix_groups(m, p, stride, offset, v, next, USUAL, acc);
    } else {
        mix_groups(m, p, stride, offset, v, next, head_dim, acc);
    }
}

#[inline(always)]
fn mix_groups<M: Registers, T: KvRow>(
    m: M,
    p: &[f32],
    stride: usize,
    offset: usize,
    v: &[T],
    next: &[T],
    head_dim: usize,
    acc: &mut [f32],
) {
    let (len, query) = (T::row_len(head_dim), MIX_LANES * head_dim);
    let g = acc.len() / query;
    for (block, rows) in v.chunks(MIX_BLOCK * len).enumerate() {
        let from = offset + block * MIX_BLOCK;
        let mut first = 0;
        // What comes after these rows, fetched with the first queries.
        let mut ahead =
            v.get((block + 1) * MIX_BLOCK * len..).filter(|rest| !rest.is_empty()).unwrap_or(next);
        while first < g {
            let (p, acc) = (&p[first * stride + from..], &mut acc[first * query..]);
            first += match g - first {
                1 => mix_queries::<M, T, 1>(m, p, stride, from, rows, ahead, head_dim, acc),
                2 | 3 => mix_queries::<M, T, 2>(m, p, stride, from, rows, ahead, head_dim, acc),
                _ => mix_queries::<M, T, 4>(m, p, stride, from, rows, ahead, head_dim, acc),
            };
            ahead = &[];
        }
    }
    for d in head_dim - head_dim % W..head_dim {
        for (j, acc) in acc.chunks_exact_mut(query).enumerate() {
            let weights = &p[j * stride + offset..];
            for (i, (row, weight)) in v.chunks_exact(len).zip(weights).enumerate() {
                let acc = &mut acc[(offset + i) % MIX_LANES * head_dim + d];
                *acc = m.mul_add(*weight, T::element(row, head_dim, d), *acc);
            }
        }
    }
}

/// Adds the rows of `v` to the partial sums of `G` queries: query `j` has its weights in `p` from `j * stride` on, and row
/// `i` belongs to partial sum `(phase + i) % MIX_LANES`. Returns `G`.
#[inline(always)]
fn mix_queries<M: Registers, T: KvRow, const G: usize>(
    m: M,
    p: &[f32],
    stride: usize,
    phase: usize,
    v: &[T],
    next: &[T],
    head_dim: usize,
    acc: &mut [f32],
) -> usize {
    let whole = head_dim - head_dim % W;
    let mut d = 0;
    // As many registers of a row at a time as keep one accumulator for each query.
    while d < whole {
        let left = (whole - d) / M::WIDTH;
        d += M::WIDTH
            * match left.min(M::WIDTH / G) {
                8.. => mix_columns::<M, T, G, 8>(m, p, stride, phase, v, next, head_dim, d, acc),
                4..8 => mix_columns::<M, T, G, 4>(m, p, stride, phase, v, next, head_dim, d, acc),
                2..4 => mix_columns::<M, T, G, 2>(m, p, stride, phase, v, next, head_dim, d, acc),
                _ => mix_columns::<M, T, G, 1>(m, p, stride, phase, v, next, head_dim, d, acc),
            };
    }
    G
}

/// The same for elements `d .. d + B · WIDTH`, one partial sum after the other. Returns `B`.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // The indices are those of registers.
fn mix_columns<M: Registers, T: KvRow, const G: usize, const B: usize>(
    m: M,
    p: &[f32],
    stride: usize,
    phase: usize,
    v: &[T],
    next: &[T],
    head_dim: usize,
    d: usize,
    acc: &mut [f32],
) -> usize {
    let len = T::row_len(head_dim);
    let n = v.len() / len;
    assert!(d + B * M::WIDTH <= head_dim - head_dim % W);
    assert!((G - 1) * stride + n <= p.len() && G * MIX_LANES * head_dim <= acc.len());
    // The part of the next rows that is fetched here, a row's share with each row.
    let share = len * B * M::WIDTH / head_dim.max(1);
    let mut ahead = n * len * d / head_dim.max(1);
    for part in 0..MIX_LANES {
        let place = |j: usize, b: usize| (j * MIX_LANES + part) * head_dim + d + b * M::WIDTH;
        let mut sums = [[m.splat(0.0); B]; G];
        for j in 0..G {
            for b in 0..B {
                // SAFETY: every query has its partial sums of `head_dim` elements, as asserted.
                sums[j][b] = unsafe { m.load(acc.as_ptr().add(place(j, b))) };
            }
        }
        // The first row of this part.
        let mut i = (part + MIX_LANES - phase % MIX_LANES) % MIX_LANES;
        while i < n {
            if let Some(next) = next.get(ahead..) {
                prefetch(next.as_ptr(), share);
                ahead += share;
            }
            let mut wide = [m.splat(0.0); B];
            for b in 0..B {
                // SAFETY: row `i` exists, and so do the sixteen elements around `d + b * WIDTH`.
                wide[b] = unsafe { T::lanes(m, v.as_ptr().add(i * len), head_dim, d + b * M::WIDTH) };
            }
            for j in 0..G {
                // SAFETY: every query has a weight for each row, as asserted.
                let weight = m.splat(unsafe { *p.get_unchecked(j * stride + i) });
                for b in 0..B {
                    sums[j][b] = m.fma(weight, wide[b], sums[j][b]);
                }
            }
            i += MIX_LANES;
        }
        for j in 0..G {
            for b in 0..B {
                // SAFETY: as where they were read.
                unsafe { m.store(acc.as_mut_ptr().add(place(j, b)), sums[j][b]) };
            }
        }
    }
    B
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Separate;
    use crate::registers::Sixteen;
    use crate::{Int4, Int8, Isa};
    use half::{bf16, f16};
    use proptest::prelude::*;

    /// Sum of lanes i and i + 8, then i and i + 4, and so on.
    fn sum(lanes: &[f32; W]) -> f32 {
        let (mut a, mut n) = (*lanes, W / 2);
        while n > 0 {
            for i in 0..n {
                a[i] += a[i + n];
            }
            n /= 2;
        }
        a[0]
    }

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
            score_rows_with(isa, q, rows, &[], head_dim, 0.5, &mut scores, stride, offset);
            assert_eq!(scores, want, "{isa:?}");
        }
    }

    /// The bodies with registers of sixteen lanes, as AVX-512 has them, give the bits of eight lanes in two parts.
    fn sixteen_lanes<T: KvRow>(q: &[f32], rows: &[T], head_dim: usize, (stride, offset): (usize, usize)) {
        if crate::isa() == Isa::Portable {
            return;
        }
        let g = q.len() / head_dim;
        let (mut scores, mut want) = (vec![0f32; g * stride], vec![0f32; g * stride]);
        score_rows_body(Sixteen, q, rows, rows, head_dim, 0.5, &mut scores, stride, offset);
        score_rows_with(Isa::Avx2, q, rows, &[], head_dim, 0.5, &mut want, stride, offset);
        assert_eq!(scores, want);
        let (mut acc, mut want) =
            (vec![0f32; g * MIX_LANES * head_dim], vec![0f32; g * MIX_LANES * head_dim]);
        mix_rows_body(Sixteen, &scores, stride, offset, rows, rows, head_dim, &mut acc);
        mix_rows_with(Isa::Avx2, &scores, stride, offset, rows, &[], head_dim, &mut want);
        assert_eq!(acc, want);
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
            for d in (0..head_dim / W * W).step_by(Separate::WIDTH) {
                let each: Vec<f32> = (d..d + Separate::WIDTH).map(|d| T::element(row, head_dim, d)).collect();
                // SAFETY: the row is whole, and the sixteen elements around `d` exist.
                assert_eq!(unsafe { T::lanes(Separate, row.as_ptr(), head_dim, d) }.to_vec(), each);
            }
        }
        let (stride, offset) = (n + 3, 2);
        if crate::isa() != Isa::Portable {
            fused_twin(&q, &rows, head_dim, (stride, offset));
        }
        sixteen_lanes(&q, &rows, head_dim, (stride, offset));
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            let mut scores = vec![0f32; g * stride];
            score_rows_with(isa, &q, &rows, &rows, head_dim, 0.5, &mut scores, stride, offset);
            // The same rows in two pieces give the same bits.
            let (mut out, mut cut) = (vec![0f32; g * head_dim], vec![0f32; g * head_dim]);
            let mut acc = vec![0f32; g * MIX_LANES * head_dim];
            mix_rows_with(isa, &scores, stride, offset, &rows, &[], head_dim, &mut acc);
            fold_mix(&acc, head_dim, &mut out);
            acc.fill(0.0);
            let (first, rest) = rows.split_at(n / 3 * len);
            mix_rows_with(isa, &scores, stride, offset, first, rest, head_dim, &mut acc);
            mix_rows_with(isa, &scores, stride, offset + n / 3, rest, &[], head_dim, &mut acc);
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
        fn scores_and_mixes_agree_with_f64(g in 1usize..9, n in 0usize..90, head_dim in prop_oneof![4 => 1usize..70, 1 => Just(USUAL)], seed: u64) {
            check::<f32>(g, n, head_dim, seed);
            check::<bf16>(g, n, head_dim, seed);
            check::<f16>(g, n, head_dim, seed);
            check::<Int8>(g, n, head_dim, seed);
            check::<Int4>(g, n, head_dim, seed);
        }
    }
}
