//! Architecture of a Voxtral checkpoint, from `config.json` or `params.json`.

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
        hint: &'static str,
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

/// The audio encoder: Whisper's, run on 30 s chunks.
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
    /// Frames after the second convolution, 1500 per 30 s.
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

/// A Voxtral model: encoder, projector (two linear layers), decoder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VoxtralConfig {
    /// The audio encoder.
    pub encoder: EncoderConfig,
    /// The text decoder.
    pub decoder: DecoderConfig,
    /// Encoder frames that the projector joins into one audio token.
    pub downsample: usize,
    /// Input width of the projector, `encoder.hidden_size · downsample`.
    pub projector_input: usize,
}

#[derive(Deserialize)]
struct HfConfig {
    model_type: Option<String>,
    architectures: Option<Vec<String>>,
    audio_config: Option<HfAudio>,
    text_config: Option<HfText>,
    projector_hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
}

#[derive(Deserialize)]
struct HfAudio {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    head_dim: Option<usize>,
    num_mel_bins: Option<usize>,
    max_source_positions: Option<usize>,
    activation_function: Option<String>,
}

#[derive(Deserialize)]
struct HfText {
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
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
}

#[derive(Deserialize)]
struct RopeParameters {
    rope_theta: Option<f64>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
}

#[derive(Deserialize)]
struct Params {
    dim: usize,
    n_layers: usize,
    head_dim: usize,
    hidden_dim: usize,
    n_heads: usize,
    n_kv_heads: usize,
    rope_theta: Option<f64>,
    norm_eps: Option<f64>,
    vocab_size: usize,
    max_position_embeddings: Option<usize>,
    max_seq_len: Option<usize>,
    tied_embeddings: Option<bool>,
    multimodal: Option<Multimodal>,
    #[serde(flatten)]
    rest: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct Multimodal {
    whisper_model_args: Option<WhisperArgs>,
}

#[derive(Deserialize)]
struct WhisperArgs {
    encoder_args: EncoderArgs,
    downsample_args: Option<DownsampleArgs>,
}

#[derive(Deserialize)]
struct EncoderArgs {
    dim: usize,
    n_layers: usize,
    head_dim: Option<usize>,
    hidden_dim: usize,
    n_heads: usize,
    max_source_positions: Option<usize>,
    causal: Option<bool>,
    audio_encoding_args: Option<AudioEncodingArgs>,
}

#[derive(Deserialize)]
struct AudioEncodingArgs {
    num_mel_bins: Option<usize>,
    global_log_mel_max: Option<f64>,
}

#[derive(Deserialize)]
struct DownsampleArgs {
    downsample_factor: usize,
}

/// RoPE base when a Llama configuration names none.
const LLAMA_ROPE_THETA: f64 = 10_000.0;
/// Encoder frames per audio token of every Voxtral so far.
const DOWNSAMPLE: usize = 4;
const REALTIME: &str = "a Voxtral Realtime checkpoint (causal encoder, one step per 80 ms)";
const USE_2507: &str =
    "use Voxtral-Mini-3B-2507 or Voxtral-Small-24B-2507, or another VoxtralForConditionalGeneration";

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

impl VoxtralConfig {
    /// Parses Hugging Face's `config.json`; `path` is for messages.
    pub fn from_hf_json(json: &[u8], path: &Path) -> Result<Self, ConfigError> {
        let config: HfConfig = parse(json, path)?;
        let kind = config.model_type.as_deref().unwrap_or("a model without model_type");
        if kind != "voxtral" {
            let what = match (kind, &config.architectures) {
                ("voxtral_realtime", _) => REALTIME.into(),
                ("voxtral_tts", _) => "a Voxtral TTS checkpoint".into(),
                (kind, Some(names)) if !names.is_empty() => format!("'{kind}' ({})", names.join(", ")),
                (kind, _) => format!("'{kind}'"),
            };
            return Err(ConfigError::WrongModel { path: path.into(), what, hint: USE_2507 });
        }
        let audio = config.audio_config.ok_or_else(|| missing(path, "audio_config"))?;
        let text = config.text_config.ok_or_else(|| missing(path, "text_config"))?;
        let bad = |reason: String| ConfigError::Inconsistent { path: path.into(), reason };
        for (name, act, want) in [
            ("audio_config.activation_function", &audio.activation_function, "gelu"),
            ("projector_hidden_act", &config.projector_hidden_act, "gelu"),
            ("text_config.hidden_act", &text.hidden_act, "silu"),
        ] {
            if act.as_deref().is_some_and(|act| act != want) {
                return Err(bad(format!("{name} is '{}', not '{want}'", act.as_deref().unwrap_or_default())));
            }
        }
        if text.sliding_window.is_some() {
            return Err(bad(
                "text_config.sliding_window is set; Voxtral's decoder attends to everything".into()
            ));
        }
        if text.attention_bias == Some(true) || text.mlp_bias == Some(true) {
            return Err(bad("text_config has biases; Voxtral's decoder has none".into()));
        }
        for scaling in [&text.rope_scaling, &text.rope_parameters].into_iter().flatten() {
            if scaling.rope_type.as_deref().is_some_and(|t| t != "default") {
                let kind = scaling.rope_type.as_deref().unwrap_or_default();
                return Err(bad(format!("RoPE scaling '{kind}' is not supported; Voxtral uses none")));
            }
        }
        let rope_theta = text
            .rope_theta
            .or_else(|| text.rope_parameters.as_ref().and_then(|p| p.rope_theta))
            .unwrap_or(LLAMA_ROPE_THETA);
        let encoder = EncoderConfig {
            hidden_size: audio.hidden_size,
            n_layers: audio.num_hidden_layers,
            n_heads: audio.num_attention_heads,
            head_dim: audio.head_dim.unwrap_or(audio.hidden_size / audio.num_attention_heads.max(1)),
            intermediate_size: audio.intermediate_size,
            n_mels: audio.num_mel_bins.unwrap_or(128),
            max_positions: audio.max_source_positions.unwrap_or(1500),
        };
        let decoder = DecoderConfig {
            hidden_size: text.hidden_size,
            intermediate_size: text.intermediate_size,
            n_layers: text.num_hidden_layers,
            n_q_heads: text.num_attention_heads,
            n_kv_heads: text.num_key_value_heads.unwrap_or(text.num_attention_heads),
            head_dim: text.head_dim.unwrap_or(text.hidden_size / text.num_attention_heads.max(1)),
            vocab_size: text.vocab_size,
            rms_norm_eps: text.rms_norm_eps.unwrap_or(1e-6) as f32,
            rope_theta,
            qkv_bias: false,
            qk_norm: false,
            tied: config.tie_word_embeddings.or(text.tie_word_embeddings).unwrap_or(false),
            // Mistral's params.json says 32768 where config.json says 131072: the smaller one is what was trained.
            max_positions: text.max_position_embeddings.unwrap_or(32_768).min(32_768),
        };
        // transformers reshapes encoder frames to the feed-forward width, which is 4 × hidden for Whisper.
        Self { projector_input: encoder.intermediate_size, downsample: DOWNSAMPLE, encoder, decoder }
            .checked(path)
    }

