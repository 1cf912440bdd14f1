//! Products with 8-bit weights: blocks of 32 columns with one f16 scale (the format `Q8_0` of GGML), activations rounded to
//! 8 bits in blocks of the same size.
//!
//! Sixteen rows of weights lie together as a *panel*, so that one vector instruction multiplies four columns of all
//! sixteen with four activations and no sum ever runs across a register. Codes are stored plus 128: VNNI multiplies
//! unsigned by signed bytes, and what the 128 add is taken off before, from sums of the activations' codes.

use half::f16;
use rayon::prelude::*;

use crate::dispatch::{MulAdd, kernel};
use crate::tiles::{TILE, Tile};
use crate::{Isa, KvElement};

#[cfg(target_arch = "x86_64")]
mod x86;

/// Columns that share a scale.
pub const Q8_BLOCK: usize = 32;
/// Rows of a panel.
pub const Q8_PANEL: usize = 16;
/// Columns that one instruction multiplies and adds.
const QUAD: usize = 4;
/// Quads of a block.
const QUADS: usize = Q8_BLOCK / QUAD;
/// Activations from which several threads round them.
const PARALLEL_FROM: usize = 1 << 16;

/// One quad of a panel: four codes, plus 128, of each of its rows.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Codes([u8; Q8_PANEL * QUAD]);

/// A matrix of weights `(n, k)` in 8.5 bits each.
///
/// A block's scale is `max|w| / 127`, rounded to f16, and a code is `w · 127 / max|w|` rounded, halves away from zero. The
/// last panel is filled up with rows of zeros.
pub struct Q8Matrix {
    codes: Vec<Codes>, // (panels, k / 32, 8)
    scales: Vec<f16>,  // (panels, k / 32, 16)
    n: usize,
    k: usize,
}

impl Q8Matrix {
    /// A matrix of zeros.
    ///
    /// # Panics
    /// When `k` is 0 or not a multiple of [`Q8_BLOCK`].
    pub fn zeros(n: usize, k: usize) -> Self {
        assert!(k > 0 && k.is_multiple_of(Q8_BLOCK), "8-bit weights: rows of {k}");
        let blocks = n.div_ceil(Q8_PANEL) * (k / Q8_BLOCK);
        Self {
            codes: vec![Codes([128; Q8_PANEL * QUAD]); blocks * QUADS],
            scales: vec![f16::ZERO; blocks * Q8_PANEL],
            n,
            k,
        }
    }

    /// Rows and columns, `(n, k)`.
    pub fn shape(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.codes[..]) + size_of_val(&self.scales[..])
    }

    /// The matrix in pieces of [`TILE`] rows, to be filled at the same time.
    pub fn pieces_mut(&mut self) -> impl IndexedParallelIterator<Item = Q8Piece<'_>> {
        let blocks = self.k / Q8_BLOCK;
        let panels = (TILE / Q8_PANEL) * blocks;
        let (n, k) = (self.n, self.k);
        self.codes
            .par_chunks_mut(panels * QUADS)
            .zip(self.scales.par_chunks_mut(panels * Q8_PANEL))
            .enumerate()
            .map(move |(i, (codes, scales))| Q8Piece { codes, scales, rows: TILE.min(n - i * TILE), k })
    }

    /// Widens rows `first ..` into `wide`, `(rows, k)`.
    ///
    /// # Panics
    /// When there are no such rows.
    pub fn rows_to_f32(&self, first: usize, wide: &mut [f32]) {
        let blocks = self.k / Q8_BLOCK;
        for (i, row) in wide.chunks_exact_mut(self.k).enumerate() {
            let (panel, r) = ((first + i) / Q8_PANEL, (first + i) % Q8_PANEL);
            for (b, block) in row.chunks_exact_mut(Q8_BLOCK).enumerate() {
                let at = panel * blocks + b;
                let scale = self.scales[at * Q8_PANEL + r].widen();
                for (j, quad) in block.chunks_exact_mut(QUAD).enumerate() {
                    let codes = &self.codes[at * QUADS + j].0[r * QUAD..(r + 1) * QUAD];
                    quad.iter_mut()
                        .zip(codes)
                        .for_each(|(x, code)| *x = f32::from((*code ^ 0x80) as i8) * scale);
                }
            }
        }
    }

    fn panel(&self, panel: usize) -> Panel<'_> {
        let blocks = self.k / Q8_BLOCK;
        Panel {
            codes: &self.codes[panel * blocks * QUADS..(panel + 1) * blocks * QUADS],
            scales: &self.scales[panel * blocks * Q8_PANEL..(panel + 1) * blocks * Q8_PANEL],
        }
    }
}

