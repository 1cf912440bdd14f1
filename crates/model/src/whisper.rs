//! The parts that audio encoders after Whisper (Radford et al. 2022) share: convolutions as matrix products, sinusoidal
//! positions, pre-norm transformer layers with full attention inside windows.

use std::ops::ControlFlow;

use rayon::prelude::*;
use wnw_kernels::elementwise::{add, gelu, layer_norm};
use wnw_kv::attention::{Mask, PrefillShape, prefill_attention};

use crate::checkpoint::Checkpoint;
use crate::config::EncoderConfig;
use crate::linear::{Linear, WeightDtype};
use crate::model::ModelError;
use crate::values::to_f32;

const LAYER_NORM_EPS: f32 = 1e-5;

/// The transformer layers of an encoder, with their weights.
pub(crate) struct WhisperLayers {
    config: EncoderConfig,
    layers: Vec<Layer>,
}

struct Layer {
    attention_norm: Norm,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    mlp_norm: Norm,
    fc1: Linear,
    fc2: Linear,
}

/// A LayerNorm with its weights.
pub(crate) struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Norm {
    pub fn load(checkpoint: &Checkpoint, name: &str) -> Result<Self, ModelError> {
        Ok(Self {
            weight: to_f32(checkpoint.get(&format!("{name}.weight"))?)?,
            bias: to_f32(checkpoint.get(&format!("{name}.bias"))?)?,
        })
    }

    /// Normalises each row of `x` into `out`.
    pub fn apply(&self, x: &[f32], out: &mut [f32]) {
        let width = self.weight.len();
        out.par_chunks_mut(width).zip(x.par_chunks(width)).for_each(|(out, x)| {
            layer_norm(x, &self.weight, &self.bias, LAYER_NORM_EPS, out);
        });
    }
}

/// The linear layer (or convolution) of this canonical name.
pub(crate) fn linear(
    checkpoint: &Checkpoint,
    name: &str,
    bias: bool,
    dtype: WeightDtype,
) -> Result<Linear, ModelError> {
    let weight = checkpoint.get(&format!("{name}.weight"))?;
    let bias = if bias { Some(checkpoint.get(&format!("{name}.bias"))?) } else { None };
    Ok(Linear::new(weight, bias, dtype)?)
}

/// Canonical names and shapes of the layers' tensors; Whisper's keys have no bias, those of some descendants do.
pub(crate) fn layer_tensors(e: &EncoderConfig, k_bias: bool) -> Vec<(String, Vec<usize>)> {
    let (d, i) = (e.hidden_size, e.intermediate_size);
    let mut out = Vec::new();
    for l in 0..e.n_layers {
        for (part, shape) in [
            ("self_attn.q_proj.weight", &[d, d][..]),
            ("self_attn.q_proj.bias", &[d]),
            ("self_attn.k_proj.weight", &[d, d]),
            ("self_attn.k_proj.bias", &[d]),
            ("self_attn.v_proj.weight", &[d, d]),
            ("self_attn.v_proj.bias", &[d]),
            ("self_attn.out_proj.weight", &[d, d]),
            ("self_attn.out_proj.bias", &[d]),
            ("self_attn_layer_norm.weight", &[d]),
            ("self_attn_layer_norm.bias", &[d]),
            ("fc1.weight", &[i, d]),
            ("fc1.bias", &[i]),
            ("fc2.weight", &[d, i]),
            ("fc2.bias", &[d]),
            ("final_layer_norm.weight", &[d]),
            ("final_layer_norm.bias", &[d]),
        ] {
            if k_bias || part != "self_attn.k_proj.bias" {
                out.push((format!("audio_tower.layers.{l}.{part}"), shape.to_vec()));
            }
        }
    }
    out
}

