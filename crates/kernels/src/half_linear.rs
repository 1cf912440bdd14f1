//! Products with weights in f32, bf16 or f16, read once from where they lie.
//!
//! candle widens both whole operands of a bf16 product at every call, which costs thirty times the reading of the
//! weights. Here the rows of a decoding step are multiplied with the stored weights directly. For many rows a tile of
//! weights is widened into a small buffer that all of them then use, or, in bf16 on processors that multiply it, packed
//! ([`crate::bf16_many`]).

use half::bf16;

use crate::KvElement;
use crate::matmul::matmul_transposed;
use crate::tiles::{Tile, for_each_tile};
use crate::vector::{score_rows, widen};

/// Up to this many activation rows, weights are multiplied as they are read.
const MAX_DIRECT_ROWS: usize = 4;
/// Rows of weights, and of activations, that [`half_step`] multiplies at a time.
const ROW_BLOCK: usize = 16;
const MAX_ROWS: usize = 16;
/// Bytes of weights from which several threads are used: handing less over costs as much as reading it.
pub const PARALLEL_FROM: usize = 512 << 10;

/// `out = x · wᵀ`: `x` is `(m, k)`, `w` is `(n, k)` in its storage type, `out` is `(m, n)`.
///
/// The order of summation depends only on `m`, `n` and `k`, not on the number of threads.
pub fn half_linear<T: KvElement>(x: &[f32], w: &[T], m: usize, n: usize, k: usize, out: &mut [f32]) {
    assert_eq!((x.len(), w.len(), out.len()), (m * k, n * k, m * n), "half_linear: shapes");
    if m <= MAX_DIRECT_ROWS {
        let parallel = size_of_val(w) >= PARALLEL_FROM;
        return for_each_tile([(out, n)], m, parallel, |_, mut tile| half_step(x, w, k, &mut tile));
    }
    tiled_linear(x, m, n, k, out, |first, wide| widen(&w[first * k..first * k + wide.len()], wide));
}

/// `y = x · wᵀ` in the columns of a tile, for a decoding step: `x` is `(m, k)`, `w` is `(n, k)`. Every row of the result
/// has the bits that it would have alone, and weights are read from memory once for all rows. Activations stay in f32.
///
/// # Panics
/// When the sizes do not fit.
pub fn half_step<T: KvElement>(x: &[f32], w: &[T], k: usize, tile: &mut Tile<'_>) {
    assert_eq!(x.len(), tile.rows() * k, "half_step: activations");
    let w = &w[tile.first() * k..(tile.first() + tile.columns()) * k];
    #[cfg(target_arch = "x86_64")]
    if crate::isa() == crate::Isa::Avx512
        && let Ok(w) = bytemuck::try_cast_slice::<T, bf16>(w)
        && std::any::TypeId::of::<T>() == std::any::TypeId::of::<bf16>()
    {
        return crate::bf16::step(x, w, k, tile);
    }
    // Some rows of weights at a time, which stay in the cache while several rows of activations are multiplied with them.
    let mut sums = [0f32; ROW_BLOCK * MAX_ROWS]; // (m, ROW_BLOCK)
    for (block, rows) in w.chunks(ROW_BLOCK * k).enumerate() {
        let (first, next) = (block * ROW_BLOCK, &w[((block + 1) * ROW_BLOCK * k).min(w.len())..]);
        for (part, x) in x.chunks(MAX_ROWS * k).enumerate() {
            score_rows(x, rows, next, k, 1.0, &mut sums, ROW_BLOCK, 0);
            for (i, sums) in sums.chunks_exact(ROW_BLOCK).take(x.len() / k).enumerate() {
                let n = rows.len() / k;
                tile.row(part * MAX_ROWS + i)[first..first + n].copy_from_slice(&sums[..n]);
            }
        }
    }
}

/// `out = x · wᵀ` for weights in any form: `rows_to_f32(first, wide)` fills `wide`, `(rows, k)`, with the rows of `w` from
/// `first` on. Each row is asked for once; for many activation rows its conversion costs little.
pub fn tiled_linear(
    x: &[f32],
    m: usize,
    n: usize,
    k: usize,
    out: &mut [f32],
    rows_to_f32: impl Fn(usize, &mut [f32]) + Sync,
) {
    for_each_tile([(out, n)], m, true, |_, mut tile| {
        let rows = tile.columns();
        let mut wide = vec![0f32; rows * k];
        rows_to_f32(tile.first(), &mut wide);
        let mut result = vec![0f32; m * rows]; // (m, rows)
        matmul_transposed(x, &wide, m, rows, k, &mut result);
        for (i, result) in result.chunks_exact(rows).enumerate() {
            tile.row(i).copy_from_slice(result);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use proptest::prelude::*;

    fn check<T: KvElement>(m: usize, n: usize, k: usize) {
        let x: Vec<f32> = (0..m * k).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
        let w: Vec<T> = (0..n * k).map(|i| T::narrow(((i * 53 % 97) as f32 - 48.0) / 48.0)).collect();
        let (mut out, mut step) = (vec![f32::NAN; m * n], vec![f32::NAN; m * n]);
        half_linear(&x, &w, m, n, k, &mut out);
        for_each_tile([(&mut step, n)], m, false, |_, mut tile| half_step(&x, &w, k, &mut tile));
        for i in 0..m {
            for j in 0..n {
                let exact: f64 =
                    (0..k).map(|d| f64::from(x[i * k + d]) * f64::from(w[j * k + d].widen())).sum();
                for out in [&out, &step] {
                    assert!((f64::from(out[i * n + j]) - exact).abs() < 1e-4 * k as f64, "({i},{j})");
                }
            }
            // Bit for bit: a session's numbers must not depend on who steps with it.
            let mut alone = vec![f32::NAN; n];
            half_linear(&x[i * k..(i + 1) * k], &w, 1, n, k, &mut alone);
            assert_eq!(alone, step[i * n..(i + 1) * n]);
            // Nor on which of the kernels for one instruction set multiplied it.
            let mut plain = vec![f32::NAN; n];
            score_rows(&x[i * k..(i + 1) * k], &w, &[], k, 1.0, &mut plain, n, 0);
            assert_eq!(alone, plain);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn agrees_with_f64(m in 1usize..12, n in 1usize..150, k in 1usize..100) {
            check::<bf16>(m, n, k);
            check::<f16>(m, n, k);
            check::<f32>(m, n, k);
        }
    }
}
