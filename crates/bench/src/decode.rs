//! Decoding: milliseconds and bytes of a step by part, with the full cache and with WnW, alone and in batches.

use std::time::Instant;

use serde::Serialize;
use wnw_engine::{Sampler, Sampling};
use wnw_kv::{HostPlace, KvDtype, SwapMode};
use wnw_model::shapes::ModelShape;
use wnw_model::{Decoder, StepBuffers, StepSession, WeightDtype};

use crate::error::BenchError;
use crate::session::{BenchSession, KvArm, SessionOptions};
use crate::statistics::{mean, median, quantile};
use crate::sweep::SweepKind;

/// Steps before any is measured: pages are touched, caches and buffers have their sizes.
const WARM_UP: usize = 3;
/// Steps with a moving and with a resting centre in turns, when the cost of recall is wanted: two seconds of speech each, so
/// that a segment is recalled in every turn.
const TURN: usize = 7;
/// Where the script begins: far enough in for a whole neighbourhood on both sides.
const START_SECONDS: f64 = 8.0;

/// What is measured.
#[derive(Clone, Debug)]
pub struct DecodeOptions {
    /// Sizes of the model.
    pub shape: ModelShape,
    /// Type of its weights.
    pub dtype: WeightDtype,
    /// Type of keys and values.
    pub kv_dtype: KvDtype,
    /// Lengths of audio in seconds.
    pub audio: Vec<f64>,
    /// KV methods.
    pub arms: Vec<KvArm>,
    /// Numbers of sessions that step together.
    pub batch: Vec<usize>,
    /// Steps measured.
    pub steps: usize,
    /// How attention moves.
    pub sweep: SweepKind,
    /// When recalled rows are copied.
    pub swap: SwapMode,
    /// Where the host tier lies.
    pub host_place: HostPlace,
    /// Whether to measure steps in which nothing is recalled beside the others.
    pub recall_cost: bool,
    /// Same seed, same weights, keys, values and scripts.
    pub seed: u64,
}

impl DecodeOptions {
    /// A session of one of the rows.
    fn session(&self, seconds: f64, arm: KvArm, number: usize) -> SessionOptions {
        SessionOptions {
            shape: self.shape.decoder.kv_shape(),
            hidden_size: self.shape.decoder.hidden_size,
            tokens_per_second: self.shape.tokens_per_second,
            seconds,
            arm,
            kv_dtype: self.kv_dtype,
            host_place: self.host_place.clone(),
            swap: self.swap,
            sweep: self.sweep,
            start: START_SECONDS + number as f64,
            seed: self.seed + number as u64,
        }
    }

    /// Memory of the largest row, about: weights, the sessions' keys and values on both tiers, and what filling one takes.
    pub fn bytes_needed(&self) -> u64 {
        let most = self.batch.iter().copied().max().unwrap_or(1) as u64;
        let sessions = self.audio.iter().flat_map(|seconds| {
            self.arms.iter().map(move |arm| {
                let session = self.session(*seconds, *arm, 0);
                most * session.kept_bytes() + session.working_bytes()
            })
        });
        self.shape.decoder_bytes(self.dtype) + sessions.max().unwrap_or(0)
    }

    /// Positions that the longest session comes to.
    pub fn positions_needed(&self) -> usize {
        let longest = self.audio.iter().copied().fold(0.0, f64::max);
        let turns = if self.recall_cost { 2 } else { 1 };
        let steps = self.batch.len() * (WARM_UP + turns * (self.steps + TURN));
        self.session(longest, KvArm::Full, 0).prompt_rows() + steps
    }
}

/// Bytes of a step, all sessions of the batch together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepBytes {
    /// Weights, once for the batch.
    pub weights: u64,
    /// Keys and values that attention reads, mean over steps.
    pub kv: f64,
    /// Keys and values recalled from the host, mean over steps.
    pub recall: f64,
}

/// Milliseconds of a step by part: medians, so their sum need not be the median of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepParts {
    /// Products with the weights, and everything between them.
    pub weights: f64,
    /// Storing keys and values, attention, and waiting for recalled rows.
    pub kv: f64,
    /// Choosing the token, and planning and beginning the recall.
    pub plan: f64,
}