/// Up to [`TILE`] rows of a matrix.
pub struct Q8Piece<'a> {
    codes: &'a mut [Codes],
    scales: &'a mut [f16],
    rows: usize,
    k: usize,
}

impl Q8Piece<'_> {
    /// Rounds all rows of the piece from `rows`, `(rows, k)`.
    ///
    /// # Panics
    /// When these are more or fewer.
    pub fn set(&mut self, rows: &[f32]) {
        assert_eq!(rows.len(), self.rows * self.k, "8-bit weights: rows of a piece");
        let blocks = self.k / Q8_BLOCK;
        let mut rounded = Q8Rows::default();
        rounded.set(rows, self.k);
        for i in 0..self.rows {
            let (panel, r) = (i / Q8_PANEL, i % Q8_PANEL);
            let row = rounded.row(i);
            for (b, (codes, scale)) in row.codes.chunks_exact(Q8_BLOCK).zip(row.scales).enumerate() {
                let at = panel * blocks + b;
                self.scales[at * Q8_PANEL + r] = f16::narrow(*scale);
                for (j, quad) in codes.chunks_exact(QUAD).enumerate() {
                    let stored = &mut self.codes[at * QUADS + j].0[r * QUAD..(r + 1) * QUAD];
                    stored.iter_mut().zip(quad).for_each(|(stored, code)| *stored = (*code as u8) ^ 0x80);
                }
            }
        }
    }
}

/// Sixteen rows of weights.
#[derive(Clone, Copy)]
struct Panel<'a> {
    codes: &'a [Codes], // (blocks, 8)
    scales: &'a [f16],  // (blocks, 16)
}

/// Rounds a block to codes and a scale.
#[inline(always)]
fn quantize_block(x: &[f32], codes: &mut [i8; Q8_BLOCK]) -> f16 {
    let top = x.iter().fold(0f32, |top, x| if x.abs() > top { x.abs() } else { top });
    let scale = top / 127.0;
    let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
    for (code, x) in codes.iter_mut().zip(x) {
        *code = (x * inverse).round() as i8;
    }
    f16::from_f32(scale)
}

/// Rows of activations rounded to 8 bits; the buffers are used again by every [`Q8Rows::set`].
#[derive(Default)]
pub struct Q8Rows {
    codes: Vec<i8>,   // (m, k)
    scales: Vec<f32>, // (m, k / 32)
    quads: Vec<i32>,  // (m, k / 4): −128 times the sum of a quad's codes
    blocks: Vec<i32>, // (m, k / 32): the same of a block
    k: usize,
}

impl Q8Rows {
    /// Rounds `x`, `(m, k)`.
    ///
    /// # Panics
    /// When `k` is not a multiple of [`Q8_BLOCK`] that divides the length of `x`.
    pub fn set(&mut self, x: &[f32], k: usize) {
        assert!(
            k.is_multiple_of(Q8_BLOCK) && k > 0 && x.len().is_multiple_of(k),
            "8-bit activations: rows of {k}"
        );
        self.k = k;
        self.codes.resize(x.len(), 0);
        self.scales.resize(x.len() / Q8_BLOCK, 0.0);
        self.quads.resize(x.len() / QUAD, 0);
        self.blocks.resize(x.len() / Q8_BLOCK, 0);
        if x.len() < PARALLEL_FROM {
            return quantize(x, &mut self.codes, &mut self.scales, &mut self.quads, &mut self.blocks);
        }
        let blocks = k / Q8_BLOCK;
        let outputs = self.codes.par_chunks_exact_mut(k).zip(self.scales.par_chunks_exact_mut(blocks));
        let sums =
            self.quads.par_chunks_exact_mut(blocks * QUADS).zip(self.blocks.par_chunks_exact_mut(blocks));
        x.par_chunks_exact(k).zip(outputs).zip(sums).for_each(|((x, (codes, scales)), (quads, blocks))| {
            quantize(x, codes, scales, quads, blocks);
        });
    }

