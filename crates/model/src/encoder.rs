//! Voxtral's audio encoder and projector: mel frames to audio embeddings, one 30 s chunk at a time.
//!
//! The encoder is Whisper's (Radford et al. 2022): two convolutions, sinusoidal positions, pre-norm transformer layers
//! with full attention inside the chunk. Chunks do not see each other, so memory is bounded by one chunk.

use std::ops::ControlFlow;

use rayon::prelude::*;
use wnw_kernels::elementwise::{add, gelu, layer_norm};
use wnw_kv::attention::{Mask, PrefillShape, prefill_attention};

use crate::checkpoint::{Checkpoint, Naming};
use crate::config::VoxtralConfig;
use crate::linear::{Linear, WeightDtype, to_f32};
use crate::voxtral::ModelError;

const LAYER_NORM_EPS: f32 = 1e-5;

/// Encoder and projector with their weights.
pub struct AudioEncoder {
    config: VoxtralConfig,
    conv1: Linear,
    conv2: Linear,
    positions: Vec<f32>, // (max_positions, hidden_size)
    layers: Vec<EncoderLayer>,
    final_norm: Norm,
    projector: [Linear; 2],
}

struct EncoderLayer {
    attention_norm: Norm,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    mlp_norm: Norm,
    fc1: Linear,
    fc2: Linear,
}

struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Norm {
    fn load(checkpoint: &Checkpoint, name: &str) -> Result<Self, ModelError> {
        Ok(Self {
            weight: to_f32(checkpoint.get(&format!("{name}.weight"))?)?,
            bias: to_f32(checkpoint.get(&format!("{name}.bias"))?)?,
        })
    }

    /// Normalises each row of `x` into `out`.
    fn apply(&self, x: &[f32], out: &mut [f32]) {
        let width = self.weight.len();
        out.par_chunks_mut(width).zip(x.par_chunks(width)).for_each(|(out, x)| {
            layer_norm(x, &self.weight, &self.bias, LAYER_NORM_EPS, out);
        });
    }
}

/// Canonical names and shapes of the encoder's and projector's tensors; the position table is not among them in
/// Mistral's layout.
pub(crate) fn expected_tensors(config: &VoxtralConfig, naming: Naming) -> Vec<(String, Vec<usize>)> {
    let e = &config.encoder;
    let (d, i) = (e.hidden_size, e.intermediate_size);
    let mut out: Vec<(String, Vec<usize>)> = Vec::new();
    let mut add = |name: String, shape: &[usize]| out.push((name, shape.to_vec()));
    add("audio_tower.conv1.weight".into(), &[d, e.n_mels, 3]);
    add("audio_tower.conv1.bias".into(), &[d]);
    add("audio_tower.conv2.weight".into(), &[d, d, 3]);
    add("audio_tower.conv2.bias".into(), &[d]);
    if naming == Naming::HuggingFace {
        add("audio_tower.embed_positions.weight".into(), &[e.max_positions, d]);
    }
    for l in 0..e.n_layers {
        for (part, shape) in [
            ("self_attn.q_proj.weight", &[d, d][..]),
            ("self_attn.q_proj.bias", &[d]),
            ("self_attn.k_proj.weight", &[d, d]),
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
            add(format!("audio_tower.layers.{l}.{part}"), shape);
        }
    }
    add("audio_tower.layer_norm.weight".into(), &[d]);
    add("audio_tower.layer_norm.bias".into(), &[d]);
    let h = config.decoder.hidden_size;
    add("multi_modal_projector.linear_1.weight".into(), &[h, config.projector_input]);
    add("multi_modal_projector.linear_2.weight".into(), &[h, h]);
    out
}

