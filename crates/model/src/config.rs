//! Sizes of a speech LLM's encoder and decoder, and what `config.json` files of all families have in common.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use wnw_kv::KvShape;

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// Not JSON, or a field of the wrong type.
    #[error("{path}: not a model configuration: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        reason: String,
    },
    /// A field that has no safe default is absent.
    #[error("{path}: field '{field}' is missing")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The field, with its parents.
        field: &'static str,
    },
    /// Another architecture.
    #[error("{path}: this is {what}; {hint}")]
    WrongModel {
        /// The file.
        path: PathBuf,
        /// What was recognised.
        what: String,
        /// What to do.
        hint: String,
    },
    /// A size that is zero, absurd, or at odds with another.
    #[error("{path}: {reason}")]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// Which rule broke.
        reason: String,
    },
}

/// The transformer layers of an audio encoder, shaped like Whisper's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EncoderConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Layers.
    pub n_layers: usize,
    /// Attention heads (no grouping).
    pub n_heads: usize,
    /// Elements of a head's row.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Mel bins of the input.
    pub n_mels: usize,
    /// Rows of its table of positions; in Voxtral also the frames of a 30 s chunk after the convolutions.
    pub max_positions: usize,
}

/// The text decoder: Llama's shape, with what Qwen2 (biases) and Qwen3 (head norms) add to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DecoderConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the SwiGLU layer.
    pub intermediate_size: usize,
    /// Layers.
    pub n_layers: usize,
    /// Query heads.
    pub n_q_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Elements of a head's row; not always `hidden_size / n_q_heads`.
    pub head_dim: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// RMSNorm's epsilon.
    pub rms_norm_eps: f32,
    /// Base of the rotary embedding.
    pub rope_theta: f64,
    /// Whether the output layer is the embedding table.
    pub tied: bool,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether every query and key head is normalised (RMSNorm over head_dim) before it is rotated.
    pub qk_norm: bool,
    /// Positions the model supports.
    pub max_positions: usize,
}

/// `text_config` of a Hugging Face configuration, in the spelling of any version.
#[derive(Deserialize)]
pub(crate) struct HfText {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_parameters: Option<RopeParameters>,
    rope_scaling: Option<RopeParameters>,
    hidden_act: Option<String>,
    max_position_embeddings: Option<usize>,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
}

#[derive(Deserialize)]
struct RopeParameters {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
    /// The older spelling of `rope_type`; some files have both.
    r#type: Option<String>,
}

/// What a family's decoder is, where `text_config` does not say it.
pub(crate) struct DecoderRules {
    pub qkv_bias: bool,
    pub qk_norm: bool,
    /// Whether a `sliding_window` is in use when `use_sliding_window` is absent.
    pub slides: bool,
    /// Most positions, whatever `max_position_embeddings` says.
    pub max_positions: usize,
    /// RoPE base when the configuration names none.
    pub rope_theta: f64,
    /// Whether the output layer is tied when no flag says so.
    pub tied: bool,
}

impl HfText {
    /// The decoder; `tied` is the flag beside `text_config`, which comes first. `path` is for messages.
    pub fn decoder(
        &self,
        rules: &DecoderRules,
        tied: Option<bool>,
        path: &Path,
    ) -> Result<DecoderConfig, ConfigError> {
        let bad = |reason: String| Err(ConfigError::Inconsistent { path: path.into(), reason });
        check_activation("text_config.hidden_act", &self.hidden_act, "silu", path)?;
        if self.sliding_window.is_some() && self.use_sliding_window.unwrap_or(rules.slides) {
            return bad(
                "text_config.sliding_window is set; the family's decoders attend to everything".into()
            );
        }
        if self.attention_bias == Some(true) && !rules.qkv_bias || self.mlp_bias == Some(true) {
            return bad("text_config has biases that the family's decoders do not have".into());
        }
        let scalings = || [&self.rope_scaling, &self.rope_parameters].into_iter().flatten();
        for kind in scalings().flat_map(|s| [&s.rope_type, &s.r#type]).flatten() {
            // "mrope" gives each of three axes a part of a head; for audio and text all three count the same.
            if kind != "default" && kind != "mrope" {
                return bad(format!(
                    "RoPE scaling '{kind}' is not supported; the family's decoders use none"
                ));
            }
        }
        Ok(DecoderConfig {
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            n_layers: self.num_hidden_layers,
            n_q_heads: self.num_attention_heads,
            n_kv_heads: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            head_dim: self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1)),
            vocab_size: self.vocab_size,
            rms_norm_eps: self.rms_norm_eps.unwrap_or(1e-6) as f32,
            rope_theta: self
                .rope_theta
                .or_else(|| scalings().find_map(|s| s.rope_theta))
                .unwrap_or(rules.rope_theta),
            tied: tied.or(self.tie_word_embeddings).unwrap_or(rules.tied),
            qkv_bias: rules.qkv_bias,
            qk_norm: rules.qk_norm,
            max_positions: self
                .max_position_embeddings
                .unwrap_or(rules.max_positions)
                .min(rules.max_positions),
        })
    }
}

/// An activation that is named must be the one that is implemented.
pub(crate) fn check_activation(
    name: &str,
    found: &Option<String>,
    want: &str,
    path: &Path,
) -> Result<(), ConfigError> {
    match found {
        Some(found) if found != want => {
            let reason = format!("{name} is '{found}', not '{want}'");
            Err(ConfigError::Inconsistent { path: path.into(), reason })
        }
        _ => Ok(()),
    }
}

