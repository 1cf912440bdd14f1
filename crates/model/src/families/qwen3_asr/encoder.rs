//! Qwen3-ASR's audio encoder: three two-dimensional convolutions over chunks of 1 s, each 13 states whose positions start
//! at 0, then Whisper's layers (here with a bias on the keys too) on windows of 8 s that do not see each other.

use std::ops::{ControlFlow, Range};

use rayon::prelude::*;
use wnw_audio::Mel;
use wnw_kernels::elementwise::add;

use super::config::{Qwen3AsrConfig, halved, reduced};
use crate::checkpoint::Checkpoint;
use crate::families::AudioEncoder;
use crate::linear::{Linear, WeightDtype};
use crate::model::ModelError;
use crate::whisper::{Norm, WhisperLayers, gelu_rows, layer_tensors, linear, sinusoids};

/// Windows of 8 s that go through the layers together.
pub(super) const BLOCK_WINDOWS: usize = 4;

pub(super) struct Qwen3AsrEncoder {
    config: Qwen3AsrConfig,
    convolutions: [Linear; 3],
    conv_out: Linear,
    positions: Vec<f32>, // (tokens_per_chunk, hidden_size)
    layers: WhisperLayers,
    norm: Norm,
    projector: [Linear; 2],
}

/// Canonical names and shapes. The table of positions is not stored.
pub(super) fn tensors(config: &Qwen3AsrConfig) -> Vec<(String, Vec<usize>)> {
    let (e, c) = (&config.encoder, config.channels);
    let (d, h) = (e.hidden_size, config.decoder.hidden_size);
    let mut out: Vec<(String, Vec<usize>)> = [
        ("audio_tower.conv2d1.weight", &[c, 1, 3, 3][..]),
        ("audio_tower.conv2d1.bias", &[c]),
        ("audio_tower.conv2d2.weight", &[c, c, 3, 3]),
        ("audio_tower.conv2d2.bias", &[c]),
        ("audio_tower.conv2d3.weight", &[c, c, 3, 3]),
        ("audio_tower.conv2d3.bias", &[c]),
        ("audio_tower.conv_out.weight", &[d, c * reduced(e.n_mels)]),
        ("audio_tower.ln_post.weight", &[d]),
        ("audio_tower.ln_post.bias", &[d]),
        ("multi_modal_projector.linear_1.weight", &[d, d]),
        ("multi_modal_projector.linear_1.bias", &[d]),
        ("multi_modal_projector.linear_2.weight", &[h, d]),
        ("multi_modal_projector.linear_2.bias", &[h]),
    ]
    .map(|(name, shape)| (name.to_owned(), shape.to_vec()))
    .into();
    out.extend(layer_tensors(e, true));
    out
}

impl Qwen3AsrEncoder {
    pub(super) fn load(
        checkpoint: &Checkpoint,
        config: &Qwen3AsrConfig,
        dtype: WeightDtype,
    ) -> Result<Self, ModelError> {
        let linear = |name: &str, bias| linear(checkpoint, name, bias, dtype);
        Ok(Self {
            convolutions: [
                linear("audio_tower.conv2d1", true)?,
                linear("audio_tower.conv2d2", true)?,
                linear("audio_tower.conv2d3", true)?,
            ],
            conv_out: linear("audio_tower.conv_out", false)?,
            positions: sinusoids(config.tokens_per_chunk(), config.encoder.hidden_size),
            layers: WhisperLayers::load(checkpoint, &config.encoder, true, dtype)?,
            norm: Norm::load(checkpoint, "audio_tower.ln_post")?,
            projector: [
                linear("multi_modal_projector.linear_1", true)?,
                linear("multi_modal_projector.linear_2", true)?,
            ],
            config: config.clone(),
        })
    }

