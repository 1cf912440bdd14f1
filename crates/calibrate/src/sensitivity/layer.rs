//! One decoder layer in operations that candle can differentiate.
//!
//! candle's fused softmax, rotary embedding and norms have no backward and give no warning, so everything is spelled
//! out. Weights take no gradient: candle's own product would compute theirs all the same, a third of the time and as
//! much memory as the weights; [`Frozen`] does not.

use std::ops::Range;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, D, Device, Layout, Result, Shape, Storage, Tensor, bail};
use wnw_kernels::elementwise::Rope;
use wnw_model::checkpoint::{Checkpoint, TensorView};
use wnw_model::config::DecoderConfig;

use crate::CalibrateError;

/// A linear layer, `y = x Wᵀ (+ b)`, whose weights take no gradient.
#[derive(Clone)]
pub(super) struct Frozen {
    weight: Tensor,       // (outputs, inputs)
    bias: Option<Tensor>, // (outputs)
}

impl Frozen {
    pub(super) fn new(view: &TensorView) -> std::result::Result<Self, CalibrateError> {
        Ok(Self {
            weight: Tensor::from_vec(view.to_f32()?, view.shape.as_slice(), &Device::Cpu)?,
            bias: None,
        })
    }

    fn with_bias(self, bias: Option<Tensor>) -> Self {
        Self { bias, ..self }
    }

    /// `x` is `(rows, inputs)`, contiguous; the result `(rows, outputs)`.
    pub(super) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let y = x.apply_op1(self.clone())?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

impl CustomOp1 for Frozen {
    fn name(&self) -> &'static str {
        "frozen-linear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (m, k) = layout.shape().dims2()?;
        let (weight, weight_layout) = self.weight.storage_and_layout();
        let Storage::Cpu(weight) = &*weight else { bail!("a weight off the CPU") };
        let (n, _) = weight_layout.shape().dims2()?;
        let y = x.matmul(weight, (1, m, n, k), layout, &weight_layout.transpose(0, 1)?)?;
        Ok((y, Shape::from((m, n))))
    }

    fn bwd(&self, _x: &Tensor, _y: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(gradient.matmul(&self.weight)?))
    }
}

/// A one-dimensional weight.
pub(super) fn vector(checkpoint: &Checkpoint, name: &str) -> std::result::Result<Tensor, CalibrateError> {
    let view = checkpoint.get(name)?;
    Ok(Tensor::from_vec(view.to_f32()?, view.shape.as_slice(), &Device::Cpu)?)
}

/// `weight · x / √(mean(x²) + eps)` of every row.
pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let mean = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(eps))?;
    x.broadcast_div(&mean.sqrt()?)?.broadcast_mul(weight)
}

fn softmax(scores: &Tensor) -> Result<Tensor> {
    let largest = scores.detach().max_keepdim(D::Minus1)?;
    let weights = scores.broadcast_sub(&largest)?.exp()?;
    weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)
}

/// Cosines and sines of every position, each `(len, head_dim / 2)`.
pub(super) struct RotaryTable {
    cos: Tensor,
    sin: Tensor,
}

impl RotaryTable {
    pub(super) fn new(config: &DecoderConfig, len: usize) -> Result<Self> {
        let rope = Rope::new(config.head_dim, config.rope_theta);
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in 0..len {
            rope.angles(position, &mut cos, &mut sin);
        }
        let shape = (len, config.head_dim / 2);
        Ok(Self {
            cos: Tensor::from_vec(cos, shape, &Device::Cpu)?,
            sin: Tensor::from_vec(sin, shape, &Device::Cpu)?,
        })
    }

    /// Turns `x` `(heads, rows, head_dim)`, the rows of `block`.
    fn rotate(&self, x: &Tensor, block: &Range<usize>) -> Result<Tensor> {
        let half = x.dim(2)? / 2;
        let cos = self.cos.narrow(0, block.start, block.len())?;
        let sin = self.sin.narrow(0, block.start, block.len())?;
        let (a, b) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
        let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
        let second = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
        Tensor::cat(&[first, second], 2)
    }
}

/// Keys after rotary embedding, and values, each `(n_kv_heads, positions, head_dim)`.
pub(super) struct KeysValues {
    pub(super) k: Tensor,
    pub(super) v: Tensor,
}

impl KeysValues {
    /// Those of the first `end` positions.
    pub(super) fn up_to(&self, end: usize) -> Result<Self> {
        let first = |x: &Tensor| x.narrow(1, 0, end)?.contiguous();
        Ok(Self { k: first(&self.k)?, v: first(&self.v)? })
    }
}

/// A decoder layer in f32.
pub(super) struct GradLayer {
    attention_norm: Tensor,
    q: Frozen,
    k: Frozen,
    v: Frozen,
    /// Norms of the query and key heads, `(head_dim)` each, where the model has them.
    head_norms: Option<[Tensor; 2]>,
    o: Frozen,
    mlp_norm: Tensor,
    gate: Frozen,
    up: Frozen,
    down: Frozen,
    n_q_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    eps: f32,
}

