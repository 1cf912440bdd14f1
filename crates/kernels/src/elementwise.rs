//! Normalisation, activation, softmax and rotary position embedding on rows.

use crate::dispatch::{MulAdd, kernel};

const W: usize = 16;

/// `exp(x)` in f32, relative error below 3e-7 for −87 <= x <= 88; 0 below, e^88 above. Branch-free, so that loops over it vectorise.
#[inline(always)]
fn exp<M: MulAdd>(m: M, x: f32) -> f32 {
    let clamped = x.clamp(-87.0, 88.0);
    // x = n ln 2 + r with |r| <= ln 2 / 2; adding 1.5·2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let shifted = m.mul_add(clamped, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = m.mul_add(n, -0.693_359_4, clamped);
    let r = m.mul_add(n, 2.121_944_4e-4, r);
    // Taylor coefficients 1/7! … 1/2!: the remainder on |r| <= 0.347 is below 1e-8.
    let mut p = 1.984_127e-4;
    p = m.mul_add(p, r, 1.388_888_9e-3);
    p = m.mul_add(p, r, 8.333_333e-3);
    p = m.mul_add(p, r, 4.166_666_8e-2);
    p = m.mul_add(p, r, 1.666_666_7e-1);
    p = m.mul_add(p, r, 0.5);
    let e = m.mul_add(p, r * r, r) + 1.0;
    // The low bits of `shifted` hold n: cheaper than a conversion, which would have to saturate.
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    let value = e * f32::from_bits(exponent << 23);
    if x < -87.0 { 0.0 } else { value }
}

/// `erf(x)`: Abramowitz and Stegun 7.1.26 has an error of 1.5e-7 in exact arithmetic, but its `1 − …` loses small
/// arguments; those use the Maclaurin series instead.
#[inline(always)]
fn erf<M: MulAdd>(m: M, x: f32) -> f32 {
    let a = x.abs();
    let t = 1.0 / m.mul_add(0.327_591_1, a, 1.0);
    let mut p = 1.061_405_4;
    p = m.mul_add(p, t, -1.453_152);
    p = m.mul_add(p, t, 1.421_413_8);
    p = m.mul_add(p, t, -0.284_496_72);
    p = m.mul_add(p, t, 0.254_829_6);
    let large = 1.0 - p * t * exp(m, -a * a);
    let s = a * a;
    let mut q = 1.0 / 1320.0; // series of erf(x)·√π/2 / x in x²
    q = m.mul_add(-q, s, 1.0 / 216.0);
    q = m.mul_add(-q, s, 1.0 / 42.0);
    q = m.mul_add(-q, s, 0.1);
    q = m.mul_add(-q, s, 1.0 / 3.0);
    q = m.mul_add(-q, s, 1.0);
    let small = a * q * std::f32::consts::FRAC_2_SQRT_PI;
    let magnitude = if a < 0.5 { small } else { large };
    magnitude.copysign(x)
}

kernel! {
    /// GELU in its exact form, `x/2 · (1 + erf(x/√2))`, in place.
    pub fn gelu / gelu_with(x: &mut [f32]) = gelu_body
}

#[inline(always)]
fn gelu_body<M: MulAdd>(m: M, x: &mut [f32]) {
    for x in x {
        *x = 0.5 * *x * (1.0 + erf(m, *x * std::f32::consts::FRAC_1_SQRT_2));
    }
}

kernel! {
    /// SwiGLU gate: `gate ← silu(gate) · up`, where `silu(x) = x / (1 + e^(−x))`.
    pub fn silu_mul / silu_mul_with(gate: &mut [f32], up: &[f32]) = silu_mul_body
}

#[inline(always)]
fn silu_mul_body<M: MulAdd>(m: M, gate: &mut [f32], up: &[f32]) {
    for (g, u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + exp(m, -*g)) * u;
    }
}

kernel! {
    /// Replaces `x` by `e^(x − max)` and returns the sum of the results.
    pub fn exp_sub_sum / exp_sub_sum_with(x: &mut [f32], max: f32) -> f32 = exp_sub_sum_body
}

#[inline(always)]
fn exp_sub_sum_body<M: MulAdd>(m: M, x: &mut [f32], max: f32) -> f32 {
    let mut acc = [0f32; W];
    let mut chunks = x.chunks_exact_mut(W);
    for chunk in &mut chunks {
        for lane in 0..W {
            let e = exp(m, chunk[lane] - max);
            chunk[lane] = e;
            acc[lane] += e;
        }
    }
    let mut total: f32 = acc.iter().sum();
    for x in chunks.into_remainder() {
        *x = exp(m, *x - max);
        total += *x;
    }
    total
}

