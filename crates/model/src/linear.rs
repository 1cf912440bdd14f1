//! Linear layers and row tables over weights in any element type.

use std::fmt;
use std::str::FromStr;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Tensor};
use half::{bf16, f16};
use safetensors::Dtype;
use serde::Serialize;
use thiserror::Error;
use wnw_kernels::{KvElement, half_linear};

use crate::checkpoint::{Bytes, TensorView};

/// Element type in which linear layers are held in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightDtype {
    /// 4 bytes, exact.
    F32,
    /// 2 bytes; from a bf16 checkpoint used where it lies.
    Bf16,
    /// 2 bytes; weights above 65504 overflow.
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

    fn ggml(self) -> Option<GgmlDType> {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => None,
            Self::Q8_0 => Some(GgmlDType::Q8_0),
            Self::Q6k => Some(GgmlDType::Q6K),
        }
    }

    /// Weights that share a scale, and so must divide a row.
    pub fn block(self) -> usize {
        self.ggml().map_or(1, |g| g.block_size())
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
    /// candle refused a quantisation or a product.
    #[error("{name}: {source}")]
    Candle {
        /// The tensor.
        name: String,
        /// candle's reason.
        source: candle_core::Error,
    },
    /// A weight that is not a number, or that the type cannot hold.
    #[error(
        "{name}: element {index} is {value}, which {dtype} cannot hold; the checkpoint is damaged or needs --dtype bf16 or f32"
    )]
    NotFinite {
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
        if view.dtype == native && bytemuck::try_cast_slice::<u8, T>(view.data()).is_ok() {
            return Ok(Self::View { bytes: view.bytes.clone(), start: view.start, len: view.len });
        }
        let wide = to_f32(view);
        let narrow: Vec<T> = wide.iter().map(|x| T::narrow(*x)).collect();
        match narrow.iter().position(|x| !x.widen().is_finite()) {
            Some(index) => {
                Err(WeightError::NotFinite { name: view.name.clone(), index, value: wide[index], dtype })
            }
            None => Ok(Self::Owned(narrow)),
        }
    }
}

enum Store {
    F32(Elements<f32>),
    Bf16(Elements<bf16>),
    F16(Elements<f16>),
    Quantized(QMatMul),
}

/// A linear layer `y = x Wᵀ (+ b)` with `W` of shape `(n, k)`.
pub struct Linear {
    name: String,
    store: Store,
    bias: Option<Vec<f32>>,
    n: usize,
    k: usize,
}

impl Linear {
    /// Holds `weight` (its first size is `n`, the others make up `k`) in `dtype`. Quantising allocates the result and
    /// this one matrix in f32.
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
            WeightDtype::Q8_0 | WeightDtype::Q6k => Store::Quantized(quantize(weight, n, k, dtype)?),
        };
        Ok(Self { name: weight.name.clone(), store, bias: bias.map(to_f32), n, k })
    }

    /// Outputs, `n`.
    pub fn outputs(&self) -> usize {
        self.n
    }

    /// `out = x Wᵀ (+ b)`: `x` is `(m, k)`, `out` is `(m, n)`.
    pub fn forward(&self, x: &[f32], out: &mut [f32]) -> Result<(), WeightError> {
        let m = x.len() / self.k;
        match &self.store {
            Store::F32(w) => half_linear(x, w.as_slice(), m, self.n, self.k, out),
            Store::Bf16(w) => half_linear(x, w.as_slice(), m, self.n, self.k, out),
            Store::F16(w) => half_linear(x, w.as_slice(), m, self.n, self.k, out),
            Store::Quantized(w) => {
                let product = || -> candle_core::Result<Vec<f32>> {
                    let x = Tensor::from_slice(x, (m, self.k), &Device::Cpu)?;
                    w.forward(&x)?.flatten_all()?.to_vec1()
                };
                let y =
                    product().map_err(|source| WeightError::Candle { name: self.name.clone(), source })?;
                out.copy_from_slice(&y);
            }
        }
        if let Some(bias) = &self.bias {
            for row in out.chunks_exact_mut(self.n) {
                wnw_kernels::elementwise::add(row, bias);
            }
        }
        Ok(())
    }
}

fn quantize(weight: &TensorView, n: usize, k: usize, dtype: WeightDtype) -> Result<QMatMul, WeightError> {
    let name = || weight.name.clone();
    let (Some(ggml), block) = (dtype.ggml(), dtype.block()) else {
        unreachable!("only quantised types come here");
    };
    if k % block != 0 {
        let hint = if k % 32 == 0 { WeightDtype::Q8_0 } else { WeightDtype::Bf16 };
        return Err(WeightError::Block { name: name(), k, dtype, block, hint });
    }
    let wide = to_f32(weight);
    if let Some(index) = wide.iter().position(|x| !x.is_finite()) {
        return Err(WeightError::NotFinite { name: name(), index, value: wide[index], dtype });
    }
    let run = || -> candle_core::Result<QMatMul> {
        let tensor = Tensor::from_vec(wide, (n, k), &Device::Cpu)?;
        QMatMul::from_qtensor(QTensor::quantize(&tensor, ggml)?)
    };
    run().map_err(|source| WeightError::Candle { name: name(), source })
}

/// All elements of a tensor, widened.
pub(crate) fn to_f32(view: &TensorView) -> Vec<f32> {
    let mut out = vec![0.0; view.elements()];
    widen_bytes(view.dtype, view.data(), &mut out);
    out
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
        let (n, k, m) = (48, 256, 3);
        let w = view(n, k, 1); // misaligned on purpose
        let wide = to_f32(&w);
        let x: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.37).sin()).collect();
        let exact: Vec<f64> = (0..m * n)
            .map(|i| (0..k).map(|d| f64::from(x[i / n * k + d]) * f64::from(wide[i % n * k + d])).sum())
            .collect();
        let largest = exact.iter().fold(0f64, |a, b| a.max(b.abs()));
        for (dtype, limit) in [
            (WeightDtype::F32, 1e-5),
            (WeightDtype::Bf16, 1e-5),
            (WeightDtype::F16, 1e-3),
            (WeightDtype::Q8_0, 2e-2),
            (WeightDtype::Q6k, 6e-2),
        ] {
            let linear = Linear::new(&w, None, dtype).unwrap();
            let mut out = vec![0.0; m * n];
            linear.forward(&x, &mut out).unwrap();
            let worst = out.iter().zip(&exact).fold(0f64, |a, (o, e)| a.max((f64::from(*o) - e).abs()));
            assert!(worst <= limit * largest, "{dtype}: {worst} of {largest}");
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
        assert_eq!(row.to_vec(), to_f32(&view(3, 4, 0))[8..]);
        assert!(!table.copy_row(3, &mut row));
    }
}