    /// Parses Mistral's `params.json`; `path` is for messages.
    pub fn from_params_json(json: &[u8], path: &Path) -> Result<Self, ConfigError> {
        let params: Params = parse(json, path)?;
        let whisper = params.multimodal.and_then(|m| m.whisper_model_args);
        let Some(WhisperArgs { encoder_args: args, downsample_args }) = whisper else {
            let what = "a text-only Mistral checkpoint (no multimodal.whisper_model_args)".into();
            return Err(ConfigError::WrongModel { path: path.into(), what, hint: USE_2507 });
        };
        let encoding = args.audio_encoding_args;
        let realtime = args.causal == Some(true)
            || encoding.as_ref().is_some_and(|e| e.global_log_mel_max.is_some())
            || params.rest.contains_key("ada_rms_norm_t_cond");
        if realtime {
            let what = REALTIME.into();
            return Err(ConfigError::WrongModel { path: path.into(), what, hint: USE_2507 });
        }
        let downsample = downsample_args.map_or(DOWNSAMPLE, |d| d.downsample_factor);
        let encoder = EncoderConfig {
            hidden_size: args.dim,
            n_layers: args.n_layers,
            n_heads: args.n_heads,
            head_dim: args.head_dim.unwrap_or(args.dim / args.n_heads.max(1)),
            intermediate_size: args.hidden_dim,
            n_mels: encoding.and_then(|e| e.num_mel_bins).unwrap_or(128),
            max_positions: args.max_source_positions.unwrap_or(1500),
        };
        let decoder = DecoderConfig {
            hidden_size: params.dim,
            intermediate_size: params.hidden_dim,
            n_layers: params.n_layers,
            n_q_heads: params.n_heads,
            n_kv_heads: params.n_kv_heads,
            head_dim: params.head_dim,
            vocab_size: params.vocab_size,
            rms_norm_eps: params.norm_eps.unwrap_or(1e-5) as f32,
            rope_theta: params.rope_theta.ok_or_else(|| missing(path, "rope_theta"))?,
            tied: params.tied_embeddings.unwrap_or(false),
            qkv_bias: false,
            qk_norm: false,
            max_positions: params
                .max_position_embeddings
                .or(params.max_seq_len)
                .unwrap_or(32_768)
                .min(32_768),
        };
        Self { projector_input: encoder.hidden_size * downsample, downsample, encoder, decoder }.checked(path)
    }