    /// Number of rows, `m`.
    pub fn rows(&self) -> usize {
        self.codes.len().checked_div(self.k).unwrap_or(0)
    }

    fn row(&self, i: usize) -> Q8Row<'_> {
        let blocks = self.k / Q8_BLOCK;
        Q8Row {
            codes: &self.codes[i * self.k..(i + 1) * self.k],
            scales: &self.scales[i * blocks..(i + 1) * blocks],
            quads: &self.quads[i * blocks * QUADS..(i + 1) * blocks * QUADS],
            blocks: &self.blocks[i * blocks..(i + 1) * blocks],
        }
    }
}

/// One row of rounded activations.
#[derive(Clone, Copy)]
struct Q8Row<'a> {
    codes: &'a [i8],
    scales: &'a [f32],
    quads: &'a [i32],
    blocks: &'a [i32],
}

kernel! {
    /// Rounds activations block by block; see [`Q8Rows`] for the outputs.
    fn quantize / quantize_with(x: &[f32], codes: &mut [i8], scales: &mut [f32], quads: &mut [i32], blocks: &mut [i32]) = quantize_body
}

#[inline(always)]
fn quantize_body<M: MulAdd>(
    _: M,
    x: &[f32],
    codes: &mut [i8],
    scales: &mut [f32],
    quads: &mut [i32],
    blocks: &mut [i32],
) {
    let outputs = codes.chunks_exact_mut(Q8_BLOCK).zip(scales).zip(quads.chunks_exact_mut(QUADS)).zip(blocks);
    for (x, (((codes, scale), quads), block)) in x.chunks_exact(Q8_BLOCK).zip(outputs) {
        let mut rounded = [0i8; Q8_BLOCK];
        *scale = quantize_block(x, &mut rounded).widen();
        codes.copy_from_slice(&rounded);
        for (quad, codes) in quads.iter_mut().zip(rounded.chunks_exact(QUAD)) {
            *quad = -128 * codes.iter().map(|c| i32::from(*c)).sum::<i32>();
        }
        *block = quads.iter().sum();
    }
}

/// `y = x · wᵀ` in the columns of a tile, for a decoding step: every row of the result has the bits that it would have
/// alone, and weights are read from memory once for all rows. The tile must start at a multiple of [`Q8_PANEL`].
///
/// Sums run over blocks in order, in eight parts (one per quad of a block) that are added up in pairs at the end.
///
/// # Panics
/// When the sizes do not fit.
pub fn q8_step(x: &Q8Rows, w: &Q8Matrix, tile: &mut Tile<'_>) {
    q8_step_with(crate::isa(), x, w, tile);
}

fn q8_step_with(isa: Isa, x: &Q8Rows, w: &Q8Matrix, tile: &mut Tile<'_>) {
    check(x, w, tile);
    for (panel, first) in panels(tile) {
        let weights = w.panel(panel);
        let mut i = 0;
        while i < tile.rows() {
            let mut sums = [[0f32; Q8_PANEL]; 3];
            // Three rows fill the registers; two and two are better than three and one.
            let rows = match tile.rows() - i {
                1 => step_rows::<1>(isa, x, i, weights, &mut sums),
                2 | 4 => step_rows::<2>(isa, x, i, weights, &mut sums),
                _ => step_rows::<3>(isa, x, i, weights, &mut sums),
            };
            for sums in &sums[..rows] {
                let row = &mut tile.row(i)[first..];
                let row_len = row.len().min(Q8_PANEL);
                row[..row_len].copy_from_slice(&sums[..row_len]);
                i += 1;
            }
        }
    }
}

