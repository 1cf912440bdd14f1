//! Families of speech LLMs: what is particular to one, behind one contract.
//!
//! A speech LLM is a log-mel transform, an audio encoder that makes embeddings of it, a prompt in which these stand in for
//! placeholder tokens, and a text decoder. The decoder ([`crate::Decoder`]) and the encoder's transformer layers are
//! shared; a family, one folder here, says what it does with them: [`Family`], [`AudioEncoder`], [`Dialogue`].

pub mod qwen2_5_omni;
pub mod qwen3_asr;
pub mod voxtral;

use std::borrow::Cow;
use std::fmt;
use std::ops::{ControlFlow, Range};
use std::path::Path;

use serde_json::Value;
use wnw_audio::{LogMel, Mel, Padding, SAMPLE_RATE};

use crate::checkpoint::{Checkpoint, Naming};
use crate::config::{ConfigError, DecoderConfig, EncoderConfig, parse};
use crate::linear::WeightDtype;
use crate::model::{ModelError, TokenizerSource};
use crate::prompt::{Prompt, PromptError, Task};
use crate::tokenizer::Tokenizer;

/// All families. Their order does not matter: no configuration is recognised by two.
const FAMILIES: [Entry; 3] = [voxtral::ENTRY, qwen2_5_omni::ENTRY, qwen3_asr::ENTRY];

/// Seconds of a spoken word, about.
const WORD_SECONDS: f64 = 0.32;

type Open = fn(&[u8], &Path) -> Result<Box<dyn Family>, ConfigError>;

/// How a family is found.
pub(crate) struct Entry {
    /// Releases to name to someone who gave another model.
    pub releases: &'static str,
    /// `model_type`s of the family's `config.json`; `None` is Mistral's `params.json`, which has none.
    pub model_types: &'static [Option<&'static str>],
    /// `model_type`s of models that look like this family's and are not, with what to call them.
    pub relatives: &'static [(&'static str, &'static str)],
    /// Reads and checks a configuration of the family; the path is for messages.
    pub open: Open,
    /// The configuration of a public release by its hub name, for plans without a download.
    pub released: fn(&str) -> Option<Box<dyn Family>>,
}

/// Finds the family of a configuration, reads it and checks it; `path` is for messages.
pub fn open(json: &[u8], path: &Path) -> Result<Box<dyn Family>, ConfigError> {
    let value: Value = parse(json, path)?;
    let kind = value.get("model_type").and_then(Value::as_str);
    let has_a_form = kind.is_some() || value.get("dim").is_some();
    if let Some(entry) = FAMILIES.iter().find(|f| has_a_form && f.model_types.contains(&kind)) {
        return (entry.open)(json, path);
    }
    let names: Vec<&str> = value
        .get("architectures")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let what = match (kind, kind.and_then(relative)) {
        (_, Some(what)) => what.to_owned(),
        (Some(kind), None) if names.is_empty() => format!("'{kind}'"),
        (Some(kind), None) => format!("'{kind}' ({})", names.join(", ")),
        (None, None) => "a model without model_type".into(),
    };
    Err(wrong_model(path, what))
}

/// What to call a model that looks like one of a family and is not.
fn relative(kind: &str) -> Option<&'static str> {
    FAMILIES.iter().flat_map(|f| f.relatives).find(|(relative, _)| *relative == kind).map(|(_, what)| *what)
}

/// Refuses a configuration whose part, where it says its `model_type`, is another model's.
fn check_part(
    part: &str,
    kind: Option<&str>,
    own: impl Fn(&str) -> bool,
    path: &Path,
) -> Result<(), ConfigError> {
    let Some(kind) = kind.filter(|kind| !own(kind)) else { return Ok(()) };
    let what = relative(kind).map_or_else(|| format!("'{kind}'"), str::to_owned);
    Err(wrong_model(path, format!("{what} (by {part}.model_type)")))
}

/// The refusal of a model that no family here can run.
fn wrong_model(path: &Path, what: impl Into<String>) -> ConfigError {
    let releases: Vec<&str> = FAMILIES.iter().map(|f| f.releases).collect();
    ConfigError::WrongModel { path: path.into(), what: what.into(), hint: releases.join("; ") }
}

/// The configuration of a public release by its hub name, for plans without a download.
pub fn released(name: &str) -> Option<Box<dyn Family>> {
    FAMILIES.iter().find_map(|f| (f.released)(name))
}

/// A checkpoint's family with its sizes: everything that can be said before weights are loaded.
pub trait Family: Send + Sync + fmt::Debug {
    /// The family's name in messages.
    fn name(&self) -> &'static str;

    /// Sizes of the encoder's transformer layers.
    fn encoder(&self) -> &EncoderConfig;

    /// Sizes and options of the decoder. Whether it is tied is decided by the tensors in the end.
    fn decoder(&self) -> &DecoderConfig;

    /// The whole configuration, for people and scripts.
    fn describe(&self) -> Value;

    /// Longest recording of one pass in seconds: what the model was trained for. Longer ones go by windows.
    fn max_audio_seconds(&self) -> f64;

    /// Longest recording of one pass in seconds, however much memory there is; none if there is no such limit.
    fn clip_seconds(&self) -> Option<f64> {
        match self.features().parameters().padding {
            Padding::ToLength(samples) => Some(samples as f64 / f64::from(SAMPLE_RATE)),
            Padding::ToMultiple(_) => None,
        }
    }

