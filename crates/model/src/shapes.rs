//! Sizes of models by a short name, for benchmarks with random weights.

use crate::checkpoint::Naming;
use crate::config::DecoderConfig;
use crate::families::voxtral::VoxtralConfig;
use crate::families::{self, AudioEncoder, Family};
use crate::linear::WeightDtype;
use crate::model::ModelError;
use crate::random::{self, Layout};

/// The sizes of a model.
#[derive(Clone, Debug)]
pub struct ModelShape {
    /// Its name on the command line.
    pub name: &'static str,
    /// The text decoder.
    pub decoder: DecoderConfig,
    /// The whole model, where its audio encoder is Voxtral's.
    pub voxtral: Option<VoxtralConfig>,
    /// Audio tokens of one second.
    pub tokens_per_second: f64,
}

/// Names of all shapes.
pub const SHAPES: [&str; 4] = ["voxtral-mini-3b", "voxtral-small-24b", "qwen2.5-omni-3b", "tiny"];

impl ModelShape {
    /// The shape of this name.
    pub fn find(name: &str) -> Option<Self> {
        let name = *SHAPES.iter().find(|known| **known == name)?;
        let voxtral = match name {
            "voxtral-mini-3b" => VoxtralConfig::released("mistralai/Voxtral-Mini-3B-2507"),
            "voxtral-small-24b" => VoxtralConfig::released("mistralai/Voxtral-Small-24B-2507"),
            "tiny" => tiny(),
            _ => None,
        };
        let omni = families::released("Qwen/Qwen2.5-Omni-3B")?;
        let family: &dyn Family = voxtral.as_ref().map_or(&*omni, |config| config);
        let (decoder, tokens_per_second) = (family.decoder().clone(), family.audio_tokens_per_second());
        Some(Self { name, decoder, tokens_per_second, voxtral })
    }

    /// Bytes of the decoder with its token embeddings (2 bytes an element).
    pub fn decoder_bytes(&self, dtype: WeightDtype) -> u64 {
        let tensors = crate::decoder::expected_tensors(&self.decoder);
        let bytes = tensors.iter().map(|(name, shape)| match shape[..] {
            [n, k] if name.ends_with("embed_tokens.weight") => 2 * (n * k) as u64,
            [n, k] => dtype.matrix_bytes(n, k),
            _ => 4 * shape.iter().product::<usize>() as u64,
        });
        bytes.sum()
    }
}

/// Encoder and projector of this shape with random weights, the same for the same seed.
pub fn random_encoder(
    config: &dyn Family,
    dtype: WeightDtype,
    seed: u64,
) -> Result<Box<dyn AudioEncoder>, ModelError> {
    let layout = if dtype == WeightDtype::Bf16 { Layout::Distinct } else { Layout::Shared };
    let tensors = config.encoder_tensors(Naming::HuggingFace);
    config.load_encoder(&random::checkpoint(&tensors, seed, layout), dtype)
}

/// The embedded model's sizes.
fn tiny() -> Option<VoxtralConfig> {
    let mut config = VoxtralConfig::released("mistralai/Voxtral-Mini-3B-2507")?;
    let e = &mut config.encoder;
    (e.hidden_size, e.n_layers, e.n_heads, e.head_dim, e.intermediate_size) = (160, 4, 5, 32, 640);
    config.projector_input = 640;
    let d = &mut config.decoder;
    (d.hidden_size, d.intermediate_size, d.n_layers) = (160, 480, 8);
    (d.n_q_heads, d.n_kv_heads, d.head_dim) = (8, 4, 32);
    (d.vocab_size, d.rope_theta, d.max_positions) = (800, 1e5, 8192);
    Some(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_shape() {
        for name in SHAPES {
            assert_eq!(ModelShape::find(name).unwrap().name, name);
        }
        assert!(ModelShape::find("tiny ").is_none());
    }

    /// 3.21 G weights in the layers, 0.40 G each in the output layer and the embeddings.
    #[test]
    fn bytes_are_those_of_the_released_models() {
        let mini = ModelShape::find("voxtral-mini-3b").unwrap();
        let weights = mini.decoder_bytes(WeightDtype::Bf16) as f64 / 2.0;
        assert!((weights / 1e9 - 4.01).abs() < 0.01, "{weights}");
        let (q8, bf16) = (mini.decoder_bytes(WeightDtype::Q8_0), mini.decoder_bytes(WeightDtype::Bf16));
        assert!(q8 > bf16 / 2 && q8 < bf16 * 6 / 10, "{q8} of {bf16}");
        let omni = ModelShape::find("qwen2.5-omni-3b").unwrap();
        let weights = omni.decoder_bytes(WeightDtype::Bf16) as f64 / 2.0;
        assert!((weights / 1e9 - 3.4).abs() < 0.02, "{weights}");
        let position = omni.decoder.kv_shape().bytes_per_position(wnw_kv::KvDtype::Bf16);
        assert_eq!(position, 36_864);
        let small = ModelShape::find("voxtral-small-24b").unwrap().decoder_bytes(WeightDtype::Bf16);
        assert!((46_000_000_000..48_000_000_000).contains(&small), "{small}");
    }
}