/// `y = x · wᵀ` in the columns of a tile, for many rows. With VNNI or AVX2 sums run over whole blocks, which is faster than
/// [`q8_step`] and rounds in another order; other processors do as in a step. The tile must start at a multiple of
/// [`Q8_PANEL`].
///
/// # Panics
/// When the sizes do not fit.
pub fn q8_many(x: &Q8Rows, w: &Q8Matrix, tile: &mut Tile<'_>) {
    q8_many_with(crate::isa(), x, w, tile);
}

fn q8_many_with(isa: Isa, x: &Q8Rows, w: &Q8Matrix, tile: &mut Tile<'_>) {
    check(x, w, tile);
    #[cfg(target_arch = "x86_64")]
    {
        if isa == Isa::Avx512 && crate::dispatch::vnni() {
            return x86::many(x, w, tile);
        }
        if isa != Isa::Portable && crate::isa() != Isa::Portable {
            return x86::many_avx2(x, w, tile);
        }
    }
    q8_step_with(isa, x, w, tile);
}

fn check(x: &Q8Rows, w: &Q8Matrix, tile: &Tile<'_>) {
    assert_eq!((x.rows(), x.k), (tile.rows(), w.k), "8-bit product: activations");
    assert!(tile.first() + tile.columns() <= w.n, "8-bit product: rows of the weights");
    assert!(tile.first().is_multiple_of(Q8_PANEL), "8-bit product: a tile within a panel");
}

/// The panels of a tile, each with its first column in the tile.
fn panels(tile: &Tile<'_>) -> impl Iterator<Item = (usize, usize)> + use<> {
    let first = tile.first() / Q8_PANEL;
    (0..tile.columns().div_ceil(Q8_PANEL)).map(move |i| (first + i, i * Q8_PANEL))
}

/// Rows `i .. i + M` of activations with one panel.
#[inline(always)]
fn step_rows<const M: usize>(
    isa: Isa,
    x: &Q8Rows,
    i: usize,
    w: Panel<'_>,
    sums: &mut [[f32; Q8_PANEL]; 3],
) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        if isa == Isa::Avx512 && crate::dispatch::vnni() {
            x86::step_rows::<M>(std::array::from_fn(|m| x.row(i + m)), w, sums);
            return M;
        }
        if isa != Isa::Portable && crate::isa() != Isa::Portable {
            x86::step_rows_avx2::<M>(std::array::from_fn(|m| x.row(i + m)), w, sums);
            return M;
        }
    }
    let _ = isa;
    (0..M).for_each(|m| step_row(x.row(i + m), w, &mut sums[m]));
    M
}

/// One row of activations with one panel, in plain Rust.
fn step_row(x: Q8Row<'_>, w: Panel<'_>, sums: &mut [f32; Q8_PANEL]) {
    let mut parts = [[0f32; Q8_PANEL]; QUADS];
    let blocks = w.codes.chunks_exact(QUADS).zip(w.scales.chunks_exact(Q8_PANEL));
    for ((x, x_scale), (codes, scales)) in x.codes.chunks_exact(Q8_BLOCK).zip(x.scales).zip(blocks) {
        for ((part, x), codes) in parts.iter_mut().zip(x.chunks_exact(QUAD)).zip(codes) {
            for (r, part) in part.iter_mut().enumerate() {
                *part += scales[r].widen() * x_scale * dot_quad(x, &codes.0[r * QUAD..(r + 1) * QUAD]) as f32;
            }
        }
    }
    for (r, sum) in sums.iter_mut().enumerate() {
        let at = |j: usize| parts[j][r];
        *sum = ((at(0) + at(4)) + (at(2) + at(6))) + ((at(1) + at(5)) + (at(3) + at(7)));
    }
}

#[inline(always)]
fn dot_quad(x: &[i8], codes: &[u8]) -> i32 {
    x.iter().zip(codes).map(|(x, code)| i32::from(*x) * i32::from((*code ^ 0x80) as i8)).sum()
}

#[cfg(test)]
mod tests;
