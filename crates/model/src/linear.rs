//! Linear layers and row tables over weights in any element type.

use std::fmt;
use std::str::FromStr;

use candle_core::quantized::k_quants::{BlockQ6K, BlockQ8K, GgmlType};
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;
use serde::Serialize;
use wnw_kernels::bf16::{self as bf16_product, Bf16Rows};
use wnw_kernels::elementwise::{add, silu_mul};
use wnw_kernels::half_linear::PARALLEL_FROM;
use wnw_kernels::q8::{Q8_BLOCK, q8_many, q8_step};
use wnw_kernels::tiles::{TILE, Tile, for_each_pair, for_each_tile};
use wnw_kernels::{KvElement, Q8Matrix, Q8Rows, half_linear, half_step, tiled_linear};

use crate::checkpoint::{Bytes, TensorView};
use crate::values::{WeightError, check_finite, to_f32, widen_bytes};

/// Element type in which linear layers are held in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightDtype {
    /// 4 bytes, exact.
    F32,
    /// 2 bytes; from a bf16 checkpoint used where it lies.
    Bf16,
    /// 2 bytes; a weight above 65504 is refused.
    F16,
    /// 8 bits and one f16 scale per 32 weights: 8.5 bits.
    Q8_0,
    /// 6 bits and scales per 16 and 256 weights: 6.56 bits. Rows must be multiples of 256.
    Q6k,
}

impl WeightDtype {
    /// Bytes of a matrix with rows of `k` elements; q8_0 fills up the last sixteen rows, which is not counted.
    pub fn matrix_bytes(self, n: usize, k: usize) -> u64 {
        let elements = n as u64 * k as u64;
        match self {
            Self::F32 => elements * 4,
            Self::Bf16 | Self::F16 => elements * 2,
            Self::Q8_0 => elements / 32 * 34,
            Self::Q6k => elements / 256 * 210,
        }
    }

    /// Largest weight whose scale is a finite f16 in the quantised types. In q8_0 a scale is `max|w| / 127`; in q6k it is at least
    /// `max|w| / 33` and at most `max|w| / 31` for 16 weights, of which the largest of 16 is kept as `/ 127` or `/ 128`.
    fn largest_scaled(self) -> f32 {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => f32::MAX,
            Self::Q8_0 => 127.0 * 65504.0,
            Self::Q6k => 31.0 * 127.0 * 65504.0,
        }
    }

    /// Weights that share a scale, and so must divide a row.
    pub fn block(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => 1,
            Self::Q8_0 => Q8_BLOCK,
            Self::Q6k => BlockQ6K::BLCK_SIZE,
        }
    }
}

impl fmt::Display for WeightDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
            Self::Q6k => "q6k",
        })
    }
}

impl FromStr for WeightDtype {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Ok(match s {
            "f32" => Self::F32,
            "bf16" => Self::Bf16,
            "f16" => Self::F16,
            "q8_0" => Self::Q8_0,
            "q6k" => Self::Q6k,
            _ => return Err(format!("'{s}' is no weight type; use f32, bf16, f16, q8_0 or q6k")),
        })
    }
}

/// Elements of one type: in a mapped file when it has this type already, in memory otherwise.
enum Elements<T> {
    View { bytes: Bytes, start: usize, len: usize },
    Owned(Vec<T>),
}

impl<T: bytemuck::AnyBitPattern> Elements<T> {
    fn as_slice(&self) -> &[T] {
        match self {
            // `of` made the same cast once and kept the view only because it succeeded.
            Self::View { bytes, start, len } => {
                bytemuck::try_cast_slice(&bytes.as_slice()[*start..*start + *len]).unwrap_or(&[])
            }
            Self::Owned(elements) => elements,
        }
    }
}

