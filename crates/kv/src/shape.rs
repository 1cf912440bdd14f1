//! Sizes and element type of a KV cache.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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
        (self.n_layers * self.n_kv_heads * self.head_dim * 2 * dtype.bytes()) as u64
    }
}

/// Element type in which keys and values are stored; arithmetic is always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// 4 bytes, exact.
    F32,
    /// 2 bytes, 8 bits of significand: the default, as in the checkpoints' own inference code.
    #[default]
    Bf16,
    /// 2 bytes, 11 bits of significand, largest value 65504.
    F16,
}

impl KvDtype {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

impl FromStr for KvDtype {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "f16" => Ok(Self::F16),
            _ => Err(format!("'{s}' is no KV type; use f32, bf16 or f16")),
        }
    }
}