    /// Audio tokens of one second, r_tok.
    fn audio_tokens_per_second(&self) -> f64;

    /// Audio tokens of about one spoken word, K of the voice score: 4 at 12.5 a second and 8 at 25, as in the paper.
    fn tokens_of_a_word(&self) -> usize {
        ((self.audio_tokens_per_second() * WORD_SECONDS).round() as usize).max(1)
    }

    /// Audio tokens of a recording of `samples` at 16 kHz; 0 when it is too short for one.
    fn audio_tokens(&self, samples: usize) -> usize;

    /// The log-mel transform of recordings.
    fn features(&self) -> LogMel;

    /// Samples to which a shorter recording is padded with zeros before its features are computed.
    fn least_samples(&self) -> usize {
        0
    }

    /// Canonical name of a tensor (`audio_tower.…`, `multi_modal_projector.…`, `language_model.…`); `None` for a part that
    /// this program has no use for and does not load. Unknown names are returned as they are, and then reported.
    fn tensor_name<'a>(&self, naming: Naming, name: &'a str) -> Option<Cow<'a, str>>;

    /// Canonical names and shapes of the encoder's and the projector's tensors.
    fn encoder_tensors(&self, naming: Naming) -> Vec<(String, Vec<usize>)>;

    /// Loads encoder and projector from a checked checkpoint; linear layers are held in `dtype`, activations are f32.
    fn load_encoder(
        &self,
        checkpoint: &Checkpoint,
        dtype: WeightDtype,
    ) -> Result<Box<dyn AudioEncoder>, ModelError>;

    /// Bytes that encoding a recording of `samples` takes beside its mel frames: the states of one block.
    fn encoding_bytes(&self, samples: usize) -> u64;

    /// Whether there are releases in Mistral's layout, `consolidated.safetensors`, whose query and key rows lie in another order.
    fn has_mistral_layout(&self) -> bool {
        false
    }

    /// Reads the tokenizer, refuses one of another kind of model, and says how to talk with it.
    fn dialogue(&self, source: &TokenizerSource) -> Result<Language, ModelError>;

    /// Whether the model can do this task, in this language.
    fn check_task(&self, task: &Task) -> Result<(), PromptError>;
}

impl dyn Family + '_ {
    /// Refuses windows that are longer than the model can take in one pass.
    pub fn check_window(&self, seconds: f64) -> Result<(), ModelError> {
        match self.clip_seconds() {
            Some(limit) if seconds > limit => Err(ModelError::Window { family: self.name(), limit }),
            _ => Ok(()),
        }
    }
}

/// An audio encoder with its projector. It takes a recording's mel frames in blocks that do not see each other, so that
/// memory is bounded by one of them.
pub trait AudioEncoder: Send + Sync {
    /// Mel frames of a block; the last may be shorter.
    fn block_frames(&self) -> usize;

    /// Transformer layers, for progress.
    fn n_layers(&self) -> usize;

    /// Encodes the frames `block` of `mel`, which start at a multiple of [`AudioEncoder::block_frames`]. Returns the states
    /// that [`AudioEncoder::project`] takes, `(rows, hidden_size)`. `after_layer` is called after every layer; when it
    /// breaks, the encoding ends with [`ModelError::Cancelled`].
    fn encode(
        &self,
        mel: &Mel,
        block: Range<usize>,
        after_layer: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<f32>, ModelError>;

    /// Audio embeddings of a block's states, `(audio tokens, width of the decoder)`.
    fn project(&self, states: &[f32]) -> Vec<f32>;
}

impl dyn AudioEncoder + '_ {
    /// Audio embeddings of a recording, `(audio tokens, width of the decoder)`, block by block. `progress` is told layers
    /// done and in all.
    pub fn embed(
        &self,
        mel: &Mel,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Vec<f32>, ModelError> {
        let (step, layers) = (self.block_frames(), self.n_layers());
        let blocks = mel.n_frames.div_ceil(step);
        let mut out = Vec::new();
        for block in 0..blocks {
            let mut layer = 0;
            let frames = block * step..((block + 1) * step).min(mel.n_frames);
            let states = self.encode(mel, frames, &mut || {
                layer += 1;
                progress(block * layers + layer, blocks * layers)
            })?;
            out.extend(self.project(&states));
        }
        Ok(out)
    }
}

/// A tokenizer and how to talk in its tokens.
pub type Language = (Box<dyn Tokenizer>, Box<dyn Dialogue>);

/// How a family is asked and how it answers.
pub trait Dialogue: Send + Sync {
    /// The prompt of a task for one recording of `audio_tokens`.
    fn prompt(
        &self,
        tokenizer: &dyn Tokenizer,
        task: &Task,
        audio_tokens: usize,
    ) -> Result<Prompt, ModelError>;

    /// Tokens that end an answer, the usual one first; at least one.
    fn stops(&self) -> &[u32];

    /// The token that ends what an answer says about itself before its text, if such a header is to be expected.
    fn header_end(&self, _task: &Task) -> Option<u32> {
        None
    }

    /// What a header says.
    fn read_header(&self, _header: &str) -> Header {
        Header::default()
    }
}

/// What an answer says about the recording before its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The language heard: its code where [`crate::prompt::LANGUAGES`] has one, otherwise its name.
    pub language: Option<String>,
    /// Whether the model heard no speech.
    pub no_speech: bool,
}