impl<T: KvElement + bytemuck::AnyBitPattern> Elements<T> {
    /// The elements of `view`, without a copy when it holds `T` (of dtype `native`), aligned. Each must be a number.
    fn of(view: &TensorView, native: Dtype, dtype: WeightDtype) -> Result<Self, WeightError> {
        if cfg!(target_endian = "little")
            && view.dtype == native
            && bytemuck::try_cast_slice::<u8, T>(view.data()).is_ok()
        {
            check_finite(view, false)?;
            return Ok(Self::View { bytes: view.bytes.clone(), start: view.start, len: view.len });
        }
        // Piece by piece, so that no second copy in f32 ever exists.
        const PIECE: usize = 1 << 14;
        let size = view.len / view.elements();
        let mut out = Vec::with_capacity(view.elements());
        let mut wide = vec![0.0; PIECE];
        for bytes in view.data().chunks(PIECE * size) {
            let wide = &mut wide[..bytes.len() / size];
            widen_bytes(view.dtype, bytes, wide);
            for value in &*wide {
                let narrow = T::narrow(*value);
                if !narrow.widen().is_finite() {
                    return Err(WeightError::of(view, out.len(), *value, dtype));
                }
                out.push(narrow);
            }
        }
        view.release_pages();
        Ok(Self::Owned(out))
    }
}

enum Store {
    F32(Elements<f32>),
    Bf16(Elements<bf16>),
    F16(Elements<f16>),
    Q8_0(Q8Matrix),
    Q6k(Vec<BlockQ6K>),
}

/// A linear layer `y = x Wᵀ (+ b)` with `W` of shape `(n, k)`.
pub struct Linear {
    store: Store,
    bias: Option<Vec<f32>>,
    n: usize,
    k: usize,
}

impl Linear {
    /// Holds `weight` (its first size is `n`, the others make up `k`) in `dtype`. Quantising allocates the result and a
    /// few rows in f32.
    pub fn new(
        weight: &TensorView,
        bias: Option<&TensorView>,
        dtype: WeightDtype,
    ) -> Result<Self, WeightError> {
        let n = weight.shape[0];
        let k = weight.elements() / n;
        let store = match dtype {
            WeightDtype::F32 => Store::F32(Elements::of(weight, Dtype::F32, dtype)?),
            WeightDtype::Bf16 => Store::Bf16(Elements::of(weight, Dtype::BF16, dtype)?),
            WeightDtype::F16 => Store::F16(Elements::of(weight, Dtype::F16, dtype)?),
            WeightDtype::Q8_0 => {
                check_block(weight, k, dtype)?;
                let mut matrix = Q8Matrix::zeros(n, k);
                for_rows(weight, (n, k), dtype, matrix.pieces_mut(), |mut piece, rows| piece.set(rows))?;
                Store::Q8_0(matrix)
            }
            WeightDtype::Q6k => {
                check_block(weight, k, dtype)?;
                let mut blocks = vec![BlockQ6K::zeros(); n * k / BlockQ6K::BLCK_SIZE];
                let pieces = blocks.par_chunks_mut(ROWS * k / BlockQ6K::BLCK_SIZE);
                for_rows(weight, (n, k), dtype, pieces, |piece, rows| BlockQ6K::from_float(rows, piece))?;
                Store::Q6k(blocks)
            }
        };
        Ok(Self { store, bias: bias.map(to_f32).transpose()?, n, k })
    }

    /// Outputs, `n`.
    pub fn outputs(&self) -> usize {
        self.n
    }

    /// Bytes of the weights, which a product reads once.
    pub fn bytes(&self) -> u64 {
        let weights = match &self.store {
            Store::F32(w) => size_of_val(w.as_slice()),
            Store::Bf16(w) => size_of_val(w.as_slice()),
            Store::F16(w) => size_of_val(w.as_slice()),
            Store::Q8_0(w) => w.bytes(),
            Store::Q6k(w) => size_of_val(w.as_slice()),
        };
        weights as u64
    }

