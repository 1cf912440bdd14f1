//! Log-mel frames, exactly as the model families define them.
//!
//! Both families use Whisper's features: a periodic Hann window of 25 ms every 10 ms, centred with reflection at the
//! edges, power spectrum, Slaney's mel filters, log10 with a floor eight decades below the loudest value of the whole
//! utterance, and (x + 4) / 4. They differ in how a recording is padded and which frames are kept: [`Padding`].

use std::sync::Arc;

use realfft::{RealFftPlanner, RealToComplex};
use thiserror::Error;

/// What is put behind a recording, and which frames come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// Zeros up to the next multiple of so many samples; the frames of the zeros are returned too.
    ToMultiple(usize),
    /// Zeros up to so many samples, the longest recording accepted; only frames that start within the recording,
    /// ceil(samples ÷ hop), are returned.
    ToLength(usize),
}

/// The parameters of a log-mel transform.
#[derive(Debug, Clone, PartialEq)]
pub struct MelParameters {
    /// Samples of a window and length of the transform.
    pub n_fft: usize,
    /// Samples from one frame to the next.
    pub hop: usize,
    /// Mel bands.
    pub n_mels: usize,
    /// Lowest frequency of the first band in Hz.
    pub low: f64,
    /// Highest frequency of the last band in Hz.
    pub high: f64,
    /// Powers are at least this before the logarithm.
    pub floor: f64,
    /// Decades below the loudest value of the utterance at which values are cut off.
    pub range: f64,
    /// Padding at the end.
    pub padding: Padding,
}

impl MelParameters {
    /// Voxtral (Mini 3B and Small 24B): Whisper large-v3's features in whole chunks of 30 s.
    pub fn voxtral() -> Self {
        Self {
            n_fft: 400,
            hop: 160,
            n_mels: 128,
            low: 0.0,
            high: 8_000.0,
            floor: 1e-10,
            range: 8.0,
            padding: Padding::ToMultiple(480_000),
        }
    }

    /// Qwen2.5-Omni: the same, but for a single clip of up to 300 s, without frames for the padding.
    pub fn qwen2_5_omni() -> Self {
        Self { padding: Padding::ToLength(4_800_000), ..Self::voxtral() }
    }
}

/// Log-mel frames.
#[derive(Debug, Clone, PartialEq)]
pub struct Mel {
    /// Values, shape (`n_mels`, `n_frames`), row-major: all frames of the lowest band first.
    pub data: Vec<f32>,
    /// Mel bands.
    pub n_mels: usize,
    /// Frames.
    pub n_frames: usize,
}

/// Why there are no mel frames.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum MelError {
    /// No samples.
    #[error("no samples to compute mel frames from")]
    Empty,
    /// More samples than one clip of the model may have.
    #[error("{samples} samples are more than the {limit} of one clip; cut the recording into windows")]
    TooLong {
        /// Samples given.
        samples: usize,
        /// Samples accepted.
        limit: usize,
    },
}

/// A prepared log-mel transform of 16 kHz samples.
#[derive(Clone)]
pub struct LogMel {
    parameters: MelParameters,
    /// Periodic Hann.
    window: Vec<f64>,
    /// For each band the first bin and the weights from there.
    bands: Vec<(usize, Vec<f64>)>,
    fft: Arc<dyn RealToComplex<f64>>,
}

/// Frames computed before they are written out by bands.
const BLOCK: usize = 16;

impl LogMel {
    /// The transform with these parameters.
    pub fn new(parameters: MelParameters) -> Self {
        let n = parameters.n_fft;
        let window =
            (0..n).map(|i| 0.5 - 0.5 * (std::f64::consts::TAU * i as f64 / n as f64).cos()).collect();
        let fft = RealFftPlanner::new().plan_fft_forward(n);
        Self { window, bands: bands(&parameters), fft, parameters }
    }

    /// See [`MelParameters::voxtral`].
    pub fn voxtral() -> Self {
        Self::new(MelParameters::voxtral())
    }

    /// See [`MelParameters::qwen2_5_omni`].
    pub fn qwen2_5_omni() -> Self {
        Self::new(MelParameters::qwen2_5_omni())
    }

    /// The parameters.
    pub fn parameters(&self) -> &MelParameters {
        &self.parameters
    }

    /// Frames that [`compute`](Self::compute) returns for so many samples.
    pub fn frames(&self, samples: usize) -> usize {
        match self.parameters.padding {
            Padding::ToMultiple(n) => samples.next_multiple_of(n) / self.parameters.hop,
            Padding::ToLength(_) => samples.div_ceil(self.parameters.hop),
        }
    }

