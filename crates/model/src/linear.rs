//! Linear layers and row tables over weights in any element type.

use std::fmt;
use std::str::FromStr;

use candle_core::quantized::k_quants::{BlockQ6K, BlockQ8_0, GgmlType};
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;
use serde::Serialize;
use thiserror::Error;
use wnw_kernels::{KvElement, by_columns, half_linear, half_linear_each, tiled_linear};

use crate::checkpoint::{Bytes, TensorView};

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
    /// Bytes of a matrix with rows of `k` elements.
    pub fn matrix_bytes(self, n: usize, k: usize) -> u64 {
        let elements = n as u64 * k as u64;
        match self {
            Self::F32 => elements * 4,
            Self::Bf16 | Self::F16 => elements * 2,
            Self::Q8_0 => elements / 32 * 34,
            Self::Q6k => elements / 256 * 210,
        }
    }

    /// Weights that share a scale, and so must divide a row.
    pub fn block(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => 1,
            Self::Q8_0 => BlockQ8_0::BLCK_SIZE,
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

/// Why a weight cannot be held in the type asked for.
#[derive(Debug, Error)]
pub enum WeightError {
    /// Rows that the blocks of a quantised type do not divide.
    #[error(
        "{name}: rows of {k} weights cannot be stored as {dtype}, whose blocks hold {block}; use --dtype {hint}"
    )]
    Block {
        /// The tensor.
        name: String,
        /// Elements of a row.
        k: usize,
        /// The type asked for.
        dtype: WeightDtype,
        /// Its block size.
        block: usize,
        /// A type that works.
        hint: WeightDtype,
    },
    /// A weight that is not a number.
    #[error("{name}: element {index} is {value}: the checkpoint is damaged, fetch it again")]
    Damaged {
        /// The tensor.
        name: String,
        /// Index of the element, row major.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// A weight that the type cannot hold.
    #[error("{name}: element {index} is {value}, which {dtype} cannot hold; use --dtype bf16 or f32")]
    Overflow {
        /// The tensor.
        name: String,
        /// Index of the element, row major.
        index: usize,
        /// Its value.
        value: f32,
        /// The type asked for.
        dtype: WeightDtype,
    },
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
    /// The elements of `view`, without a copy when it holds `T` (of dtype `native`), aligned.
    fn of(view: &TensorView, native: Dtype, dtype: WeightDtype) -> Result<Self, WeightError> {
        if cfg!(target_endian = "little")
            && view.dtype == native
            && bytemuck::try_cast_slice::<u8, T>(view.data()).is_ok()
        {
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
                    let (name, index, value) = (view.name.clone(), out.len(), *value);
                    return Err(if value.is_finite() {
                        WeightError::Overflow { name, index, value, dtype }
                    } else {
                        WeightError::Damaged { name, index, value }
                    });
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
    Q8_0(Vec<BlockQ8_0>),
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
            WeightDtype::Q8_0 => Store::Q8_0(quantize(weight, n, k, dtype)?),
            WeightDtype::Q6k => Store::Q6k(quantize(weight, n, k, dtype)?),
        };
        Ok(Self { store, bias: bias.map(to_f32).transpose()?, n, k })
    }

    /// Outputs, `n`.
    pub fn outputs(&self) -> usize {
        self.n
    }

    /// `out = x Wᵀ (+ b)`: `x` is `(m, k)`, `out` is `(m, n)`.
    pub fn forward(&self, x: &[f32], out: &mut [f32]) {
        let m = x.len() / self.k;
        match &self.store {
            Store::F32(w) => half_linear(x, w.as_slice(), m, self.n, self.k, out),
            Store::Bf16(w) => half_linear(x, w.as_slice(), m, self.n, self.k, out),
            Store::F16(w) => half_linear(x, w.as_slice(), m, self.n, self.k, out),
            Store::Q8_0(w) => quantized_product(x, w, (m, self.n, self.k), out),
            Store::Q6k(w) => quantized_product(x, w, (m, self.n, self.k), out),
        }
        self.add_bias(out);
    }

    /// The same for rows that have nothing to do with each other, the steps of several sessions: each row of `out` has the
    /// bits that [`Linear::forward`] gives it alone, and weights are read from memory once for all rows.
    pub fn forward_each(&self, x: &[f32], out: &mut [f32]) {
        let m = x.len() / self.k;
        match &self.store {
            Store::F32(w) => half_linear_each(x, w.as_slice(), m, self.n, self.k, out),
            Store::Bf16(w) => half_linear_each(x, w.as_slice(), m, self.n, self.k, out),
            Store::F16(w) => half_linear_each(x, w.as_slice(), m, self.n, self.k, out),
            Store::Q8_0(w) => quantized_each(x, w, (m, self.n, self.k), out),
            Store::Q6k(w) => quantized_each(x, w, (m, self.n, self.k), out),
        }
        self.add_bias(out);
    }

    fn add_bias(&self, out: &mut [f32]) {
        if let Some(bias) = &self.bias {
            for row in out.chunks_exact_mut(self.n) {
                wnw_kernels::elementwise::add(row, bias);
            }
        }
    }

    /// Bytes of the weights, which a product reads once.
    pub fn bytes(&self) -> u64 {
        let weights = match &self.store {
            Store::F32(w) => size_of_val(w.as_slice()),
            Store::Bf16(w) => size_of_val(w.as_slice()),
            Store::F16(w) => size_of_val(w.as_slice()),
            Store::Q8_0(w) => size_of_val(w.as_slice()),
            Store::Q6k(w) => size_of_val(w.as_slice()),
        };
        weights as u64
    }
}

