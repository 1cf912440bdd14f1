//! What a recording will need, from the configuration alone.

use serde::Serialize;
use wnw_kv::KvDtype;

use crate::checkpoint::Naming;
use crate::families::Family;
use crate::linear::WeightDtype;

/// Bytes that one window of a recording needs, by part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MemoryPlan {
    /// Seconds of audio in the window.
    pub seconds: f64,
    /// Positions of the prompt and the longest answer.
    pub positions: u64,
    /// Encoder and projector weights.
    pub encoder_weights: u64,
    /// Decoder layers and output layer, in the type asked for.
    pub decoder_weights: u64,
    /// Token embeddings: the pages around the rows that are read, at most the whole table (2 bytes an element assumed).
    pub embeddings: u64,
    /// Keys and values on the device: of all positions, or of a part of the audio and of the text.
    pub kv: u64,
    /// Keys and values on the host, at most; 0 with the full cache.
    pub host_kv: u64,
    /// Prefill: the states of the prompt in f32, and one layer's full keys and values.
    pub prefill: u64,
    /// Encoder: one chunk's states and the mel frames of the window.
    pub encoding: u64,
    /// Samples of the window, f32 at 16 kHz.
    pub samples: u64,
    /// The program itself: its code, the embedded model, buffers.
    pub program: u64,
    /// Sum of what is alive at the worst moment.
    pub total: u64,
}

/// What the program takes before any model is loaded, and beside it.
const PROGRAM_BYTES: u64 = 25 << 20;

/// Bytes that come in from a mapped file when one row of it is read: Linux maps 16 pages around a fault.
const PAGES_AROUND_A_ROW: u64 = 64 << 10;

/// Prompt positions that are not audio, at most (instruction, language, control tokens).
pub(crate) const TEXT_POSITIONS: usize = 64;

impl MemoryPlan {
    /// The plan for one window of `seconds`, with `max_new_tokens` for the answer.
    pub fn new(
        family: &dyn Family,
        dtype: WeightDtype,
        kv_dtype: KvDtype,
        seconds: f64,
        max_new_tokens: u64,
    ) -> Self {
        let d = family.decoder();
        let prompt = audio_tokens(family, seconds) + TEXT_POSITIONS as u64;
        let positions = (prompt + max_new_tokens).min(d.max_positions as u64).max(prompt);

        // What `ModelFiles::load_parts` chooses for a bf16 checkpoint.
        let encoder_dtype = if dtype == WeightDtype::F32 { WeightDtype::F32 } else { WeightDtype::Bf16 };
        let m = |dtype: WeightDtype, n: usize, k: usize| dtype.matrix_bytes(n, k);
        let tensors = family.encoder_tensors(Naming::HuggingFace);
        // Biases, norms and the table of positions are held in f32.
        let encoder_weights = tensors.iter().map(|(name, shape)| match shape[..] {
            [n, ref k @ ..] if !k.is_empty() && !name.contains("positions") => {
                m(encoder_dtype, n, k.iter().product())
            }
            _ => 4 * shape.iter().product::<usize>() as u64,
        });
        let encoder_weights = encoder_weights.sum();

        let (h, q, kv) = (d.hidden_size, d.n_q_heads * d.head_dim, d.n_kv_heads * d.head_dim);
        let decoder_layer =
            m(dtype, q, h) + 2 * m(dtype, kv, h) + m(dtype, h, q) + 3 * m(dtype, d.intermediate_size, h);
        let decoder_weights = d.n_layers as u64 * decoder_layer + m(dtype, d.vocab_size, h);

        let kv_bytes = positions * d.kv_shape().bytes_per_position(kv_dtype);
        let prefill = prompt * (h as u64 + 2 * kv as u64 + d.head_dim as u64) * 4;
        let samples = samples(seconds);
        let mel = (family.features().frames(samples) * family.encoder().n_mels * 4) as u64;
        let chunk = family.encoding_bytes(samples);
        let samples = samples as u64 * 4;
        let read = (TEXT_POSITIONS as u64 + max_new_tokens) * PAGES_AROUND_A_ROW;
        let embeddings = ((d.vocab_size * h * 2) as u64).min(read);
        let weights = encoder_weights + decoder_weights + embeddings;
        Self {
            seconds,
            positions,
            encoder_weights,
            decoder_weights,
            embeddings,
            kv: kv_bytes,
            host_kv: 0,
            prefill,
            encoding: mel + chunk,
            samples,
            program: PROGRAM_BYTES,
            total: PROGRAM_BYTES + weights + samples + (kv_bytes + prefill).max(mel + chunk),
        }
    }
}