/// One combination.
#[derive(Clone, Debug, Serialize)]
pub struct DecodeRow {
    /// Seconds of audio.
    pub audio_seconds: f64,
    /// KV method.
    pub kv: &'static str,
    /// r_GPU aimed at.
    pub r_gpu_target: f64,
    /// Sessions that step together.
    pub batch: usize,
    /// How attention moved.
    pub sweep: SweepKind,
    /// When recalled rows were copied.
    pub swap: SwapMode,
    /// Steps measured.
    pub steps: usize,
    /// Milliseconds of a step: median,
    pub ms_median: f64,
    /// the value that 99 % of the steps do not exceed,
    pub ms_p99: f64,
    /// and mean.
    pub ms_mean: f64,
    /// Tokens a second of all sessions together, by the mean.
    pub tokens_per_s: f64,
    /// The median by part.
    pub parts_ms: StepParts,
    /// Bytes of a step by part.
    pub bytes: StepBytes,
    /// Bytes of all parts over the median step, in 10^9 a second.
    pub gb_per_s: f64,
    /// That over the limit.
    pub share: f64,
    /// Bytes of weights over the time of their part.
    pub weights_gb_per_s: f64,
    /// That over the limit.
    pub weights_share: f64,
    /// Bytes of keys and values over the time of their part.
    pub kv_gb_per_s: f64,
    /// That over the limit.
    pub kv_share: f64,
    /// Share of audio rows on the device, mean over steps and sessions.
    pub r_gpu: f64,
    /// 10^6 bytes recalled in a step of one session, mean.
    pub mb_per_step: f64,
    /// Milliseconds of a step spent waiting for recalled rows, or copying them, mean.
    pub recall_wait_ms: f64,
    /// Mean milliseconds of the steps in which nothing was recalled, where that was wanted.
    pub still_ms_mean: Option<f64>,
    /// What recall adds to them, as a share.
    pub recall_added: Option<f64>,
    /// Bytes that one session with the full cache would hold.
    pub full_kv_bytes: u64,
    /// Bytes that all sessions hold on the device.
    pub device_bytes: u64,
    /// Bytes that they hold on the host.
    pub host_bytes: u64,
}

/// What one step took, in milliseconds, and read.
#[derive(Clone, Copy, Debug)]
struct Step {
    total: f64,
    kv: f64,
    plan: f64,
    kv_bytes: f64,
    recalled: f64,
    r_gpu: f64,
    waited: f64,
}

/// Measures all combinations, audio lengths outermost. `limit` is what memory can be read with, in 10^9 bytes a second;
/// `before` is told what is about to be measured, `each` gets every row.
pub fn run(
    decoder: &Decoder,
    options: &DecodeOptions,
    limit: f64,
    before: &mut dyn FnMut(&str),
    each: &mut dyn FnMut(DecodeRow),
) -> Result<(), BenchError> {
    let most = options.batch.iter().copied().max().unwrap_or(1);
    let mut buffers = decoder.step_buffers();
    for seconds in &options.audio {
        for arm in &options.arms {
            let mut sessions = Vec::with_capacity(most);
            for number in 0..most {
                before(&format!("filling {} of {most} for {seconds} s, {}", number + 1, arm.name()));
                sessions.push(BenchSession::new(&options.session(*seconds, *arm, number))?);
            }
            for batch in &options.batch {
                before(&format!("{seconds} s, {}, {batch} together", arm.name()));
                let sessions = &mut sessions[..*batch];
                each(row(decoder, sessions, &mut buffers, options, (*seconds, *arm), limit)?);
            }
        }
    }
    Ok(())
}

