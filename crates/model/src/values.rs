//! The values of a tensor: widened to f32, and checked once when they are loaded.
//!
//! Products with rounded activations, attention over what was kept, and sampling can all hide a value that is not a number, and
//! none of them knows where it came from. So every tensor that is used is looked through while it is loaded: those that are
//! stored in another type in the same pass, those that are used where they lie in a pass of their own, which costs little, since
//! the first prompt reads them from the file in any case.

use std::path::PathBuf;

use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;
use thiserror::Error;
use wnw_kernels::KvElement;

use crate::checkpoint::TensorView;
use crate::linear::WeightDtype;

/// Why a weight cannot be held in the type asked for.
#[derive(Debug, Error)]
pub enum WeightError {
    /// Rows that the blocks of a quantised type do not divide.
    #[error(
        "{file}: tensor {name}: rows of {k} weights cannot be stored as {dtype}, whose blocks hold {block}; use --dtype {hint}"
    )]
    Block {
        /// The file.
        file: PathBuf,
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
    #[error("{file}: tensor {name}: element {index} is {value}: the file is damaged, fetch it again")]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The tensor.
        name: String,
        /// Index of the element, row major.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// A tensor of weights without any.
    #[error(
        "{file}: tensor {name}: all {elements} elements are zero: the file is damaged or not there as a whole, fetch it again"
    )]
    Zero {
        /// The file.
        file: PathBuf,
        /// The tensor.
        name: String,
        /// How many there are.
        elements: usize,
    },
    /// A weight that the type cannot hold.
    #[error(
        "{file}: tensor {name}: element {index} is {value:e}, which {dtype} cannot hold; if the file is not damaged (to make sure, fetch it again), use --dtype bf16 or f32"
    )]
    Overflow {
        /// The file.
        file: PathBuf,
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

impl WeightError {
    /// The error of an element that `dtype` cannot hold, or nothing can.
    pub(crate) fn of(view: &TensorView, index: usize, value: f32, dtype: WeightDtype) -> Self {
        let (file, name) = view.place();
        if value.is_finite() {
            Self::Overflow { file, name, index, value, dtype }
        } else {
            Self::Damaged { file, name, index, value }
        }
    }
}

/// All elements of a tensor, widened; each must be a number.
pub(crate) fn to_f32(view: &TensorView) -> Result<Vec<f32>, WeightError> {
    let mut out = vec![0.0; view.elements()];
    widen_bytes(view.dtype, view.data(), &mut out);
    match out.iter().position(|x| !x.is_finite()) {
        Some(index) => Err(WeightError::of(view, index, out[index], WeightDtype::F32)),
        None => Ok(out),
    }
}

/// Widens little-endian elements of a weight's type, aligned or not.
pub(crate) fn widen_bytes(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
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

/// Refuses a tensor with nothing but zeros in it, as preallocated files have where nothing was written. Of any other it reads
/// little.
pub(crate) fn check_not_zero(view: &TensorView) -> Result<(), WeightError> {
    if view.data().iter().any(|byte| *byte != 0) {
        return Ok(());
    }
    let (file, name) = view.place();
    Err(WeightError::Zero { file, name, elements: view.elements() })
}

/// Bytes that are looked through before their pages may be given back; a multiple of [`PIECE`].
const STRETCH: usize = 32 << 20;
/// Bytes that one thread looks through at a time; a multiple of every element.
const PIECE: usize = 1 << 17;

/// Refuses a tensor with an element that is not a number, where it lies. With `release` its pages are given back meanwhile: for
/// tables of which only a few rows will be read.
pub(crate) fn check_finite(view: &TensorView, release: bool) -> Result<(), WeightError> {
    let size = view.len / view.elements();
    for first in (0..view.len).step_by(STRETCH) {
        let part = view.part(first, STRETCH.min(view.len - first));
        let bytes = part.data();
        let damaged = bytes.par_chunks(PIECE).position_first(|bytes| !all_finite(view.dtype, bytes));
        if let Some(piece) = damaged {
            let bytes = &bytes[piece * PIECE..bytes.len().min((piece + 1) * PIECE)];
            let mut wide = vec![0.0; bytes.len() / size];
            widen_bytes(view.dtype, bytes, &mut wide);
            let at = wide.iter().position(|x| !x.is_finite()).unwrap_or_default();
            let index = (first + piece * PIECE) / size + at;
            return Err(WeightError::of(view, index, wide[at], WeightDtype::F32));
        }
        if release {
            part.release_pages();
        }
    }
    Ok(())
}

/// Whether no exponent is all ones. Without an early end, so that it becomes vector instructions.
fn all_finite(dtype: Dtype, bytes: &[u8]) -> bool {
    let halves = |exponent: u16| {
        bytes
            .chunks_exact(2)
            .fold(true, |fine, b| fine & (u16::from_le_bytes([b[0], b[1]]) & exponent != exponent))
    };
    match dtype {
        Dtype::F32 => bytes.chunks_exact(4).fold(true, |fine, b| {
            fine & (u32::from_le_bytes([b[0], b[1], b[2], b[3]]) & 0x7f80_0000 != 0x7f80_0000)
        }),
        Dtype::F16 => halves(0x7c00),
        // As in `widen_bytes`.
        _ => halves(0x7f80),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Bytes;
    use std::path::Path;
    use std::sync::Arc;

    fn view(dtype: Dtype, bytes: Vec<u8>) -> TensorView {
        let size = if dtype == Dtype::F32 { 4 } else { 2 };
        let (len, bytes) = (bytes.len(), Bytes::Owned(Arc::new(bytes)));
        let file = Path::new("dir/a.safetensors").into();
        TensorView { file, name: "w".into(), dtype, shape: vec![len / size], bytes, start: 0, len }
    }

    #[test]
    fn what_is_not_finite_is_found_wherever_it_is() {
        type Encode = fn(f32) -> Vec<u8>;
        let types: [(Dtype, Encode); 3] = [
            (Dtype::F32, |x| x.to_le_bytes().into()),
            (Dtype::F16, |x| f16::from_f32(x).to_le_bytes().into()),
            (Dtype::BF16, |x| bf16::from_f32(x).to_le_bytes().into()),
        ];
        for (dtype, encode) in types {
            let largest = if dtype == Dtype::F16 { 65504.0 } else { 3e38 };
            let n = PIECE + 77;
            let fine: Vec<u8> = encode(largest).into_iter().chain(encode(-0.0)).cycle().take(2 * n).collect();
            let size = encode(0.0).len();
            check_finite(&view(dtype, fine.clone()), false).unwrap();
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for index in [0, 1, PIECE / size - 1, PIECE / size, 2 * n / size - 1] {
                    let mut bytes = fine.clone();
                    bytes[index * size..(index + 1) * size].copy_from_slice(&encode(value));
                    let error = check_finite(&view(dtype, bytes), true).unwrap_err().to_string();
                    let says = format!("dir/a.safetensors: tensor w: element {index} is {value}:");
                    assert!(error.starts_with(&says), "{error}");
                }
            }
        }
    }

    #[test]
    fn nothing_but_zeros_is_refused() {
        let mut bytes = vec![0; 64];
        let error = check_not_zero(&view(Dtype::BF16, bytes.clone())).unwrap_err().to_string();
        assert!(error.contains("a.safetensors: tensor w: all 32 elements are zero"), "{error}");
        bytes[63] = 1;
        check_not_zero(&view(Dtype::BF16, bytes)).unwrap();
    }
}