impl MemoryPlan {
    /// The same when `r_gpu` of the audio's keys and values stay on the device, and the rest of `tidal` of the heads on the
    /// host, which here is memory too.
    pub fn keeping(mut self, family: &dyn Family, kv_dtype: KvDtype, r_gpu: f64, tidal: f64) -> Self {
        let row = family.decoder().kv_shape().bytes_per_position(kv_dtype);
        let audio = audio_tokens(family, self.seconds) * row;
        let (full, part) = (self.kv, |share: f64| (audio as f64 * share).ceil() as u64);
        self.kv = full - audio + part(r_gpu);
        self.host_kv = part((1.0 - r_gpu) * tidal);
        // While the last layers run, the first have their part already.
        let worst = (self.kv + self.host_kv + self.prefill).max(self.encoding);
        self.total = self.total - (full + self.prefill).max(self.encoding) + worst;
        self
    }
}

fn samples(seconds: f64) -> usize {
    ((seconds * f64::from(wnw_audio::SAMPLE_RATE)).round() as usize).max(1)
}

fn audio_tokens(family: &dyn Family, seconds: f64) -> u64 {
    family.audio_tokens(samples(seconds)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::voxtral::VoxtralConfig;
    use std::path::Path;

    /// Figures of spec sheets: KV of Voxtral Mini is 122,880 bytes a position in bf16; decoder 3.21 G + 0.40 G weights.
    #[test]
    fn voxtral_mini_for_half_an_hour() {
        let params = br#"{"dim":3072,"n_layers":30,"head_dim":128,"hidden_dim":8192,"n_heads":32,"n_kv_heads":8,
            "rope_theta":1e8,"norm_eps":1e-5,"vocab_size":131072,"multimodal":{"whisper_model_args":{"encoder_args":{
            "dim":1280,"n_layers":32,"head_dim":64,"hidden_dim":5120,"n_heads":20,"max_source_positions":1500},
            "downsample_args":{"downsample_factor":4}}}}"#;
        let config = VoxtralConfig::from_params_json(params, Path::new("params.json")).unwrap();
        let plan = MemoryPlan::new(&config, WeightDtype::Bf16, KvDtype::Bf16, 1800.0, 0);
        assert_eq!(plan.positions, 60 * 375 + TEXT_POSITIONS as u64);
        assert_eq!(plan.kv, plan.positions * 122_880);
        assert!((plan.decoder_weights as f64 / 2e9 - 3.61).abs() < 0.02, "{}", plan.decoder_weights);
        assert!((plan.encoder_weights as f64 / 2e9 - 0.664).abs() < 0.02, "{}", plan.encoder_weights);
        let part = plan.keeping(&config, KvDtype::Bf16, 0.2, 0.3);
        let audio = 60 * 375 * 122_880;
        assert_eq!((part.kv, part.host_kv), (plan.kv - audio + audio / 5, audio * 24 / 100));
        assert_eq!(plan.total - part.total, plan.kv - part.kv - part.host_kv);
        assert_eq!(plan.keeping(&config, KvDtype::Bf16, 1.0, 0.3).total, plan.total);
        for (kv_dtype, bytes) in
            [(KvDtype::Int8, 30 * 8 * 2 * (4 + 128)), (KvDtype::Int4, 30 * 8 * 2 * 4 * (4 + 16))]
        {
            let quantised = MemoryPlan::new(&config, WeightDtype::Bf16, kv_dtype, 1800.0, 0);
            assert_eq!(quantised.kv, plan.positions * bytes);
        }
        let small = MemoryPlan::new(&config, WeightDtype::Q8_0, KvDtype::Bf16, 1800.0, 0);
        assert!((small.decoder_weights as f64 / plan.decoder_weights as f64 - 8.5 / 16.0).abs() < 1e-3);
    }
}