    /// Log-mel frames of one utterance of mono samples at 16 kHz.
    ///
    /// # Errors
    /// [`MelError::Empty`] without samples, [`MelError::TooLong`] beyond [`Padding::ToLength`].
    pub fn compute(&self, samples: &[f32]) -> Result<Mel, MelError> {
        let p = &self.parameters;
        if samples.is_empty() {
            return Err(MelError::Empty);
        }
        let padded = match p.padding {
            Padding::ToMultiple(n) => samples.len().next_multiple_of(n),
            Padding::ToLength(limit) if samples.len() > limit => {
                return Err(MelError::TooLong { samples: samples.len(), limit });
            }
            Padding::ToLength(limit) => limit,
        };
        let (n_mels, n_frames) = (p.n_mels, self.frames(samples.len()));
        // The loudest value counts over all frames of the padded recording, also those that are not returned.
        let touched = ((samples.len() + p.n_fft / 2).div_ceil(p.hop)).min(padded / p.hop).max(n_frames);
        let lowest = p.floor.log10() as f32;
        let mut data = vec![lowest; n_mels * n_frames];
        let mut loudest = lowest;
        let mut frame = self.fft.make_input_vec();
        let mut spectrum = self.fft.make_output_vec();
        let mut scratch = self.fft.make_scratch_vec();
        let mut power = vec![0.0; spectrum.len()];
        let mut block = vec![0f32; n_mels * BLOCK];
        for first in (0..touched).step_by(BLOCK) {
            let here = BLOCK.min(touched - first);
            for j in 0..here {
                self.window(samples, padded, first + j, &mut frame);
                // Fails only for buffers of the wrong size, and these are the transform's own.
                if self.fft.process_with_scratch(&mut frame, &mut spectrum, &mut scratch).is_err() {
                    spectrum.fill(Default::default());
                }
                for (power, bin) in power.iter_mut().zip(&spectrum) {
                    *power = bin.norm_sqr();
                }
                for (band, (start, weights)) in self.bands.iter().enumerate() {
                    let sum: f64 = weights.iter().zip(&power[*start..]).map(|(w, x)| w * x).sum();
                    let value = sum.max(p.floor).log10() as f32;
                    loudest = loudest.max(value);
                    block[band * BLOCK + j] = value;
                }
            }
            // Frames past those that are returned may begin a block of their own, of which nothing is kept.
            let kept = here.min(n_frames.saturating_sub(first));
            for band in (0..n_mels).filter(|_| kept > 0) {
                let at = band * n_frames + first;
                data[at..at + kept].copy_from_slice(&block[band * BLOCK..][..kept]);
            }
        }
        let cut = loudest - p.range as f32;
        data.iter_mut().for_each(|x| *x = (x.max(cut) + 4.0) / 4.0);
        Ok(Mel { data, n_mels, n_frames })
    }

    /// Writes the windowed samples of frame `index`: centred, reflected at both ends of the padded recording.
    fn window(&self, samples: &[f32], padded: usize, index: usize, out: &mut [f64]) {
        let half = self.parameters.n_fft / 2;
        let start = index * self.parameters.hop;
        if start >= half
            && let Some(inside) = samples.get(start - half..start + half)
        {
            for ((out, x), w) in out.iter_mut().zip(inside).zip(&self.window) {
                *out = f64::from(*x) * w;
            }
            return;
        }
        for (i, (out, w)) in out.iter_mut().zip(&self.window).enumerate() {
            // Position in the padded recording, mirrored around its first and last sample.
            let at = (start + i).abs_diff(half);
            let at = if at < padded { at } else { (2 * (padded - 1)).saturating_sub(at) };
            *out = f64::from(samples.get(at).copied().unwrap_or(0.0)) * w;
        }
    }
}

/// Triangular filters on Slaney's mel scale, each of the same area.
fn bands(p: &MelParameters) -> Vec<(usize, Vec<f64>)> {
    let (low, high) = (mel(p.low), mel(p.high));
    let edges: Vec<f64> =
        (0..p.n_mels + 2).map(|i| hertz(low + (high - low) * i as f64 / (p.n_mels + 1) as f64)).collect();
    let bin = f64::from(crate::SAMPLE_RATE) / p.n_fft as f64;
    edges
        .windows(3)
        .map(|e| {
            let weight = |f: f64| ((f - e[0]) / (e[1] - e[0])).min((e[2] - f) / (e[2] - e[1])).max(0.0);
            let weights: Vec<f64> =
                (0..=p.n_fft / 2).map(|k| weight(k as f64 * bin) * 2.0 / (e[2] - e[0])).collect();
            let start = weights.iter().position(|w| *w > 0.0).unwrap_or(0);
            let end = weights.iter().rposition(|w| *w > 0.0).map_or(start, |i| i + 1);
            (start, weights[start..end].to_vec())
        })
        .collect()
}

/// Slaney's mel scale: linear below 1 kHz, logarithmic above.
const LINEAR: f64 = 3.0 / 200.0;
const BREAK_HZ: f64 = 1_000.0;
const BREAK_MEL: f64 = 15.0;

fn step() -> f64 {
    6.4f64.ln() / 27.0
}

fn mel(hertz: f64) -> f64 {
    if hertz >= BREAK_HZ { BREAK_MEL + (hertz / BREAK_HZ).ln() / step() } else { hertz * LINEAR }
}

fn hertz(mel: f64) -> f64 {
    if mel >= BREAK_MEL { BREAK_HZ * ((mel - BREAK_MEL) * step()).exp() } else { mel / LINEAR }
}