    /// The configuration of a public release by its hub name (model cards and `config.json` of July 2025), for planning
    /// without a download.
    pub fn released(name: &str) -> Option<Self> {
        let (hidden_size, intermediate_size, n_layers) = match name {
            "mistralai/Voxtral-Mini-3B-2507" => (3072, 8192, 30),
            "mistralai/Voxtral-Small-24B-2507" => (5120, 32_768, 40),
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
            n_q_heads: 32,
            n_kv_heads: 8,
            head_dim: 128,
            vocab_size: 131_072,
            rms_norm_eps: 1e-5,
            rope_theta: 1e8,
            tied: false,
            qkv_bias: false,
            qk_norm: false,
            max_positions: 32_768,
        };
        Some(Self { projector_input: 5120, downsample: DOWNSAMPLE, encoder, decoder })
    }

    /// Audio tokens of one 30 s chunk, 375.
    pub fn tokens_per_chunk(&self) -> usize {
        self.encoder.max_positions / self.downsample
    }

    /// The invariants that the rest of the crate relies on, so that no later step can divide by zero or overflow.
    fn checked(self, path: &Path) -> Result<Self, ConfigError> {
        /// No speech LLM comes near this in any dimension; products of three stay within 64 bits.
        const MAX: usize = 1 << 20;
        let bad = |reason: String| Err(ConfigError::Inconsistent { path: path.into(), reason });
        let (e, d) = (&self.encoder, &self.decoder);
        for (name, value) in [
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
            ("downsample factor", self.downsample),
        ] {
            if value == 0 || value > MAX {
                return bad(format!("{name} is {value}; it must be 1 to {MAX}"));
            }
        }
        if d.n_q_heads % d.n_kv_heads != 0 {
            return bad(format!("{} query heads cannot share {} KV heads evenly", d.n_q_heads, d.n_kv_heads));
        }
        if d.head_dim % 2 != 0 {
            return bad(format!("head_dim {} is odd; rotary embedding needs pairs", d.head_dim));
        }
        if e.n_mels != 128 || e.max_positions != 1500 {
            let (mels, positions) = (e.n_mels, e.max_positions);
            return bad(format!(
                "{mels} mel bins and {positions} encoder positions; Voxtral's are 128 and 1500"
            ));
        }
        if e.n_layers.max(d.n_layers) > 1024 {
            return bad(format!("{} layers; at most 1024 are supported", e.n_layers.max(d.n_layers)));
        }
        if e.n_heads * e.head_dim != e.hidden_size {
            return bad(format!(
                "encoder: {} heads × {} ≠ hidden size {}",
                e.n_heads, e.head_dim, e.hidden_size
            ));
        }
        if e.max_positions * e.hidden_size % self.projector_input != 0
            || self.projector_input != e.hidden_size * self.downsample
        {
            return bad(format!(
                "projector input {} is not {} encoder frames of {}",
                self.projector_input, self.downsample, e.hidden_size
            ));
        }
        if e.max_positions % self.downsample != 0 {
            return bad(format!(
                "{} encoder frames are not a multiple of {}",
                e.max_positions, self.downsample
            ));
        }
        let sound =
            d.rope_theta.is_finite() && d.rope_theta > 1.0 && d.rms_norm_eps > 0.0 && d.rms_norm_eps < 0.01;
        if !sound {
            return bad("rope_theta must be above 1 and rms_norm_eps between 0 and 0.01".into());
        }
        Ok(self)
    }
}

fn parse<'a, T: Deserialize<'a>>(json: &'a [u8], path: &Path) -> Result<T, ConfigError> {
    serde_json::from_slice(json)
        .map_err(|e| ConfigError::Malformed { path: path.into(), reason: e.to_string() })
}

fn missing(path: &Path, field: &'static str) -> ConfigError {
    ConfigError::Missing { path: path.into(), field }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"{"architectures":["VoxtralForConditionalGeneration"],"model_type":"voxtral","audio_token_id":24,
        "hidden_size":5120,"vocab_size":131072,"projector_hidden_act":"gelu","torch_dtype":"bfloat16",
        "audio_config":{"model_type":"voxtral_encoder","hidden_size":1280,"intermediate_size":5120,"num_hidden_layers":32,
            "num_attention_heads":20,"head_dim":64,"num_mel_bins":128,"max_source_positions":1500,"activation_function":"gelu"},
        "text_config":{"model_type":"llama","hidden_size":5120,"intermediate_size":32768,"num_hidden_layers":40,
            "num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"hidden_act":"silu","rms_norm_eps":1e-05,
            "rope_theta":100000000.0,"rope_scaling":null,"sliding_window":null,"attention_bias":false,
            "max_position_embeddings":131072,"vocab_size":131072}}"#;

