//! Qwen2.5-Omni's audio encoder: Whisper's layers on stretches of 2 s that do not see each other and whose positions start
//! at 0; neighbouring frames are averaged in pairs, normalised and projected.

use std::ops::{ControlFlow, Range};

use rayon::prelude::*;
use wnw_audio::Mel;
use wnw_kernels::elementwise::add;

use super::Qwen2_5OmniConfig;
use crate::checkpoint::Checkpoint;
use crate::families::AudioEncoder;
use crate::linear::{Linear, WeightDtype};
use crate::model::ModelError;
use crate::whisper::{Norm, WhisperLayers, gelu_rows, layer_tensors, linear, sinusoids, unfold};

/// Windows of 2 s that go through the layers together.
pub(super) const BLOCK_WINDOWS: usize = 10;

pub(super) struct Qwen2_5OmniEncoder {
    config: Qwen2_5OmniConfig,
    conv1: Linear,
    conv2: Linear,
    positions: Vec<f32>, // (n_window, hidden_size)
    layers: WhisperLayers,
    norm: Norm,
    projector: Linear,
}

/// Canonical names and shapes. The table of positions is not stored.
pub(super) fn tensors(config: &Qwen2_5OmniConfig) -> Vec<(String, Vec<usize>)> {
    let e = &config.encoder;
    let (d, h) = (e.hidden_size, config.decoder.hidden_size);
    let mut out: Vec<(String, Vec<usize>)> = [
        ("audio_tower.conv1.weight", &[d, e.n_mels, 3][..]),
        ("audio_tower.conv1.bias", &[d]),
        ("audio_tower.conv2.weight", &[d, d, 3]),
        ("audio_tower.conv2.bias", &[d]),
        ("audio_tower.ln_post.weight", &[d]),
        ("audio_tower.ln_post.bias", &[d]),
        ("multi_modal_projector.proj.weight", &[h, d]),
        ("multi_modal_projector.proj.bias", &[h]),
    ]
    .map(|(name, shape)| (name.to_owned(), shape.to_vec()))
    .into();
    out.extend(layer_tensors(e, false));
    out
}

impl Qwen2_5OmniEncoder {
    pub(super) fn load(
        checkpoint: &Checkpoint,
        config: &Qwen2_5OmniConfig,
        dtype: WeightDtype,
    ) -> Result<Self, ModelError> {
        let linear = |name: &str| linear(checkpoint, name, true, dtype);
        Ok(Self {
            conv1: linear("audio_tower.conv1")?,
            conv2: linear("audio_tower.conv2")?,
            positions: sinusoids(config.n_window, config.encoder.hidden_size),
            layers: WhisperLayers::load(checkpoint, &config.encoder, false, dtype)?,
            norm: Norm::load(checkpoint, "audio_tower.ln_post")?,
            projector: linear("multi_modal_projector.proj")?,
            config: config.clone(),
        })
    }

    /// The states of one window before the layers, `(⌈frames / 2⌉, hidden_size)`.
    fn stem(&self, mel: &Mel, window: Range<usize>) -> Result<Vec<f32>, ModelError> {
        let e = &self.config.encoder;
        let (frames, d) = (window.len(), e.hidden_size);
        let at = |c: usize, t: usize| mel.data[c * mel.n_frames + window.start + t];
        let mut wide = vec![0.0; frames * d]; // (frames, d)
        self.conv1.forward(&unfold(at, e.n_mels, frames, 1), &mut wide);
        gelu_rows(&mut wide);
        let mut x = vec![0.0; frames.div_ceil(2) * d];
        self.conv2.forward(&unfold(|c, t| wide[t * d + c], d, frames, 2), &mut x);
        gelu_rows(&mut x);
        let rows = x.len();
        add(&mut x, &self.positions[..rows]);
        Ok(x)
    }
}

impl AudioEncoder for Qwen2_5OmniEncoder {
    fn block_frames(&self) -> usize {
        2 * self.config.n_window * BLOCK_WINDOWS
    }

    fn n_layers(&self) -> usize {
        self.layers.len()
    }

    fn encode(
        &self,
        mel: &Mel,
        block: Range<usize>,
        after_layer: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<f32>, ModelError> {
        let (e, step) = (&self.config.encoder, 2 * self.config.n_window);
        if mel.n_mels != e.n_mels || mel.data.len() != e.n_mels * mel.n_frames || block.end > mel.n_frames {
            return Err(ModelError::Input(format!("mel frames {block:?} of {}", mel.n_frames)));
        }
        let (mut x, mut windows) = (Vec::new(), Vec::new());
        for first in block.clone().step_by(step) {
            let part = self.stem(mel, first..(first + step).min(block.end))?;
            windows.push(part.len() / e.hidden_size);
            x.extend(part);
        }
        self.layers.forward(&mut x, &windows, after_layer)?;
        Ok(x)
    }

    /// An odd last row has no neighbour and is dropped.
    fn project(&self, states: &[f32]) -> Vec<f32> {
        let d = self.config.encoder.hidden_size;
        let rows = states.len() / (2 * d);
        let mut pooled = vec![0.0; rows * d];
        pooled.par_chunks_mut(d).zip(states.par_chunks(2 * d)).for_each(|(out, pair)| {
            let (a, b) = pair.split_at(d);
            out.iter_mut().zip(a.iter().zip(b)).for_each(|(out, (a, b))| *out = (a + b) / 2.0);
        });
        let mut normed = vec![0.0; rows * d];
        self.norm.apply(&pooled, &mut normed);
        let mut out = vec![0.0; rows * self.projector.outputs()];
        if rows > 0 {
            self.projector.forward(&normed, &mut out);
        }
        out
    }
}