impl GradLayer {
    pub(super) fn load(
        config: &DecoderConfig,
        checkpoint: &Checkpoint,
        layer: usize,
    ) -> std::result::Result<Self, CalibrateError> {
        let name = |part: &str| format!("language_model.model.layers.{layer}.{part}.weight");
        let linear = |part: &str| Frozen::new(checkpoint.get(&name(part))?);
        let rotary = |part: &str| Frozen::new(&*checkpoint.rotary(&name(part), config.head_dim)?);
        let bias = |part: &str| {
            let name = || format!("language_model.model.layers.{layer}.self_attn.{part}_proj.bias");
            config.qkv_bias.then(|| vector(checkpoint, &name())).transpose()
        };
        let head_norms = || -> std::result::Result<_, CalibrateError> {
            let norm = |part: &str| vector(checkpoint, &name(part));
            Ok([norm("self_attn.q_norm")?, norm("self_attn.k_norm")?])
        };
        Ok(Self {
            attention_norm: vector(checkpoint, &name("input_layernorm"))?,
            q: rotary("self_attn.q_proj")?.with_bias(bias("q")?),
            k: rotary("self_attn.k_proj")?.with_bias(bias("k")?),
            v: linear("self_attn.v_proj")?.with_bias(bias("v")?),
            head_norms: config.qk_norm.then(head_norms).transpose()?,
            o: linear("self_attn.o_proj")?,
            mlp_norm: vector(checkpoint, &name("post_attention_layernorm"))?,
            gate: linear("mlp.gate_proj")?,
            up: linear("mlp.up_proj")?,
            down: linear("mlp.down_proj")?,
            n_q_heads: config.n_q_heads,
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
            eps: config.rms_norm_eps,
        })
    }

    /// `(rows, heads · head_dim)` to `(heads, rows, head_dim)`.
    fn split(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        x.reshape((x.dim(0)?, heads, self.head_dim))?.transpose(0, 1)?.contiguous()
    }

    /// Heads `(heads, rows, head_dim)` normalised as the model's norm number `which` (0 for queries, 1 for keys) does.
    fn head_norm(&self, x: Tensor, which: usize) -> Result<Tensor> {
        match &self.head_norms {
            Some(norms) => rms_norm(&x, &norms[which], self.eps),
            None => Ok(x),
        }
    }

    /// Keys and values of the rows of `block`; `x` is the layer's input there, `(rows, hidden_size)`.
    pub(super) fn keys_values(
        &self,
        x: &Tensor,
        block: &Range<usize>,
        angles: &RotaryTable,
    ) -> Result<KeysValues> {
        let x = rms_norm(x, &self.attention_norm, self.eps)?;
        let k = self.head_norm(self.split(&self.k.apply(&x)?, self.n_kv_heads)?, 1)?;
        let k = angles.rotate(&k, block)?;
        Ok(KeysValues { k, v: self.split(&self.v.apply(&x)?, self.n_kv_heads)? })
    }

    /// Keys and values of all positions, computed in blocks of `rows`.
    pub(super) fn all_keys_values(
        &self,
        x: &Tensor,
        angles: &RotaryTable,
        rows: usize,
    ) -> Result<KeysValues> {
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for block in super::blocks(0..x.dim(0)?, rows) {
            let part = self.keys_values(&super::take_rows(x, &block)?, &block, angles)?;
            k.push(part.k);
            v.push(part.v);
        }
        Ok(KeysValues { k: Tensor::cat(&k, 1)?, v: Tensor::cat(&v, 1)? })
    }

    /// The layer's output for the rows of `block`: `x` is its input there, `(rows, hidden_size)`, and `visible` the keys
    /// and values of positions `0..block.end`.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        visible: &KeysValues,
        block: &Range<usize>,
        angles: &RotaryTable,
    ) -> Result<Tensor> {
        let (rows, group) = (block.len(), self.n_q_heads / self.n_kv_heads);
        let normed = rms_norm(x, &self.attention_norm, self.eps)?;
        let q = self.head_norm(self.split(&self.q.apply(&normed)?, self.n_q_heads)?, 0)?;
        let q = angles.rotate(&q, block)?;
        // The query heads of a group are rows of one product with their KV head.
        let q = (q * (self.head_dim as f64).powf(-0.5))?;
        let q = q.reshape((self.n_kv_heads, group * rows, self.head_dim))?;
        let scores = q.matmul(&visible.k.t()?)?;
        let scores = scores.reshape((self.n_kv_heads, group, rows, block.end))?;
        let weights = softmax(&scores.broadcast_add(&causal_mask(block)?)?)?;
        let weights = weights.reshape((self.n_kv_heads, group * rows, block.end))?;
        let attended = weights.matmul(&visible.v)?.reshape((self.n_q_heads, rows, self.head_dim))?;
        let attended =
            attended.transpose(0, 1)?.contiguous()?.reshape((rows, self.n_q_heads * self.head_dim))?;
        let x = (x + self.o.apply(&attended)?)?;
        let normed = rms_norm(&x, &self.mlp_norm, self.eps)?;
        let inner = (self.gate.apply(&normed)?.silu()? * self.up.apply(&normed)?)?;
        x + self.down.apply(&inner)?
    }
}

/// 0 where row `i` of `block` sees position `j`, −∞ where it does not: `(rows, block.end)`.
fn causal_mask(block: &Range<usize>) -> Result<Tensor> {
    let mut mask = Vec::with_capacity(block.len() * block.end);
    for position in block.clone() {
        mask.extend((0..block.end).map(|j| if j <= position { 0.0 } else { f32::NEG_INFINITY }));
    }
    Tensor::from_vec(mask, (block.len(), block.end), &Device::Cpu)
}