kernel! {
    /// The largest element; −∞ for an empty slice.
    pub fn max / max_with(x: &[f32]) -> f32 = max_body
}

#[inline(always)]
fn max_body<M: MulAdd>(_: M, x: &[f32]) -> f32 {
    let mut acc = [f32::NEG_INFINITY; W];
    let chunks = x.chunks_exact(W);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..W {
            acc[lane] = if chunk[lane] > acc[lane] { chunk[lane] } else { acc[lane] };
        }
    }
    acc.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a })
}

kernel! {
    /// `x ← s · x`.
    pub fn scale / scale_with(x: &mut [f32], s: f32) = scale_body
}

#[inline(always)]
fn scale_body<M: MulAdd>(_: M, x: &mut [f32], s: f32) {
    for x in x {
        *x *= s;
    }
}

kernel! {
    /// `x ← x + y`.
    pub fn add / add_with(x: &mut [f32], y: &[f32]) = add_body
}

#[inline(always)]
fn add_body<M: MulAdd>(_: M, x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

kernel! {
    /// RMSNorm of one row: `out = x / √(mean(x²) + eps) · weight`.
    pub fn rms_norm / rms_norm_with(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rms_norm_body
}

#[inline(always)]
fn rms_norm_body<M: MulAdd>(_: M, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    // f64 sums: a single row is short, and the reference's own order of summation is unknown.
    let mean = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / x.len() as f64;
    let r = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
    for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
        *out = w * (x * r);
    }
}

kernel! {
    /// RMSNorm of one row where it lies: `x ← x / √(mean(x²) + eps) · weight`.
    pub fn rms_norm_in_place / rms_norm_in_place_with(x: &mut [f32], weight: &[f32], eps: f32) = rms_norm_in_place_body
}

#[inline(always)]
fn rms_norm_in_place_body<M: MulAdd>(_: M, x: &mut [f32], weight: &[f32], eps: f32) {
    let mean = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / x.len() as f64;
    let r = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
    for (x, w) in x.iter_mut().zip(weight) {
        *x = w * (*x * r);
    }
}

kernel! {
    /// LayerNorm of one row: `out = (x − mean) / √(var + eps) · weight + bias`.
    pub fn layer_norm / layer_norm_with(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) = layer_norm_body
}

#[inline(always)]
fn layer_norm_body<M: MulAdd>(_: M, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    let n = x.len() as f64;
    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let var = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
    let (mean, r) = (mean as f32, (1.0 / (var + f64::from(eps)).sqrt()) as f32);
    for (((out, x), w), b) in out.iter_mut().zip(x).zip(weight).zip(bias) {
        *out = (x - mean) * r * w + b;
    }
}

/// Rotary position embedding in the half-split layout of Hugging Face's Llama: dimension `i` is paired with
/// `i + head_dim / 2` and turned by `position · θ^(−2i / head_dim)`.
#[derive(Clone, Debug)]
pub struct Rope {
    inverse_frequency: Vec<f32>, // (head_dim / 2)
}

impl Rope {
    /// `head_dim` must be even; `theta` is the base (Su et al. 2021, RoFormer; 1e8 for Voxtral).
    pub fn new(head_dim: usize, theta: f64) -> Self {
        // In f32 step by step, as the reference does: at position 22,500 the last bit of a frequency is 5e-4 rad.
        let inverse_frequency =
            (0..head_dim / 2).map(|i| 1.0 / (theta as f32).powf((2 * i) as f32 / head_dim as f32)).collect();
        Self { inverse_frequency }
    }

    /// Cosines and sines of `position`, each `(head_dim / 2)`, appended to the two vectors.
    pub fn angles(&self, position: usize, cos: &mut Vec<f32>, sin: &mut Vec<f32>) {
        for f in &self.inverse_frequency {
            // The product is rounded to f32 as in the reference, whose angles are f32.
            let (s, c) = (position as f32 * f).sin_cos();
            cos.push(c);
            sin.push(s);
        }
    }

    /// Turns one head's row `(head_dim)` in place by angles from [`Rope::angles`].
    pub fn rotate(row: &mut [f32], cos: &[f32], sin: &[f32]) {
        let (a, b) = row.split_at_mut(cos.len());
        for (((a, b), c), s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
            (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    const ALL: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512];

    #[test]
    fn exp_is_accurate_over_the_whole_range() {
        for isa in ALL {
            let mut worst = 0f64;
            for i in -8700..=8700 {
                let x = i as f32 / 100.0;
                let mut v = [x];
                exp_sub_sum_with(isa, &mut v, 0.0);
                assert!(v[0].is_finite());
                worst = worst.max((f64::from(v[0]) / f64::from(x).exp() - 1.0).abs());
            }
            assert!(worst < 3e-7, "{isa:?}: {worst:e}");
            let mut v = [-200.0, f32::NEG_INFINITY];
            exp_sub_sum_with(isa, &mut v, 0.0);
            assert_eq!(v, [0.0, 0.0]);
        }
    }

    /// Reference points of erf from DLMF 7.23 and 50-digit evaluation.
    #[test]
    fn gelu_matches_the_error_function() {
        let erf = [(0.0, 0.0), (0.1, 0.112462916018285), (0.5, 0.520499877813047), (1.0, 0.842700792949715)];
        let erf =
            erf.iter().chain(&[(2.0, 0.995322265018953), (3.0, 0.999977909503001), (5.0, 0.999999999998463)]);
        for (x, e) in erf {
            for (x, e) in [(*x, *e), (-*x, -*e)] {
                let arg = x * std::f64::consts::SQRT_2;
                for isa in ALL {
                    let mut v = [arg as f32];
                    gelu_with(isa, &mut v);
                    assert!(
                        (f64::from(v[0]) - 0.5 * arg * (1.0 + e)).abs() < 3e-7 * (1.0 + arg.abs()),
                        "{isa:?} {x}"
                    );
                }
            }
        }
    }

    #[test]
    fn norms_agree_with_f64() {
        let x: Vec<f32> = (0..100).map(|i| (i as f32 * 0.7).sin() * 3.0 + 1.0).collect();
        let w: Vec<f32> = (0..100).map(|i| 1.0 + i as f32 / 100.0).collect();
        let mut out = vec![0.0; 100];
        let ms = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 100.0;
        let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / 100.0;
        let var = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / 100.0;
        for isa in ALL {
            rms_norm_with(isa, &x, &w, 1e-5, &mut out);
            for i in 0..100 {
                let want = f64::from(x[i]) / (ms + 1e-5).sqrt() * f64::from(w[i]);
                assert!((f64::from(out[i]) - want).abs() < 1e-5, "{isa:?}");
            }
            layer_norm_with(isa, &x, &w, &x, 1e-5, &mut out);
            for i in 0..100 {
                let want = (f64::from(x[i]) - mean) / (var + 1e-5).sqrt() * f64::from(w[i]) + f64::from(x[i]);
                assert!((f64::from(out[i]) - want).abs() < 1e-5, "{isa:?}");
            }
        }
    }

    #[test]
    fn swiglu_scaling_and_maxima_agree_with_f64() {
        let gate: Vec<f32> = (0..77).map(|i| (i as f32 - 38.0) * 0.6).collect();
        let up: Vec<f32> = (0..77).map(|i| (i as f32 * 0.9).cos()).collect();
        for isa in ALL {
            let mut out = gate.clone();
            silu_mul_with(isa, &mut out, &up);
            for ((o, g), u) in out.iter().zip(&gate).zip(&up) {
                let g = f64::from(*g);
                let want = g / (1.0 + (-g).exp()) * f64::from(*u);
                assert!((f64::from(*o) - want).abs() < 1e-5, "{isa:?} {g}: {o} {want}");
            }
            assert_eq!(max_with(isa, &gate), 38.0 * 0.6);
            assert_eq!(max_with(isa, &[]), f32::NEG_INFINITY);
            let mut x = gate.clone();
            scale_with(isa, &mut x, 2.0);
            add_with(isa, &mut x, &gate);
            assert!(x.iter().zip(&gate).all(|(x, g)| (x - 3.0 * g).abs() < 1e-5), "{isa:?}");
        }
    }

    #[test]
    fn rope_keeps_the_norm_and_depends_on_the_distance_alone() {
        let rope = Rope::new(8, 1e4);
        let turn = |row: &[f32], position| {
            let (mut cos, mut sin, mut row) = (vec![], vec![], row.to_vec());
            rope.angles(position, &mut cos, &mut sin);
            Rope::rotate(&mut row, &cos, &sin);
            row
        };
        let (q, k) =
            ([1.0, 2.0, -1.0, 0.5, 0.3, -2.0, 1.5, 0.1], [0.2, -1.0, 0.7, 1.0, -0.4, 0.6, 2.0, -1.1]);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        assert!((dot(&turn(&q, 7), &turn(&k, 4)) - dot(&turn(&q, 103), &turn(&k, 100))).abs() < 1e-4);
        assert!((dot(&turn(&q, 9), &turn(&q, 9)) - dot(&q, &q)).abs() < 1e-4);
    }
}
