//! How many audio rows a method may keep, and how whole rows are shared out so that nothing is lost to rounding.

use std::fmt;

use thiserror::Error;

use crate::{KvDtype, KvShape};

/// What a method may keep of a prompt's audio. Text is always kept and never counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// Share of the audio rows, 0 to 1: each KV head's mean is round(share · n_audio) rows.
    Ratio(f64),
    /// Audio rows per KV head, as the mean over heads.
    Rows(usize),
    /// Bytes of audio keys and values over all layers and KV heads, as stored. Whoever has a limit for everything takes
    /// off text rows first, and what pages that are not full cost.
    Bytes {
        /// Most bytes.
        bytes: u64,
        /// Type in which they are stored.
        dtype: KvDtype,
    },
}

/// A budget that is no share.
#[derive(Debug, Error, PartialEq)]
#[error("a share of audio rows is {0}; it must be between 0 and 1")]
pub struct BudgetError(pub f64);

impl Budget {
    /// Refuses a share that is none.
    pub fn check(self) -> Result<(), BudgetError> {
        match self {
            Self::Ratio(share) if !(0.0..=1.0).contains(&share) => Err(BudgetError(share)),
            _ => Ok(()),
        }
    }

    /// Audio rows to keep over all layers and KV heads; never more than there are.
    pub fn total(self, shape: KvShape, n_audio: usize) -> usize {
        let heads = shape.n_layers * shape.n_kv_heads;
        let rows = match self {
            Self::Ratio(share) => {
                heads.saturating_mul((share.clamp(0.0, 1.0) * n_audio as f64).round() as usize)
            }
            Self::Rows(rows) => heads.saturating_mul(rows),
            Self::Bytes { bytes, dtype } => {
                let row = (2 * dtype.row_bytes(shape.head_dim)).max(1) as u64;
                usize::try_from(bytes / row).unwrap_or(usize::MAX)
            }
        };
        rows.min(heads.saturating_mul(n_audio))
    }

    /// Rows of each KV head of `layer` when all heads of the model get the same, `(n_kv_heads)`. A total that does not
    /// divide gives the first heads, counted layer by layer, one more.
    pub fn heads_of(self, shape: KvShape, n_audio: usize, layer: usize) -> Vec<usize> {
        let total = self.total(shape, n_audio);
        let heads = shape.n_layers * shape.n_kv_heads;
        let first = layer * shape.n_kv_heads;
        (first..first + shape.n_kv_heads).map(|head| even(total, heads, head)).collect()
    }

    /// The share of all audio rows that this is, 0 to 1 (1 without audio).
    pub fn share(self, shape: KvShape, n_audio: usize) -> f64 {
        let all = shape.n_layers * shape.n_kv_heads * n_audio;
        match self {
            Self::Ratio(share) => share,
            _ if all == 0 => 1.0,
            _ => self.total(shape, n_audio) as f64 / all as f64,
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ratio(share) => write!(f, "{share}"),
            Self::Rows(rows) => write!(f, "{rows} rows per head"),
            Self::Bytes { bytes, dtype } => write!(f, "{bytes} bytes of {dtype}"),
        }
    }
}

/// Share number `part` of `total` split into `parts` that differ by at most one, the larger ones first.
pub fn even(total: usize, parts: usize, part: usize) -> usize {
    match parts {
        0 => 0,
        _ => total / parts + usize::from(part < total % parts),
    }
}

/// Splits `total` in proportion to `weights`, at most `limit` each.
///
/// Largest remainder, ties to the lower index. What a share has above `limit` goes to the others in proportion to their
/// weights; where no weight is left (or weights are no numbers), it goes evenly. The sum is exactly `total`, or
/// `weights.len() · limit` if that is less.
pub fn split(total: usize, weights: &[f64], limit: usize) -> Vec<usize> {
    let n = weights.len();
    let mut left = total.min(n.saturating_mul(limit));
    let mut out = vec![0; n];
    let mut open: Vec<usize> = (0..n).collect();
    while left > 0 && !open.is_empty() {
        let sum: f64 = open.iter().map(|i| weights[*i].max(0.0)).sum();
        let ideal = |i: usize| match sum > 0.0 && sum.is_finite() {
            true => left as f64 * weights[i].max(0.0) / sum,
            false => left as f64 / open.len() as f64,
        };
        let full: Vec<usize> = open.iter().copied().filter(|i| ideal(*i) >= limit as f64).collect();
        if full.is_empty() {
            let ideals: Vec<f64> = open.iter().map(|i| ideal(*i)).collect();
            let mut shares: Vec<usize> = ideals.iter().map(|x| x.floor() as usize).collect();
            repair(&mut shares, &ideals, left, limit);
            open.iter().zip(shares).for_each(|(i, share)| out[*i] = share);
            return out;
        }
        left -= full.len() * limit;
        full.iter().for_each(|i| out[*i] = limit);
        open.retain(|i| !full.contains(i));
    }
    out
}

