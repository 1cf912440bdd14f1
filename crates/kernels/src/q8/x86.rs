//! 8-bit products with VNNI and with AVX2.

use std::arch::x86_64::*;

use super::{Codes, Panel, Q8_PANEL, Q8Matrix, Q8Row, Q8Rows, QUADS, panels};
use crate::tiles::Tile;

/// Bytes by which a step's reading of weights runs ahead, for one row of activations into the first cache and for several,
/// which take longer, into the second: hardware stops at each 4 KiB page.
const AHEAD_ONE: usize = 6144;
const AHEAD_SEVERAL: usize = 8192;

/// Panels and rows of activations whose sums [`many`] keeps in registers.
const MANY_PANELS: usize = 2;
const MANY_ROWS: usize = 6;

/// `M` rows of activations with one panel; the processor must have AVX-512 with VNNI.
pub fn step_rows<const M: usize>(x: [Q8Row<'_>; M], w: Panel<'_>, sums: &mut [[f32; Q8_PANEL]; 3]) {
    assert!(crate::dispatch::vnni() && M <= 3);
    check(&x, w);
    // SAFETY: the features are there, and rows and panel have the same number of blocks.
    unsafe { step_rows_vnni(x, w, sums) }
}

/// Every row has the blocks of the panel: what the loops below read.
fn check(x: &[Q8Row<'_>], w: Panel<'_>) {
    let blocks = w.codes.len() / QUADS;
    assert_eq!((w.codes.len(), w.scales.len()), (blocks * QUADS, blocks * Q8_PANEL));
    for x in x {
        assert_eq!((x.codes.len(), x.scales.len()), (blocks * QUADS * 4, blocks));
        assert_eq!((x.quads.len(), x.blocks.len()), (blocks * QUADS, blocks));
    }
}

/// # Safety
/// The processor has the features, and [`check`] has passed.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
#[allow(clippy::needless_range_loop)] // The indices are those of registers.
unsafe fn step_rows_vnni<const M: usize>(x: [Q8Row<'_>; M], w: Panel<'_>, sums: &mut [[f32; Q8_PANEL]; 3]) {
    let mut parts = [[_mm512_setzero_ps(); QUADS]; M];
    let mut d = [_mm512_setzero_ps(); M];
    let codes = w.codes.as_ptr();
    for b in 0..w.codes.len() / QUADS {
        // SAFETY: block `b` exists in the panel and in every row; prefetching reads nothing that the program sees.
        unsafe {
            let block = codes.add(b * QUADS);
            let block_bytes = block.cast::<i8>();
            for line in (0..QUADS).map(|j| j * size_of::<Codes>()) {
                if M == 1 {
                    _mm_prefetch::<_MM_HINT_T0>(block_bytes.wrapping_add(AHEAD_ONE + line));
                } else {
                    _mm_prefetch::<_MM_HINT_T1>(block_bytes.wrapping_add(AHEAD_SEVERAL + line));
                }
            }
            let scales = _mm512_cvtph_ps(_mm256_loadu_si256(w.scales.as_ptr().add(b * Q8_PANEL).cast()));
            for m in 0..M {
                d[m] = _mm512_mul_ps(scales, _mm512_set1_ps(*x[m].scales.get_unchecked(b)));
            }
            for j in 0..QUADS {
                let w = _mm512_load_si512(block.add(j).cast());
                for m in 0..M {
                    let quad = x[m].codes.as_ptr().add((b * QUADS + j) * 4).cast::<i32>().read_unaligned();
                    let offset = _mm512_set1_epi32(*x[m].quads.get_unchecked(b * QUADS + j));
                    let dot = _mm512_dpbusd_epi32(offset, w, _mm512_set1_epi32(quad));
                    parts[m][j] = _mm512_fmadd_ps(d[m], _mm512_cvtepi32_ps(dot), parts[m][j]);
                }
            }
        }
    }
    for (sums, p) in sums.iter_mut().zip(parts) {
        let even = _mm512_add_ps(_mm512_add_ps(p[0], p[4]), _mm512_add_ps(p[2], p[6]));
        let odd = _mm512_add_ps(_mm512_add_ps(p[1], p[5]), _mm512_add_ps(p[3], p[7]));
        // SAFETY: `sums` has sixteen elements.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), _mm512_add_ps(even, odd)) };
    }
}

/// One row of activations with one panel; the processor must have AVX2, FMA and F16C. The same bits as VNNI.
pub fn step_row_avx2(x: Q8Row<'_>, w: Panel<'_>, sums: &mut [f32; Q8_PANEL]) {
    assert!(crate::isa() != crate::Isa::Portable);
    check(&[x], w);
    // SAFETY: the features are there, and row and panel have the same number of blocks.
    unsafe { step_row_avx2_body(x, w, sums) }
}

/// # Safety
/// The processor has the features, and [`check`] has passed.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn step_row_avx2_body(x: Q8Row<'_>, w: Panel<'_>, sums: &mut [f32; Q8_PANEL]) {
    const HALF: usize = Q8_PANEL / 2;
    let (flip, ones) = (_mm256_set1_epi8(-128), _mm256_set1_epi16(1));
    for half in 0..2 {
        let mut parts = [_mm256_setzero_ps(); QUADS];
        for b in 0..w.codes.len() / QUADS {
            // SAFETY: block `b` exists in the panel and in the row, and each quad of a panel has two halves.
            unsafe {
                let scales = w.scales.as_ptr().add(b * Q8_PANEL + half * HALF);
                let scales = _mm256_cvtph_ps(_mm_loadu_si128(scales.cast()));
                let d = _mm256_mul_ps(scales, _mm256_set1_ps(*x.scales.get_unchecked(b)));
                for (j, part) in parts.iter_mut().enumerate() {
                    let codes = w.codes.as_ptr().add(b * QUADS + j).cast::<__m256i>().add(half);
                    let w = _mm256_xor_si256(_mm256_load_si256(codes), flip);
                    let quad = x.codes.as_ptr().add((b * QUADS + j) * 4).cast::<i32>().read_unaligned();
                    // |w| · (x with w's sign): no pair of products exceeds 16 bits, since no code is -128.
                    let x = _mm256_sign_epi8(_mm256_set1_epi32(quad), w);
                    let dot = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), x), ones);
                    *part = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(dot), *part);
                }
            }
        }
        let p = parts;
        let even = _mm256_add_ps(_mm256_add_ps(p[0], p[4]), _mm256_add_ps(p[2], p[6]));
        let odd = _mm256_add_ps(_mm256_add_ps(p[1], p[5]), _mm256_add_ps(p[3], p[7]));
        // SAFETY: `sums` has two halves of eight elements.
        unsafe { _mm256_storeu_ps(sums.as_mut_ptr().add(half * HALF), _mm256_add_ps(even, odd)) };
    }
}

