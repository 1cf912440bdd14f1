//! f32 matrix products on slices.

use gemm::Parallelism;

/// A row-major matrix seen with a row stride: element `(i, j)` lies at `i * stride + j`.
#[derive(Clone, Copy)]
pub struct MatRef<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> MatRef<'a> {
    /// Views `data` as `(rows, cols)` with rows `stride` apart.
    ///
    /// # Panics
    /// When the last row would reach past the end of `data`.
    pub fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        assert!(
            rows == 0 || cols <= stride && (rows - 1) * stride + cols <= data.len(),
            "matrix view: bounds"
        );
        Self { data, rows, cols, stride }
    }
}

/// `out = alpha · a · bᵀ` on the calling thread: `a` is `(m, k)`, `b` is `(n, k)`, `out` is `(m, n)` with rows
/// `out_stride` apart.
pub fn matmul_abt(a: MatRef<'_>, b: MatRef<'_>, alpha: f32, out: &mut [f32], out_stride: usize) {
    assert_eq!(a.cols, b.cols, "matmul_abt: inner sizes");
    product(a, b, true, alpha, 0.0, out, out_stride);
}

/// `out = a · b + beta · out` on the calling thread: `a` is `(m, k)`, `b` is `(k, n)`.
pub fn matmul_ab(a: MatRef<'_>, b: MatRef<'_>, beta: f32, out: &mut [f32], out_stride: usize) {
    assert_eq!(a.cols, b.rows, "matmul_ab: inner sizes");
    product(a, b, false, 1.0, beta, out, out_stride);
}

/// `out = x · wᵀ` on the calling thread: `x` is `(m, k)`, `w` is `(n, k)`, `out` is `(m, n)`, all contiguous.
pub fn matmul_transposed(x: &[f32], w: &[f32], m: usize, n: usize, k: usize, out: &mut [f32]) {
    matmul_abt(MatRef::new(x, m, k, k), MatRef::new(w, n, k, k), 1.0, out, n);
}

fn product(
    a: MatRef<'_>,
    b: MatRef<'_>,
    transpose_b: bool,
    alpha: f32,
    beta: f32,
    out: &mut [f32],
    out_stride: usize,
) {
    let (m, k) = (a.rows, a.cols);
    let n = if transpose_b { b.rows } else { b.cols };
    if m == 0 || n == 0 {
        return;
    }
    assert!(n <= out_stride && (m - 1) * out_stride + n <= out.len(), "matrix product: output bounds");
    let (b_cs, b_rs) = if transpose_b { (b.stride as isize, 1) } else { (1, b.stride as isize) };
    // SAFETY: `MatRef::new` checked that both operands lie inside their slices, the assertion above that the result
    // lies inside `out`; `out` is borrowed mutably, so it overlaps neither operand.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            out_stride as isize,
            beta != 0.0,
            a.data.as_ptr(),
            1,
            a.stride as isize,
            b.data.as_ptr(),
            b_cs,
            b_rs,
            beta,
            alpha,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strided_products_agree_with_plain_sums() {
        let (m, n, k) = (5, 7, 9);
        let a: Vec<f32> = (0..m * (k + 2)).map(|i| (i % 13) as f32 - 6.0).collect();
        let b: Vec<f32> = (0..n * (k + 1)).map(|i| (i % 11) as f32 - 5.0).collect();
        let mut out = vec![-1.0; m * (n + 3)];
        matmul_abt(MatRef::new(&a, m, k, k + 2), MatRef::new(&b, n, k, k + 1), 0.5, &mut out, n + 3);
        for i in 0..m {
            for j in 0..n {
                let s: f32 = (0..k).map(|d| a[i * (k + 2) + d] * b[j * (k + 1) + d]).sum();
                assert_eq!(out[i * (n + 3) + j], 0.5 * s);
            }
            assert_eq!(out[i * (n + 3) + n], -1.0, "the gap is not written");
        }
        let c: Vec<f32> = (0..k * n).map(|i| (i % 7) as f32).collect();
        let mut out = vec![2.0; m * n];
        matmul_ab(MatRef::new(&a, m, k, k + 2), MatRef::new(&c, k, n, n), 1.0, &mut out, n);
        for i in 0..m {
            for j in 0..n {
                let s: f32 = (0..k).map(|d| a[i * (k + 2) + d] * c[d * n + j]).sum();
                assert_eq!(out[i * n + j], s + 2.0);
            }
        }
    }
}