    /// The states of one chunk before the layers, `(tokens, hidden_size)`. A short chunk is filled up with zero frames, as
    /// in the reference, and the states of its own frames are kept.
    fn stem(&self, mel: &Mel, chunk: Range<usize>) -> Result<Vec<f32>, ModelError> {
        let (e, c) = (&self.config.encoder, self.config.channels);
        let (mut bands, mut frames, mut channels) = (e.n_mels, self.config.chunk_frames, 1);
        let mut x = vec![0.0; bands * frames]; // (bands, frames, channels)
        for (row, band) in x.chunks_exact_mut(frames).zip(mel.data.chunks_exact(mel.n_frames)) {
            row[..chunk.len()].copy_from_slice(&band[chunk.clone()]);
        }
        for convolution in &self.convolutions {
            let taps = unfold(&x, bands, frames, channels);
            (bands, frames, channels) = (halved(bands), halved(frames), c);
            x = vec![0.0; bands * frames * c];
            convolution.forward(&taps, &mut x);
            gelu_rows(&mut x);
        }
        // Each frame's values by channel and then band: (tokens, channels · bands).
        let tokens = reduced(chunk.len());
        let mut by_frame = vec![0.0; tokens * c * bands];
        for (t, row) in by_frame.chunks_exact_mut(c * bands).enumerate() {
            for (i, value) in row.iter_mut().enumerate() {
                let (channel, band) = (i / bands, i % bands);
                *value = x[(band * frames + t) * c + channel];
            }
        }
        let mut out = vec![0.0; tokens * e.hidden_size];
        self.conv_out.forward(&by_frame, &mut out);
        let n = out.len();
        add(&mut out, &self.positions[..n]);
        Ok(out)
    }
}

/// Rows of the matrix product that a 3 × 3 convolution of stride 2 and padding 1 amounts to: for each place of the result,
/// band by band, the nine inputs around it of every channel. `x` is `(bands, frames, channels)`.
fn unfold(x: &[f32], bands: usize, frames: usize, channels: usize) -> Vec<f32> {
    let (out_bands, out_frames) = (halved(bands), halved(frames));
    let mut out = vec![0.0; out_bands * out_frames * channels * 9];
    out.par_chunks_mut(channels * 9).enumerate().for_each(|(place, out)| {
        let (band, frame) = (2 * (place / out_frames), 2 * (place % out_frames));
        for tap in 0..9 {
            let band = (band + tap / 3).checked_sub(1).filter(|b| *b < bands);
            let frame = (frame + tap % 3).checked_sub(1).filter(|t| *t < frames);
            let (Some(band), Some(frame)) = (band, frame) else { continue };
            let inputs = &x[(band * frames + frame) * channels..][..channels];
            out.iter_mut().skip(tap).step_by(9).zip(inputs).for_each(|(out, x)| *out = *x);
        }
    });
    out
}

impl AudioEncoder for Qwen3AsrEncoder {
    fn block_frames(&self) -> usize {
        self.config.chunk_frames * self.config.window_chunks * BLOCK_WINDOWS
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
        let (e, step) = (&self.config.encoder, self.config.chunk_frames);
        if mel.n_mels != e.n_mels || mel.data.len() != e.n_mels * mel.n_frames || block.end > mel.n_frames {
            return Err(ModelError::Input(format!("mel frames {block:?} of {}", mel.n_frames)));
        }
        let (mut x, mut chunks) = (Vec::new(), Vec::new());
        for first in block.clone().step_by(step) {
            let part = self.stem(mel, first..(first + step).min(block.end))?;
            chunks.push(part.len() / e.hidden_size);
            x.extend(part);
        }
        let windows: Vec<usize> =
            chunks.chunks(self.config.window_chunks).map(|window| window.iter().sum()).collect();
        self.layers.forward(&mut x, &windows, after_layer)?;
        Ok(x)
    }

    fn project(&self, states: &[f32]) -> Vec<f32> {
        let [first, second] = &self.projector;
        let rows = states.len() / self.config.encoder.hidden_size;
        let mut normed = vec![0.0; states.len()];
        self.norm.apply(states, &mut normed);
        let mut inner = vec![0.0; rows * first.outputs()];
        first.forward(&normed, &mut inner);
        gelu_rows(&mut inner);
        let mut out = vec![0.0; rows * second.outputs()];
        second.forward(&inner, &mut out);
        out
    }
}