    /// `out = x Wᵀ (+ b)`: `x` is `(m, k)`, `out` is `(m, n)`. For the rows of a prompt or of audio; a decoding step uses
    /// [`Linear::step`].
    ///
    /// Activations are rounded to 8 bits for a few rows with quantised weights, and for many rows of wide layers, to 8 bits
    /// for q8_0 and to bf16 for bf16 on processors that multiply it. The result does not depend on the number of threads.
    pub fn forward(&self, x: &[f32], out: &mut [f32]) {
        let (m, n, k) = (x.len() / self.k, self.n, self.k);
        let few = m <= MAX_DIRECT_ROWS;
        let round = !few && k >= ROUND_FROM;
        match &self.store {
            Store::F32(w) => half_linear(x, w.as_slice(), m, n, k, out),
            Store::F16(w) => half_linear(x, w.as_slice(), m, n, k, out),
            Store::Bf16(w) if round && bf16_product::has_many() => {
                let (x, w) = (Bf16Rows::new(x, k), w.as_slice());
                for_each_tile([(&mut *out, n)], m, true, |_, mut tile| bf16_product::many(&x, w, &mut tile));
            }
            Store::Bf16(w) => half_linear(x, w.as_slice(), m, n, k, out),
            Store::Q8_0(_) | Store::Q6k(_) if few => {
                return Self::step(x, [(self, out)], &mut StepScratch::default());
            }
            Store::Q8_0(w) if round => {
                let mut rounded = Q8Rows::default();
                rounded.set(x, k);
                for_each_tile([(&mut *out, n)], m, true, |_, mut tile| q8_many(&rounded, w, &mut tile));
            }
            Store::Q8_0(w) => tiled_linear(x, m, n, k, out, |first, wide| w.rows_to_f32(first, wide)),
            Store::Q6k(w) => tiled_linear(x, m, n, k, out, |first, wide| {
                let blocks = first * k / BlockQ6K::BLCK_SIZE;
                BlockQ6K::to_float(&w[blocks..blocks + wide.len() / BlockQ6K::BLCK_SIZE], wide);
            }),
        }
        if let Some(bias) = &self.bias {
            out.chunks_exact_mut(n).for_each(|row| add(row, bias));
        }
    }

    /// `out = x Wᵀ (+ b)` of several layers over the same rows of a decoding step, `x` `(m, k)`: rounded once, handed to the
    /// threads once. Each row of the results has the bits that it would have alone, so that a session's numbers do not
    /// depend on who steps with it; weights are read from memory once for all rows. Allocates nothing that `scratch` does
    /// not keep.
    ///
    /// # Panics
    /// When the layers do not have `k` inputs, or a result is not `(m, n)`.
    pub fn step<const R: usize>(x: &[f32], layers: [(&Self, &mut [f32]); R], scratch: &mut StepScratch) {
        let linears = layers.each_ref().map(|(linear, _)| *linear);
        let Some(first) = linears.first() else { return };
        let (m, k) = (x.len() / first.k, first.k);
        assert!(linears.iter().all(|l| l.k == k), "layers of a step with different inputs");
        scratch.round(x, k, &linears);
        let parallel = linears.iter().map(|l| l.bytes()).sum::<u64>() >= PARALLEL_FROM as u64;
        let results = layers.map(|(linear, out)| (out, linear.n));
        let scratch = &*scratch;
        for_each_tile(results, m, parallel, |r, mut tile| linears[r].fill(x, scratch, &mut tile));
    }

    /// SwiGLU's inner part for the rows of a step, as [`Linear::step`]: `out = silu(gate(x)) · up(x)`; `spare` is a buffer of
    /// the size of `out`, `(m, n)`.
    ///
    /// # Panics
    /// When the layers differ in size, or a buffer is not `(m, n)`.
    pub fn step_gated(
        x: &[f32],
        gate: &Self,
        up: &Self,
        out: &mut [f32],
        spare: &mut [f32],
        scratch: &mut StepScratch,
    ) {
        assert_eq!((gate.n, gate.k), (up.n, up.k), "gate and up differ in size");
        let m = x.len() / gate.k;
        scratch.round(x, gate.k, &[gate, up]);
        let parallel = gate.bytes() + up.bytes() >= PARALLEL_FROM as u64;
        let scratch = &*scratch;
        for_each_pair(out, spare, (m, gate.n), parallel, |mut a, mut b| {
            gate.fill(x, scratch, &mut a);
            up.fill(x, scratch, &mut b);
            (0..m).for_each(|i| silu_mul(a.row(i), b.row(i)));
        });
    }

