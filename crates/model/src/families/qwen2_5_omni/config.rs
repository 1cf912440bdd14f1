//! Architecture of a Qwen2.5-Omni checkpoint: `thinker_config` of its `config.json`, or a thinker's own.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::prompt::AUDIO;
use crate::chatml::StatedTokens;
use crate::config::{
    ConfigError, DecoderConfig, DecoderRules, EncoderConfig, HfAudioTower, HfText, check_sizes,
    max_audio_seconds, missing, parse,
};
use crate::families::check_part;

/// `model_type` of a whole model, and of a thinker alone or in it.
pub(super) const NAME: &str = "qwen2_5_omni";
pub(super) const THINKER: &str = "qwen2_5_omni_thinker";
/// Length of the clips that the processor makes.
const MAX_AUDIO_SECONDS: f64 = 300.0;
const MAX_POSITIONS: usize = 32_768;
const N_WINDOW: usize = 100;

/// A Qwen2.5-Omni thinker: encoder, one linear layer, decoder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Qwen2_5OmniConfig {
    /// The audio encoder.
    pub encoder: EncoderConfig,
    /// The text decoder.
    pub decoder: DecoderConfig,
    /// Encoder frames that attend to each other, 100 for 2 s; half as many as mel frames.
    pub n_window: usize,
    /// Longest recording of one pass in seconds.
    pub max_audio_seconds: f64,
    /// What it says of the tokenizer.
    #[serde(skip)]
    pub(super) tokens: StatedTokens,
}

#[derive(Deserialize)]
struct HfConfig {
    thinker_config: Option<HfThinker>,
}

#[derive(Deserialize)]
struct HfThinker {
    model_type: Option<String>,
    audio_config: Option<HfAudio>,
    text_config: Option<HfText>,
    tie_word_embeddings: Option<bool>,
}

#[derive(Deserialize)]
struct HfAudio {
    #[serde(flatten)]
    tower: HfAudioTower,
    n_window: Option<usize>,
    max_source_positions: Option<usize>,
    output_dim: Option<usize>,
}

impl Qwen2_5OmniConfig {
    /// Parses `config.json`; `path` is for messages.
    pub fn from_json(json: &[u8], path: &Path) -> Result<Self, ConfigError> {
        let nested: HfConfig = parse(json, path)?;
        let is_nested = nested.thinker_config.is_some();
        let thinker = match nested.thinker_config {
            Some(thinker) => thinker,
            None => parse(json, path)?,
        };
        let kind = thinker.model_type.as_deref();
        if !is_nested && kind != Some(THINKER) && thinker.audio_config.is_none() {
            return Err(missing(path, "thinker_config"));
        }
        check_part("thinker_config", kind, |kind| [NAME, THINKER].contains(&kind), path)?;
        let field = |nested, flat| missing(path, if is_nested { nested } else { flat });
        let audio = thinker.audio_config;
        let audio = audio.ok_or_else(|| field("thinker_config.audio_config", "audio_config"))?;
        let text = thinker.text_config;
        let text = text.ok_or_else(|| field("thinker_config.text_config", "text_config"))?;
        let rules = DecoderRules {
            qkv_bias: true,
            qk_norm: false,
            slides: false,
            max_positions: MAX_POSITIONS,
            rope_theta: 1e6,
            tied: false,
        };
        let config = Self {
            encoder: audio.tower.encoder(audio.max_source_positions.unwrap_or(1500), path)?,
            decoder: text.decoder(&rules, thinker.tie_word_embeddings, path)?,
            n_window: audio.n_window.unwrap_or(N_WINDOW),
            max_audio_seconds: max_audio_seconds(json, MAX_AUDIO_SECONDS, path)?,
            tokens: StatedTokens::read(json, &AUDIO, path)?,
        };
        config.check(audio.output_dim, path)?;
        Ok(config)
    }

    fn check(&self, output_dim: Option<usize>, path: &Path) -> Result<(), ConfigError> {
        let bad = |reason: String| Err(ConfigError::Inconsistent { path: path.into(), reason });
        check_sizes(&self.encoder, &self.decoder, &[("n_window", self.n_window)], path)?;
        let (window, positions, width) =
            (self.n_window, self.encoder.max_positions, self.decoder.hidden_size);
        if self.max_audio_seconds > MAX_AUDIO_SECONDS {
            return bad(format!(
                "max_audio_seconds is {}; Qwen2.5-Omni takes at most {MAX_AUDIO_SECONDS} in one pass",
                self.max_audio_seconds
            ));
        }
        if window % 2 != 0 || window > positions {
            return bad(format!("n_window is {window}; it must be even and at most {positions} positions"));
        }
        match output_dim.filter(|output| *output != width) {
            Some(output) => bad(format!("audio embeddings of {output} for a decoder of {width}")),
            None => Ok(()),
        }
    }

    /// The configuration of a public release by its hub name, for planning without a download.
    pub fn released(name: &str) -> Option<Self> {
        let (hidden_size, intermediate_size, n_layers, n_q_heads, n_kv_heads, vocab_size) = match name {
            "Qwen/Qwen2.5-Omni-3B" => (2048, 11_008, 36, 16, 2, 151_936),
            "Qwen/Qwen2.5-Omni-7B" => (3584, 18_944, 28, 28, 4, 152_064),
            _ => return None,
        };
        let encoder = EncoderConfig {
            hidden_size: 1280,
            n_layers: 32,
            n_heads: 20,
            head_dim: 64,
            intermediate_size: 5120,
            n_mels: 128,
            max_positions: 1500,
        };
        let decoder = DecoderConfig {
            hidden_size,
            intermediate_size,
            n_layers,
            n_q_heads,
            n_kv_heads,
            head_dim: 128,
            vocab_size,
            rms_norm_eps: 1e-6,
            rope_theta: 1e6,
            tied: false,
            qkv_bias: true,
            qk_norm: false,
            max_positions: MAX_POSITIONS,
        };
        let (max_audio_seconds, tokens) = (MAX_AUDIO_SECONDS, StatedTokens::default());
        Some(Self { encoder, decoder, n_window: N_WINDOW, max_audio_seconds, tokens })
    }
}
