//! A model of any family: its files, and loaded, its tokenizer, features, encoder and decoder.

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use thiserror::Error;
use wnw_audio::LogMel;
use wnw_kv::StoreError;

use crate::answer::AnswerReader;
use crate::checkpoint::{Checkpoint, CheckpointError, Naming};
use crate::config::{ConfigError, DecoderConfig};
use crate::decoder::{self, Decoder, LM_HEAD};
use crate::families::{self, AudioEncoder, Dialogue, Family};
use crate::files::{explain, is_there, read_regular};
use crate::fingerprint::fingerprint;
use crate::linear::{WeightDtype, check_block};
use crate::plan::TEXT_POSITIONS;
use crate::prompt::{Prompt, PromptError, Task};
use crate::tekken::TekkenError;
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::values::{WeightError, check_not_zero};

/// What can go wrong with a model, from finding its files to running it.
#[derive(Debug, Error)]
pub enum ModelError {
    /// A file of the model directory cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The directory does not look like a model.
    #[error("{0}: not a model directory: it holds neither config.json nor params.json")]
    NotAModel(PathBuf),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The tensors.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A weight.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A task or language that the model does not know.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The tokenizer has ids that the model has no embedding for, or belongs to another model.
    #[error("{path}: {reason}")]
    TokenizerMismatch {
        /// The tokenizer's file.
        path: PathBuf,
        /// How it does not fit.
        reason: String,
    },
    /// The KV store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Features.
    #[error("the recording's features: {0}")]
    Features(String),
    /// Too little sound for one audio token.
    #[error("a recording of {samples} samples is too short for {family}: it needs more than 20 ms")]
    TooShort {
        /// Samples at 16 kHz.
        samples: usize,
        /// The model's family.
        family: &'static str,
    },
    /// More positions than the model was built for.
    #[error("{positions} positions exceed the {max} that the model supports; use a shorter --window")]
    TooLong {
        /// Positions needed.
        positions: usize,
        /// Positions supported.
        max: usize,
    },
    /// A prompt that leaves no position for an answer.
    #[error(
        "the prompt needs {audio} positions for audio and {text} for text, and the model has {max}, with one at least for the answer: {advice}"
    )]
    PromptTooLong {
        /// Positions of audio.
        audio: usize,
        /// Positions of text.
        text: usize,
        /// Positions supported.
        max: usize,
        /// What to do.
        advice: &'static str,
    },
    /// Windows longer than the model takes in one pass.
    #[error(
        "{family} takes at most {time} of audio in one pass; use --window {time} or less",
        time = flag_time(*limit)
    )]
    Window {
        /// The model's family.
        family: &'static str,
        /// Seconds.
        limit: f64,
    },
    /// Values that are not numbers.
    #[error("{0} is not finite")]
    NotFinite(&'static str),
    /// An encoder that makes of a recording what is not a number.
    #[error(
        "{model}: the audio encoder's output is not finite, although all its weights are: some must be far too large, so the files are damaged; fetch the weights again"
    )]
    EncoderOverflow {
        /// The directory, or the embedded model's name.
        model: String,
    },
    /// Weights under the name of a layout that the family does not have.
    #[error(
        "{path}: consolidated.safetensors is Mistral's layout, which {family} does not have; if its tensors are those of a release, call the file model.safetensors"
    )]
    MistralLayout {
        /// The directory.
        path: PathBuf,
        /// The family of its configuration.
        family: &'static str,
    },
    /// Values that do not fit each other: a defect of this program.
    #[error("model input: {0}")]
    Input(String),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// Seconds as a flag takes them: `5m`.
fn flag_time(seconds: f64) -> String {
    if seconds % 60.0 == 0.0 { format!("{}m", seconds / 60.0) } else { format!("{seconds}s") }
}

impl ModelError {
    /// The error of a prompt for `task` that does not fit into `max` positions, and what makes it too long: the words that
    /// came with the task, the audio, or neither.
    pub fn prompt_too_long(prompt: &Prompt, task: &Task, max: usize) -> Self {
        let audio = prompt.layout.n_audio();
        let text = prompt.ids.len() - audio;
        let advice = match task.has_own_words() {
            true if text >= max || audio + TEXT_POSITIONS < max => "use a shorter --prompt or --context",
            false if text >= max => {
                "max_position_embeddings of its configuration is too small for any recording"
            }
            _ => "use a shorter --window",
        };
        Self::PromptTooLong { audio, text, max, advice }
    }
}

impl From<TekkenError> for ModelError {
    fn from(error: TekkenError) -> Self {
        Self::Tokenizer(error.into())
    }
}

/// How to load a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOptions {
    /// Element type of the decoder's linear layers; without one, q8_0, the fastest of good quality on a CPU.
    pub dtype: Option<WeightDtype>,
}

impl LoadOptions {
    fn dtype(&self) -> WeightDtype {
        self.dtype.unwrap_or(WeightDtype::Q8_0)
    }
}

