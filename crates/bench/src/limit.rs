//! The machine's limits: bytes read and operations done in a second, at best.

use std::hint::black_box;
use std::time::{Duration, Instant};

use half::bf16;
use serde::Serialize;
use wnw_kernels::limit::{DOT_BF16_OPS, DOT_INT8_OPS, FMA_F32_OPS, dot_bf16, dot_int8, fma_f32, read};

use crate::statistics::median;

/// Bytes that are read again and again when nothing else is asked for: many times the largest caches.
pub const READ_BYTES: u64 = 1 << 30;

/// Passes that a rate is taken from, at least.
const PASSES: usize = 5;

/// How fast memory can be read.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReadRate {
    /// Threads that read at once, each its own part.
    pub threads: usize,
    /// Of the best pass, in 10^9 bytes a second: the limit.
    pub gb_per_s: f64,
    /// Of the median pass. Far below the best, something else was using the memory.
    pub median_gb_per_s: f64,
}

/// What a matrix product multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operand {
    /// 4-byte numbers, one multiply-add an element.
    F32,
    /// bf16, pairs of products in one instruction.
    Bf16,
    /// 8-bit integers, four products in one instruction.
    Int8,
}

impl Operand {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }

    /// Does `rounds` rounds; operations of each, or `None` where the processor has no instruction for it.
    fn work(self, rounds: u64) -> Option<u64> {
        match self {
            Self::F32 => {
                black_box(fma_f32(rounds, 1.0, 1e-9));
                Some(FMA_F32_OPS)
            }
            Self::Bf16 => {
                black_box(dot_bf16(rounds, bf16::ONE, bf16::from_f32(1e-9))?);
                Some(DOT_BF16_OPS)
            }
            Self::Int8 => {
                black_box(dot_int8(rounds, 3, -2)?);
                Some(DOT_INT8_OPS)
            }
        }
    }
}

/// Operations in a second, with everything in registers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Peak {
    /// What is multiplied.
    pub operand: Operand,
    /// Threads.
    pub threads: usize,
    /// 10^9 operations (a multiplication and an addition are two) a second of the best pass; `None` where the processor has
    /// no instruction for this operand.
    pub gflops: Option<f64>,
}

/// A machine's limits.
#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    /// Bytes read in each pass.
    pub read_bytes: u64,
    /// For each number of threads from 1.
    pub read: Vec<ReadRate>,
    /// For one thread and for all.
    pub peak: Vec<Peak>,
}

impl Limit {
    /// Measures 1 to `threads` threads, `seconds` for each figure.
    pub fn measure(threads: usize, read_bytes: u64, seconds: f64) -> Self {
        let words = words(read_bytes);
        let mut counts = vec![1, threads];
        counts.dedup();
        let peaks = counts.iter().flat_map(|n| Operand::ALL.map(|operand| peak(operand, *n, seconds)));
        let peak = peaks.collect();
        let read = (1..=threads).map(|n| rate(&words, n, seconds)).collect();
        Self { read_bytes: size_of_val(&words[..]) as u64, read, peak }
    }

    /// The peak of an operand with this number of threads, in 10^9 operations a second.
    pub fn gflops(&self, operand: Operand, threads: usize) -> Option<f64> {
        self.peak.iter().find(|p| p.operand == operand && p.threads == threads)?.gflops
    }
}

/// How fast `threads` threads read `bytes` of memory.
pub fn read_rate(threads: usize, bytes: u64, seconds: f64) -> ReadRate {
    rate(&words(bytes), threads, seconds)
}

/// Memory that is really there: pages that were never written are all the same page of zeros.
fn words(bytes: u64) -> Vec<u64> {
    use rayon::prelude::*;
    let mut words = vec![0u64; (bytes as usize / 8).max(1)];
    words.par_chunks_mut(1 << 16).for_each(|chunk| chunk.fill(1));
    words
}

fn rate(words: &[u64], threads: usize, seconds: f64) -> ReadRate {
    let part = words.len().div_ceil(threads);
    let passes = passes(seconds, || {
        std::thread::scope(|scope| {
            for part in words.chunks(part) {
                scope.spawn(|| black_box(read(part)));
            }
        });
    });
    let gb = size_of_val(words) as f64 / 1e9;
    ReadRate { threads, gb_per_s: gb / fastest(&passes), median_gb_per_s: gb / median(&passes) }
}

/// The most operations of this kind that `threads` threads do in a second.
pub fn peak(operand: Operand, threads: usize, seconds: f64) -> Peak {
    const ROUNDS: u64 = 1 << 20;
    let Some(ops) = operand.work(1) else { return Peak { operand, threads, gflops: None } };
    let passes = passes(seconds, || {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| operand.work(ROUNDS));
            }
        });
    });
    let done = (ops * ROUNDS * threads as u64) as f64 / 1e9;
    Peak { operand, threads, gflops: Some(done / fastest(&passes)) }
}

/// Seconds of each of several passes that together take about `seconds`.
fn passes(seconds: f64, mut pass: impl FnMut()) -> Vec<f64> {
    let (end, mut taken) = (Duration::from_secs_f64(seconds), Vec::new());
    let started = Instant::now();
    while taken.len() < PASSES || started.elapsed() < end {
        let clock = Instant::now();
        pass();
        taken.push(clock.elapsed().as_secs_f64());
    }
    taken
}

fn fastest(passes: &[f64]) -> f64 {
    passes.iter().copied().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_measured_for_every_number_of_threads() {
        let limit = Limit::measure(2, 1 << 20, 0.0);
        assert_eq!(limit.read.iter().map(|r| r.threads).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((limit.read_bytes, limit.peak.len()), (1 << 20, 6));
        for rate in &limit.read {
            assert!(rate.median_gb_per_s > 0.0 && rate.gb_per_s >= rate.median_gb_per_s, "{rate:?}");
        }
        assert!(limit.gflops(Operand::F32, 2).is_some_and(|x| x > 0.0 && x.is_finite()));
        assert_eq!(limit.gflops(Operand::F32, 3), None);
        assert_eq!(Limit::measure(1, 8, 0.0).peak.len(), 3, "one thread is all threads");
    }
}
