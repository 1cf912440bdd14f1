//! Products with bf16 weights on processors with AVX-512.
//!
//! For a decoding step weights are widened in registers, so that activations keep all their bits: reading the weights
//! takes longer than that. For many rows multiplication is what takes time; activations are then rounded to bf16 as well
//! and `VDPBF16PS` multiplies twice as many numbers as a multiply-add in f32. It takes subnormal numbers for zero.

use half::bf16;

use crate::dispatch::{MulAdd, kernel};
use crate::tiles::{TILE, Tile};

#[cfg(target_arch = "x86_64")]
mod x86;

/// Whether [`many`] can be used: the processor multiplies bf16.
pub fn has_many() -> bool {
    crate::dispatch::bf16()
}

/// Rows of activations rounded to bf16, in pairs: the even element in the low half.
#[derive(Default)]
pub struct Bf16Rows {
    pairs: Vec<u32>, // (m, ⌈k / 2⌉)
    m: usize,
    k: usize,
}

impl Bf16Rows {
    /// Rounds `x`, `(m, k)`, to the nearest even.
    ///
    /// # Panics
    /// When `k` is 0 or does not divide the length of `x`.
    pub fn new(x: &[f32], k: usize) -> Self {
        assert!(k > 0 && x.len().is_multiple_of(k), "bf16 activations: rows of {k}");
        let (m, width) = (x.len() / k, k.div_ceil(2));
        let mut pairs = vec![0; m * width];
        for (x, pairs) in x.chunks_exact(k).zip(pairs.chunks_exact_mut(width)) {
            round_pairs(x, pairs);
        }
        Self { pairs, m, k }
    }

    fn row(&self, i: usize) -> &[u32] {
        let width = self.k.div_ceil(2);
        &self.pairs[i * width..(i + 1) * width]
    }
}

kernel! {
    /// Rounds a row to pairs of bf16; a last single element has 0 beside it.
    pub(crate) fn round_pairs / round_pairs_with(x: &[f32], pairs: &mut [u32]) = round_pairs_body
}

#[inline(always)]
fn round_pairs_body<M: MulAdd>(_: M, x: &[f32], pairs: &mut [u32]) {
    let (whole, last) = x.as_chunks::<2>();
    for (pair, x) in pairs.iter_mut().zip(whole) {
        *pair = round(x[0]) | round(x[1]) << 16;
    }
    if let ([last], Some(pair)) = (last, pairs.last_mut()) {
        *pair = round(*last);
    }
}

/// The bits of the nearest bf16, ties to even; not a number stays so.
#[inline(always)]
fn round(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { bits >> 16 | 0x40 } else { rounded }
}

/// `y = x · wᵀ` in the columns of a tile, for a decoding step: `x` is `(m, k)`, `w` holds the rows of the tile. The same bits
/// as [`crate::vector::score_rows`] with AVX-512, which the processor must have.
#[cfg(target_arch = "x86_64")]
pub(crate) fn step(x: &[f32], w: &[bf16], k: usize, tile: &mut Tile<'_>) {
    x86::step(x, w, k, tile);
}

/// `y = x · wᵀ` in the columns of a tile, for many rows: `w` is `(n, k)`.
///
/// # Panics
/// When the sizes do not fit, or the processor does not multiply bf16 ([`has_many`]).
pub fn many(x: &Bf16Rows, w: &[bf16], tile: &mut Tile<'_>) {
    assert!(has_many(), "bf16 product: the processor has no such instruction");
    assert_eq!(x.m, tile.rows(), "bf16 product: rows");
    let rows = &w[tile.first() * x.k..(tile.first() + tile.columns()) * x.k];
    debug_assert!(tile.columns() <= TILE);
    #[cfg(target_arch = "x86_64")]
    x86::many(x, rows, tile);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = rows;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiles::for_each_tile;
    use crate::{Isa, KvElement};
    use proptest::prelude::*;

    #[test]
    fn rounding_is_that_of_the_half_crate() {
        let special = [0.0, -0.0, 1.0, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40];
        let ties = (0..64u32).map(|i| f32::from_bits(0x3f80_0000 + i * 0x4000));
        let x: Vec<f32> = special.into_iter().chain(ties).collect();
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            let mut pairs = vec![0u32; x.len().div_ceil(2)];
            round_pairs_with(isa, &x, &mut pairs);
            let got: Vec<bf16> = bytemuck::cast_slice::<u32, bf16>(&pairs).to_vec();
            for (got, x) in got.iter().zip(&x) {
                let want = bf16::from_f32(*x);
                assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{x}: {got}");
            }
            assert!(x.len().is_multiple_of(2) || got.last().is_some_and(|last| last.to_bits() == 0));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        /// Against the products of the rounded numbers in f64, at odd sizes and across the blocks of columns.
        #[test]
        fn many_rows_agree_with_the_rounded_numbers(m in 1usize..30, n in 1usize..150, k in 1usize..90, long: bool, seed: u64) {
            if !has_many() {
                return Ok(());
            }
            let (k, n) = if long { (k + 2040, n % 20 + 1) } else { (k, n) };
            let mut s = seed | 1;
            let mut next = || {
                s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (s >> 40) as f32 / (1u64 << 23) as f32 - 1.0
            };
            let x: Vec<f32> = (0..m * k).map(|_| next()).collect();
            let w: Vec<bf16> = (0..n * k).map(|_| bf16::from_f32(next())).collect();
            let mut out = vec![f32::NAN; m * n];
            let rows = Bf16Rows::new(&x, k);
            for_each_tile([(&mut out, n)], m, false, |_, mut tile| many(&rows, &w, &mut tile));
            for i in 0..m {
                for j in 0..n {
                    let (mut sum, mut size) = (0f64, 0f64);
                    for d in 0..k {
                        let product = bf16::from_f32(x[i * k + d]).to_f64() * f64::from(w[j * k + d].widen());
                        sum += product;
                        size += product.abs();
                    }
                    prop_assert!((f64::from(out[i * n + j]) - sum).abs() <= 4e-6 * size, "({i}, {j})");
                }
            }
        }
    }
}
