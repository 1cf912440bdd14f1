//! Voxtral (Mini 3B and Small 24B of July 2025): Whisper's encoder on chunks of 30 s, 12.5 audio tokens a second, a Llama
//! decoder. References: transformers 5.24 `modeling_voxtral.py`, mistral-common 1.13 for prompts and tokenizer.

mod config;
mod encoder;
mod names;
mod prompt;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde_json::Value;
use wnw_audio::LogMel;

pub use config::VoxtralConfig;
pub use encoder::VoxtralEncoder;
pub use prompt::ControlTokens;

use super::{AudioEncoder, Entry, Family, Language};
use crate::checkpoint::{Checkpoint, Naming};
use crate::config::{DecoderConfig, EncoderConfig};
use crate::linear::WeightDtype;
use crate::model::{ModelError, TokenizerSource};
use crate::prompt::{PromptError, Task};
use crate::tekken::Tekken;
use crate::whisper::layer_bytes;

const NAME: &str = "Voxtral";
const REALTIME: &str = "a Voxtral Realtime checkpoint (causal encoder, one step per 80 ms)";
/// Samples of one 30 s chunk at 16 kHz.
const CHUNK_SAMPLES: usize = 480_000;
const CHUNK_SECONDS: f64 = 30.0;
/// The eight languages of the 2507 release's model card, and Arabic, which vLLM lists too.
const LANGUAGES: [&str; 9] = ["en", "fr", "de", "es", "it", "pt", "nl", "hi", "ar"];

pub(super) const ENTRY: Entry = Entry {
    releases: "use Voxtral-Mini-3B-2507 or Voxtral-Small-24B-2507, or another VoxtralForConditionalGeneration",
    model_types: &[Some("voxtral"), None],
    relatives: &[("voxtral_realtime", REALTIME), ("voxtral_tts", "a Voxtral TTS checkpoint")],
    open: |json, path| {
        let params = path.file_name().is_some_and(|name| name == "params.json");
        let read = if params { VoxtralConfig::from_params_json } else { VoxtralConfig::from_hf_json };
        Ok(Box::new(read(json, path)?))
    },
    released: |name| Some(Box::new(VoxtralConfig::released(name)?)),
};

impl Family for VoxtralConfig {
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
        self.tokens_per_chunk() as f64 / CHUNK_SECONDS
    }

    /// 375 for each started 30 s.
    fn audio_tokens(&self, samples: usize) -> usize {
        samples.div_ceil(CHUNK_SAMPLES) * self.tokens_per_chunk()
    }

    fn features(&self) -> LogMel {
        LogMel::voxtral()
    }

    fn has_mistral_layout(&self) -> bool {
        true
    }

    fn tensor_name<'a>(&self, naming: Naming, name: &'a str) -> Option<Cow<'a, str>> {
        Some(match naming {
            Naming::HuggingFace => names::hugging_face(name),
            Naming::Mistral => names::mistral(name),
        })
    }

    fn encoder_tensors(&self, naming: Naming) -> Vec<(String, Vec<usize>)> {
        encoder::tensors(self, naming)
    }

    fn load_encoder(
        &self,
        checkpoint: &Checkpoint,
        dtype: WeightDtype,
    ) -> Result<Box<dyn AudioEncoder>, ModelError> {
        Ok(Box::new(VoxtralEncoder::load(checkpoint, self, dtype)?))
    }

    fn encoding_bytes(&self, _samples: usize) -> u64 {
        let e = &self.encoder;
        let convolutions = 3 * 2 * e.max_positions * e.n_mels.max(e.hidden_size);
        layer_bytes(e, e.max_positions) + convolutions as u64 * 4
    }

    fn dialogue(&self, source: &TokenizerSource) -> Result<Language, ModelError> {
        let (tokenizer, path) = match source {
            TokenizerSource::Dir(dir) => {
                let path = dir.join("tekken.json");
                (Tekken::from_file(&path)?, path)
            }
            TokenizerSource::Tekken { name, bytes } => {
                let path = format!("{name}/tekken.json");
                (Tekken::from_bytes(bytes, &path)?, PathBuf::from(path))
            }
        };
        check_tokenizer(&tokenizer, self.decoder.vocab_size, &path)?;
        let control = ControlTokens::resolve(&tokenizer)?;
        Ok((Box::new(tokenizer), Box::new(control)))
    }

    fn check_task(&self, task: &Task) -> Result<(), PromptError> {
        PromptError::check_context(task, NAME)?;
        task.language().map_or(Ok(()), |code| PromptError::check_language(code, NAME, &LANGUAGES))
    }
}

/// Refuses the tokenizers of other kinds of model.
fn check_tokenizer(tokenizer: &Tekken, embeddings: usize, path: &Path) -> Result<(), ModelError> {
    let mismatch = |reason: String| Err(ModelError::TokenizerMismatch { path: path.into(), reason });
    if let Some(refusal) = tokenizer.audio_use().refusal() {
        return mismatch(refusal.into());
    }
    if let Some(audio) = tokenizer.audio() {
        let mel = &audio.audio_encoding_config;
        let described = (audio.sampling_rate, mel.num_mel_bins, mel.hop_length, mel.window_size);
        if described != (wnw_audio::SAMPLE_RATE, 128, 160, 400) || audio.chunk_length_s != Some(CHUNK_SECONDS)
        {
            return mismatch(format!(
                "its audio section asks for {described:?} (rate, mel bins, hop, window) in chunks of {:?} s; the 2507 release has (16000, 128, 160, 400) in chunks of 30 s",
                audio.chunk_length_s
            ));
        }
    }
    if tokenizer.vocab_size() > embeddings {
        let tokens = tokenizer.vocab_size();
        return mismatch(format!("{tokens} tokens for a model with {embeddings} embeddings"));
    }
    Ok(())
}
