//! bf16 products with AVX-512.

use std::arch::x86_64::*;

use half::bf16;

use super::Bf16Rows;
use crate::tiles::{TILE, Tile};

/// Columns widened at a time.
const W: usize = 16;

/// See [`super::step`].
pub fn step(x: &[f32], w: &[bf16], k: usize, tile: &mut Tile<'_>) {
    assert_eq!(crate::isa(), crate::Isa::Avx512);
    assert_eq!((x.len(), w.len()), (tile.rows() * k, tile.columns() * k), "bf16 step: sizes");
    let mut i = 0;
    while i < tile.rows() {
        i += match tile.rows() - i {
            1 => step_rows::<1, 2>(x, w, k, i, tile),
            2 => step_rows::<2, 4>(x, w, k, i, tile),
            3 => step_rows::<3, 4>(x, w, k, i, tile),
            _ => step_rows::<4, 4>(x, w, k, i, tile),
        };
    }
}

/// Rows `i .. i + M` of activations with all rows of the tile, `R` at a time; returns `M`.
fn step_rows<const M: usize, const R: usize>(
    x: &[f32],
    w: &[bf16],
    k: usize,
    i: usize,
    tile: &mut Tile<'_>,
) -> usize {
    let x: [&[f32]; M] = std::array::from_fn(|m| &x[(i + m) * k..(i + m + 1) * k]);
    let columns = tile.columns();
    let mut c = 0;
    while c + R <= columns {
        let rows: [&[bf16]; R] = std::array::from_fn(|r| &w[(c + r) * k..(c + r + 1) * k]);
        // SAFETY: `step` asserted AVX-512, and all rows have the same length.
        let dots = unsafe { dots(x, rows) };
        for (m, dots) in dots.iter().enumerate() {
            tile.row(i + m)[c..c + R].copy_from_slice(dots);
        }
        c += R;
    }
    for c in c..columns {
        // SAFETY: as above.
        let dots = unsafe { dots(x, [&w[c * k..(c + 1) * k]]) };
        for (m, [dot]) in dots.iter().enumerate() {
            tile.row(i + m)[c] = *dot;
        }
    }
    M
}

/// Dot products of `M` rows of activations with `R` rows of weights: sixteen sums over the columns, added up in pairs, and
/// the last columns by themselves, as in [`crate::vector::dot_rows`].
///
/// # Safety
/// The processor has AVX-512, and all rows have the same length.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn dots<const M: usize, const R: usize>(x: [&[f32]; M], w: [&[bf16]; R]) -> [[f32; R]; M] {
    let k = x[0].len();
    let mut acc = [[_mm512_setzero_ps(); R]; M];
    let mut d = 0;
    while d + W <= k {
        // The next rows, from their first column to their last: memory brings one stream faster than several, and
        // prefetching reads nothing that the program sees.
        let next = w[0].as_ptr().wrapping_add(R * (k + d)).cast::<i8>();
        for line in 0..(R * W * 2).div_ceil(64) {
            _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(line * 64));
        }
        let mut wide = [_mm512_setzero_ps(); R];
        for r in 0..R {
            // SAFETY: columns d .. d + 16 exist.
            let halves = unsafe { _mm256_loadu_si256(w[r].as_ptr().add(d).cast()) };
            wide[r] = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)));
        }
        for m in 0..M {
            // SAFETY: columns d .. d + 16 exist.
            let x = unsafe { _mm512_loadu_ps(x[m].as_ptr().add(d)) };
            for r in 0..R {
                acc[m][r] = _mm512_fmadd_ps(x, wide[r], acc[m][r]);
            }
        }
        d += W;
    }
    let mut out = [[0f32; R]; M];
    for m in 0..M {
        for r in 0..R {
            let mut tail = 0f32;
            for e in d..k {
                tail = x[m][e].mul_add(w[r][e].to_f32(), tail);
            }
            out[m][r] = sum(acc[m][r]) + tail;
        }
    }
    out
}