/// Rows that are quantised together: all that is ever held in f32.
const ROWS: usize = 64;

/// Bytes of weights from which a product uses several threads: handing less over costs as much as reading it.
const PARALLEL_FROM: usize = 512 << 10;

/// Up to this many activation rows, quantised weights are multiplied as they are, with activations rounded to 8 bits in
/// blocks of their own; for more, tiles are widened, which rounds nothing and is faster.
const MAX_DIRECT_ROWS: usize = 4;

fn quantize<B: GgmlType>(
    weight: &TensorView,
    n: usize,
    k: usize,
    dtype: WeightDtype,
) -> Result<Vec<B>, WeightError> {
    let block = dtype.block();
    if !k.is_multiple_of(block) {
        let hint =
            if k.is_multiple_of(WeightDtype::Q8_0.block()) { WeightDtype::Q8_0 } else { WeightDtype::Bf16 };
        return Err(WeightError::Block { name: weight.name.clone(), k, dtype, block, hint });
    }
    let row_bytes = weight.len / n;
    let mut out = vec![B::zeros(); n * k / block];
    let damaged = weight
        .data()
        .par_chunks(ROWS * row_bytes)
        .zip(out.par_chunks_mut(ROWS * k / block))
        .enumerate()
        .map_init(
            || vec![0.0; ROWS.min(n) * k],
            |wide, (i, (bytes, blocks))| {
                let wide = &mut wide[..blocks.len() * block];
                widen_bytes(weight.dtype, bytes, wide);
                if let Some(at) = wide.iter().position(|x| !x.is_finite()) {
                    return Some((i * ROWS * k + at, wide[at]));
                }
                B::from_float(wide, blocks);
                None
            },
        )
        .find_first(Option::is_some);
    match damaged.flatten() {
        Some((index, value)) => Err(WeightError::Damaged { name: weight.name.clone(), index, value }),
        None => {
            weight.release_pages();
            Ok(out)
        }
    }
}

fn quantized_product<B: GgmlType>(x: &[f32], w: &[B], (m, n, k): (usize, usize, usize), out: &mut [f32]) {
    if m <= MAX_DIRECT_ROWS {
        x.chunks_exact(k).zip(out.chunks_exact_mut(n)).for_each(|(x, out)| quantized_row(x, w, out));
        return;
    }
    let row = k / B::BLCK_SIZE;
    tiled_linear(x, m, n, k, out, |first, wide| {
        B::to_float(&w[first * row..first * row + wide.len() / B::BLCK_SIZE], wide);
    });
}

/// `out = w x` for one row of activations, which are rounded to 8 bits in blocks.
///
/// candle's dot products, and not its product: that one hands every piece to a pool of its own, whose threads are bound to
/// cores and wait for each other spinning. One busy core then costs a time slice in each of a step's sixty products.
fn quantized_row<B: GgmlType>(x: &[f32], w: &[B], out: &mut [f32]) {
    let row = x.len() / B::BLCK_SIZE;
    let mut blocks = vec![B::VecDotType::zeros(); row];
    B::VecDotType::from_float(x, &mut blocks);
    if size_of_val(w) < PARALLEL_FROM {
        dot_blocks(&blocks, w, x.len(), out);
    } else {
        out.par_chunks_mut(ROWS)
            .zip(w.par_chunks(ROWS * row))
            .for_each(|(out, w)| dot_blocks(&blocks, w, x.len(), out));
    }
}