fn row(
    decoder: &Decoder,
    sessions: &mut [BenchSession],
    buffers: &mut StepBuffers,
    options: &DecodeOptions,
    (seconds, arm): (f64, KvArm),
    limit: f64,
) -> Result<DecodeRow, BenchError> {
    let (mut moving, mut still) = (Vec::new(), Vec::new());
    for _ in 0..WARM_UP {
        step(decoder, sessions, buffers, options.kv_dtype)?;
    }
    while moving.len() < options.steps {
        let turn = if options.recall_cost { TURN.min(options.steps - moving.len()) } else { options.steps };
        for _ in 0..turn {
            moving.push(step(decoder, sessions, buffers, options.kv_dtype)?);
        }
        if options.recall_cost {
            sessions.iter_mut().for_each(|s| s.sweep.set_kind(SweepKind::Still));
            for _ in 0..turn {
                still.push(step(decoder, sessions, buffers, options.kv_dtype)?);
            }
            sessions.iter_mut().for_each(|s| s.sweep.set_kind(options.sweep));
        }
    }
    let all = |value: &dyn Fn(&Step) -> f64| moving.iter().map(value).collect::<Vec<f64>>();
    let total = all(&|s| s.total);
    let parts_ms = StepParts {
        weights: median(&all(&|s| s.total - s.kv - s.plan)),
        kv: median(&all(&|s| s.kv)),
        plan: median(&all(&|s| s.plan)),
    };
    let bytes = StepBytes {
        weights: decoder.weight_bytes(),
        kv: mean(&all(&|s| s.kv_bytes)),
        recall: mean(&all(&|s| s.recalled)),
    };
    let rate = |bytes: f64, ms: f64| if ms > 0.0 { bytes / 1e6 / ms } else { 0.0 };
    let share = |rate: f64| if limit > 0.0 { rate / limit } else { 0.0 };
    let gb_per_s = rate(bytes.weights as f64 + bytes.kv + bytes.recall, median(&total));
    let weights_gb_per_s = rate(bytes.weights as f64, parts_ms.weights);
    let kv_gb_per_s = rate(bytes.kv, parts_ms.kv);
    let still_ms_mean = options.recall_cost.then(|| mean(&still.iter().map(|s| s.total).collect::<Vec<_>>()));
    Ok(DecodeRow {
        audio_seconds: seconds,
        kv: arm.name(),
        r_gpu_target: arm.target(),
        batch: sessions.len(),
        sweep: options.sweep,
        swap: options.swap,
        steps: moving.len(),
        ms_median: median(&total),
        ms_p99: quantile(&total, 0.99),
        ms_mean: mean(&total),
        tokens_per_s: sessions.len() as f64 * 1e3 / mean(&total),
        parts_ms,
        bytes,
        gb_per_s,
        share: share(gb_per_s),
        weights_gb_per_s,
        weights_share: share(weights_gb_per_s),
        kv_gb_per_s,
        kv_share: share(kv_gb_per_s),
        r_gpu: mean(&all(&|s| s.r_gpu)),
        mb_per_step: bytes.recall / 1e6 / sessions.len() as f64,
        recall_wait_ms: mean(&all(&|s| s.waited)),
        still_ms_mean,
        recall_added: still_ms_mean.map(|still| mean(&total) / still - 1.0),
        full_kv_bytes: options.session(seconds, arm, 0).full_bytes(),
        device_bytes: sessions.iter().map(|s| s.store.device_bytes()).sum(),
        host_bytes: sessions.iter().map(|s| s.store.report().host_bytes).sum(),
    })
}

/// One step of all sessions, with what a session does between two steps: choose the token, plan, begin the recall.
pub(crate) fn measured_step(
    decoder: &Decoder,
    sessions: &mut [BenchSession],
    buffers: &mut StepBuffers,
) -> Result<(f64, f64, f64), BenchError> {
    sessions.iter_mut().for_each(|session| session.sweep.advance());
    let clock = Instant::now();
    let mut parts: Vec<StepSession<'_>> =
        sessions.iter_mut().map(|s| StepSession::new(s.token, s.position, &mut s.store)).collect();
    let logits = decoder.step_batch(&mut parts, buffers);
    let stepped = clock.elapsed();
    if let Some(error) = parts.iter_mut().find_map(|part| part.failed.take()) {
        return Err(error.into());
    }
    drop(parts);
    let width = logits.len() / sessions.len();
    let mut greedy = Sampler::new(Sampling::Greedy);
    for (session, logits) in sessions.iter_mut().zip(logits.chunks_exact(width)) {
        session.token = greedy
            .pick(logits)
            .ok_or_else(|| BenchError::Parameter("random weights gave a logit that is no number".into()))?;
        session.position += 1;
        session.plan()?;
    }
    let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
    let total = clock.elapsed();
    Ok((ms(total), ms(buffers.attention_time()), ms(total - stepped)))
}

