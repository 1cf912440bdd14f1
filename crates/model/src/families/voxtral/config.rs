//! Architecture of a Voxtral checkpoint, from `config.json` or `params.json`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::REALTIME;
use crate::config::{
    ConfigError, DecoderConfig, DecoderRules, EncoderConfig, HfText, check_activation, check_sizes,
    max_audio_seconds, missing, parse,
};
use crate::families::wrong_model;

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
    /// Longest recording of one pass in seconds.
    pub max_audio_seconds: f64,
}

#[derive(Deserialize)]
struct HfConfig {
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
/// The 2507 release is documented to transcribe up to 30 minutes.
const MAX_AUDIO_SECONDS: f64 = 1800.0;
/// Mistral's params.json says 32768 where config.json says 131072: the smaller one is what was trained.
const MAX_POSITIONS: usize = 32_768;

impl VoxtralConfig {
    /// Parses Hugging Face's `config.json`; `path` is for messages.
    pub fn from_hf_json(json: &[u8], path: &Path) -> Result<Self, ConfigError> {
        let config: HfConfig = parse(json, path)?;
        let audio = config.audio_config.ok_or_else(|| missing(path, "audio_config"))?;
        let text = config.text_config.ok_or_else(|| missing(path, "text_config"))?;
        let activations = [
            ("audio_config.activation_function", &audio.activation_function),
            ("projector_hidden_act", &config.projector_hidden_act),
        ];
        for (name, found) in activations {
            check_activation(name, found, "gelu", path)?;
        }
        let encoder = EncoderConfig {
            hidden_size: audio.hidden_size,
            n_layers: audio.num_hidden_layers,
            n_heads: audio.num_attention_heads,
            head_dim: audio.head_dim.unwrap_or(audio.hidden_size / audio.num_attention_heads.max(1)),
            intermediate_size: audio.intermediate_size,
            n_mels: audio.num_mel_bins.unwrap_or(128),
            max_positions: audio.max_source_positions.unwrap_or(1500),
        };
        let rules = DecoderRules {
            qkv_bias: false,
            qk_norm: false,
            slides: true,
            max_positions: MAX_POSITIONS,
            rope_theta: LLAMA_ROPE_THETA,
            tied: false,
        };
        let decoder = text.decoder(&rules, config.tie_word_embeddings, path)?;
        let max_audio_seconds = max_audio_seconds(json, MAX_AUDIO_SECONDS, path)?;
        // transformers reshapes encoder frames to the feed-forward width, which is 4 × hidden for Whisper.
        let projector_input = encoder.intermediate_size;
        Self { projector_input, downsample: DOWNSAMPLE, encoder, decoder, max_audio_seconds }.checked(path)
    }

    /// Parses Mistral's `params.json`; `path` is for messages.
    pub fn from_params_json(json: &[u8], path: &Path) -> Result<Self, ConfigError> {
        let params: Params = parse(json, path)?;
        let whisper = params.multimodal.and_then(|m| m.whisper_model_args);
        let Some(WhisperArgs { encoder_args: args, downsample_args }) = whisper else {
            let what = "a text-only Mistral checkpoint (no multimodal.whisper_model_args)";
            return Err(wrong_model(path, what));
        };
        let encoding = args.audio_encoding_args;
        let realtime = args.causal == Some(true)
            || encoding.as_ref().is_some_and(|e| e.global_log_mel_max.is_some())
            || params.rest.contains_key("ada_rms_norm_t_cond");
        if realtime {
            return Err(wrong_model(path, REALTIME));
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
                .unwrap_or(MAX_POSITIONS)
                .min(MAX_POSITIONS),
        };
        let max_audio_seconds = max_audio_seconds(json, MAX_AUDIO_SECONDS, path)?;
        let projector_input = encoder.hidden_size.saturating_mul(downsample);
        Self { projector_input, downsample, encoder, decoder, max_audio_seconds }.checked(path)
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
            max_positions: MAX_POSITIONS,
        };
        let max_audio_seconds = MAX_AUDIO_SECONDS;
        Some(Self { projector_input: 5120, downsample: DOWNSAMPLE, encoder, decoder, max_audio_seconds })
    }

    /// Audio tokens of one 30 s chunk, 375.
    pub fn tokens_per_chunk(&self) -> usize {
        self.encoder.max_positions / self.downsample
    }

    fn checked(self, path: &Path) -> Result<Self, ConfigError> {
        let bad = |reason: String| Err(ConfigError::Inconsistent { path: path.into(), reason });
        let e = &self.encoder;
        if e.max_positions != 1500 {
            return bad(format!("{} encoder positions; Voxtral has 1500", e.max_positions));
        }
        check_sizes(e, &self.decoder, &[("downsample factor", self.downsample)], path)?;
        if self.projector_input != e.hidden_size * self.downsample {
            return bad(format!(
                "projector input {} is not {} encoder frames of {}",
                self.projector_input, self.downsample, e.hidden_size
            ));
        }
        if !e.max_positions.is_multiple_of(self.downsample) {
            return bad(format!(
                "{} encoder frames are not a multiple of {}",
                e.max_positions, self.downsample
            ));
        }
        Ok(self)
    }
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
