//! 8-bit products with VNNI and with AVX2.

use std::arch::x86_64::*;

use super::{Codes, Panel, Q8_PANEL, Q8Matrix, Q8Row, Q8Rows, QUADS, panels};
use crate::tiles::Tile;

/// Bytes by which a step's reading of weights runs ahead, for one row of activations into the first cache and for several,
/// which take longer, into the second: hardware stops at each 4 KiB page.
const AHEAD_ONE: usize = 6144;
const AHEAD_SEVERAL: usize = 8192;
/// The same without VNNI.
const AHEAD_AVX2: usize = 4096;

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

/// `M` rows of activations with one panel; the processor must have AVX2, FMA and F16C. The same bits as VNNI.
pub fn step_rows_avx2<const M: usize>(x: [Q8Row<'_>; M], w: Panel<'_>, sums: &mut [[f32; Q8_PANEL]; 3]) {
    assert!(crate::isa() != crate::Isa::Portable && M <= 3);
    check(&x, w);
    // SAFETY: the features are there, and rows and panel have the same number of blocks.
    unsafe { step_rows_avx2_body(x, w, sums) }
}

/// # Safety
/// The processor has the features, and [`check`] has passed.
#[target_feature(enable = "avx2,fma,f16c")]
#[allow(clippy::needless_range_loop)] // The indices are those of registers.
unsafe fn step_rows_avx2_body<const M: usize>(
    x: [Q8Row<'_>; M],
    w: Panel<'_>,
    sums: &mut [[f32; Q8_PANEL]; 3],
) {
    let (flip, ones) = (_mm256_set1_epi8(-128), _mm256_set1_epi16(1));
    // Sixteen sums a row are more than there are registers; that they go through the first cache costs nothing, since
    // loads and stores wait for nothing else here.
    let mut parts = [[[_mm256_setzero_ps(); 2]; QUADS]; M];
    for b in 0..w.codes.len() / QUADS {
        // SAFETY: block `b` exists in the panel and in every row, and each quad of a panel has two halves; prefetching reads
        // nothing that the program sees.
        unsafe {
            let block = w.codes.as_ptr().add(b * QUADS);
            let block_bytes = block.cast::<i8>();
            for line in (0..QUADS).map(|j| j * size_of::<Codes>()) {
                _mm_prefetch::<_MM_HINT_T0>(block_bytes.wrapping_add(AHEAD_AVX2 + line));
            }
            let mut d = [[_mm256_setzero_ps(); 2]; M];
            for half in 0..2 {
                let scales = w.scales.as_ptr().add(b * Q8_PANEL + half * (Q8_PANEL / 2));
                let scales = _mm256_cvtph_ps(_mm_loadu_si128(scales.cast()));
                for m in 0..M {
                    d[m][half] = _mm256_mul_ps(scales, _mm256_set1_ps(*x[m].scales.get_unchecked(b)));
                }
            }
            for j in 0..QUADS {
                let codes = block.add(j).cast::<__m256i>();
                let w = [0, 1].map(|half| _mm256_xor_si256(_mm256_load_si256(codes.add(half)), flip));
                for m in 0..M {
                    let quad = x[m].codes.as_ptr().add((b * QUADS + j) * 4).cast::<i32>().read_unaligned();
                    let x = _mm256_set1_epi32(quad);
                    let size = _mm256_abs_epi8(x);
                    for half in 0..2 {
                        // |x| · (w with x's sign): no pair of products exceeds 16 bits, since no code is -128.
                        let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(w[half], x));
                        let dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                        parts[m][j][half] = _mm256_fmadd_ps(d[m][half], dot, parts[m][j][half]);
                    }
                }
            }
        }
    }
    for (sums, p) in sums.iter_mut().zip(parts) {
        for half in 0..2 {
            let at = |j: usize| p[j][half];
            let even = _mm256_add_ps(_mm256_add_ps(at(0), at(4)), _mm256_add_ps(at(2), at(6)));
            let odd = _mm256_add_ps(_mm256_add_ps(at(1), at(5)), _mm256_add_ps(at(3), at(7)));
            // SAFETY: `sums` has two halves of eight elements.
            unsafe { _mm256_storeu_ps(sums.as_mut_ptr().add(half * 8), _mm256_add_ps(even, odd)) };
        }
    }
}

/// All rows of activations with the panels of a tile; the processor must have AVX2, FMA and F16C. The same bits as VNNI.
pub fn many_avx2(x: &Q8Rows, w: &Q8Matrix, tile: &mut Tile<'_>) {
    assert!(crate::isa() != crate::Isa::Portable);
    for (panel, first) in panels(tile) {
        let mut i = 0;
        while i < tile.rows() {
            i += match tile.rows() - i {
                4.. => avx2::<4>(x, w, panel, first, i, tile),
                2 | 3 => avx2::<2>(x, w, panel, first, i, tile),
                _ => avx2::<1>(x, w, panel, first, i, tile),
            };
        }
    }
}

/// [`many_rows`] with AVX2, for which the processor was asked.
fn avx2<const M: usize>(
    x: &Q8Rows,
    w: &Q8Matrix,
    panel: usize,
    first: usize,
    i: usize,
    tile: &mut Tile<'_>,
) -> usize {
    // SAFETY: `many_avx2` asserted the features, and `many_rows` checks the sizes.
    many_rows::<M, 1>(x, w, panel, first, i, tile, |x, [w], sums| unsafe { many_rows_avx2(x, w, sums) })
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
                (MANY_ROWS.., true) => vnni::<MANY_ROWS, MANY_PANELS>(x, w, panel, first, i, tile),
                (3.., true) => vnni::<3, MANY_PANELS>(x, w, panel, first, i, tile),
                (_, true) => vnni::<1, MANY_PANELS>(x, w, panel, first, i, tile),
                (MANY_ROWS.., false) => vnni::<MANY_ROWS, 1>(x, w, panel, first, i, tile),
                (3.., false) => vnni::<3, 1>(x, w, panel, first, i, tile),
                (_, false) => vnni::<1, 1>(x, w, panel, first, i, tile),
            };
        }
    }
}