    fn hf(json: &str) -> Result<VoxtralConfig, ConfigError> {
        VoxtralConfig::from_hf_json(json.as_bytes(), Path::new("config.json"))
    }

    #[test]
    fn both_spellings_of_rope_theta_give_the_same_configuration() {
        let old = hf(SMALL).unwrap();
        assert_eq!((old.decoder.head_dim, old.decoder.rope_theta, old.decoder.tied), (128, 1e8, false));
        assert_eq!((old.tokens_per_chunk(), old.decoder.max_positions), (375, 32_768));
        let new = SMALL
            .replace(
                r#""rope_theta":100000000.0"#,
                r#""rope_parameters":{"rope_theta":1e8,"rope_type":"default"}"#,
            )
            .replace("torch_dtype", "dtype");
        assert_eq!(hf(&new).unwrap(), old);
        assert_eq!(VoxtralConfig::released("mistralai/Voxtral-Small-24B-2507").unwrap(), old);
    }

    #[test]
    fn params_json_gives_the_same_configuration() {
        let params = br#"{"dim":5120,"n_layers":40,"head_dim":128,"hidden_dim":32768,"n_heads":32,"n_kv_heads":8,
            "rope_theta":1e8,"norm_eps":1e-5,"vocab_size":131072,"max_position_embeddings":32768,"multimodal":{
            "whisper_model_args":{"encoder_args":{"dim":1280,"n_layers":32,"head_dim":64,"hidden_dim":5120,"n_heads":20,
            "vocab_size":51866,"max_source_positions":1500,"audio_encoding_args":{"sampling_rate":16000,"num_mel_bins":128,
            "hop_length":160,"window_size":400}},"downsample_args":{"downsample_factor":4}}}}"#;
        assert_eq!(
            VoxtralConfig::from_params_json(params, Path::new("params.json")).unwrap(),
            hf(SMALL).unwrap()
        );
        let realtime =
            std::str::from_utf8(params).unwrap().replace(r#""dim":1280"#, r#""causal":true,"dim":1280"#);
        let error =
            VoxtralConfig::from_params_json(realtime.as_bytes(), Path::new("params.json")).unwrap_err();
        assert!(error.to_string().contains("Realtime"), "{error}");
    }

    #[test]
    fn other_models_and_broken_sizes_are_named() {
        for (from, to, says) in [
            (r#""model_type":"voxtral","#, r#""model_type":"voxtral_realtime","#, "Realtime"),
            (r#""model_type":"voxtral","#, r#""model_type":"whisper","#, "'whisper'"),
            (r#""num_key_value_heads":8"#, r#""num_key_value_heads":5"#, "evenly"),
            (r#""num_key_value_heads":8"#, r#""num_key_value_heads":0"#, "KV heads is 0"),
            (r#""head_dim":128"#, r#""head_dim":127"#, "odd"),
            (r#""hidden_size":1280"#, r#""hidden_size":9999999999"#, "must be 1 to"),
            (r#""num_mel_bins":128"#, r#""num_mel_bins":80"#, "80 mel bins"),
            (r#""max_source_positions":1500"#, r#""max_source_positions":3000"#, "3000 encoder positions"),
            (r#""num_hidden_layers":40"#, r#""num_hidden_layers":1048576"#, "at most 1024"),
            (r#""hidden_act":"silu""#, r#""hidden_act":"relu""#, "'relu'"),
            (r#""sliding_window":null"#, r#""sliding_window":4096"#, "sliding_window"),
            (r#""rope_scaling":null"#, r#""rope_scaling":{"rope_type":"yarn"}"#, "yarn"),
            (r#""vocab_size":131072}"#, r#""vocab_size":-1}"#, "not a model configuration"),
        ] {
            let error = hf(&SMALL.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("config.json"), "{error}");
        }
        assert!(hf("{").is_err());
    }
}
