//! Sizes and storage type of a KV cache.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use wnw_kernels::{Int4, Int8, KvRow};

/// Head counts and sizes of a decoder with grouped-query attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvShape {
    /// Decoder layers.
    pub n_layers: usize,
    /// Query heads of a layer.
    pub n_q_heads: usize,
    /// Key/value heads of a layer; divides `n_q_heads`.
    pub n_kv_heads: usize,
    /// Elements of one head's row.
    pub head_dim: usize,
}

impl KvShape {
    /// Query heads that share one KV head, `g = n_q_heads / n_kv_heads`.
    pub fn group(&self) -> usize {
        self.n_q_heads / self.n_kv_heads
    }

    /// Bytes of the keys and values of one position over all layers and heads.
    pub fn bytes_per_position(&self, dtype: KvDtype) -> u64 {
        (self.n_layers * self.n_kv_heads * 2 * dtype.row_bytes(self.head_dim)) as u64
    }
}

/// Type in which rows of keys and values are stored; arithmetic is always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// 4 bytes an element, exact.
    F32,
    /// 2 bytes an element, 8 bits of significand: the default, as in the checkpoints' own inference code.
    #[default]
    Bf16,
    /// 2 bytes an element, 11 bits of significand, largest value 65504.
    F16,
    /// 1 byte an element and an f32 scale per row: [`wnw_kernels::Int8`].
    Int8,
    /// Half a byte an element, and scale and minimum in f16 per 32 elements of a row: [`wnw_kernels::Int4`].
    Int4,
}

impl KvDtype {
    /// Every type, the widest first.
    pub const ALL: [Self; 5] = [Self::F32, Self::Bf16, Self::F16, Self::Int8, Self::Int4];

    /// Bytes of one head's row of keys, or of values, with its scales.
    pub fn row_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F32 => f32::row_bytes(head_dim),
            Self::Bf16 => bf16::row_bytes(head_dim),
            Self::F16 => f16::row_bytes(head_dim),
            Self::Int8 => Int8::row_bytes(head_dim),
            Self::Int4 => Int4::row_bytes(head_dim),
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        })
    }
}

impl FromStr for KvDtype {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|dtype| dtype.to_string() == s);
        known.ok_or_else(|| format!("'{s}' is no KV type; use f32, bf16, f16, int8 or int4"))
    }
}