/// Sixteen lanes in pairs: i and i + 8, then i and i + 4, and so on.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx2")]
fn sum(x: __m512) -> f32 {
    let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
    let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
}

/// Rows of weights in a packed panel: the lanes of a register.
const PANEL: usize = 16;
/// Panels of a tile.
const PANELS: usize = TILE / PANEL;
/// Pairs of columns that are packed at a time: 128 KiB of weights, which stay in the second-level cache.
const PAIRS: usize = 512;
/// Rows of activations whose sums are kept in registers: with four panels, 24 of 32.
const MANY_ROWS: usize = 6;

/// The same pair of columns of sixteen rows.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u32; PANEL]);

/// See [`super::many`]; `w` holds the rows of the tile.
pub fn many(x: &Bf16Rows, w: &[bf16], tile: &mut Tile<'_>) {
    assert!(crate::dispatch::bf16());
    assert_eq!(w.len(), tile.columns() * x.k, "bf16 product: weights");
    let pairs = x.k.div_ceil(2);
    let mut packed = vec![Line([0; PANEL]); PAIRS.min(pairs) * PANELS];
    for first in (0..pairs).step_by(PAIRS) {
        let pairs = PAIRS.min(pairs - first);
        let packed = &mut packed[..pairs * PANELS];
        // SAFETY: the processor has AVX-512, as asserted.
        unsafe { pack(w, x.k, first, packed) };
        let mut i = 0;
        while i < tile.rows() {
            i += match tile.rows() - i {
                MANY_ROWS.. => many_rows::<MANY_ROWS>(x, packed, first, i, tile),
                3.. => many_rows::<3>(x, packed, first, i, tile),
                _ => many_rows::<1>(x, packed, first, i, tile),
            };
        }
    }
}

/// Packs pairs `first ..` of up to 64 rows of `k` columns: `packed` is `(pairs, PANELS)`. Rows that the tile lacks are zeros
/// or what the same place held before, and a last single column is paired with 0.
///
/// # Safety
/// The processor has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pack(w: &[bf16], k: usize, first: usize, packed: &mut [Line]) {
    let pairs = packed.len() / PANELS;
    for (panel, w) in w.chunks(PANEL * k).enumerate() {
        let rows = w.len() / k;
        let mut done = 0;
        while rows == PANEL && done + PANEL <= pairs && 2 * (first + done + PANEL) <= k {
            let mut lines = [_mm512_setzero_si512(); PANEL];
            for (r, line) in lines.iter_mut().enumerate() {
                // SAFETY: 32 columns from 2 · (first + done) exist in row `r`, by the loop's condition.
                *line = unsafe { _mm512_loadu_si512(w.as_ptr().add(r * k + 2 * (first + done)).cast()) };
            }
            for (t, line) in transpose(lines).into_iter().enumerate() {
                let target = &mut packed[(done + t) * PANELS + panel];
                // SAFETY: a line is one aligned register.
                unsafe { _mm512_store_si512(target.0.as_mut_ptr().cast(), line) };
            }
            done += PANEL;
        }
        for t in done..pairs {
            let column = 2 * (first + t);
            for r in 0..rows {
                let low = u32::from(w[r * k + column].to_bits());
                let high = if column + 1 < k { u32::from(w[r * k + column + 1].to_bits()) } else { 0 };
                packed[t * PANELS + panel].0[r] = low | high << 16;
            }
        }
    }
}