impl DecoderConfig {
    /// Head counts and sizes of the cache.
    pub fn kv_shape(&self) -> KvShape {
        KvShape {
            n_layers: self.n_layers,
            n_q_heads: self.n_q_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
        }
    }
}

/// The invariants that the rest of the crate relies on, so that no later step can divide by zero or overflow. `others`
/// are a family's own sizes, by name.
pub(crate) fn check_sizes(
    e: &EncoderConfig,
    d: &DecoderConfig,
    others: &[(&str, usize)],
    path: &Path,
) -> Result<(), ConfigError> {
    /// No speech LLM comes near this in any dimension; products of three stay within 64 bits.
    const MAX: usize = 1 << 20;
    let bad = |reason: String| Err(ConfigError::Inconsistent { path: path.into(), reason });
    let sizes = [
        ("encoder hidden_size", e.hidden_size),
        ("encoder layers", e.n_layers),
        ("encoder heads", e.n_heads),
        ("encoder head_dim", e.head_dim),
        ("encoder intermediate_size", e.intermediate_size),
        ("mel bins", e.n_mels),
        ("encoder positions", e.max_positions),
        ("hidden_size", d.hidden_size),
        ("intermediate_size", d.intermediate_size),
        ("layers", d.n_layers),
        ("query heads", d.n_q_heads),
        ("KV heads", d.n_kv_heads),
        ("head_dim", d.head_dim),
        ("vocab_size", d.vocab_size),
        ("max_position_embeddings", d.max_positions),
    ];
    for (name, value) in sizes.iter().chain(others) {
        if *value == 0 || *value > MAX {
            return bad(format!("{name} is {value}; it must be 1 to {MAX}"));
        }
    }
    if !d.n_q_heads.is_multiple_of(d.n_kv_heads) {
        return bad(format!("{} query heads cannot share {} KV heads evenly", d.n_q_heads, d.n_kv_heads));
    }
    if !d.head_dim.is_multiple_of(2) {
        return bad(format!("head_dim {} is odd; rotary embedding needs pairs", d.head_dim));
    }
    if e.n_mels != 128 {
        return bad(format!("{} mel bins; the families here have 128", e.n_mels));
    }
    if e.n_layers.max(d.n_layers) > 1024 {
        return bad(format!("{} layers; at most 1024 are supported", e.n_layers.max(d.n_layers)));
    }
    if e.n_heads * e.head_dim != e.hidden_size || !e.hidden_size.is_multiple_of(2) {
        let (heads, hd, d) = (e.n_heads, e.head_dim, e.hidden_size);
        return bad(format!(
            "encoder: {heads} heads × {hd} for a hidden size of {d}, which must be their even product"
        ));
    }
    let sound =
        d.rope_theta.is_finite() && d.rope_theta > 1.0 && d.rms_norm_eps > 0.0 && d.rms_norm_eps < 0.01;
    if !sound {
        return bad("rope_theta must be above 1 and rms_norm_eps between 0 and 0.01".into());
    }
    Ok(())
}

/// A limit that a checkpoint may state for itself.
#[derive(Deserialize)]
struct Limits {
    max_audio_seconds: Option<f64>,
}

/// Longest recording of one pass in seconds: the file's own `max_audio_seconds` (our small models carry it), otherwise
/// what the family's releases are documented to take.
pub(crate) fn max_audio_seconds(json: &[u8], family: f64, path: &Path) -> Result<f64, ConfigError> {
    let limits: Limits = parse(json, path)?;
    let seconds = limits.max_audio_seconds.unwrap_or(family);
    if (1.0..1e6).contains(&seconds) {
        return Ok(seconds);
    }
    Err(ConfigError::Malformed { path: path.into(), reason: format!("max_audio_seconds is {seconds}") })
}

pub(crate) fn parse<'a, T: Deserialize<'a>>(json: &'a [u8], path: &Path) -> Result<T, ConfigError> {
    serde_json::from_slice(json)
        .map_err(|e| ConfigError::Malformed { path: path.into(), reason: e.to_string() })
}

pub(crate) fn missing(path: &Path, field: &'static str) -> ConfigError {
    ConfigError::Missing { path: path.into(), field }
}

/// `audio_config` of Qwen's models, in the names that the encoder's own class has.
#[derive(Deserialize)]
pub(crate) struct HfAudioTower {
    d_model: usize,
    encoder_layers: usize,
    encoder_attention_heads: usize,
    encoder_ffn_dim: usize,
    num_mel_bins: Option<usize>,
    activation_function: Option<String>,
    scale_embedding: Option<bool>,
}

impl HfAudioTower {
    /// The encoder's layers; `max_positions` are the rows of its table of positions.
    pub fn encoder(&self, max_positions: usize, path: &Path) -> Result<EncoderConfig, ConfigError> {
        check_activation("audio_config.activation_function", &self.activation_function, "gelu", path)?;
        if self.scale_embedding == Some(true) {
            let reason = "audio_config.scale_embedding is set; the family's encoders do not scale".into();
            return Err(ConfigError::Inconsistent { path: path.into(), reason });
        }
        Ok(EncoderConfig {
            hidden_size: self.d_model,
            n_layers: self.encoder_layers,
            n_heads: self.encoder_attention_heads,
            head_dim: self.d_model / self.encoder_attention_heads.max(1),
            intermediate_size: self.encoder_ffn_dim,
            n_mels: self.num_mel_bins.unwrap_or(128),
            max_positions,
        })
    }
}