/// [`quantized_row`] for several rows, with weights read from memory once: a tile stays in the cache for all of them.
fn quantized_each<B: GgmlType>(x: &[f32], w: &[B], (m, n, k): (usize, usize, usize), out: &mut [f32]) {
    if m == 1 || size_of_val(w) < PARALLEL_FROM {
        let rows = x.chunks_exact(k).zip(out.chunks_exact_mut(n));
        return rows.for_each(|(x, out)| quantized_row(x, w, out));
    }
    let row = k / B::BLCK_SIZE;
    let mut blocks = vec![B::VecDotType::zeros(); m * row];
    x.chunks_exact(k).zip(blocks.chunks_exact_mut(row)).for_each(|(x, b)| B::VecDotType::from_float(x, b));
    by_columns(m, n, out, |first, rows, result| {
        let w = &w[first * row..(first + rows) * row];
        for (blocks, result) in blocks.chunks_exact(row).zip(result.chunks_exact_mut(rows)) {
            dot_blocks(blocks, w, k, result);
        }
    });
}

/// `out = w x` for activations in blocks; rows of `k` weights.
fn dot_blocks<B: GgmlType>(x: &[B::VecDotType], w: &[B], k: usize, out: &mut [f32]) {
    let row = x.len();
    // Four rows at a time share what they read of the activations.
    let quads = out.len() / 4 * 4;
    let (whole, rest) = out.split_at_mut(quads);
    for (out, w) in whole.chunks_exact_mut(4).zip(w.chunks_exact(4 * row)) {
        let at = |i: usize| &w[i * row..(i + 1) * row];
        let (a, b, c, d) = B::vec_dot_4(k, at(0), at(1), at(2), at(3), x);
        out.copy_from_slice(&[a, b, c, d]);
    }
    for (out, w) in rest.iter_mut().zip(w[quads * row..].chunks_exact(row)) {
        *out = B::vec_dot(k, w, x);
    }
}

/// All elements of a tensor, widened; each must be a number, since 8-bit products would hide one that is not.
pub(crate) fn to_f32(view: &TensorView) -> Result<Vec<f32>, WeightError> {
    let mut out = vec![0.0; view.elements()];
    widen_bytes(view.dtype, view.data(), &mut out);
    match out.iter().position(|x| !x.is_finite()) {
        Some(index) => Err(WeightError::Damaged { name: view.name.clone(), index, value: out[index] }),
        None => Ok(out),
    }
}

/// Widens little-endian elements of a weight's type, aligned or not.
fn widen_bytes(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        Dtype::F16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = f16::from_le_bytes([b[0], b[1]]).widen();
            }
        }
        // `Checkpoint::check` refused everything but F32, F16 and BF16.
        _ => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = bf16::from_le_bytes([b[0], b[1]]).widen();
            }
        }
    }
}

/// A table of rows, such as token embeddings, read from where it lies.
pub struct RowTable {
    view: TensorView,
    width: usize,
}

impl RowTable {
    /// Rows of a two-dimensional tensor.
    pub fn new(view: &TensorView) -> Self {
        Self { width: view.elements() / view.shape[0], view: view.clone() }
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
        TensorView { name: "w".into(), dtype: Dtype::BF16, shape: vec![n, k], bytes, start: offset, len }
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
    fn a_row_is_the_same_among_others() {
        let (n, k) = (2100, 256);
        let w = view(n, k, 0);
        for dtype in
            [WeightDtype::F32, WeightDtype::Bf16, WeightDtype::F16, WeightDtype::Q8_0, WeightDtype::Q6k]
        {
            let linear = Linear::new(&w, None, dtype).unwrap();
            for m in [1, 2, 7, 12] {
                let x: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.37).sin()).collect();
                let mut out = vec![f32::NAN; m * n];
                linear.forward_each(&x, &mut out);
                for (x, out) in x.chunks_exact(k).zip(out.chunks_exact(n)) {
                    let mut alone = vec![f32::NAN; n];
                    linear.forward(x, &mut alone);
                    assert_eq!(alone, out, "{dtype} {m}");
                }
            }
        }
    }

    #[test]
    fn rows_that_blocks_do_not_divide_are_refused_by_name() {
        let error = Linear::new(&view(16, 160, 0), None, WeightDtype::Q6k).err().unwrap().to_string();
        assert!(error.contains("rows of 160") && error.contains("q8_0"), "{error}");
        assert!(Linear::new(&view(16, 160, 0), None, WeightDtype::Q8_0).is_ok());
    }

    #[test]
    fn a_table_gives_its_rows_and_no_others() {
        let table = RowTable::new(&view(3, 4, 0));
        let mut row = [0.0; 4];
        assert!(table.copy_row(2, &mut row));
        assert_eq!(row.to_vec(), to_f32(&view(3, 4, 0)).unwrap()[8..]);
        assert!(!table.copy_row(3, &mut row));
    }
}