impl WhisperLayers {
    /// Takes the tensors of [`layer_tensors`] from a checked checkpoint.
    pub fn load(
        checkpoint: &Checkpoint,
        config: &EncoderConfig,
        k_bias: bool,
        dtype: WeightDtype,
    ) -> Result<Self, ModelError> {
        let layers = (0..config.n_layers)
            .map(|l| {
                let at = |part: &str| format!("audio_tower.layers.{l}.{part}");
                let linear = |part: &str, bias| linear(checkpoint, &at(part), bias, dtype);
                Ok(Layer {
                    attention_norm: Norm::load(checkpoint, &at("self_attn_layer_norm"))?,
                    q: linear("self_attn.q_proj", true)?,
                    k: linear("self_attn.k_proj", k_bias)?,
                    v: linear("self_attn.v_proj", true)?,
                    out: linear("self_attn.out_proj", true)?,
                    mlp_norm: Norm::load(checkpoint, &at("final_layer_norm"))?,
                    fc1: linear("fc1", true)?,
                    fc2: linear("fc2", true)?,
                })
            })
            .collect::<Result<_, ModelError>>()?;
        Ok(Self { config: config.clone(), layers })
    }

    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Runs `x` `(rows, hidden_size)` through all layers. `windows` are the rows of each stretch that attends to itself
    /// alone, in order; together all rows. `after_layer` is called after every layer; when it breaks,
    /// [`ModelError::Cancelled`].
    pub fn forward(
        &self,
        x: &mut [f32],
        windows: &[usize],
        after_layer: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), ModelError> {
        let e = &self.config;
        let (d, rows) = (e.hidden_size, x.len() / e.hidden_size);
        if windows.iter().sum::<usize>() != rows {
            return Err(ModelError::Input(format!("windows of {windows:?} for {rows} rows")));
        }
        let zeros = |width: usize| vec![0.0; rows * width];
        let (mut norm, mut branch, mut inner) = (zeros(d), zeros(d), zeros(e.intermediate_size));
        let (mut q, mut mixed) = (zeros(d), zeros(d));
        let scale = (e.head_dim as f32).powf(-0.5);
        for layer in &self.layers {
            layer.attention_norm.apply(x, &mut norm);
            layer.q.forward(&norm, &mut q);
            layer.k.forward(&norm, &mut mixed);
            let k = heads_first(&mixed, windows, e);
            layer.v.forward(&norm, &mut mixed);
            let v = heads_first(&mixed, windows, e);
            let mut first = 0;
            for rows in windows {
                let at = first * d..(first + rows) * d;
                let shape = PrefillShape {
                    n_q: *rows,
                    n_k: *rows,
                    n_q_heads: e.n_heads,
                    n_kv_heads: e.n_heads,
                    head_dim: e.head_dim,
                };
                let (q, k, v) = (&q[at.clone()], &k[at.clone()], &v[at.clone()]);
                prefill_attention(q, k, v, shape, Mask::None, scale, &mut mixed[at]);
                first += rows;
            }
            layer.out.forward(&mixed, &mut branch);
            add(x, &branch);
            layer.mlp_norm.apply(x, &mut norm);
            layer.fc1.forward(&norm, &mut inner);
            gelu_rows(&mut inner);
            layer.fc2.forward(&inner, &mut branch);
            add(x, &branch);
            if after_layer().is_break() {
                return Err(ModelError::Cancelled);
            }
        }
        Ok(())
    }
}

/// Bytes of the buffers of [`WhisperLayers::forward`] for so many rows, its input included.
pub(crate) fn layer_bytes(e: &EncoderConfig, rows: usize) -> u64 {
    (rows * (7 * e.hidden_size + e.intermediate_size)) as u64 * 4
}

/// Rows of the matrix product that a convolution of width 3 with padding 1 amounts to: row `t` holds, for each channel,
/// the three inputs around frame `t · stride`; `(⌈frames / stride⌉, channels · 3)`.
pub(crate) fn unfold(
    input: impl Fn(usize, usize) -> f32 + Sync,
    channels: usize,
    frames: usize,
    stride: usize,
) -> Vec<f32> {
    let mut out = vec![0.0; frames.div_ceil(stride) * channels * 3];
    out.par_chunks_mut(channels * 3).enumerate().for_each(|(row, out)| {
        let centre = row * stride;
        for (c, taps) in out.chunks_exact_mut(3).enumerate() {
            for (tap, x) in taps.iter_mut().enumerate() {
                if let Some(t) = (centre + tap).checked_sub(1).filter(|t| *t < frames) {
                    *x = input(c, t);
                }
            }
        }
    });
    out
}

/// `(rows, heads · head_dim)` to `(heads, rows, head_dim)` in each window.
fn heads_first(x: &[f32], windows: &[usize], e: &EncoderConfig) -> Vec<f32> {
    let (d, hd) = (e.hidden_size, e.head_dim);
    let mut out = vec![0.0; x.len()];
    let mut first = 0;
    for rows in windows {
        let at = first * d..(first + rows) * d;
        let x = &x[at.clone()];
        out[at].par_chunks_mut(rows * hd).enumerate().for_each(|(h, out)| {
            for (out, row) in out.chunks_exact_mut(hd).zip(x.chunks_exact(d)) {
                out.copy_from_slice(&row[h * hd..(h + 1) * hd]);
            }
        });
        first += rows;
    }
    out
}

pub(crate) fn gelu_rows(x: &mut [f32]) {
    x.par_chunks_mut(1 << 14).for_each(gelu);
}

/// Whisper's table of positions, `(length, channels)`: sines of geometrically spaced frequencies, then cosines; formed in
/// f32 throughout, as the reference does.
pub(crate) fn sinusoids(length: usize, channels: usize) -> Vec<f32> {
    let half = channels / 2;
    let step = (10_000f64.ln() / (half as f64 - 1.0).max(1.0)) as f32;
    let mut out = Vec::with_capacity(length * channels);
    for p in 0..length {
        let angle = |i: usize| p as f32 * (-step * i as f32).exp();
        out.extend((0..half).map(|i| angle(i).sin()));
        out.extend((0..half).map(|i| angle(i).cos()));
    }
    out
}
