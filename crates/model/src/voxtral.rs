//! A loaded Voxtral model: tokenizer, features, encoder, decoder.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde::Deserialize;
use thiserror::Error;
use wnw_audio::LogMel;
use wnw_kv::StoreError;

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::config::{ConfigError, VoxtralConfig};
use crate::decoder::{self, Decoder, LM_HEAD};
use crate::encoder::{self, AudioEncoder};
use crate::fingerprint::fingerprint;
use crate::linear::{WeightDtype, WeightError};
use crate::prompt::{ControlTokens, Prompt, Task};
use crate::tekken::{Tekken, TekkenError};

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
    Tokenizer(#[from] TekkenError),
    /// The tokenizer has ids that the model has no embedding for, or belongs to another model.
    #[error("{path}: {reason}")]
    TokenizerMismatch {
        /// tekken.json.
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
    /// More positions than the model was built for.
    #[error("{positions} positions exceed the {max} that the model supports; use a shorter --window")]
    TooLong {
        /// Positions needed.
        positions: usize,
        /// Positions supported.
        max: usize,
    },
    /// Values that are not numbers.
    #[error(
        "{0} is not finite: the weights are damaged, or a type is too narrow for them (use --dtype bf16)"
    )]
    NotFinite(&'static str),
    /// Values that do not fit each other: a defect of this program.
    #[error("model input: {0}")]
    Input(String),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
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

/// Reads a file that is one: pipes and devices would block or never end.
pub(crate) fn read_regular(path: &Path, limit: u64) -> std::io::Result<Vec<u8>> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > limit {
        let reason = if metadata.is_file() { "larger than any such file" } else { "not a regular file" };
        return Err(std::io::Error::other(reason));
    }
    std::fs::read(path)
}

/// Samples of one 30 s chunk at 16 kHz.
const CHUNK_SAMPLES: usize = 480_000;
const CHUNK_SECONDS: f64 = 30.0;

/// A Voxtral model, ready to run.
pub struct Voxtral {
    config: VoxtralConfig,
    limits: Limits,
    tokenizer: Tekken,
    control: ControlTokens,
    features: LogMel,
    encoder: AudioEncoder,
    decoder: Decoder,
    dtype: WeightDtype,
    fingerprint: String,
    name: String,
}

/// Limits that a checkpoint states for itself.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Limits {
    /// Longest recording of one pass in seconds. Only our own small model carries it; the 2507 release is documented
    /// to transcribe up to 30 minutes.
    #[serde(default = "Limits::voxtral_2507")]
    max_audio_seconds: f64,
}

impl Limits {
    fn voxtral_2507() -> f64 {
        1800.0
    }
}

/// A model's files, opened and checked but not yet loaded: enough for `model info` and for plans.
pub struct ModelFiles {
    /// Architecture.
    pub config: VoxtralConfig,
    /// Tensors.
    pub checkpoint: Checkpoint,
    limits: Limits,
    tekken: TekkenFile,
    name: String,
}