/// All rows of activations with the panels of a tile; the processor must have AVX-512 with VNNI.
pub fn many(x: &Q8Rows, w: &Q8Matrix, tile: &mut Tile<'_>) {
    assert!(crate::dispatch::vnni());
    let mut columns = panels(tile).peekable();
    while let Some((panel, first)) = columns.next() {
        let pair = columns.next_if(|_| true).is_some();
        let mut i = 0;
        while i < tile.rows() {
            i += match (tile.rows() - i, pair) {
                (MANY_ROWS.., true) => many_rows::<MANY_ROWS, MANY_PANELS>(x, w, panel, first, i, tile),
                (3.., true) => many_rows::<3, MANY_PANELS>(x, w, panel, first, i, tile),
                (_, true) => many_rows::<1, MANY_PANELS>(x, w, panel, first, i, tile),
                (MANY_ROWS.., false) => many_rows::<MANY_ROWS, 1>(x, w, panel, first, i, tile),
                (3.., false) => many_rows::<3, 1>(x, w, panel, first, i, tile),
                (_, false) => many_rows::<1, 1>(x, w, panel, first, i, tile),
            };
        }
    }
}

/// Rows `i .. i + M` with panels `panel .. panel + P`, whose columns start at `first` in the tile; returns `M`.
fn many_rows<const M: usize, const P: usize>(
    x: &Q8Rows,
    w: &Q8Matrix,
    panel: usize,
    first: usize,
    i: usize,
    tile: &mut Tile<'_>,
) -> usize {
    let rows: [Q8Row<'_>; M] = std::array::from_fn(|m| x.row(i + m));
    let weights: [Panel<'_>; P] = std::array::from_fn(|p| w.panel(panel + p));
    weights.iter().for_each(|w| check(&rows, *w));
    let mut sums = [[[0f32; Q8_PANEL]; P]; M];
    // SAFETY: `many` asserted the features, and rows and panels have the same number of blocks.
    unsafe { many_rows_vnni(rows, weights, &mut sums) };
    for (m, sums) in sums.iter().enumerate() {
        let row = &mut tile.row(i + m)[first..];
        let row_len = row.len().min(P * Q8_PANEL);
        row[..row_len].copy_from_slice(&sums.as_flattened()[..row_len]);
    }
    M
}

/// # Safety
/// The processor has the features, and [`check`] has passed for every panel.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn many_rows_vnni<const M: usize, const P: usize>(
    x: [Q8Row<'_>; M],
    w: [Panel<'_>; P],
    sums: &mut [[[f32; Q8_PANEL]; P]; M],
) {
    let mut acc = [[_mm512_setzero_ps(); P]; M];
    for b in 0..w[0].codes.len() / QUADS {
        // SAFETY: block `b` exists in every panel and in every row.
        unsafe {
            let mut dots = [[_mm512_setzero_si512(); P]; M];
            for m in 0..M {
                dots[m] = [_mm512_set1_epi32(*x[m].blocks.get_unchecked(b)); P];
            }
            for j in 0..QUADS {
                let mut codes = [_mm512_setzero_si512(); P];
                for p in 0..P {
                    codes[p] = _mm512_load_si512(w[p].codes.as_ptr().add(b * QUADS + j).cast());
                }
                for m in 0..M {
                    let quad = x[m].codes.as_ptr().add((b * QUADS + j) * 4).cast::<i32>().read_unaligned();
                    let quad = _mm512_set1_epi32(quad);
                    for p in 0..P {
                        dots[m][p] = _mm512_dpbusd_epi32(dots[m][p], codes[p], quad);
                    }
                }
            }
            for p in 0..P {
                let scales = w[p].scales.as_ptr().add(b * Q8_PANEL);
                let scales = _mm512_cvtph_ps(_mm256_loadu_si256(scales.cast()));
                for m in 0..M {
                    let d = _mm512_mul_ps(scales, _mm512_set1_ps(*x[m].scales.get_unchecked(b)));
                    acc[m][p] = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(dots[m][p]), acc[m][p]);
                }
            }
        }
    }
    for (sums, acc) in sums.as_flattened_mut().iter_mut().zip(acc.as_flattened()) {
        // SAFETY: each of `sums` has sixteen elements.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), *acc) };
    }
}