/// No configuration comes near this size.
const MAX_JSON: u64 = 16 << 20;

/// A speech LLM, ready to run.
pub struct SpeechModel {
    family: Box<dyn Family>,
    tokenizer: Box<dyn Tokenizer>,
    dialogue: Box<dyn Dialogue>,
    features: LogMel,
    encoder: Box<dyn AudioEncoder>,
    decoder: Decoder,
    dtype: WeightDtype,
    fingerprint: String,
    name: String,
}

/// A model's files, opened and checked but not yet loaded: enough for `model info` and for plans.
pub struct ModelFiles {
    /// The family, with the sizes that the configuration gives.
    pub family: Box<dyn Family>,
    /// The decoder as the tensors have it.
    pub decoder: DecoderConfig,
    /// Tensors.
    pub checkpoint: Checkpoint,
    tokenizer: TokenizerSource,
    name: String,
}

/// Where a model's tokenizer is read from.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// The checkpoint directory.
    Dir(PathBuf),
    /// A `tekken.json` that is compiled into the program.
    Tekken {
        /// The model's name, for messages.
        name: String,
        /// The file's contents.
        bytes: &'static [u8],
    },
}

/// The files of a model that is compiled into the program.
#[derive(Clone, Copy)]
pub struct EmbeddedModel {
    /// Name for messages.
    pub name: &'static str,
    /// `config.json`.
    pub config: &'static [u8],
    /// `tekken.json`.
    pub tekken: &'static [u8],
    /// `model.safetensors`.
    pub weights: &'static [u8],
}

impl ModelFiles {
    /// Opens a checkpoint directory in any layout and checks its tensors against its configuration.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        if !dir.is_dir() {
            let kind = if dir.exists() { ErrorKind::NotADirectory } else { ErrorKind::NotFound };
            return Err(ModelError::Io { path: dir.into(), source: explain(dir, kind.into()) });
        }
        let candidates = ["config.json", "params.json"].map(|name| dir.join(name));
        let path = candidates.iter().find(|path| path.exists());
        let path = path.or_else(|| candidates.iter().find(|path| is_there(path)));
        let path = path.ok_or_else(|| ModelError::NotAModel(dir.into()))?;
        let json =
            read_regular(path, MAX_JSON).map_err(|source| ModelError::Io { path: path.clone(), source })?;
        let family = families::open(&json, path)?;
        let checkpoint = Checkpoint::open_as(dir, &|naming, name| family.tensor_name(naming, name))?;
        if checkpoint.naming() == Naming::Mistral && !family.has_mistral_layout() {
            return Err(ModelError::MistralLayout { path: dir.into(), family: family.name() });
        }
        let tokenizer = TokenizerSource::Dir(dir.into());
        Self::checked(family, checkpoint, tokenizer, dir.display().to_string())
    }

    /// Takes a model that is compiled into the program.
    pub fn embedded(model: &EmbeddedModel) -> Result<Self, ModelError> {
        let family = families::open(model.config, &PathBuf::from(format!("{}/config.json", model.name)))?;
        let weights = format!("{}/model.safetensors", model.name);
        let checkpoint = Checkpoint::from_static(&weights, model.weights, &|naming, name| {
            family.tensor_name(naming, name)
        })?;
        let tokenizer = TokenizerSource::Tekken { name: model.name.to_owned(), bytes: model.tekken };
        Self::checked(family, checkpoint, tokenizer, model.name.to_owned())
    }

    fn checked(
        family: Box<dyn Family>,
        checkpoint: Checkpoint,
        tokenizer: TokenizerSource,
        name: String,
    ) -> Result<Self, ModelError> {
        let mut decoder = family.decoder().clone();
        // As in transformers, an output layer that is there is used, whatever the flag says.
        let has_output_layer = checkpoint.tensors().any(|(name, _)| name == LM_HEAD);
        decoder.tied &= !has_output_layer;
        let mut expected = family.encoder_tensors(checkpoint.naming());
        expected.extend(decoder::expected_tensors(&decoder));
        checkpoint.check_as(&expected, &|naming, name| family.tensor_name(naming, name))?;
        Ok(Self { family, decoder, checkpoint, tokenizer, name })
    }

    /// The directory, or the embedded model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Longest recording that the model takes in one pass, in seconds.
    pub fn max_audio_seconds(&self) -> f64 {
        self.family.max_audio_seconds()
    }

    /// Reads the tokenizer and refuses one that the model cannot be used with.
    pub fn check_tokenizer(&self) -> Result<(), ModelError> {
        self.family.dialogue(&self.tokenizer).map(drop)
    }

    /// A short name for the content of the checkpoint, by which a calibration profile knows its model.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.checkpoint)
    }

    /// Whether the decoder's linear layers can be held in `dtype`; an error is that of [`ModelFiles::load`], without reading weights.
    pub fn check_dtype(&self, dtype: WeightDtype) -> Result<(), ModelError> {
        for (name, shape) in decoder::expected_tensors(&self.decoder) {
            let is_linear = self.decoder.tied || !name.ends_with("embed_tokens.weight");
            if let ([_, k], true) = (&shape[..], is_linear) {
                check_block(self.checkpoint.get(&name)?, *k, dtype)?;
            }
        }
        Ok(())
    }

    /// Loads encoder and decoder alone, for callers that bring their own token ids. `progress` is told decoder layers
    /// done and in all.
    pub fn load_parts(
        &self,
        options: &LoadOptions,
        progress: impl FnMut(usize, usize),
    ) -> Result<(Box<dyn AudioEncoder>, Decoder), ModelError> {
        let dtype = options.dtype();
        // Biases may be zero, weights of matrices and norms are not.
        let weights = self.checkpoint.tensors().filter(|(name, _)| name.ends_with(".weight"));
        weights.map(|(_, view)| view).try_for_each(check_not_zero)?;
        // The encoder keeps the checkpoint's own type, or is exact when f32 is asked for.
        let stored = self.checkpoint.tensors().find(|(name, _)| name.starts_with("audio_tower.conv"));
        let encoder_dtype = match (dtype, stored.map(|(_, view)| view.dtype)) {
            (WeightDtype::F32, _) | (_, Some(Dtype::F32)) => WeightDtype::F32,
            (_, Some(Dtype::F16)) => WeightDtype::F16,
            _ => WeightDtype::Bf16,
        };
        let encoder = self.family.load_encoder(&self.checkpoint, encoder_dtype)?;
        Ok((encoder, Decoder::load(&self.checkpoint, &self.decoder, dtype, progress)?))
    }

    /// Loads the weights. `progress` is told decoder layers done and in all.
    pub fn load(
        self,
        options: &LoadOptions,
        progress: impl FnMut(usize, usize),
    ) -> Result<SpeechModel, ModelError> {
        let (tokenizer, dialogue) = self.family.dialogue(&self.tokenizer)?;
        self.check_dtype(options.dtype())?;
        // First, so that what it reads of every tensor is given back with the rest of it.
        let fingerprint = fingerprint(&self.checkpoint);
        let (encoder, decoder) = self.load_parts(options, progress)?;
        Ok(SpeechModel {
            encoder,
            decoder,
            features: self.family.features(),
            tokenizer,
            dialogue,
            dtype: options.dtype(),
            fingerprint,
            name: self.name,
            family: self.family,
        })
    }
}