enum TekkenFile {
    Path(PathBuf),
    Static(&'static [u8]),
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
    /// Opens a checkpoint directory in either layout and checks its tensors against its configuration.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        let read = |path: &Path| {
            read_regular(path, MAX_JSON).map_err(|source| ModelError::Io { path: path.to_owned(), source })
        };
        if !dir.is_dir() {
            let source = std::io::Error::from(std::io::ErrorKind::NotADirectory);
            return Err(ModelError::Io { path: dir.into(), source });
        }
        let (hf, params) = (dir.join("config.json"), dir.join("params.json"));
        let (config, limits) = if hf.exists() {
            let json = read(&hf)?;
            (VoxtralConfig::from_hf_json(&json, &hf)?, limits(&json, &hf)?)
        } else if params.exists() {
            let json = read(&params)?;
            (VoxtralConfig::from_params_json(&json, &params)?, limits(&json, &params)?)
        } else {
            return Err(ModelError::NotAModel(dir.into()));
        };
        let checkpoint = Checkpoint::open(dir)?;
        let tekken = TekkenFile::Path(dir.join("tekken.json"));
        Self { config, checkpoint, limits, tekken, name: dir.display().to_string() }.checked()
    }

    /// Takes a model that is compiled into the program.
    pub fn embedded(model: &EmbeddedModel) -> Result<Self, ModelError> {
        let path = PathBuf::from(format!("{}/config.json", model.name));
        let config = VoxtralConfig::from_hf_json(model.config, &path)?;
        let limits = limits(model.config, &path)?;
        let checkpoint =
            Checkpoint::from_static(&format!("{}/model.safetensors", model.name), model.weights)?;
        let tekken = TekkenFile::Static(model.tekken);
        Self { config, checkpoint, limits, tekken, name: model.name.to_owned() }.checked()
    }

    fn checked(mut self) -> Result<Self, ModelError> {
        // As in transformers, an output layer that is there is used, whatever the flag says.
        let has_output_layer = self.checkpoint.tensors().any(|(name, _)| name == LM_HEAD);
        self.config.decoder.tied &= !has_output_layer;
        let mut expected = encoder::expected_tensors(&self.config, self.checkpoint.naming());
        expected.extend(decoder::expected_tensors(&self.config.decoder));
        self.checkpoint.check(&expected)?;
        Ok(self)
    }

    /// The directory, or the embedded model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Longest recording that the model takes in one pass, in seconds.
    pub fn max_audio_seconds(&self) -> f64 {
        self.limits.max_audio_seconds
    }

    /// A short name for the content of the checkpoint, by which a calibration profile knows its model.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.checkpoint)
    }

    /// Reads the tokenizer and refuses those of other kinds of model.
    fn tokenizer(&self) -> Result<Tekken, ModelError> {
        let (tokenizer, path) = match &self.tekken {
            TekkenFile::Path(path) => (Tekken::from_file(path)?, path.clone()),
            TekkenFile::Static(bytes) => {
                let path = format!("{}/tekken.json", self.name);
                (Tekken::from_bytes(bytes, &path)?, PathBuf::from(path))
            }
        };
        let mismatch = |reason: String| ModelError::TokenizerMismatch { path, reason };
        if let Some(refusal) = tokenizer.audio_use().refusal() {
            return Err(mismatch(refusal.into()));
        }
        if let Some(audio) = tokenizer.audio() {
            let mel = &audio.audio_encoding_config;
            let described = (audio.sampling_rate, mel.num_mel_bins, mel.hop_length, mel.window_size);
            if described != (wnw_audio::SAMPLE_RATE, 128, 160, 400) || audio.chunk_length_s != Some(30.0) {
                let reason = format!(
                    "its audio section asks for {described:?} (rate, mel bins, hop, window) in chunks of {:?} s; the 2507 release has (16000, 128, 160, 400) in chunks of 30 s",
                    audio.chunk_length_s
                );
                return Err(mismatch(reason));
            }
        }
        if tokenizer.vocab_size() > self.config.decoder.vocab_size {
            let (ours, theirs) = (self.config.decoder.vocab_size, tokenizer.vocab_size());
            return Err(mismatch(format!("{theirs} tokens for a model with {ours} embeddings")));
        }
        Ok(tokenizer)
    }

    /// Loads encoder and decoder alone, for callers that bring their own token ids. `progress` is told decoder layers
    /// done and in all.
    pub fn load_parts(
        &self,
        options: &LoadOptions,
        progress: impl FnMut(usize, usize),
    ) -> Result<(AudioEncoder, Decoder), ModelError> {
        let dtype = options.dtype();
        // The encoder keeps the checkpoint's own type, or is exact when f32 is asked for.
        let stored = self.checkpoint.get("audio_tower.conv1.weight")?.dtype;
        let encoder_dtype = match (dtype, stored) {
            (WeightDtype::F32, _) | (_, Dtype::F32) => WeightDtype::F32,
            (_, Dtype::F16) => WeightDtype::F16,
            _ => WeightDtype::Bf16,
        };
        let encoder = AudioEncoder::load(&self.checkpoint, &self.config, encoder_dtype)?;
        Ok((encoder, Decoder::load(&self.checkpoint, &self.config.decoder, dtype, progress)?))
    }

    /// Loads the weights. `progress` is told decoder layers done and in all.
    pub fn load(
        self,
        options: &LoadOptions,
        progress: impl FnMut(usize, usize),
    ) -> Result<Voxtral, ModelError> {
        let tokenizer = self.tokenizer()?;
        let control = ControlTokens::resolve(&tokenizer)?;
        let (encoder, decoder) = self.load_parts(options, progress)?;
        Ok(Voxtral {
            encoder,
            decoder,
            features: LogMel::voxtral(),
            tokenizer,
            control,
            limits: self.limits,
            config: self.config,
            dtype: options.dtype(),
            fingerprint: fingerprint(&self.checkpoint),
            name: self.name,
        })
    }
}

