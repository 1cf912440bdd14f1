//! Qwen3-ASR (0.6B and 1.7B): transcription only, 13 audio tokens a second, a Qwen3 decoder. The model names the language
//! that it hears, or is told one.
//!
//! Reference: transformers 5.24 `modeling_qwen3_asr.py`, `processing_qwen3_asr.py`.

mod config;
mod encoder;
mod prompt;

use std::borrow::Cow;

use serde_json::Value;
use wnw_audio::{LogMel, MelParameters, Padding};

pub use config::Qwen3AsrConfig;
use config::reduced;
use encoder::Qwen3AsrEncoder;
use prompt::Qwen3AsrDialogue;

use super::{AudioEncoder, Entry, Family, Language};
use crate::byte_level;
use crate::checkpoint::{Checkpoint, Naming, thinker_name};
use crate::config::{DecoderConfig, EncoderConfig};
use crate::linear::WeightDtype;
use crate::model::{ModelError, TokenizerSource};
use crate::prompt::{LANGUAGES, PromptError, Task};
use crate::whisper::layer_bytes;

const NAME: &str = "Qwen3-ASR";
const ALIGNER: &str = "a Qwen3 forced aligner, which gives times to a text and writes none";
/// Samples from one mel frame to the next.
const HOP: usize = 160;
/// Shorter recordings are padded to half a second.
const LEAST_SAMPLES: usize = 8000;

pub(super) const ENTRY: Entry = Entry {
    releases: "Qwen3-ASR-0.6B or -1.7B",
    model_types: &[Some("qwen3_asr")],
    relatives: &[("qwen3_forced_aligner", ALIGNER)],
    open: |json, path| Ok(Box::new(Qwen3AsrConfig::from_json(json, path)?)),
    released: |name| Some(Box::new(Qwen3AsrConfig::released(name)?)),
};

impl Family for Qwen3AsrConfig {
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
        let frames_per_second = wnw_audio::SAMPLE_RATE as f64 / HOP as f64;
        self.tokens_per_chunk() as f64 * frames_per_second / self.chunk_frames as f64
    }

    fn audio_tokens(&self, samples: usize) -> usize {
        let frames = samples.max(LEAST_SAMPLES) / HOP;
        frames / self.chunk_frames * self.tokens_per_chunk() + reduced(frames % self.chunk_frames)
    }

    /// Whisper's features of the recording alone, whose last incomplete frame is left out.
    fn features(&self) -> LogMel {
        LogMel::new(MelParameters { padding: Padding::ToMultiple(1), ..MelParameters::voxtral() })
    }

    fn least_samples(&self) -> usize {
        LEAST_SAMPLES
    }

    /// The releases have the projector in the tower.
    fn tensor_name<'a>(&self, _naming: Naming, name: &'a str) -> Option<Cow<'a, str>> {
        let name = thinker_name(name);
        match name.strip_prefix("audio_tower.proj") {
            Some(part) => Some(format!("multi_modal_projector.linear_{part}").into()),
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
        Ok(Box::new(Qwen3AsrEncoder::load(checkpoint, self, dtype)?))
    }

    fn encoding_bytes(&self, samples: usize) -> u64 {
        let e = &self.encoder;
        let block = self.tokens_per_chunk() * self.window_chunks * encoder::BLOCK_WINDOWS;
        // The second convolution is the largest product: its nine taps and its input and output.
        let (bands, frames) = (e.n_mels / 2, self.chunk_frames.div_ceil(2));
        let stem = bands * frames * self.channels + bands * frames / 4 * self.channels * 10;
        layer_bytes(e, self.audio_tokens(samples).min(block)) + stem as u64 * 4
    }

    fn dialogue(&self, source: &TokenizerSource) -> Result<Language, ModelError> {
        let tokenizer = byte_level::of_model(source, self.decoder.vocab_size, &self.tokens)?;
        let dialogue = Qwen3AsrDialogue::resolve(&tokenizer)?;
        Ok((Box::new(tokenizer), Box::new(dialogue)))
    }

    fn check_task(&self, task: &Task) -> Result<(), PromptError> {
        let refuse = |task| Err(PromptError::Task { family: NAME, can: "only transcribes", task });
        match task {
            Task::Transcribe { language: Some(code), .. } => {
                PromptError::check_language(code, NAME, &LANGUAGES.map(|(code, _)| code))
            }
            Task::Transcribe { .. } => Ok(()),
            Task::Translate { .. } => refuse("translate"),
            Task::Chat { .. } => refuse("follow an instruction"),
        }
    }
}
