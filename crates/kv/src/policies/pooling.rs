//! Pooling of scores along time, so that a row is kept together with its neighbours.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// How neighbouring scores become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Their sum over the kernel's length: places past the ends count as 0 (as in SnapKV's and PyTorch's pooling).
    #[default]
    Average,
    /// The largest of those that exist.
    Max,
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Average => "average",
            Self::Max => "max",
        })
    }
}

impl FromStr for Pooling {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "average" => Ok(Self::Average),
            "max" => Ok(Self::Max),
            _ => Err("use average or max".into()),
        }
    }
}

/// Pools over `kernel` scores centred at each place, stride 1; an even kernel counts as the next odd one, and 1 changes
/// nothing. As long as `scores`.
pub fn pool(scores: &[f64], kernel: usize, how: Pooling) -> Vec<f64> {
    let side = kernel / 2;
    if side == 0 {
        return scores.to_vec();
    }
    let window = |i: usize| &scores[i.saturating_sub(side)..(i + side + 1).min(scores.len())];
    let length = (2 * side + 1) as f64;
    (0..scores.len())
        .map(|i| match how {
            Pooling::Average => window(i).iter().sum::<f64>() / length,
            Pooling::Max => window(i).iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
        .collect()
}

/// [`pool`] within each of `stretches`, which cover `scores`: recordings that meet in one prompt are no neighbours.
pub fn pool_within(scores: &[f64], stretches: &[Range<usize>], kernel: usize, how: Pooling) -> Vec<f64> {
    stretches.iter().flat_map(|stretch| pool(&scores[stretch.clone()], kernel, how)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked example "Pooling": 1 5 2 0 0 3 1, k = 3; average with zero padding counted.
    #[test]
    fn worked_example_pooling() {
        let scores = [1.0, 5.0, 2.0, 0.0, 0.0, 3.0, 1.0];
        assert_eq!(pool(&scores, 3, Pooling::Max), [5.0, 5.0, 5.0, 2.0, 3.0, 3.0, 3.0]);
        let average = pool(&scores, 3, Pooling::Average);
        let want = [2.0, 8.0 / 3.0, 7.0 / 3.0, 2.0 / 3.0, 1.0, 4.0 / 3.0, 4.0 / 3.0];
        assert!(average.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12), "{average:?}");
    }

    #[test]
    fn kernels_of_any_length_and_stretches() {
        let scores = [1.0, 2.0, 3.0];
        assert_eq!(pool(&scores, 0, Pooling::Max), scores);
        assert_eq!(pool(&scores, 1, Pooling::Average), scores);
        assert_eq!(pool(&scores, 99, Pooling::Max), [3.0; 3]);
        assert_eq!(pool(&[], 3, Pooling::Max), [0f64; 0]);
        assert_eq!(pool_within(&[1.0, 0.0, 0.0, 9.0], &[0..2, 2..4], 3, Pooling::Max), [1.0, 1.0, 9.0, 9.0]);
    }
}
