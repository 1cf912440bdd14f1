//! What the processor can do at most: loops that only read memory, or only multiply.
//!
//! They compute nothing that is wanted; `wnw bench limit` times them, and the share that a real kernel reaches is told
//! against them. The multiplying loops keep everything in registers. Each has a portable twin that gives the same number,
//! so that a test can tell whether the fast one does the work that it is counted for.

use crate::dispatch::{MulAdd, kernel};
use crate::registers::Registers;

/// Elements of one accumulator of [`fma_f32`].
const W: usize = 16;
/// Independent accumulators: enough to hide the latency of a multiply-add on every processor so far (4 cycles, two units),
/// few enough for 16 registers to hold with their operands.
const CHAINS: usize = 12;

kernel! {
    /// Reads all of `words` and returns their sum (mod 2^64): as fast as one thread can bring memory in.
    pub fn read / read_with(words: &[u64]) -> u64 = read_body
}

#[inline(always)]
fn read_body<M: MulAdd>(_: M, words: &[u64]) -> u64 {
    // The plain form is what compilers spread over vector registers; accumulators in an array of arrays stay in memory,
    // which is ten times slower than reading it.
    words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word))
}

kernel! {
    /// `rounds` times twelve vectors of 16 multiply-adds, `acc + a · b` each, from 0; the sum of all accumulators.
    /// [`FMA_F32_OPS`] operations a round.
    pub fn fma_f32 / fma_f32_with(rounds: u64, a: f32, b: f32) -> f32 = fma_f32_body
}

/// Operations (a multiplication and an addition are two) in a round of [`fma_f32`].
pub const FMA_F32_OPS: u64 = (CHAINS * W * 2) as u64;

#[inline(always)]
fn fma_f32_body<M: Registers>(m: M, rounds: u64, a: f32, b: f32) -> f32 {
    // Per chain, or the compiler would see twelve times the same sum.
    let x: [f32; CHAINS] = std::array::from_fn(|_| std::hint::black_box(a));
    let y = m.splat(std::hint::black_box(b));
    let mut sum = 0f32;
    // Where a register has fewer lanes, one part of the sixteen after the other: all chains at once would not stay in
    // registers.
    for _ in 0..W / M::WIDTH {
        let mut acc = [m.splat(0.0); CHAINS];
        for _ in 0..rounds {
            for (acc, x) in acc.iter_mut().zip(&x) {
                *acc = m.fma(m.splat(*x), y, *acc);
            }
        }
        let mut lanes = [0f32; W];
        for acc in acc {
            // SAFETY: sixteen places.
            unsafe { m.store(lanes.as_mut_ptr(), acc) };
            sum += lanes.iter().sum::<f32>();
        }
    }
    sum
}

/// Operations in a round of [`dot_bf16`].
pub const DOT_BF16_OPS: u64 = (CHAINS * W * 2 * 2) as u64;
/// Operations in a round of [`dot_int8`].
pub const DOT_INT8_OPS: u64 = (CHAINS * W * 4 * 2) as u64;

/// `rounds` times twelve products of 32 pairs in bf16 (`VDPBF16PS`), `acc + Σ a · b` each, from 0; the sum of all
/// accumulators. `None` where the processor has no such instruction. [`DOT_BF16_OPS`] operations a round.
pub fn dot_bf16(rounds: u64, a: half::bf16, b: half::bf16) -> Option<f32> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16") {
        // SAFETY: the processor has the features that the function enables.
        return Some(unsafe { x86::dot_bf16(rounds, a, b) });
    }
    let _ = (rounds, a, b);
    None
}

/// `rounds` times twelve products of 64 pairs of 8-bit integers, unsigned by signed (`VPDPBUSD`), `acc + Σ a · b` each
/// (mod 2^32), from 0; the sum of all accumulators. `None` where the processor has no such instruction.
/// [`DOT_INT8_OPS`] operations a round.
pub fn dot_int8(rounds: u64, a: u8, b: i8) -> Option<i32> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
        // SAFETY: the processor has the features that the function enables.
        return Some(unsafe { x86::dot_int8(rounds, a, b) });
    }
    let _ = (rounds, a, b);
    None
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use half::bf16;

    use super::CHAINS;

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub fn dot_bf16(rounds: u64, a: bf16, b: bf16) -> f32 {
        let pair = |x: bf16| i32::from(x.to_bits() as i16) << 16 | i32::from(x.to_bits());
        let x: [__m512i; CHAINS] = std::array::from_fn(|_| _mm512_set1_epi32(black_box(pair(a))));
        let y = _mm512_set1_epi32(black_box(pair(b)));
        // SAFETY: both are 64 bytes of any bits.
        let bits = |x: __m512i| unsafe { std::mem::transmute::<__m512i, __m512bh>(x) };
        let mut acc = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..rounds {
            for (acc, x) in acc.iter_mut().zip(&x) {
                *acc = _mm512_dpbf16_ps(*acc, bits(*x), bits(y));
            }
        }
        acc.into_iter().map(|x| _mm512_reduce_add_ps(x)).sum()
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub fn dot_int8(rounds: u64, a: u8, b: i8) -> i32 {
        let x: [__m512i; CHAINS] = std::array::from_fn(|_| _mm512_set1_epi8(black_box(a as i8)));
        let y = _mm512_set1_epi8(black_box(b));
        let mut acc = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..rounds {
            for (acc, x) in acc.iter_mut().zip(&x) {
                *acc = _mm512_dpbusd_epi32(*acc, *x, y);
            }
        }
        acc.into_iter().fold(0i32, |sum, x| sum.wrapping_add(_mm512_reduce_add_epi32(x)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use half::bf16;

    #[test]
    fn reading_reads_every_word() {
        for n in [0, 1, 63, 64, 65, 1000] {
            let words: Vec<u64> = (0..n).map(|i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            let sum = words.iter().fold(0u64, |sum, x| sum.wrapping_add(*x));
            for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
                assert_eq!(read_with(isa, &words), sum, "{n} {isa:?}");
            }
        }
    }

    /// Small integers, so that every sum is exact and each operation that is counted shows.
    #[test]
    fn the_loops_do_the_operations_that_they_are_counted_for() {
        for rounds in [0u64, 1, 7, 100] {
            let products = |ops: u64| (rounds * ops / 2) as f32;
            for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
                assert_eq!(fma_f32_with(isa, rounds, 2.0, 3.0), 6.0 * products(FMA_F32_OPS), "{isa:?}");
            }
            let (a, b) = (bf16::from_f32(2.0), bf16::from_f32(-3.0));
            if let Some(sum) = dot_bf16(rounds, a, b) {
                assert_eq!(sum, -6.0 * products(DOT_BF16_OPS));
            }
            if let Some(sum) = dot_int8(rounds, 2, -3) {
                assert_eq!(sum as f32, -6.0 * products(DOT_INT8_OPS));
            }
        }
    }
}
