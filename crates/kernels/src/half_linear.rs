//! Products with half-precision weights, read once from where they lie.
//!
//! candle widens both whole operands of a bf16 product at every call, which costs thirty times the reading of the
//! weights. Here a single activation row is multiplied with the stored weights directly, and for several rows a tile
//! of weight rows is widened into a small buffer that all activation rows then use.

use rayon::prelude::*;

use crate::KvElement;
use crate::dispatch::{MulAdd, kernel};
use crate::matmul::matmul_transposed;
use crate::vector::{dot_rows, widen};

/// Up to this many activation rows, weights are multiplied as they are read.
const MAX_DIRECT_ROWS: usize = 4;
/// Bytes of weights from which several threads are used: handing less over costs as much as reading it.
const PARALLEL_FROM: usize = 512 << 10;
/// Weight rows in one parallel task.
const TILE: usize = 64;

/// `out = x · wᵀ`: `x` is `(m, k)`, `w` is `(n, k)` in its storage type, `out` is `(m, n)`.
///
/// The order of summation depends only on `m`, `n` and `k`, not on the number of threads.
pub fn half_linear<T: KvElement>(x: &[f32], w: &[T], m: usize, n: usize, k: usize, out: &mut [f32]) {
    assert_eq!((x.len(), w.len(), out.len()), (m * k, n * k, m * n), "half_linear: shapes");
    if m == 1 {
        // The decode path: rows of the result are written in place, nothing is allocated.
        if size_of_val(w) < PARALLEL_FROM {
            return matvec(w, x, out);
        }
        out.par_chunks_mut(TILE).zip(w.par_chunks(TILE * k)).for_each(|(out, w)| matvec(w, x, out));
        return;
    }
    if m <= MAX_DIRECT_ROWS {
        return half_linear_each(x, w, m, n, k, out);
    }
    tiled_linear(x, m, n, k, out, |first, wide| widen(&w[first * k..first * k + wide.len()], wide));
}

/// The same for rows that have nothing to do with each other, such as the steps of several sessions: each row of `out` has
/// the bits that it would have alone, and a tile of weights is read from memory once for all rows.
pub fn half_linear_each<T: KvElement>(x: &[f32], w: &[T], m: usize, n: usize, k: usize, out: &mut [f32]) {
    assert_eq!((x.len(), w.len(), out.len()), (m * k, n * k, m * n), "half_linear: shapes");
    if m == 1 || size_of_val(w) < PARALLEL_FROM {
        let rows = x.chunks_exact(k).zip(out.chunks_exact_mut(n));
        return rows.for_each(|(x, out)| half_linear(x, w, 1, n, k, out));
    }
    by_columns(m, n, out, |first, rows, result| {
        let w = &w[first * k..(first + rows) * k];
        for (x, result) in x.chunks_exact(k).zip(result.chunks_exact_mut(rows)) {
            matvec(w, x, result);
        }
    });
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
    by_columns(m, n, out, |first, rows, result| {
        let mut wide = vec![0f32; rows * k];
        rows_to_f32(first, &mut wide);
        matmul_transposed(x, &wide, m, rows, k, result);
    });
}

/// Computes `out`, `(m, n)`, in parallel by tiles of columns: `tile(first, rows, result)` fills `result`, `(m, rows)`, with
/// columns `first .. first + rows`. Tiles start at multiples of 64.
pub fn by_columns(m: usize, n: usize, out: &mut [f32], tile: impl Fn(usize, usize, &mut [f32]) + Sync) {
    assert_eq!(out.len(), m * n, "linear layer: output");
    let out = RowsPtr(out.as_mut_ptr());
    (0..n.div_ceil(TILE)).into_par_iter().for_each(|t| {
        let (first, rows) = (t * TILE, TILE.min(n - t * TILE));
        let mut result = vec![0f32; m * rows]; // (m, rows)
        tile(first, rows, &mut result);
        for (i, result) in result.chunks_exact(rows).enumerate() {
            // SAFETY: `out` is (m, n), as asserted above, and this task alone writes columns first .. first + rows.
            let target = unsafe { std::slice::from_raw_parts_mut(out.get().add(i * n + first), rows) };
            target.copy_from_slice(result);
        }
    });
}

