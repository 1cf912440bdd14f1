//! Voxtral's audio encoder and projector: Whisper's encoder on 30 s chunks that do not see each other; four consecutive
//! frames make one audio embedding.

use std::ops::{ControlFlow, Range};

use wnw_audio::Mel;
use wnw_kernels::elementwise::add;

use super::VoxtralConfig;
use crate::checkpoint::{Checkpoint, Naming};
use crate::families::AudioEncoder;
use crate::linear::{Linear, WeightDtype};
use crate::model::ModelError;
use crate::values::to_f32;
use crate::whisper::{Norm, WhisperLayers, gelu_rows, layer_tensors, linear, sinusoids, unfold};

/// Encoder and projector with their weights.
pub struct VoxtralEncoder {
    config: VoxtralConfig,
    conv1: Linear,
    conv2: Linear,
    positions: Vec<f32>, // (max_positions, hidden_size)
    layers: WhisperLayers,
    final_norm: Norm,
    projector: [Linear; 2],
}

/// Canonical names and shapes; the position table is not among them in Mistral's layout.
pub(super) fn tensors(config: &VoxtralConfig, naming: Naming) -> Vec<(String, Vec<usize>)> {
    let e = &config.encoder;
    let (d, h) = (e.hidden_size, config.decoder.hidden_size);
    let mut out: Vec<(String, Vec<usize>)> = Vec::new();
    let mut add = |name: &str, shape: &[usize]| out.push((name.to_owned(), shape.to_vec()));
    add("audio_tower.conv1.weight", &[d, e.n_mels, 3]);
    add("audio_tower.conv1.bias", &[d]);
    add("audio_tower.conv2.weight", &[d, d, 3]);
    add("audio_tower.conv2.bias", &[d]);
    if naming == Naming::HuggingFace {
        add("audio_tower.embed_positions.weight", &[e.max_positions, d]);
    }
    add("audio_tower.layer_norm.weight", &[d]);
    add("audio_tower.layer_norm.bias", &[d]);
    add("multi_modal_projector.linear_1.weight", &[h, config.projector_input]);
    add("multi_modal_projector.linear_2.weight", &[h, h]);
    out.extend(layer_tensors(e, false));
    out
}

impl VoxtralEncoder {
    /// Takes its tensors from a checked checkpoint.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        config: &VoxtralConfig,
        dtype: WeightDtype,
    ) -> Result<Self, ModelError> {
        let linear = |name: &str, bias| linear(checkpoint, name, bias, dtype);
        let positions = match checkpoint.naming() {
            Naming::HuggingFace => to_f32(checkpoint.get("audio_tower.embed_positions.weight")?)?,
            Naming::Mistral => sinusoids(config.encoder.max_positions, config.encoder.hidden_size),
        };
        Ok(Self {
            conv1: linear("audio_tower.conv1", true)?,
            conv2: linear("audio_tower.conv2", true)?,
            positions,
            layers: WhisperLayers::load(checkpoint, &config.encoder, false, dtype)?,
            final_norm: Norm::load(checkpoint, "audio_tower.layer_norm")?,
            projector: [
                linear("multi_modal_projector.linear_1", false)?,
                linear("multi_modal_projector.linear_2", false)?,
            ],
            config: config.clone(),
        })
    }
}

impl AudioEncoder for VoxtralEncoder {
    fn block_frames(&self) -> usize {
        2 * self.config.encoder.max_positions
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
        let e = &self.config.encoder;
        let (frames, t, d, stride) = (self.block_frames(), e.max_positions, e.hidden_size, mel.n_frames);
        let fits = block.len() == frames && block.end <= stride;
        if !fits || mel.n_mels != e.n_mels || mel.data.len() < e.n_mels * stride {
            return Err(ModelError::Input(format!("a chunk needs {} × {frames} mel values", e.n_mels)));
        }
        let mel = &mel.data[block.start..];
        let mut wide = vec![0.0; frames * d]; // (frames, d)
        self.conv1.forward(&unfold(|c, t| mel[c * stride + t], e.n_mels, frames, 1), &mut wide);
        gelu_rows(&mut wide);
        let mut x = vec![0.0; t * d]; // (t, d)
        self.conv2.forward(&unfold(|c, t| wide[t * d + c], d, frames, 2), &mut x);
        drop(wide);
        gelu_rows(&mut x);
        add(&mut x, &self.positions);
        self.layers.forward(&mut x, &[t], after_layer)?;
        let mut out = vec![0.0; t * d];
        self.final_norm.apply(&x, &mut out);
        Ok(out)
    }

    fn project(&self, states: &[f32]) -> Vec<f32> {
        let [first, second] = &self.projector;
        let rows = states.len() / self.config.projector_input;
        let mut inner = vec![0.0; rows * first.outputs()];
        first.forward(states, &mut inner);
        gelu_rows(&mut inner);
        let mut out = vec![0.0; rows * second.outputs()];
        second.forward(&inner, &mut out);
        out
    }
}
