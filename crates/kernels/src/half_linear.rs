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
/// Weight rows in one parallel task.
const TILE: usize = 64;

/// `out = x · wᵀ`: `x` is `(m, k)`, `w` is `(n, k)` in its storage type, `out` is `(m, n)`.
///
/// The order of summation depends only on `m`, `n` and `k`, not on the number of threads.
pub fn half_linear<T: KvElement>(x: &[f32], w: &[T], m: usize, n: usize, k: usize, out: &mut [f32]) {
    assert_eq!((x.len(), w.len(), out.len()), (m * k, n * k, m * n), "half_linear: shapes");
    if m == 1 {
        // The decode path: rows of the result are written in place, nothing is allocated.
        out.par_chunks_mut(TILE).zip(w.par_chunks(TILE * k)).for_each(|(out, w)| matvec(w, x, out));
        return;
    }
    let out = RowsPtr(out.as_mut_ptr());
    w.par_chunks(TILE * k).enumerate().for_each(|(tile, w)| {
        let rows = w.len() / k;
        let mut result = vec![0f32; m * rows]; // (m, rows)
        if m <= MAX_DIRECT_ROWS {
            for (x, result) in x.chunks_exact(k).zip(result.chunks_exact_mut(rows)) {
                matvec(w, x, result);
            }
        } else {
            let mut wide = vec![0f32; w.len()];
            widen(w, &mut wide);
            matmul_transposed(x, &wide, m, rows, k, &mut result);
        }
        for (i, result) in result.chunks_exact(rows).enumerate() {
            // SAFETY: `out` is (m, n) and tile `tile` alone writes columns tile·TILE .. tile·TILE + rows of each row.
            let target = unsafe { std::slice::from_raw_parts_mut(out.get().add(i * n + tile * TILE), rows) };
            target.copy_from_slice(result);
        }
    });
}

/// A pointer that tasks may share because each writes its own columns.
struct RowsPtr(*mut f32);
// SAFETY: see the write in `half_linear`: the column ranges of the tasks are disjoint.
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
    use half::{bf16, f16};
    use proptest::prelude::*;

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