    /// The columns of a tile for a step's rows.
    fn fill(&self, x: &[f32], scratch: &StepScratch, tile: &mut Tile<'_>) {
        match &self.store {
            Store::F32(w) => half_step(x, w.as_slice(), self.k, tile),
            Store::Bf16(w) => half_step(x, w.as_slice(), self.k, tile),
            Store::F16(w) => half_step(x, w.as_slice(), self.k, tile),
            Store::Q8_0(w) => q8_step(&scratch.q8, w, tile),
            Store::Q6k(w) => q6k_step(&scratch.q8k, w, self.k, tile),
        }
        if let Some(bias) = &self.bias {
            let bias = &bias[tile.first()..tile.first() + tile.columns()];
            (0..tile.rows()).for_each(|i| add(tile.row(i), bias));
        }
    }
}

/// Activations of a step in the forms in which weights multiply them; the buffers are used again.
#[derive(Default)]
pub struct StepScratch {
    q8: Q8Rows,
    q8k: Vec<BlockQ8K>, // (m, k / 256)
}

impl StepScratch {
    /// Rounds `x`, `(m, k)`, as the layers need it.
    fn round(&mut self, x: &[f32], k: usize, layers: &[&Linear]) {
        if layers.iter().any(|l| matches!(l.store, Store::Q8_0(_))) {
            self.q8.set(x, k);
        }
        if layers.iter().any(|l| matches!(l.store, Store::Q6k(_))) {
            self.q8k.resize(x.len() / BlockQ8K::BLCK_SIZE, BlockQ8K::zeros());
            BlockQ8K::from_float(x, &mut self.q8k);
        }
    }
}

/// Rows that are quantised together: all that is ever held in f32.
const ROWS: usize = TILE;

/// Up to this many activation rows, quantised weights are multiplied as they are, with activations rounded to 8 bits in
/// blocks of their own.
const MAX_DIRECT_ROWS: usize = 4;

/// Inputs of a layer from which the activations of many rows are rounded, to 8 bits or to bf16: products of narrower layers
/// take little time, and keep what rounding would lose.
const ROUND_FROM: usize = 1024;

/// Refuses rows that the blocks of `dtype` do not divide.
pub(crate) fn check_block(weight: &TensorView, k: usize, dtype: WeightDtype) -> Result<(), WeightError> {
    let block = dtype.block();
    if k.is_multiple_of(block) {
        return Ok(());
    }
    let hint = if k.is_multiple_of(Q8_BLOCK) { WeightDtype::Q8_0 } else { WeightDtype::Bf16 };
    let (file, name) = weight.place();
    Err(WeightError::Block { file, name, k, dtype, block, hint })
}

/// Hands over the `n` rows of `weight` in f32, [`ROWS`] to each of `pieces`.
fn for_rows<P: Send>(
    weight: &TensorView,
    (n, k): (usize, usize),
    dtype: WeightDtype,
    pieces: impl IndexedParallelIterator<Item = P>,
    take: impl Fn(P, &[f32]) + Sync + Send,
) -> Result<(), WeightError> {
    let row_bytes = weight.len / n;
    let largest = dtype.largest_scaled();
    let piece = |wide: &mut Vec<f32>, (i, (bytes, piece)): (usize, (&[u8], P))| {
        let wide = &mut wide[..bytes.len() / row_bytes * k];
        widen_bytes(weight.dtype, bytes, wide);
        if let Some(at) = wide.iter().position(|x| x.is_nan() || x.abs() > largest) {
            return Some((i * ROWS * k + at, wide[at]));
        }
        take(piece, wide);
        None
    };
    let data = weight.data().par_chunks(ROWS * row_bytes).zip(pieces).enumerate();
    let damaged = data.map_init(|| vec![0.0; ROWS.min(n) * k], piece).find_first(Option::is_some);
    match damaged.flatten() {
        Some((index, value)) => Err(WeightError::of(weight, index, value, dtype)),
        None => {
            weight.release_pages();
            Ok(())
        }
    }
}