/// [`many_rows`] with VNNI, for which the processor was asked.
fn vnni<const M: usize, const P: usize>(
    x: &Q8Rows,
    w: &Q8Matrix,
    panel: usize,
    first: usize,
    i: usize,
    tile: &mut Tile<'_>,
) -> usize {
    // SAFETY: `many` asserted the features, and `many_rows` checks the sizes.
    many_rows::<M, P>(x, w, panel, first, i, tile, |x, w, sums| unsafe { many_rows_vnni(x, w, sums) })
}

/// Rows `i .. i + M` with panels `panel .. panel + P`, whose columns start at `first` in the tile, by `kernel`, which is
/// given rows and panels that passed [`check`]; returns `M`.
fn many_rows<const M: usize, const P: usize>(
    x: &Q8Rows,
    w: &Q8Matrix,
    panel: usize,
    first: usize,
    i: usize,
    tile: &mut Tile<'_>,
    kernel: impl Fn([Q8Row<'_>; M], [Panel<'_>; P], &mut [[[f32; Q8_PANEL]; P]; M]),
) -> usize {
    let rows: [Q8Row<'_>; M] = std::array::from_fn(|m| x.row(i + m));
    let weights: [Panel<'_>; P] = std::array::from_fn(|p| w.panel(panel + p));
    weights.iter().for_each(|w| check(&rows, *w));
    let mut sums = [[[0f32; Q8_PANEL]; P]; M];
    kernel(rows, weights, &mut sums);
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

/// # Safety
/// The processor has the features, and [`check`] has passed.
#[target_feature(enable = "avx2,fma,f16c")]
#[allow(clippy::needless_range_loop)] // The indices are those of registers.
unsafe fn many_rows_avx2<const M: usize>(
    x: [Q8Row<'_>; M],
    w: Panel<'_>,
    sums: &mut [[[f32; Q8_PANEL]; 1]; M],
) {
    let (flip, ones) = (_mm256_set1_epi8(-128), _mm256_set1_epi16(1));
    let mut acc = [[_mm256_setzero_ps(); 2]; M];
    for b in 0..w.codes.len() / QUADS {
        // SAFETY: block `b` exists in the panel and in every row, and each quad of a panel has two halves.
        unsafe {
            let mut dots = [[_mm256_setzero_si256(); 2]; M];
            for j in 0..QUADS {
                let codes = w.codes.as_ptr().add(b * QUADS + j).cast::<__m256i>();
                let w = [0, 1].map(|half| _mm256_xor_si256(_mm256_load_si256(codes.add(half)), flip));
                for m in 0..M {
                    let quad = x[m].codes.as_ptr().add((b * QUADS + j) * 4).cast::<i32>().read_unaligned();
                    let x = _mm256_set1_epi32(quad);
                    let size = _mm256_abs_epi8(x);
                    for half in 0..2 {
                        // As in `step_rows_avx2_body`.
                        let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(w[half], x));
                        dots[m][half] = _mm256_add_epi32(dots[m][half], _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
            for half in 0..2 {
                let scales = w.scales.as_ptr().add(b * Q8_PANEL + half * (Q8_PANEL / 2));
                let scales = _mm256_cvtph_ps(_mm_loadu_si128(scales.cast()));
                for m in 0..M {
                    let d = _mm256_mul_ps(scales, _mm256_set1_ps(*x[m].scales.get_unchecked(b)));
                    acc[m][half] = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(dots[m][half]), acc[m][half]);
                }
            }
        }
    }
    for (sums, acc) in sums.as_flattened_mut().iter_mut().zip(acc) {
        for half in 0..2 {
            // SAFETY: each of `sums` has two halves of eight elements.
            unsafe { _mm256_storeu_ps(sums.as_mut_ptr().add(half * 8), acc[half]) };
        }
    }
}