/// A pointer that tasks may share because each writes its own columns.
struct RowsPtr(*mut f32);
// SAFETY: see the write in `by_columns`: the column ranges of the tasks are disjoint.
unsafe impl Sync for RowsPtr {}
impl RowsPtr {
    fn get(&self) -> *mut f32 {
        self.0
    }
}

kernel! {
    /// `out_r = w_r · x`: `w` is `(out.len(), x.len())`.
    pub fn matvec / matvec_with<T: KvElement>(w: &[T], x: &[f32], out: &mut [f32]) = matvec_body
}

#[inline(always)]
fn matvec_body<M: MulAdd, T: KvElement>(m: M, w: &[T], x: &[f32], out: &mut [f32]) {
    let k = x.len();
    let mut r = 0;
    while r + 4 <= out.len() {
        let row = |i: usize| &w[(r + i) * k..(r + i + 1) * k];
        out[r..r + 4].copy_from_slice(&dot_rows(m, [row(0), row(1), row(2), row(3)], x));
        r += 4;
    }
    for r in r..out.len() {
        out[r] = dot_rows(m, [&w[r * k..(r + 1) * k]], x)[0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use half::{bf16, f16};
    use proptest::prelude::*;

    #[test]
    fn every_instruction_set_multiplies_alike() {
        let (n, k) = (7, 37);
        let x: Vec<f32> = (0..k).map(|i| (i as f32 * 0.3).sin()).collect();
        let w: Vec<bf16> = (0..n * k).map(|i| bf16::from_f32((i as f32 * 0.7).cos())).collect();
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            let mut out = vec![f32::NAN; n];
            matvec_with(isa, &w, &x, &mut out);
            for (r, out) in out.iter().enumerate() {
                let exact: f64 = (0..k).map(|d| f64::from(w[r * k + d].widen()) * f64::from(x[d])).sum();
                assert!((f64::from(*out) - exact).abs() < 1e-5, "{isa:?}");
            }
        }
    }

    fn check<T: KvElement>(m: usize, n: usize, k: usize) {
        let x: Vec<f32> = (0..m * k).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
        let w: Vec<T> = (0..n * k).map(|i| T::narrow(((i * 53 % 97) as f32 - 48.0) / 48.0)).collect();
        let mut out = vec![f32::NAN; m * n];
        half_linear(&x, &w, m, n, k, &mut out);
        for i in 0..m {
            for j in 0..n {
                let exact: f64 =
                    (0..k).map(|d| f64::from(x[i * k + d]) * f64::from(w[j * k + d].widen())).sum();
                assert!((f64::from(out[i * n + j]) - exact).abs() < 1e-4 * k as f64, "({i},{j})");
            }
        }
    }

    /// Bit for bit: a session's numbers must not depend on who steps with it.
    fn check_each<T: KvElement>(m: usize, n: usize, k: usize) {
        let x: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.37).sin()).collect();
        let w: Vec<T> = (0..n * k).map(|i| T::narrow((i as f32 * 0.11).cos())).collect();
        let mut out = vec![f32::NAN; m * n];
        half_linear_each(&x, &w, m, n, k, &mut out);
        for (x, out) in x.chunks_exact(k).zip(out.chunks_exact(n)) {
            let mut alone = vec![f32::NAN; n];
            half_linear(x, &w, 1, n, k, &mut alone);
            assert_eq!(alone, out, "{m} {n} {k}");
        }
    }

    #[test]
    fn a_row_is_the_same_among_others() {
        for (m, n, k) in [(1, 3, 8), (2, 64, 40), (5, 131, 33), (9, 700, 500)] {
            check_each::<bf16>(m, n, k);
            check_each::<f16>(m, n, k);
            check_each::<f32>(m, n, k);
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
