//! What comes before decoding: reading audio, log-mel, encoder, prefill.

use std::ops::ControlFlow;
use std::time::Instant;

use serde::Serialize;
use wnw_audio::{AudioStream, DecodeOptions, LogMel, Mel, SAMPLE_RATE, Source};
use wnw_kv::policies::Full;
use wnw_kv::{KvDtype, KvStore, PromptLayout, StoreOptions};
use wnw_model::config::DecoderConfig;
use wnw_model::families::voxtral::VoxtralConfig;
use wnw_model::shapes;
use wnw_model::{AudioEncoder, Decoder, WeightDtype};

use crate::error::BenchError;
use crate::random::Random;

/// Rows that a prefill's last layer computes above its keys and values, at most: those of the last block.
const LAST_BLOCK: usize = 256;

/// How fast a stage went through its audio.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    /// What it was.
    pub stage: &'static str,
    /// Seconds of audio.
    pub audio_seconds: f64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Seconds of audio in a second.
    pub times_real_time: f64,
    /// Seconds taken for a second of audio.
    pub real_time_factor: f64,
    /// 10^9 operations that its matrix products need.
    pub gflop: Option<f64>,
    /// That in a second.
    pub gflops: Option<f64>,
    /// Layers that were run, where that is not all of the model: real-time factors are then of these alone.
    pub layers: Option<usize>,
}

impl Stage {
    fn new(stage: &'static str, audio_seconds: f64, seconds: f64, operations: Option<f64>) -> Self {
        let gflop = operations.map(|n| n / 1e9);
        Self {
            stage,
            audio_seconds,
            seconds,
            times_real_time: audio_seconds / seconds,
            real_time_factor: seconds / audio_seconds,
            gflop,
            gflops: gflop.map(|n| n / seconds),
            layers: None,
        }
    }
}

/// Prefill of a prompt of this much audio, with the full cache. The states are random.
pub fn prefill(
    decoder: &Decoder,
    config: &DecoderConfig,
    tokens_per_second: f64,
    seconds: f64,
    kv_dtype: KvDtype,
) -> Result<Stage, BenchError> {
    let layout = PromptLayout::around(4, (seconds * tokens_per_second).round() as usize);
    let n = layout.len();
    let states = Random::new(n as u64).noise(n * config.hidden_size);
    let options = StoreOptions { dtype: kv_dtype, ..StoreOptions::default() };
    let mut store = KvStore::new(config.kv_shape(), layout, &options);
    let clock = Instant::now();
    decoder.prefill(states, 1, &mut store, &mut Full, &mut |_| ControlFlow::Continue(()))?;
    let seconds_taken = clock.elapsed().as_secs_f64();
    Ok(Stage::new("prefill", seconds, seconds_taken, Some(prefill_operations(config, n))))
}

/// Operations of a prefill of `n` positions, causal attention counted without what the mask hides.
pub fn prefill_operations(config: &DecoderConfig, n: usize) -> f64 {
    let d = config;
    let (h, q, kv) = (d.hidden_size, d.n_q_heads * d.head_dim, d.n_kv_heads * d.head_dim);
    let (keys, rest) = (2 * h * kv, 2 * h * q + 3 * h * d.intermediate_size);
    let attention = |first: usize| {
        let pairs = (n * (n + 1) - first * (first + 1)) as f64 / 2.0;
        4.0 * pairs * q as f64
    };
    let layer =
        |rows: usize| 2.0 * (keys as f64 * n as f64 + rest as f64 * rows as f64) + attention(n - rows);
    let last = if n == 0 { 0 } else { n - (n - 1) / LAST_BLOCK * LAST_BLOCK };
    (d.n_layers - 1) as f64 * layer(n) + layer(last)
}

/// Encoder and projector on `chunks` chunks of 30 s. The mel frames are random.
pub fn encoder(
    encoder: &dyn AudioEncoder,
    config: &VoxtralConfig,
    chunks: usize,
) -> Result<Stage, BenchError> {
    let (n_mels, n_frames) = (config.encoder.n_mels, encoder.block_frames());
    let mel = Mel { data: Random::new(1).noise(n_mels * n_frames), n_mels, n_frames };
    let clock = Instant::now();
    for _ in 0..chunks {
        let states = encoder.encode(&mel, 0..n_frames, &mut || ControlFlow::Continue(()))?;
        std::hint::black_box(encoder.project(&states));
    }
    let seconds = clock.elapsed().as_secs_f64();
    let audio = chunks as f64 * 30.0;
    Ok(Stage::new("encoder", audio, seconds, Some(chunks as f64 * encoder_operations(config))))
}

