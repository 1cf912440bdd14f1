//! Qwen2.5-Omni (3B and 7B), the thinker: audio to text. Whisper's encoder on stretches of 2 s, 25 audio tokens a second, a
//! Qwen2 decoder. What sees and what speaks is skipped and not loaded.
//!
//! Reference: transformers 5.24 `modeling_qwen2_5_omni.py`. Its three-axis rotary embedding gives audio and text the same
//! position on all axes, which is the ordinary one. The two rows of `audio_bos_eos_token` are never used there either.

mod config;
mod encoder;
mod prompt;

use std::borrow::Cow;

use serde_json::Value;
use wnw_audio::LogMel;

pub use config::Qwen2_5OmniConfig;
use encoder::Qwen2_5OmniEncoder;
use prompt::Qwen2_5OmniDialogue;

use super::{AudioEncoder, Entry, Family, Language};
use crate::byte_level;
use crate::checkpoint::{Checkpoint, Naming, thinker_name};
use crate::config::{DecoderConfig, EncoderConfig};
use crate::linear::WeightDtype;
use crate::model::{ModelError, TokenizerSource};
use crate::prompt::{PromptError, Task};
use crate::whisper::layer_bytes;

const NAME: &str = "Qwen2.5-Omni";
/// Samples from one mel frame to the next.
const HOP: usize = 160;
/// Mel frames of an audio token.
const FRAMES_PER_TOKEN: usize = 4;

pub(super) const ENTRY: Entry = Entry {
    releases: "Qwen2.5-Omni-3B or -7B",
    model_types: &[Some(config::NAME), Some(config::THINKER)],
    relatives: &[
        ("qwen2_5_omni_talker", "the talker of Qwen2.5-Omni, which speaks and does not listen"),
        ("qwen2_audio", "Qwen2-Audio, which has another encoder and projector"),
        ("qwen2_5_vl", "Qwen2.5-VL, which sees and does not listen"),
        ("qwen2_vl", "Qwen2-VL, which sees and does not listen"),
        ("qwen3_omni_moe", "Qwen3-Omni, a mixture of experts"),
        ("qwen3_omni_moe_thinker", "the thinker of Qwen3-Omni, a mixture of experts"),
    ],
    open: |json, path| Ok(Box::new(Qwen2_5OmniConfig::from_json(json, path)?)),
    released: |name| Some(Box::new(Qwen2_5OmniConfig::released(name)?)),
};

impl Family for Qwen2_5OmniConfig {
    fn name(&self) -> &'static str {
        NAME
    }

    fn encoder(&self) -> &EncoderConfig {
        &self.encoder
    }

    fn decoder(&self) -> &DecoderConfig {
        &self.decoder
    }

    fn describe(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn max_audio_seconds(&self) -> f64 {
        self.max_audio_seconds
    }

    fn audio_tokens_per_second(&self) -> f64 {
        wnw_audio::SAMPLE_RATE as f64 / (HOP * FRAMES_PER_TOKEN) as f64
    }

    /// Two frames make an encoder state, the odd one included; two states make a token, an odd one dropped.
    fn audio_tokens(&self, samples: usize) -> usize {
        samples.div_ceil(HOP).div_ceil(2) / 2
    }

    fn features(&self) -> LogMel {
        LogMel::qwen2_5_omni()
    }

    fn tensor_name<'a>(&self, _naming: Naming, name: &'a str) -> Option<Cow<'a, str>> {
        let name = thinker_name(name);
        let skipped = ["visual.", "talker.", "token2wav.", "audio_tower.audio_bos_eos_token."];
        if skipped.iter().any(|part| name.starts_with(part)) {
            return None;
        }
        match name.strip_prefix("audio_tower.proj.") {
            Some(part) => Some(format!("multi_modal_projector.proj.{part}").into()),
            None => Some(name),
        }
    }

    fn encoder_tensors(&self, _naming: Naming) -> Vec<(String, Vec<usize>)> {
        encoder::tensors(self)
    }

    fn load_encoder(
        &self,
        checkpoint: &Checkpoint,
        dtype: WeightDtype,
    ) -> Result<Box<dyn AudioEncoder>, ModelError> {
        Ok(Box::new(Qwen2_5OmniEncoder::load(checkpoint, self, dtype)?))
    }

    fn encoding_bytes(&self, samples: usize) -> u64 {
        let e = &self.encoder;
        let rows = samples.div_ceil(HOP).div_ceil(2).min(self.n_window * encoder::BLOCK_WINDOWS);
        let stem = 2 * self.n_window * (3 * e.n_mels.max(e.hidden_size) + e.hidden_size);
        layer_bytes(e, rows) + stem as u64 * 4
    }

    fn dialogue(&self, source: &TokenizerSource) -> Result<Language, ModelError> {
        let tokenizer = byte_level::of_model(source, self.decoder.vocab_size, &self.tokens)?;
        let dialogue = Qwen2_5OmniDialogue::resolve(&tokenizer)?;
        Ok((Box::new(tokenizer), Box::new(dialogue)))
    }

    /// The model follows instructions in any language that has a name; context words have no place in its recipes.
    fn check_task(&self, task: &Task) -> Result<(), PromptError> {
        PromptError::check_context(task, NAME)
    }
}