/// Makes rounded `shares` of real `ideals` sum up to `total`, each at most `limit`.
///
/// One row at a time goes to the share that lies furthest below its ideal (ties to the lower index), or is taken from
/// the one furthest above (ties to the higher index): the largest-remainder rule. Stops short only when all are full.
pub fn repair(shares: &mut [usize], ideals: &[f64], total: usize, limit: usize) {
    let mut sum: usize = shares.iter().sum();
    while sum != total {
        // To a millionth of a row: ties must not be broken by the last bit of an ideal.
        let missing = |i: usize| ((ideals[i] - shares[i] as f64) * 1e6).round();
        let candidates = 0..shares.len();
        let best = if sum < total {
            candidates
                .filter(|i| shares[*i] < limit)
                .max_by(|a, b| missing(*a).total_cmp(&missing(*b)).then(b.cmp(a)))
        } else {
            candidates
                .filter(|i| shares[*i] > 0)
                .min_by(|a, b| missing(*a).total_cmp(&missing(*b)).then(b.cmp(a)))
        };
        let Some(i) = best else { return };
        if sum < total {
            (shares[i], sum) = (shares[i] + 1, sum + 1);
        } else {
            (shares[i], sum) = (shares[i] - 1, sum - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape { n_layers: 3, n_q_heads: 4, n_kv_heads: 2, head_dim: 8 };

    #[test]
    fn budgets_in_all_units() {
        assert_eq!(Budget::Ratio(0.2).total(SHAPE, 375), 6 * 75);
        assert_eq!(Budget::Ratio(0.29).total(SHAPE, 100), 6 * 29, "not 28, whatever 0.29 is in binary");
        assert_eq!(Budget::Ratio(2.0).total(SHAPE, 10), 60);
        assert_eq!(Budget::Rows(7).total(SHAPE, 375), 42);
        assert_eq!(Budget::Rows(7).total(SHAPE, 3), 18, "no more than there is");
        let bytes = |bytes| Budget::Bytes { bytes, dtype: KvDtype::Bf16 };
        assert_eq!(bytes(32 * 20 + 31).total(SHAPE, 375), 20);
        assert_eq!(bytes(u64::MAX).total(SHAPE, 375), 6 * 375);
        let heads: Vec<usize> = (0..3).flat_map(|l| bytes(32 * 20).heads_of(SHAPE, 375, l)).collect();
        assert_eq!(heads, [4, 4, 3, 3, 3, 3]);
        assert!(Budget::Ratio(f64::NAN).check().is_err() && Budget::Ratio(1.5).check().is_err());
        assert_eq!(Budget::Ratio(f64::NAN).total(SHAPE, 5), 0);
        assert_eq!(Budget::Rows(5).share(SHAPE, 10), 0.5);
    }

    #[test]
    fn splits_are_exact_and_limited() {
        assert_eq!(split(10, &[1.0, 1.0, 1.0], 9), [4, 3, 3], "ties to the lower index");
        assert_eq!(split(10, &[3.0, 1.0, 0.0], 6), [6, 4, 0]);
        assert_eq!(split(10, &[3.0, 0.0, 0.0], 6), [6, 2, 2], "no weight left: evenly");
        assert_eq!(split(100, &[1.0, 2.0], 6), [6, 6]);
        assert_eq!(split(5, &[f64::NAN, 1.0], 6), [0, 5]);
        assert_eq!(split(5, &[f64::INFINITY, 1.0], 6), [3, 2]);
        assert_eq!(split(5, &[], 6), [0usize; 0]);
        for total in 0..60 {
            let shares = split(total, &[0.1, 5.0, 0.0, 2.3, 2.3, 0.7], 10);
            assert_eq!(shares.iter().sum::<usize>(), total);
            assert!(shares.iter().all(|s| *s <= 10) && shares[3] >= shares[4]);
        }
    }

    /// Worked example "SparseMM budget": 4 heads, budget 128, w 32, ratio 0.5: base 96, least 48, pool 192; rounding
    /// alone gives 144, 106, 77, 58, one row too many.
    #[test]
    fn worked_example_sparsemm_budget() {
        let ideals: Vec<f64> = [0.5, 0.3, 0.15, 0.05].iter().map(|s| s * 192.0 + 48.0).collect();
        let mut shares: Vec<usize> = ideals.iter().map(|x| x.round_ties_even() as usize).collect();
        assert_eq!(shares, [144, 106, 77, 58]);
        repair(&mut shares, &ideals, 384, 1000);
        assert_eq!(
            shares,
            [144, 106, 77, 57],
            "105.6 and 57.6 were both rounded up by 0.4; the lower head keeps it"
        );
    }
}