fn step(
    decoder: &Decoder,
    sessions: &mut [BenchSession],
    buffers: &mut StepBuffers,
    kv_dtype: KvDtype,
) -> Result<Step, BenchError> {
    let state = |sessions: &[BenchSession]| {
        let reports = sessions.iter().map(|s| s.store.report());
        let recalled: u64 = reports.map(|r| r.swaps.recalled_bytes).sum();
        let waited: f64 = sessions.iter().map(|s| s.store.waited().as_secs_f64() * 1e3).sum();
        (recalled, waited)
    };
    let (recalled, waited) = state(sessions);
    let r_gpu = mean(&sessions.iter().map(|s| s.store.report().r_gpu).collect::<Vec<_>>());
    // The step stores a text row and reads it too.
    let new = sessions.iter().map(|s| s.store.shape().bytes_per_position(kv_dtype)).sum::<u64>();
    let kv_bytes = sessions.iter().map(|s| s.bytes_read(kv_dtype)).sum::<u64>() + new;
    let (total, kv, plan) = measured_step(decoder, sessions, buffers)?;
    let (recalled_after, waited_after) = state(sessions);
    Ok(Step {
        total,
        kv,
        plan,
        kv_bytes: kv_bytes as f64,
        recalled: (recalled_after - recalled) as f64,
        r_gpu,
        waited: waited_after - waited,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arms: Vec<KvArm>, batch: Vec<usize>) -> DecodeOptions {
        DecodeOptions {
            shape: ModelShape::find("tiny").unwrap(),
            dtype: WeightDtype::Q8_0,
            kv_dtype: KvDtype::Bf16,
            audio: vec![60.0],
            arms,
            batch,
            steps: 14,
            sweep: SweepKind::Speech,
            swap: SwapMode::Overlap,
            host_place: HostPlace::Ram,
            recall_cost: false,
            seed: 1,
        }
    }

    fn rows(options: &DecodeOptions) -> Vec<DecodeRow> {
        let decoder = Decoder::random(&options.shape.decoder, options.dtype, 1, |_, _| {}).unwrap();
        let mut rows = Vec::new();
        run(&decoder, options, 10.0, &mut |_| {}, &mut |row| rows.push(row)).unwrap();
        rows
    }

    #[test]
    fn bytes_are_those_of_the_shape_and_the_steps() {
        let options = options(vec![KvArm::Full], vec![1, 3]);
        let rows = rows(&options);
        let d = &options.shape.decoder;
        let position = d.kv_shape().bytes_per_position(KvDtype::Bf16) as f64;
        let linear = |n: usize, k: usize| WeightDtype::Q8_0.matrix_bytes(n, k);
        let layer = 2 * linear(256, 160) + 2 * linear(128, 160) + 3 * linear(480, 160);
        let weights = 8 * layer + linear(800, 160);
        // 750 audio rows, 8 of the prompt's text, three of warming up, and on average half of what the steps add.
        let (first, then) = (750.0 + 8.0 + 3.0 + 7.5, 14.0 + 3.0);
        assert_eq!((rows[0].bytes.weights, rows[1].bytes.weights), (weights, weights));
        assert!((rows[0].bytes.kv / position - first).abs() < 0.01, "{}", rows[0].bytes.kv / position);
        // The second row's first session has the first row's text too.
        let three = 3.0 * first + then;
        assert!((rows[1].bytes.kv / position - three).abs() < 0.01, "{}", rows[1].bytes.kv / position);
        assert_eq!((rows[0].r_gpu, rows[0].mb_per_step, rows[0].batch, rows[1].batch), (1.0, 0.0, 1, 3));
        let all = rows[0].bytes.weights as f64 + rows[0].bytes.kv;
        assert!((rows[0].gb_per_s / (all / 1e6 / rows[0].ms_median) - 1.0).abs() < 1e-9);
        assert!((rows[0].share * 10.0 - rows[0].gb_per_s).abs() < 1e-9);
        assert!(rows[0].ms_p99 >= rows[0].ms_median && rows[0].parts_ms.kv > 0.0);
    }

    #[test]
    fn wnw_reads_less_and_recalls() {
        let mut options = options(vec![KvArm::Full, KvArm::Wnw(0.3)], vec![2]);
        options.recall_cost = true;
        let rows = rows(&options);
        assert!((rows[1].r_gpu - 0.3).abs() < 0.1, "{}", rows[1].r_gpu);
        assert!(rows[1].bytes.kv < 0.5 * rows[0].bytes.kv);
        assert!(rows[1].mb_per_step > 0.0 && rows[1].host_bytes > 0);
        assert!((rows[1].bytes.recall - 2e6 * rows[1].mb_per_step).abs() < 1.0);
        assert!(rows[1].recall_added.is_some() && rows[1].still_ms_mean > Some(0.0));
        assert_eq!(rows[1].full_kv_bytes, 758 * 8 * 4 * 32 * 2 * 2);
        options.sweep = SweepKind::Worst;
        options.arms = vec![KvArm::Wnw(0.3)];
        let worst = self::rows(&options);
        assert!(worst[0].mb_per_step > rows[1].mb_per_step);
    }

    #[test]
    fn what_is_needed_grows_with_the_batch() {
        let one = options(vec![KvArm::Full], vec![1]);
        let eight = options(vec![KvArm::Wnw(0.2), KvArm::Full], vec![1, 8]);
        let session = one.session(60.0, KvArm::Full, 0);
        assert_eq!(eight.bytes_needed() - one.bytes_needed(), 7 * session.full_bytes());
        assert!(eight.positions_needed() > 758 + 2 * (14 + WARM_UP));
    }
}
