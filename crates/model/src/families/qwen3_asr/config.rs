//! Architecture of a Qwen3-ASR checkpoint: `thinker_config` of the releases' `config.json`, or the flat form of
//! transformers.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::prompt::AUDIO;
use crate::chatml::StatedTokens;
use crate::config::{
    ConfigError, DecoderConfig, DecoderRules, EncoderConfig, HfAudioTower, HfText, check_sizes,
    max_audio_seconds, missing, parse,
};
use crate::families::{check_part, wrong_model};

/// The longest recording that the vendor's own library gives the model at once.
const MAX_AUDIO_SECONDS: f64 = 1200.0;
const MAX_POSITIONS: usize = 65_536;

/// A Qwen3-ASR model: encoder, two linear layers, decoder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Qwen3AsrConfig {
    /// The audio encoder.
    pub encoder: EncoderConfig,
    /// The text decoder.
    pub decoder: DecoderConfig,
    /// Mel frames that go through the convolutions together, 100 for 1 s.
    pub chunk_frames: usize,
    /// Such chunks whose states attend to each other, 8.
    pub window_chunks: usize,
    /// Channels of the convolutions.
    pub channels: usize,
    /// Longest recording of one pass in seconds.
    pub max_audio_seconds: f64,
    /// What it says of the tokenizer.
    #[serde(skip)]
    pub(super) tokens: StatedTokens,
}

#[derive(Deserialize)]
struct HfConfig {
    architectures: Option<Vec<String>>,
    thinker_config: Option<HfThinker>,
}

#[derive(Deserialize)]
struct HfThinker {
    model_type: Option<String>,
    classify_num: Option<usize>,
    audio_config: Option<HfAudio>,
    text_config: Option<HfText>,
    tie_word_embeddings: Option<bool>,
}

#[derive(Deserialize)]
struct HfAudio {
    #[serde(flatten)]
    tower: HfAudioTower,
    n_window: Option<usize>,
    n_window_infer: Option<usize>,
    downsample_hidden_size: Option<usize>,
    output_dim: Option<usize>,
}

/// Positions after a convolution of width 3, stride 2 and padding 1.
pub(super) fn halved(n: usize) -> usize {
    n.div_ceil(2)
}

/// Positions after the three convolutions.
pub(super) fn reduced(n: usize) -> usize {
    halved(halved(halved(n)))
}

impl Qwen3AsrConfig {
    /// Parses `config.json`; `path` is for messages.
    pub fn from_json(json: &[u8], path: &Path) -> Result<Self, ConfigError> {
        let whole: HfConfig = parse(json, path)?;
        let is_nested = whole.thinker_config.is_some();
        let thinker = match whole.thinker_config {
            Some(thinker) => thinker,
            None => parse(json, path)?,
        };
        let classifies = thinker.classify_num.is_some()
            || thinker.model_type.as_deref() == Some("qwen3_forced_aligner")
            || whole.architectures.iter().flatten().any(|name| name.contains("TokenClassification"));
        if classifies {
            return Err(wrong_model(path, super::ALIGNER));
        }
        let kind = thinker.model_type.as_deref();
        check_part("thinker_config", kind, |kind| kind.starts_with("qwen3_asr"), path)?;
        if !is_nested && thinker.audio_config.is_none() && thinker.text_config.is_none() {
            return Err(missing(path, "thinker_config"));
        }
        let field = |nested, flat| missing(path, if is_nested { nested } else { flat });
        let audio = thinker.audio_config;
        let audio = audio.ok_or_else(|| field("thinker_config.audio_config", "audio_config"))?;
        let text = thinker.text_config;
        let text = text.ok_or_else(|| field("thinker_config.text_config", "text_config"))?;
        let rules = DecoderRules {
            qkv_bias: false,
            qk_norm: true,
            slides: false,
            max_positions: MAX_POSITIONS,
            rope_theta: 1e6,
            tied: true,
        };
        let chunk_frames = audio.n_window.unwrap_or(50).saturating_mul(2);
        let window_frames = audio.n_window_infer.unwrap_or(800);
        let config = Self {
            encoder: audio.tower.encoder(reduced(chunk_frames), path)?,
            decoder: text.decoder(&rules, thinker.tie_word_embeddings, path)?,
            chunk_frames,
            window_chunks: window_frames / chunk_frames.max(1),
            channels: audio.downsample_hidden_size.unwrap_or(480),
            max_audio_seconds: max_audio_seconds(json, MAX_AUDIO_SECONDS, path)?,
            tokens: StatedTokens::read(json, &AUDIO, path)?,
        };
        config.check(window_frames, audio.output_dim, path)?;
        Ok(config)
    }

    fn check(&self, window_frames: usize, output: Option<usize>, path: &Path) -> Result<(), ConfigError> {
        let bad = |reason: String| Err(ConfigError::Inconsistent { path: path.into(), reason });
        let own = [
            ("n_window", self.chunk_frames),
            ("n_window_infer", window_frames),
            ("downsample_hidden_size", self.channels),
        ];
        check_sizes(&self.encoder, &self.decoder, &own, path)?;
        let (chunk, width) = (self.chunk_frames, self.decoder.hidden_size);
        if !window_frames.is_multiple_of(chunk) {
            return bad(format!("n_window_infer {window_frames} is not a multiple of {chunk} frames"));
        }
        match output.filter(|output| *output != width) {
            Some(output) => bad(format!("audio embeddings of {output} for a decoder of {width}")),
            None => Ok(()),
        }
    }

    /// Tokens of a whole chunk, 13.
    pub fn tokens_per_chunk(&self) -> usize {
        reduced(self.chunk_frames)
    }

    /// The configuration of a public release by its hub name, for planning without a download.
    pub fn released(name: &str) -> Option<Self> {
        let (audio, n_layers, n_heads, hidden_size, intermediate_size) = match name {
            "Qwen/Qwen3-ASR-0.6B" => (896, 18, 14, 1024, 3072),
            "Qwen/Qwen3-ASR-1.7B" => (1024, 24, 16, 2048, 6144),
            _ => return None,
        };
        let chunk_frames = 100;
        let encoder = EncoderConfig {
            hidden_size: audio,
            n_layers,
            n_heads,
            head_dim: 64,
            intermediate_size: 4 * audio,
            n_mels: 128,
            max_positions: reduced(chunk_frames),
        };
        let decoder = DecoderConfig {
            hidden_size,
            intermediate_size,
            n_layers: 28,
            n_q_heads: 16,
            n_kv_heads: 8,
            head_dim: 128,
            vocab_size: 151_936,
            rms_norm_eps: 1e-6,
            rope_theta: 1e6,
            tied: true,
            qkv_bias: false,
            qk_norm: true,
            max_positions: MAX_POSITIONS,
        };
        let (max_audio_seconds, tokens) = (MAX_AUDIO_SECONDS, StatedTokens::default());
        let (window_chunks, channels) = (8, 480);
        Some(Self { encoder, decoder, chunk_frames, window_chunks, channels, max_audio_seconds, tokens })
    }
}
