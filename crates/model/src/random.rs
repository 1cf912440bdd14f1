//! Checkpoints of random weights, in memory.
//!
//! What a step costs depends on the sizes of the weights and not on their values, so a benchmark needs no download. The
//! values are uniform with the variance that keeps activations of order one, and the same for the same seed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;
use safetensors::Dtype;

use crate::checkpoint::{Bytes, Checkpoint, TensorView};

/// What messages call it.
const NAME: &str = "random weights";
/// Elements that one generator makes.
const CHUNK: usize = 1 << 20;
/// Tensors start at a multiple of this many elements, a cache line.
const ALIGNMENT: usize = 32;

/// How the tensors of a random checkpoint lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All of them are stretches of one pool that is as large as the largest: for types that are made from the checkpoint,
    /// so that no more than the result and the pool, which the embeddings are, is ever there.
    Shared,
    /// Each has memory of its own: for types that are used where they lie.
    Distinct,
}

/// A checkpoint in bf16 with tensors of these names and shapes: matrices random, weights of norms 1, biases random.
pub fn checkpoint(expected: &[(String, Vec<usize>)], seed: u64, layout: Layout) -> Checkpoint {
    let elements = |shape: &[usize]| shape.iter().product::<usize>();
    let largest = expected.iter().map(|(_, shape)| elements(shape)).max().unwrap_or(0);
    // Of the rows of a matrix, the width of the residual stream is the most frequent length.
    let width = expected.iter().filter(|(_, s)| s.len() == 2).map(|(_, s)| s[1]).next().unwrap_or(1);
    let pool = Arc::new(noise(largest, (3.0 / width as f32).sqrt(), seed));
    let longest = expected.iter().filter(|(_, s)| s.len() == 1).map(|(_, s)| s[0]).max().unwrap_or(0);
    let one = half::bf16::ONE.to_le_bytes();
    let ones = Arc::new((0..longest).flat_map(|_| one).collect::<Vec<u8>>());
    let mut tensors = BTreeMap::new();
    for (i, (name, shape)) in expected.iter().enumerate() {
        let len = 2 * elements(shape);
        let (bytes, start) = if shape.len() == 1 && name.ends_with(".weight") {
            (Arc::clone(&ones), 0)
        } else {
            let room = (pool.len() - len) / (2 * ALIGNMENT) + 1;
            let start = (mix(seed ^ i as u64) % room as u64) as usize * 2 * ALIGNMENT;
            match layout {
                Layout::Distinct if len < pool.len() => (Arc::new(pool[start..start + len].to_vec()), 0),
                _ => (Arc::clone(&pool), start),
            }
        };
        let view = TensorView {
            file: Path::new(NAME).into(),
            name: name.clone(),
            dtype: Dtype::BF16,
            shape: shape.clone(),
            bytes: Bytes::Owned(bytes),
            start,
            len,
        };
        tensors.insert(name.clone(), view);
    }
    Checkpoint::from_tensors(NAME, tensors)
}

/// `n` bf16 values, uniform in ±`limit`, little endian.
fn noise(n: usize, limit: f32, seed: u64) -> Vec<u8> {
    let mut out = vec![0u8; 2 * n];
    let scale = limit / 128.0;
    out.par_chunks_mut(2 * CHUNK).enumerate().for_each(|(chunk, out)| {
        let mut state = mix(seed ^ (chunk as u64) << 32);
        for out in out.chunks_mut(16) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            for (out, byte) in out.chunks_exact_mut(2).zip(mix(state).to_le_bytes()) {
                let value = (f32::from(byte as i8) + 0.5) * scale;
                // Cut off, not rounded: nobody asks for the last bit of a random number.
                out.copy_from_slice(&((value.to_bits() >> 16) as u16).to_le_bytes());
            }
        }
    });
    out
}

/// SplitMix64's finaliser (Steele et al. 2014).
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fill_their_range_and_follow_the_seed() {
        let expected = [
            ("a.weight".to_owned(), vec![300, 75]),
            ("b.weight".to_owned(), vec![50, 64]),
            ("norm.weight".to_owned(), vec![75]),
            ("b.bias".to_owned(), vec![50]),
        ];
        for layout in [Layout::Shared, Layout::Distinct] {
            let made = checkpoint(&expected, 7, layout);
            made.check(&expected).unwrap();
            let values = |made: &Checkpoint, name: &str| made.get(name).unwrap().to_f32().unwrap();
            let a = values(&made, "a.weight");
            let variance = a.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / a.len() as f64;
            assert!((variance * 75.0 - 1.0).abs() < 0.05, "{variance}");
            assert!(a.iter().sum::<f32>().abs() / (a.len() as f32) < 0.005);
            assert!(values(&made, "norm.weight").iter().all(|x| *x == 1.0));
            assert!(values(&made, "b.bias").iter().any(|x| *x != 1.0));
            assert_eq!(values(&checkpoint(&expected, 7, layout), "b.weight"), values(&made, "b.weight"));
            assert_ne!(values(&checkpoint(&expected, 8, layout), "b.weight"), values(&made, "b.weight"));
        }
    }
}