/// Operations of encoder and projector for one chunk.
pub fn encoder_operations(config: &VoxtralConfig) -> f64 {
    let e = &config.encoder;
    let (t, d, i) = (e.max_positions as f64, e.hidden_size as f64, e.intermediate_size as f64);
    let convolutions = 2.0 * 3.0 * (2.0 * t * e.n_mels as f64 * d + t * d * d);
    let layer = 2.0 * t * (4.0 * d * d + 2.0 * d * i) + 4.0 * t * t * d;
    let (h, tokens) = (config.decoder.hidden_size as f64, config.tokens_per_chunk() as f64);
    let projector = 2.0 * tokens * (config.projector_input as f64 * h + h * h);
    convolutions + e.n_layers as f64 * layer + projector
}

/// Log-mel of this much noise, on one thread.
pub fn mel(seconds: f64) -> Result<Stage, BenchError> {
    let samples = Random::new(2).noise((seconds * f64::from(SAMPLE_RATE)) as usize);
    mel_of(&samples)
}

fn mel_of(samples: &[f32]) -> Result<Stage, BenchError> {
    let features = LogMel::voxtral();
    let clock = Instant::now();
    let mel = features.compute(samples).map_err(|e| BenchError::Parameter(e.to_string()))?;
    let taken = clock.elapsed().as_secs_f64();
    std::hint::black_box(mel);
    Ok(Stage::new("mel", samples.len() as f64 / f64::from(SAMPLE_RATE), taken, None))
}

/// Decoding a recording to 16 kHz mono, its log-mel, and both together, on one thread.
pub fn decode_audio(source: &Source) -> Result<[Stage; 3], BenchError> {
    let clock = Instant::now();
    let decoded =
        AudioStream::open(source.clone(), &DecodeOptions::default()).and_then(AudioStream::read_all)?;
    let taken = clock.elapsed().as_secs_f64();
    let audio = decoded.samples.len() as f64 / f64::from(SAMPLE_RATE);
    let mel = mel_of(&decoded.samples)?;
    let both = Stage::new("decode-audio and mel", audio, taken + mel.seconds, None);
    Ok([Stage::new("decode-audio", audio, taken, None), mel, both])
}

/// A random encoder of this shape, with only the first `layers` layers if that is given.
pub fn random_encoder(
    config: &VoxtralConfig,
    dtype: WeightDtype,
    layers: Option<usize>,
) -> Result<(Box<dyn AudioEncoder>, VoxtralConfig), BenchError> {
    let mut config = config.clone();
    config.encoder.n_layers = layers.unwrap_or(config.encoder.n_layers);
    Ok((shapes::random_encoder(&config, dtype, 1)?, config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wnw_model::shapes::ModelShape;

    #[test]
    fn operations_are_those_of_the_products() {
        let mut config = ModelShape::find("tiny").unwrap().decoder;
        config.n_layers = 2;
        // One position: every weight of both layers once, and one key for each of 8 query heads of 32.
        let weights = 2 * (160 * 128 * 2 + 160 * 256 * 2 + 3 * 160 * 480);
        assert_eq!(prefill_operations(&config, 1), (2 * weights + 2 * 4 * 256) as f64);
        // 300 positions: the last layer's queries are those of the last 44.
        let keys = 2.0 * 300.0 * (2 * 160 * 128) as f64;
        let rest = |rows: f64| 2.0 * rows * (2 * 160 * 256 + 3 * 160 * 480) as f64;
        let pairs = |from: u64, to: u64| (from..to).map(|i| i + 1).sum::<u64>() as f64;
        let want = 2.0 * keys + rest(300.0) + rest(44.0) + 4.0 * 256.0 * (pairs(0, 300) + pairs(256, 300));
        assert_eq!(prefill_operations(&config, 300), want);
        // 0.64 G weights see each of 1500 frames.
        let mini = ModelShape::find("voxtral-mini-3b").unwrap().voxtral.unwrap();
        let operations = encoder_operations(&mini) / 1e12;
        assert!((operations - 2.3).abs() < 0.1, "{operations}");
    }

    #[test]
    fn stages_run_on_the_tiny_shape() {
        let shape = ModelShape::find("tiny").unwrap();
        let decoder = Decoder::random(&shape.decoder, WeightDtype::Bf16, 1, |_, _| {}).unwrap();
        let stage = prefill(&decoder, &shape.decoder, 12.5, 10.0, KvDtype::Bf16).unwrap();
        assert!(stage.gflops > Some(0.0) && (stage.audio_seconds, stage.layers) == (10.0, None));
        assert!((stage.times_real_time * stage.real_time_factor - 1.0).abs() < 1e-9);
        let (made, config) = random_encoder(&shape.voxtral.unwrap(), WeightDtype::Bf16, Some(1)).unwrap();
        assert_eq!(config.encoder.n_layers, 1);
        assert!(encoder(&*made, &config, 1).unwrap().gflops > Some(0.0));
        assert!(mel(2.0).unwrap().times_real_time > 1.0);
    }
}
