//! Whether a token late in a recording costs more than an early one.

use serde::Serialize;
use wnw_kv::{HostPlace, KvDtype, SwapMode};
use wnw_model::shapes::ModelShape;
use wnw_model::{Decoder, StepBuffers, WeightDtype};

use crate::decode::measured_step;
use crate::error::BenchError;
use crate::session::{BenchSession, KvArm, SessionOptions};
use crate::statistics::{mean, median};
use crate::sweep::{SweepKind, TOKENS_PER_SECOND};

/// Steps at a new place before any is measured: what was recalled for the old one has left.
const SETTLE: usize = 8;

/// What is measured.
#[derive(Clone, Debug)]
pub struct GrowthOptions {
    /// Sizes of the model.
    pub shape: ModelShape,
    /// Type of its weights.
    pub dtype: WeightDtype,
    /// Type of keys and values.
    pub kv_dtype: KvDtype,
    /// Seconds of audio, all in one pass.
    pub seconds: f64,
    /// The early and the late moment, in seconds.
    pub moments: [f64; 2],
    /// KV method.
    pub arm: KvArm,
    /// Steps at each moment.
    pub steps: usize,
    /// When recalled rows are copied.
    pub swap: SwapMode,
    /// Where the host tier lies.
    pub host_place: HostPlace,
    /// Same seed, same weights, keys, values and script.
    pub seed: u64,
}

impl GrowthOptions {
    fn session(&self) -> SessionOptions {
        SessionOptions {
            shape: self.shape.decoder.kv_shape(),
            hidden_size: self.shape.decoder.hidden_size,
            tokens_per_second: self.shape.tokens_per_second,
            seconds: self.seconds,
            arm: self.arm,
            kv_dtype: self.kv_dtype,
            host_place: self.host_place.clone(),
            swap: self.swap,
            sweep: SweepKind::Speech,
            start: self.moments[0],
            seed: self.seed,
        }
    }

    /// Text tokens written by a moment.
    fn written(moment: f64) -> usize {
        (moment * TOKENS_PER_SECOND) as usize
    }

    /// Memory that is needed, about.
    pub fn bytes_needed(&self) -> u64 {
        let session = self.session();
        let text = Self::written(self.moments[1]) as u64 * session.shape.bytes_per_position(self.kv_dtype);
        self.shape.decoder_bytes(self.dtype) + session.kept_bytes() + session.working_bytes() + text
    }

    /// Positions that the session comes to.
    pub fn positions_needed(&self) -> usize {
        self.session().prompt_rows() + Self::written(self.moments[1]) + 3 * (SETTLE + self.steps)
    }
}

/// Steps at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// Where in the audio, in seconds.
    pub at_seconds: f64,
    /// Text positions in the cache before the first of these steps.
    pub text: usize,
    /// Milliseconds of a step, median.
    pub ms_median: f64,
    /// Of which keys and values.
    pub kv_ms_median: f64,
    /// Bytes of keys and values read in a step, mean.
    pub kv_bytes: f64,
    /// Share of audio rows on the device, mean.
    pub r_gpu: f64,
}

/// An early and a late moment of one recording.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Growth {
    /// The early one.
    pub early: Moment,
    /// The early one once more, with the text that is there at the late one: what text alone adds.
    pub early_with_late_text: Moment,
    /// The late one.
    pub late: Moment,
    /// What the late moment's step takes more than the early one's, as a share.
    pub growth: f64,
    /// Of that, what is not due to text.
    pub growth_beyond_text: f64,
}

/// Measures a step at both moments. `before` is told what is about to be measured.
pub fn run(
    decoder: &Decoder,
    options: &GrowthOptions,
    before: &mut dyn FnMut(&str),
) -> Result<Growth, BenchError> {
    before("filling");
    let mut sessions = [BenchSession::new(&options.session())?];
    let mut buffers = decoder.step_buffers();
    let [first, last] = options.moments;
    let mut at = |moment: f64, text: usize| {
        before(&format!("the moment {moment} s, {text} tokens written"));
        measure(decoder, &mut sessions, &mut buffers, options, moment, text)
    };
    let early = at(first, GrowthOptions::written(first))?;
    let late = at(last, GrowthOptions::written(last))?;
    let early_with_late_text = at(first, GrowthOptions::written(last))?;
    let more = |a: &Moment, b: &Moment| (a.ms_median - b.ms_median) / early.ms_median;
    Ok(Growth {
        early,
        early_with_late_text,
        late,
        growth: more(&late, &early),
        growth_beyond_text: more(&late, &early_with_late_text),
    })
}

fn measure(
    decoder: &Decoder,
    sessions: &mut [BenchSession; 1],
    buffers: &mut StepBuffers,
    options: &GrowthOptions,
    moment: f64,
    text: usize,
) -> Result<Moment, BenchError> {
    let prompt = options.session().prompt_rows();
    let session = &mut sessions[0];
    session.write((prompt + text).saturating_sub(session.position))?;
    session.sweep.go_to(moment);
    let written = session.position - prompt;
    for _ in 0..SETTLE {
        measured_step(decoder, sessions, buffers)?;
    }
    // Settling moves the centre on; the steps that count begin at the moment.
    sessions[0].sweep.go_to(moment);
    let (mut total, mut kv, mut bytes, mut r_gpu) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.steps {
        let new = sessions[0].store.shape().bytes_per_position(options.kv_dtype);
        bytes.push((sessions[0].bytes_read(options.kv_dtype) + new) as f64);
        r_gpu.push(sessions[0].store.report().r_gpu);
        let (ms, attention, _) = measured_step(decoder, sessions, buffers)?;
        total.push(ms);
        kv.push(attention);
    }
    Ok(Moment {
        at_seconds: moment,
        text: written,
        ms_median: median(&total),
        kv_ms_median: median(&kv),
        kv_bytes: mean(&bytes),
        r_gpu: mean(&r_gpu),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_moment_reads_more_text_and_no_more_audio() {
        let mut shape = ModelShape::find("tiny").unwrap();
        shape.decoder.max_positions = 1 << 20;
        let options = GrowthOptions {
            shape,
            dtype: WeightDtype::Q8_0,
            kv_dtype: KvDtype::Bf16,
            seconds: 600.0,
            moments: [60.0, 560.0],
            arm: KvArm::Wnw(0.2),
            steps: 21,
            swap: SwapMode::Sync,
            host_place: HostPlace::Ram,
            seed: 1,
        };
        let decoder = Decoder::random(&options.shape.decoder, options.dtype, 1, |_, _| {}).unwrap();
        let growth = run(&decoder, &options, &mut |_| {}).unwrap();
        assert_eq!((growth.early.text, growth.late.text), (210, 1960));
        let position = options.shape.decoder.kv_shape().bytes_per_position(KvDtype::Bf16) as f64;
        let text = |m: &Moment| (m.text + SETTLE) as f64 * position;
        let audio = |m: &Moment| m.kv_bytes - text(m);
        assert!((audio(&growth.late) / audio(&growth.early) - 1.0).abs() < 0.05, "{growth:?}");
        assert!(growth.early_with_late_text.text >= 1960);
        assert!((growth.late.r_gpu - growth.early.r_gpu).abs() < 0.02);
        assert!(growth.growth.is_finite() && growth.growth_beyond_text.is_finite());
    }
}
