//! Any sampling rate to 16 kHz, with the filter's delay taken out, so that times hold.

use rubato::audioadapter_buffers::direct::SequentialSlice;
use rubato::{Fft, FixedSync, Resampler as _};

use crate::SAMPLE_RATE;

/// Frames the transform takes at a time, at least: longer gives a steeper filter.
const CHUNK: usize = 2_048;

/// Frames of a chunk: a power of two times the smallest that both rates allow, for which transforms are fast. Never an
/// odd number, whose half, the delay, would not be whole.
fn chunk(rate: u32) -> usize {
    let gcd = (1..).scan((rate, SAMPLE_RATE), |(a, b), _: u32| {
        (*b != 0).then(|| {
            (*a, *b) = (*b, *a % *b);
            *a
        })
    });
    let unit = (rate / gcd.last().unwrap_or(1)) as usize;
    unit * CHUNK.div_ceil(unit).next_power_of_two().max(2)
}

/// Streams mono samples of one rate to 16 kHz.
pub(crate) struct Resampler {
    /// `None` at 16 kHz: samples pass untouched.
    fft: Option<Box<Fft<f32>>>,
    rate: u32,
    input: Vec<f32>,
    output: Vec<f32>,
    consumed: u64,
    produced: u64,
    /// Output samples still to be dropped: the filter's delay.
    skip: usize,
}

impl Resampler {
    /// A resampler from `rate` Hz; `None` for a rate that cannot be converted.
    pub fn new(rate: u32) -> Option<Self> {
        let fft = match rate {
            SAMPLE_RATE => None,
            rate => Some(Box::new(
                Fft::new(rate as usize, SAMPLE_RATE as usize, chunk(rate), 1, FixedSync::Both).ok()?,
            )),
        };
        let (skip, room) = fft.as_ref().map_or((0, 0), |f| (f.output_delay(), f.output_frames_max()));
        Some(Self { fft, rate, input: Vec::new(), output: vec![0.0; room], consumed: 0, produced: 0, skip })
    }

    /// The rate it takes, in Hz.
    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// Takes samples and appends what is ready at 16 kHz to `out`.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.consumed += samples.len() as u64;
        if self.fft.is_none() {
            self.produced += samples.len() as u64;
            out.extend_from_slice(samples);
            return;
        }
        self.input.extend_from_slice(samples);
        self.run(out);
    }

    /// Ends the stream: appends what is still inside. In total round(consumed × 16000 ÷ rate) samples came out.
    pub fn finish(mut self, out: &mut Vec<f32>) {
        let Some(chunk) = self.fft.as_ref().map(|f| f.input_frames_max()) else { return };
        let rate = u128::from(self.rate);
        let total = ((u128::from(self.consumed) * u128::from(SAMPLE_RATE) + rate / 2) / rate) as u64;
        while self.produced < total {
            let before = self.produced;
            let room = self.input.len().next_multiple_of(chunk).max(chunk);
            self.input.resize(room, 0.0);
            self.run(out);
            if self.produced == before && self.skip == 0 {
                break;
            }
        }
        out.truncate(out.len() - (self.produced.saturating_sub(total)) as usize);
    }

    fn run(&mut self, out: &mut Vec<f32>) {
        let Some(fft) = &mut self.fft else { return };
        let mut at = 0;
        loop {
            let need = fft.input_frames_next();
            let Some(chunk) = self.input.get(at..at + need) else { break };
            let room = self.output.len();
            let adapters =
                (SequentialSlice::new(chunk, 1, need), SequentialSlice::new_mut(&mut self.output, 1, room));
            let (Ok(from), Ok(mut to)) = adapters else { break };
            // Fails only for buffers of the wrong size, which these are not.
            let Ok((_, got)) = fft.process_into_buffer(&from, &mut to, None) else { break };
            at += need;
            let skip = self.skip.min(got);
            self.skip -= skip;
            self.produced += (got - skip) as u64;
            out.extend_from_slice(&self.output[skip..got]);
        }
        self.input.drain(..at);
    }
}