/// Transposes sixteen by sixteen 32-bit numbers.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(r: [__m512i; PANEL]) -> [__m512i; PANEL] {
    let zero = _mm512_setzero_si512();
    let mut u = [zero; PANEL]; // u[4g + c], lane l: column 4l + c of rows 4g .. 4g + 4
    for g in 0..4 {
        let [a, b, c, d] = [r[4 * g], r[4 * g + 1], r[4 * g + 2], r[4 * g + 3]];
        let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        u[4 * g] = _mm512_unpacklo_epi64(ab_low, cd_low);
        u[4 * g + 1] = _mm512_unpackhi_epi64(ab_low, cd_low);
        u[4 * g + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
        u[4 * g + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
    }
    let mut out = [zero; PANEL];
    for c in 0..4 {
        let even_low = _mm512_shuffle_i32x4::<0x88>(u[c], u[4 + c]);
        let even_high = _mm512_shuffle_i32x4::<0x88>(u[8 + c], u[12 + c]);
        let odd_low = _mm512_shuffle_i32x4::<0xdd>(u[c], u[4 + c]);
        let odd_high = _mm512_shuffle_i32x4::<0xdd>(u[8 + c], u[12 + c]);
        out[c] = _mm512_shuffle_i32x4::<0x88>(even_low, even_high);
        out[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd_low, odd_high);
        out[8 + c] = _mm512_shuffle_i32x4::<0xdd>(even_low, even_high);
        out[12 + c] = _mm512_shuffle_i32x4::<0xdd>(odd_low, odd_high);
    }
    out
}

/// Adds the products of rows `i .. i + M` over the packed pairs, the first of which is `first`, to the tile, or begins with
/// them where `first` is 0; returns `M`.
fn many_rows<const M: usize>(
    x: &Bf16Rows,
    packed: &[Line],
    first: usize,
    i: usize,
    tile: &mut Tile<'_>,
) -> usize {
    let pairs = packed.len() / PANELS;
    let rows: [&[u32]; M] = std::array::from_fn(|m| &x.row(i + m)[first..first + pairs]);
    let mut sums = [[0f32; TILE]; M];
    let columns = tile.columns();
    if first > 0 {
        sums.iter_mut().enumerate().for_each(|(m, s)| s[..columns].copy_from_slice(tile.row(i + m)));
    }
    // SAFETY: `many` asserted the features, and every row has the pairs that are packed.
    unsafe { multiply(rows, packed, &mut sums) };
    sums.iter().enumerate().for_each(|(m, s)| tile.row(i + m).copy_from_slice(&s[..columns]));
    M
}

/// # Safety
/// The processor has AVX-512 with BF16, and `packed` is `(pairs, PANELS)` for rows of `pairs`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
#[allow(clippy::needless_range_loop)] // The indices are those of registers.
unsafe fn multiply<const M: usize>(x: [&[u32]; M], packed: &[Line], sums: &mut [[f32; TILE]; M]) {
    // SAFETY: each of `sums` has four times sixteen elements.
    let mut acc: [[__m512; PANELS]; M] = unsafe {
        std::array::from_fn(|m| std::array::from_fn(|p| _mm512_loadu_ps(sums[m].as_ptr().add(p * PANEL))))
    };
    for t in 0..packed.len() / PANELS {
        // SAFETY: pair `t` exists in `packed` and in every row; a register of integers and one of bf16 are both 64 bytes of
        // any bits.
        unsafe {
            let mut w = [_mm512_setzero_si512(); PANELS];
            for p in 0..PANELS {
                w[p] = _mm512_load_si512(packed.as_ptr().add(t * PANELS + p).cast());
            }
            for m in 0..M {
                let x = _mm512_set1_epi32(*x[m].get_unchecked(t) as i32);
                for p in 0..PANELS {
                    let (w, x) = (
                        std::mem::transmute::<__m512i, __m512bh>(w[p]),
                        std::mem::transmute::<__m512i, __m512bh>(x),
                    );
                    acc[m][p] = _mm512_dpbf16_ps(acc[m][p], w, x);
                }
            }
        }
    }
    for m in 0..M {
        for p in 0..PANELS {
            // SAFETY: as at the beginning.
            unsafe { _mm512_storeu_ps(sums[m].as_mut_ptr().add(p * PANEL), acc[m][p]) };
        }
    }
}