impl AudioEncoder {
    /// Takes its tensors from a checked checkpoint; linear layers are held in `dtype`; activations are always f32.
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        config: &VoxtralConfig,
        dtype: WeightDtype,
    ) -> Result<Self, ModelError> {
        let linear = |name: &str, bias: bool| -> Result<Linear, ModelError> {
            let weight = checkpoint.get(&format!("{name}.weight"))?;
            let bias = if bias { Some(checkpoint.get(&format!("{name}.bias"))?) } else { None };
            Ok(Linear::new(weight, bias, dtype)?)
        };
        let positions = match checkpoint.naming() {
            Naming::HuggingFace => to_f32(checkpoint.get("audio_tower.embed_positions.weight")?)?,
            Naming::Mistral => sinusoids(config.encoder.max_positions, config.encoder.hidden_size),
        };
        let layers = (0..config.encoder.n_layers)
            .map(|l| {
                let at = |part: &str| format!("audio_tower.layers.{l}.{part}");
                Ok(EncoderLayer {
                    attention_norm: Norm::load(checkpoint, &at("self_attn_layer_norm"))?,
                    q: linear(&at("self_attn.q_proj"), true)?,
                    k: linear(&at("self_attn.k_proj"), false)?,
                    v: linear(&at("self_attn.v_proj"), true)?,
                    out: linear(&at("self_attn.out_proj"), true)?,
                    mlp_norm: Norm::load(checkpoint, &at("final_layer_norm"))?,
                    fc1: linear(&at("fc1"), true)?,
                    fc2: linear(&at("fc2"), true)?,
                })
            })
            .collect::<Result<_, ModelError>>()?;
        Ok(Self {
            conv1: linear("audio_tower.conv1", true)?,
            conv2: linear("audio_tower.conv2", true)?,
            positions,
            layers,
            final_norm: Norm::load(checkpoint, "audio_tower.layer_norm")?,
            projector: [
                linear("multi_modal_projector.linear_1", false)?,
                linear("multi_modal_projector.linear_2", false)?,
            ],
            config: config.clone(),
        })
    }

    /// Mel frames of one chunk, 3000.
    pub fn frames_per_chunk(&self) -> usize {
        2 * self.config.encoder.max_positions
    }

    /// Encodes one chunk: `mel` holds `n_mels` rows of [`AudioEncoder::frames_per_chunk`] frames, `stride` apart.
    /// Returns `(max_positions, hidden_size)`. `after_layer` is called after every layer; when it breaks, the encoding ends
    /// with [`ModelError::Cancelled`].
    pub fn encode(
        &self,
        mel: &[f32],
        stride: usize,
        after_layer: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<f32>, ModelError> {
        let e = &self.config.encoder;
        let (frames, t, d) = (self.frames_per_chunk(), e.max_positions, e.hidden_size);
        if stride < frames || mel.len() < (e.n_mels - 1) * stride + frames {
            return Err(ModelError::Input(format!("a chunk needs {} × {frames} mel values", e.n_mels)));
        }
        let mut wide = vec![0.0; frames * d]; // (frames, d)
        self.conv1.forward(&unfold(|c, t| mel[c * stride + t], e.n_mels, frames, 1), &mut wide);
        gelu_rows(&mut wide);
        let mut x = vec![0.0; t * d]; // (t, d)
        self.conv2.forward(&unfold(|c, t| wide[t * d + c], d, frames, 2), &mut x);
        drop(wide);
        gelu_rows(&mut x);
        add(&mut x, &self.positions);

        let mut norm = vec![0.0; t * d];
        let mut branch = vec![0.0; t * d];
        let mut inner = vec![0.0; t * e.intermediate_size];
        let shape = PrefillShape {
            n_q: t,
            n_k: t,
            n_q_heads: e.n_heads,
            n_kv_heads: e.n_heads,
            head_dim: e.head_dim,
        };
        let (mut q, mut rows) = (vec![0.0; t * d], vec![0.0; t * d]);
        for layer in &self.layers {
            layer.attention_norm.apply(&x, &mut norm);
            layer.q.forward(&norm, &mut q);
            layer.k.forward(&norm, &mut rows);
            let k = heads_first(&rows, t, e.n_heads, e.head_dim);
            layer.v.forward(&norm, &mut rows);
            let v = heads_first(&rows, t, e.n_heads, e.head_dim);
            let scale = (e.head_dim as f32).powf(-0.5);
            prefill_attention(&q, &k, &v, shape, Mask::None, scale, &mut rows);
            layer.out.forward(&rows, &mut branch);
            add(&mut x, &branch);
            layer.mlp_norm.apply(&x, &mut norm);
            layer.fc1.forward(&norm, &mut inner);
            gelu_rows(&mut inner);
            layer.fc2.forward(&inner, &mut branch);
            add(&mut x, &branch);
            if after_layer().is_break() {
                return Err(ModelError::Cancelled);
            }
        }
        self.final_norm.apply(&x, &mut norm);
        Ok(norm)
    }

    /// Projects encoder frames `(max_positions, hidden_size)` to audio embeddings, `(tokens_per_chunk, decoder width)`:
    /// four consecutive frames make one row.
    pub fn project(&self, frames: &[f32]) -> Vec<f32> {
        let [first, second] = &self.projector;
        let rows = frames.len() / self.config.projector_input;
        let mut inner = vec![0.0; rows * first.outputs()];
        first.forward(frames, &mut inner);
        gelu_rows(&mut inner);
        let mut out = vec![0.0; rows * second.outputs()];
        second.forward(&inner, &mut out);
        out
    }
}

/// Rows of the matrix product that a convolution of width 3 with padding 1 amounts to: row `t` holds, for each channel,
/// the three inputs around frame `t · stride`; `(frames / stride, channels · 3)`.
fn unfold(
    input: impl Fn(usize, usize) -> f32 + Sync,
    channels: usize,
    frames: usize,
    stride: usize,
) -> Vec<f32> {
    let mut out = vec![0.0; frames / stride * channels * 3];
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

/// `(t, heads · head_dim)` to `(heads, t, head_dim)`.
fn heads_first(rows: &[f32], t: usize, heads: usize, head_dim: usize) -> Vec<f32> {
    let mut out = vec![0.0; rows.len()];
    out.par_chunks_mut(t * head_dim).enumerate().for_each(|(h, out)| {
        for (out, row) in out.chunks_exact_mut(head_dim).zip(rows.chunks_exact(heads * head_dim)) {
            out.copy_from_slice(&row[h * head_dim..(h + 1) * head_dim]);
        }
    });
    out
}

fn gelu_rows(x: &mut [f32]) {
    x.par_chunks_mut(1 << 14).for_each(gelu);
}

/// Whisper's table of positions, `(length, channels)`: sines of geometrically spaced frequencies, then cosines; formed in
/// f32 throughout, as the reference does.
fn sinusoids(length: usize, channels: usize) -> Vec<f32> {
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