fn limits(json: &[u8], path: &Path) -> Result<Limits, ConfigError> {
    let malformed = |reason: String| ConfigError::Malformed { path: path.into(), reason };
    let limits: Limits = serde_json::from_slice(json).map_err(|e| malformed(e.to_string()))?;
    if !(limits.max_audio_seconds >= 1.0 && limits.max_audio_seconds < 1e6) {
        return Err(malformed(format!("max_audio_seconds is {}", limits.max_audio_seconds)));
    }
    Ok(limits)
}

impl Voxtral {
    /// Architecture.
    pub fn config(&self) -> &VoxtralConfig {
        &self.config
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
        self.config.tokens_per_chunk() as f64 / CHUNK_SECONDS
    }

    /// Element type of the decoder's linear layers.
    pub fn dtype(&self) -> WeightDtype {
        self.dtype
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tekken {
        &self.tokenizer
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The only token that ends an answer.
    pub fn eos(&self) -> u32 {
        self.control.eos
    }

    /// Longest recording that the model takes in one pass, in seconds.
    pub fn max_audio_seconds(&self) -> f64 {
        self.limits.max_audio_seconds
    }

    /// Audio tokens of a recording of `samples` at 16 kHz: 375 for each started 30 s.
    pub fn audio_tokens(&self, samples: usize) -> usize {
        samples.div_ceil(CHUNK_SAMPLES) * self.config.tokens_per_chunk()
    }

    /// The prompt for `task` on a recording of `samples`.
    pub fn prompt(&self, task: &Task, samples: usize) -> Result<Prompt, ModelError> {
        Ok(self.control.prompt(&self.tokenizer, task, self.audio_tokens(samples))?)
    }

    /// Audio embeddings of a recording at 16 kHz, `(audio_tokens, hidden_size)`, chunk by chunk. `progress` is told
    /// encoder layers done and in all; when it breaks, [`ModelError::Cancelled`].
    pub fn embed_audio(
        &self,
        samples: &[f32],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Vec<f32>, ModelError> {
        let mel = self.features.compute(samples).map_err(|e| ModelError::Features(e.to_string()))?;
        let frames = self.encoder.frames_per_chunk();
        let chunks = mel.n_frames / frames;
        let layers = self.config.encoder.n_layers;
        let mut out = Vec::with_capacity(self.audio_tokens(samples.len()) * self.decoder.hidden_size());
        for chunk in 0..chunks {
            let mut layer = 0;
            let states = self.encoder.encode(&mel.data[chunk * frames..], mel.n_frames, &mut || {
                layer += 1;
                progress(chunk * layers + layer, chunks * layers)
            })?;
            out.extend(self.encoder.project(&states));
        }
        Ok(out)
    }
}