impl SpeechModel {
    /// The family, with the sizes that the configuration gives.
    pub fn family(&self) -> &dyn Family {
        self.family.as_ref()
    }

    /// The directory, or the embedded model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A short name for the content of the checkpoint, by which a calibration profile knows its model.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Audio tokens of one second, r_tok.
    pub fn audio_tokens_per_second(&self) -> f64 {
        self.family.audio_tokens_per_second()
    }

    /// Element type of the decoder's linear layers.
    pub fn dtype(&self) -> WeightDtype {
        self.dtype
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &dyn Tokenizer {
        self.tokenizer.as_ref()
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The token that usually ends an answer.
    pub fn eos(&self) -> u32 {
        self.dialogue.stops().first().copied().unwrap_or_default()
    }

    /// Whether a token ends an answer.
    pub fn ends(&self, token: u32) -> bool {
        self.dialogue.stops().contains(&token)
    }

    /// Longest recording that the model takes in one pass, in seconds.
    pub fn max_audio_seconds(&self) -> f64 {
        self.family.max_audio_seconds()
    }

    /// The prompt for `task` on a recording of `samples`.
    pub fn prompt(&self, task: &Task, samples: usize) -> Result<Prompt, ModelError> {
        self.family.check_task(task)?;
        let audio_tokens = self.family.audio_tokens(samples);
        if audio_tokens == 0 {
            return Err(ModelError::TooShort { samples, family: self.family.name() });
        }
        self.dialogue.prompt(self.tokenizer(), task, audio_tokens)
    }

    /// Reads the answer to `task`, token by token.
    pub fn answer_reader(&self, task: &Task) -> AnswerReader<'_> {
        AnswerReader::new(self.tokenizer(), self.dialogue.as_ref(), task)
    }

    /// Audio embeddings of a recording at 16 kHz, `(audio_tokens, hidden_size)`, block by block. `progress` is told
    /// encoder layers done and in all; when it breaks, [`ModelError::Cancelled`].
    pub fn embed_audio(
        &self,
        samples: &[f32],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Vec<f32>, ModelError> {
        let least = self.family.least_samples();
        let mel = if samples.len() < least {
            let mut padded = samples.to_vec();
            padded.resize(least, 0.0);
            self.features.compute(&padded)
        } else {
            self.features.compute(samples)
        };
        let mel = mel.map_err(|e| ModelError::Features(e.to_string()))?;
        let rows = self.encoder.embed(&mel, progress)?;
        if rows.iter().any(|x| !x.is_finite()) {
            return Err(ModelError::EncoderOverflow { model: self.name.clone() });
        }
        Ok(rows)
    }
}