/// `y = x · wᵀ` in the columns of a tile for rows of activations rounded in blocks: candle's dot products, not its product,
/// which hands every piece to a pool of its own, whose threads are bound to cores and wait for each other spinning.
fn q6k_step(x: &[BlockQ8K], w: &[BlockQ6K], k: usize, tile: &mut Tile<'_>) {
    let row = k / BlockQ6K::BLCK_SIZE;
    let w = &w[tile.first() * row..(tile.first() + tile.columns()) * row];
    for (i, x) in x.chunks_exact(row).enumerate() {
        for (out, w) in tile.row(i).iter_mut().zip(w.chunks_exact(row)) {
            *out = BlockQ6K::vec_dot(k, w, x);
        }
    }
}

/// A table of rows, such as token embeddings, read from where it lies.
pub struct RowTable {
    view: TensorView,
    width: usize,
}

impl RowTable {
    /// Rows of a two-dimensional tensor, which must be numbers: all are read once, and their pages given back.
    pub fn new(view: &TensorView) -> Result<Self, WeightError> {
        check_finite(view, true)?;
        Ok(Self { width: view.elements() / view.shape[0], view: view.clone() })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.view.shape[0]
    }

    /// Copies row `index` into `out`; false when there is no such row.
    pub fn copy_row(&self, index: usize, out: &mut [f32]) -> bool {
        if index >= self.rows() {
            return false;
        }
        let size = self.view.len / self.rows();
        widen_bytes(self.view.dtype, &self.view.data()[index * size..(index + 1) * size], out);
        out.len() == self.width
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn view(n: usize, k: usize, offset: usize) -> TensorView {
        let mut bytes = vec![0; offset];
        for i in 0..n * k {
            bytes.extend(bf16::from_f32(((i * 7919 % 2003) as f32 - 1001.0) / 1001.0).to_le_bytes());
        }
        let len = n * k * 2;
        let bytes = Bytes::Owned(Arc::new(bytes));
        let (file, name) = (std::path::Path::new("a.safetensors").into(), "w".into());
        TensorView { file, name, dtype: Dtype::BF16, shape: vec![n, k], bytes, start: offset, len }
    }

    #[test]
    fn every_type_gives_the_product_within_its_precision() {
        for m in [3, 9] {
            products_of(m);
        }
    }

    fn products_of(m: usize) {
        let (n, k) = (48, 256);
        let w = view(n, k, 1); // misaligned on purpose
        let wide = to_f32(&w).unwrap();
        let x: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.37).sin()).collect();
        let exact: Vec<f64> = (0..m * n)
            .map(|i| (0..k).map(|d| f64::from(x[i / n * k + d]) * f64::from(wide[i % n * k + d])).sum())
            .collect();
        let largest = exact.iter().fold(0f64, |a, b| a.max(b.abs()));
        for (dtype, limit) in [
            (WeightDtype::F32, 1e-5),
            (WeightDtype::Bf16, 1e-5),
            (WeightDtype::F16, 1e-3),
            (WeightDtype::Q8_0, 4e-2),
            (WeightDtype::Q6k, 6e-2),
        ] {
            let linear = Linear::new(&w, None, dtype).unwrap();
            let mut out = vec![0.0; m * n];
            linear.forward(&x, &mut out);
            assert!(out.iter().all(|x| x.is_finite()), "{dtype}");
            let worst = out.iter().zip(&exact).fold(0f64, |a, (o, e)| a.max((f64::from(*o) - e).abs()));
            assert!(worst <= limit * largest, "{dtype}: {worst} of {largest}");
        }
    }

    /// Bit for bit: a session's numbers must not depend on who steps with it.
    #[test]
    fn a_row_of_a_step_is_the_same_among_others_and_in_every_product() {
        let (n, k) = (2100, 256);
        let (w, bias) = (view(n, k, 0), view(n, 1, 0));
        for dtype in
            [WeightDtype::F32, WeightDtype::Bf16, WeightDtype::F16, WeightDtype::Q8_0, WeightDtype::Q6k]
        {
            let linear = Linear::new(&w, Some(&bias), dtype).unwrap();
            let small = Linear::new(&view(70, k, 0), None, dtype).unwrap();
            let mut scratch = StepScratch::default();
            for m in [12, 1, 2, 7] {
                let x: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.37).sin()).collect();
                let (mut out, mut other) = (vec![f32::NAN; m * n], vec![f32::NAN; m * 70]);
                Linear::step(&x, [(&linear, &mut out), (&small, &mut other)], &mut scratch);
                let (mut gated, mut spare) = (vec![f32::NAN; m * n], vec![f32::NAN; m * n]);
                Linear::step_gated(&x, &linear, &linear, &mut gated, &mut spare, &mut scratch);
                for (i, x) in x.chunks_exact(k).enumerate() {
                    let mut alone = vec![f32::NAN; n];
                    linear.forward(x, &mut alone);
                    assert_eq!(alone, out[i * n..(i + 1) * n], "{dtype} {m}");
                    let mut want = alone.clone();
                    silu_mul(&mut want, &alone);
                    assert_eq!(want, gated[i * n..(i + 1) * n], "{dtype} {m}");
                    small.forward(x, &mut alone[..70]);
                    assert_eq!(alone[..70], other[i * 70..(i + 1) * 70], "{dtype} {m}");
                }
            }
        }
    }

    /// What the kernels do is candle's `Q8_0`, to the last bit where both have AVX2.
    #[test]
    fn q8_0_has_the_bits_of_ggml_blocks() {
        use candle_core::quantized::k_quants::BlockQ8_0;
        let (n, k) = (50, 320);
        let w = view(n, k, 0);
        let wide = to_f32(&w).unwrap();
        let x: Vec<f32> = (0..k).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
        let blocks = |x: &[f32]| {
            let mut blocks = vec![BlockQ8_0::zeros(); x.len() / Q8_BLOCK];
            BlockQ8_0::from_float(x, &mut blocks);
            blocks
        };
        let (ours, theirs) = (Linear::new(&w, None, WeightDtype::Q8_0).unwrap(), blocks(&wide));
        let mut out = vec![f32::NAN; n];
        ours.forward(&x, &mut out);
        let x = blocks(&x);
        for (out, w) in out.iter().zip(theirs.chunks_exact(k / Q8_BLOCK)) {
            let want = BlockQ8_0::vec_dot(k, w, &x);
            if wnw_kernels::isa() == wnw_kernels::Isa::Portable || cfg!(not(target_arch = "x86_64")) {
                assert!((out - want).abs() <= 1e-4 * want.abs().max(1.0));
            } else {
                assert_eq!(*out, want);
            }
        }
        let Store::Q8_0(matrix) = &ours.store else { unreachable!() };
        let (mut a, mut b) = (vec![f32::NAN; n * k], vec![f32::NAN; n * k]);
        matrix.rows_to_f32(0, &mut a);
        BlockQ8_0::to_float(&theirs, &mut b);
        assert_eq!(a, b);
    }

    /// Wide layers round the activations of many rows: to 8 bits, or to bf16.
    #[test]
    fn wide_layers_round_many_rows_within_their_precision() {
        let (m, n, k) = (9, 40, ROUND_FROM);
        let w = view(n, k, 0);
        let wide = to_f32(&w).unwrap();
        // At random: against an even pattern the even weights cancel, and what rounding adds is large beside what is left.
        let mut state = 1u64;
        let x: Vec<f32> = (0..m * k)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect();
        for (dtype, limit) in [(WeightDtype::Bf16, 4e-3), (WeightDtype::Q8_0, 1e-2)] {
            let mut out = vec![f32::NAN; m * n];
            Linear::new(&w, None, dtype).unwrap().forward(&x, &mut out);
            let (mut error, mut size) = (0f64, 0f64);
            for (i, out) in out.iter().enumerate() {
                let exact: f64 =
                    (0..k).map(|d| f64::from(x[i / n * k + d]) * f64::from(wide[i % n * k + d])).sum();
                error += (f64::from(*out) - exact).powi(2);
                size += exact.powi(2);
            }
            assert!(error.sqrt() <= limit * size.sqrt(), "{dtype}: {}", (error / size).sqrt());
        }
    }

    #[test]
    fn rows_that_blocks_do_not_divide_are_refused_by_name() {
        let error = Linear::new(&view(16, 160, 0), None, WeightDtype::Q6k).err().unwrap().to_string();
        assert!(error.contains("rows of 160") && error.contains("q8_0"), "{error}");
        assert!(Linear::new(&view(16, 160, 0), None, WeightDtype::Q8_0).is_ok());
    }

    fn with(values: &[(usize, f32)]) -> TensorView {
        let mut bytes: Vec<u8> = view(16, 256, 0).data().into();
        for (index, value) in values {
            bytes[2 * index..2 * index + 2].copy_from_slice(&bf16::from_f32(*value).to_le_bytes());
        }
        TensorView { bytes: Bytes::Owned(Arc::new(bytes)), ..view(16, 256, 0) }
    }

    #[test]
    fn weights_that_are_no_numbers_or_have_no_scale_are_refused_in_every_type() {
        const TYPES: [WeightDtype; 5] =
            [WeightDtype::F32, WeightDtype::Bf16, WeightDtype::F16, WeightDtype::Q8_0, WeightDtype::Q6k];
        for dtype in TYPES {
            let refusal = |values: &[(usize, f32)]| Linear::new(&with(values), None, dtype).err();
            let says = |values: &[(usize, f32)]| refusal(values).map(|e| e.to_string()).unwrap_or_default();
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let says = says(&[(777, value)]);
                assert!(says.starts_with("a.safetensors: tensor w: element 777 is"), "{dtype}: {says}");
                assert!(says.contains("fetch it again"), "{dtype}: {says}");
            }
            // With one exponent bit flipped.
            let huge = says(&[(5, 2f32.powi(120))]);
            assert_eq!(huge.contains("element 5 is"), !matches!(dtype, WeightDtype::F32 | WeightDtype::Bf16));
            // The largest that pass make finite products.
            if matches!(dtype, WeightDtype::Q8_0 | WeightDtype::Q6k) {
                let largest = bf16::from_bits(bf16::from_f32(dtype.largest_scaled()).to_bits() - 1).to_f32();
                for values in [&[(3, largest)][..], &[(3, -largest), (4, largest)]] {
                    let linear = Linear::new(&with(values), None, dtype).unwrap();
                    let mut out = vec![f32::NAN; 16];
                    linear.forward(&[0.5; 256], &mut out);
                    assert!(out.iter().all(|x| x.is_finite()), "{dtype}: {out:?}");
                }
            }
        }
        let table = |values: &[(usize, f32)]| RowTable::new(&with(values)).err().map(|e| e.to_string());
        assert!(table(&[(4095, f32::NAN)]).unwrap().contains("element 4095 is NaN"));
        assert_eq!(table(&[]), None);
    }

    #[test]
    fn a_table_gives_its_rows_and_no_others() {
        let table = RowTable::new(&view(3, 4, 0)).unwrap();
        let mut row = [0.0; 4];
        assert!(table.copy_row(2, &mut row));
        assert_eq!(row.to_vec(), to_f32(&view(3, 4, 0)).unwrap()[8..]);
        assert!(!table.copy_row(3, &mut row));
    }
}
