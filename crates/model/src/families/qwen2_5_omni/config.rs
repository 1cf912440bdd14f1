//! Architecture of a Qwen2.5-Omni checkpoint: `thinker_config` of its `config.json`, or a thinker's own.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::{
    ConfigError, DecoderConfig, DecoderRules, EncoderConfig, HfAudioTower, HfText, check_sizes,
    max_audio_seconds, missing, parse,
};

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
}

#[derive(Deserialize)]
struct HfConfig {
    thinker_config: Option<HfThinker>,
}

#[derive(Deserialize)]
struct HfThinker {
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
        let thinker = match nested.thinker_config {
            Some(thinker) => thinker,
            None => parse(json, path)?,
        };
        let audio = thinker.audio_config.ok_or_else(|| missing(path, "audio_config"))?;
        let text = thinker.text_config.ok_or_else(|| missing(path, "text_config"))?;
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
        };
        config.check(audio.output_dim, path)?;
        Ok(config)
    }

    fn check(&self, output_dim: Option<usize>, path: &Path) -> Result<(), ConfigError> {
        let bad = |reason: String| Err(ConfigError::Inconsistent { path: path.into(), reason });
        check_sizes(&self.encoder, &self.decoder, &[("n_window", self.n_window)], path)?;
        let (window, positions, width) =
            (self.n_window, self.encoder.max_positions, self.decoder.hidden_size);
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
        Some(Self { encoder, decoder, n_window: N_WINDOW, max_audio_seconds: MAX_AUDIO_SECONDS })
    }
}
