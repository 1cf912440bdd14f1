//! Spectral smoothing of scores along time: a low-pass whose cutoff follows the scores' own energy (AudioKV, SSS).

use std::fmt;
use std::str::FromStr;

use realfft::RealFftPlanner;
use realfft::num_complex::Complex;

/// Which bins a cutoff k* leaves. The paper says both, one bin apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cutoff {
    /// Bins 0 … k* (Eq. 17).
    #[default]
    Equation17,
    /// Bins 0 … k* − 1 (Algorithm 1).
    Algorithm1,
}

impl fmt::Display for Cutoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equation17 => "equation-17",
            Self::Algorithm1 => "algorithm-1",
        })
    }
}

impl FromStr for Cutoff {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "equation-17" => Ok(Self::Equation17),
            "algorithm-1" => Ok(Self::Algorithm1),
            _ => Err("use equation-17 or algorithm-1".into()),
        }
    }
}

/// The smallest bin k* at which the energy of bins 0 … k* is at least `rho` of all; interior bins are not doubled.
pub fn cutoff_bin(energies: &[f64], rho: f64) -> usize {
    let goal = rho * energies.iter().sum::<f64>();
    let mut sum = 0.0;
    energies
        .iter()
        .position(|e| {
            sum += e;
            sum >= goal
        })
        .unwrap_or(energies.len().saturating_sub(1))
}

/// ŝ = (1 − α)·s + α·IRFFT(RFFT(s) up to k*), k* by [`cutoff_bin`].
///
/// Not clamped: ringing may make scores slightly negative. Rounded to about 2⁻²⁴ of the largest score, which is the precision
/// of the attention weights, so that what rounding in the transform left of equal scores does not rank them.
pub fn smooth(scores: &[f64], alpha: f64, rho: f64, cutoff: Cutoff) -> Vec<f64> {
    let n = scores.len();
    if n < 2 {
        return scores.to_vec();
    }
    let mut planner = RealFftPlanner::<f64>::new();
    let (forward, inverse) = (planner.plan_fft_forward(n), planner.plan_fft_inverse(n));
    let (mut time, mut spectrum) = (scores.to_vec(), forward.make_output_vec());
    // The transforms refuse only buffers of other lengths, and an imaginary part where there can be none.
    if forward.process(&mut time, &mut spectrum).is_err() {
        return scores.to_vec();
    }
    let energies: Vec<f64> = spectrum.iter().map(Complex::norm_sqr).collect();
    let bins = cutoff_bin(&energies, rho) + usize::from(cutoff == Cutoff::Equation17);
    spectrum.iter_mut().skip(bins).for_each(|bin| *bin = Complex::default());
    spectrum[0].im = 0.0;
    if n.is_multiple_of(2) {
        spectrum[n / 2].im = 0.0;
    }
    if inverse.process(&mut spectrum, &mut time).is_err() {
        return scores.to_vec();
    }
    let smooth = |(s, t): (&f64, &f64)| (1.0 - alpha) * s + alpha * t / n as f64;
    let mut out: Vec<f64> = scores.iter().zip(&time).map(smooth).collect();
    let most = out.iter().fold(0.0, |most: f64, s| most.max(s.abs()));
    if most.is_normal() {
        // A power of two: recordings with equal scores get the same one.
        let step = (most.log2().floor() - 24.0).exp2();
        out.iter_mut().for_each(|s| *s = (*s / step).round() * step);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCORES: [f64; 8] = [0.0, 0.0, 4.0, 0.0, 0.0, 1.0, 0.0, 3.0];

    fn close(got: &[f64], want: &[f64]) {
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 6e-5), "{got:?} {want:?}");
    }

    /// Worked example "SSS": s = 0 0 4 0 0 1 0 3, α = 0.5.
    #[test]
    fn worked_example_sss() {
        let mut time = SCORES.to_vec();
        let forward = RealFftPlanner::<f64>::new().plan_fft_forward(8);
        let mut spectrum = forward.make_output_vec();
        forward.process(&mut time, &mut spectrum).unwrap();
        let energies: Vec<f64> = spectrum.iter().map(Complex::norm_sqr).collect();
        close(&energies, &[64.0, 3.3726, 20.0, 48.6274, 0.0]);
        assert_eq!((cutoff_bin(&energies, 0.3), cutoff_bin(&energies, 0.7)), (0, 3));
        let sss = |rho, cutoff| smooth(&SCORES, 0.5, rho, cutoff);
        close(&sss(0.3, Cutoff::Equation17), &[0.5, 0.5, 2.5, 0.5, 0.5, 1.0, 0.5, 2.0]);
        close(&sss(0.3, Cutoff::Algorithm1), &[0.0, 0.0, 2.0, 0.0, 0.0, 0.5, 0.0, 1.5]);
        close(&sss(0.7, Cutoff::Equation17), &SCORES);
        let off_by_one = [0.1768, 0.4786, 3.1464, 0.7286, -0.1768, 0.5214, 0.8536, 2.2714];
        close(&sss(0.7, Cutoff::Algorithm1), &off_by_one);
    }

    #[test]
    fn flat_scores_stay_tied_and_short_ones_are_safe() {
        for n in 0..40 {
            let flat = smooth(&vec![0.3; n], 0.5, 0.7, Cutoff::Equation17);
            assert!(flat.windows(2).all(|w| w[0] == w[1]) && flat.len() == n, "{n}: {flat:?}");
            assert_eq!(smooth(&vec![0.0; n], 0.5, 0.7, Cutoff::Algorithm1), vec![0.0; n]);
        }
        let odd = smooth(&[1.0, 0.0, 5.0, 0.0, 2.0], 0.5, 1.0, Cutoff::Equation17);
        close(&odd, &[1.0, 0.0, 5.0, 0.0, 2.0]);
    }
}
