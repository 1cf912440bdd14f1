//! How sure a corpus score is: bootstrap over segments (Efron 1979; Koehn 2004 for paired systems).
//!
//! A corpus is drawn again from its own segments, with replacement, many times, and scored each time; the spread of the
//! scores stands for what another corpus of the kind would have given. Systems that were scored on the same segments are
//! compared on the *same* resamples, so that what makes a segment hard for both cancels. Interval and p-value follow
//! sacreBLEU 2.6.

use std::ops::AddAssign;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::error::EvalError;

/// Corpora drawn from one of a given size. The same size, number and seed give the same ones on every machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resamples {
    segments: usize,
    /// One resample after the other.
    indices: Vec<usize>,
}

impl Resamples {
    /// Draws `count` corpora of `segments` segments; 1000 are usual.
    pub fn new(segments: usize, count: usize, seed: u64) -> Result<Self, EvalError> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // The upper half of the product is uniform on 0..segments but for a bias below segments / 2⁶⁴.
        let mut draw = || ((u128::from(rng.next_u64()) * segments as u128) >> 64) as usize;
        let indices = (0..count).flat_map(|_| 0..segments).map(|_| draw()).collect();
        Self::from_indices(segments, indices)
    }

    /// Resamples that were drawn elsewhere: `segments` indices each, counted from 0, one after the other; an incomplete
    /// last one is left out.
    pub fn from_indices(segments: usize, indices: Vec<usize>) -> Result<Self, EvalError> {
        if segments == 0 {
            return Err(EvalError::NoSegments);
        }
        if indices.len() < segments {
            return Err(EvalError::NoResamples);
        }
        match indices.iter().find(|i| **i >= segments) {
            Some(index) => Err(EvalError::Index { index: *index, segments }),
            None => Ok(Self { segments, indices }),
        }
    }

    fn check(&self, found: usize) -> Result<(), EvalError> {
        if found == self.segments {
            return Ok(());
        }
        Err(EvalError::Segments { expected: self.segments, found })
    }

    fn scores<S>(&self, segments: &[S], score: &impl Fn(&S) -> f64) -> Vec<f64>
    where
        S: Default + for<'a> AddAssign<&'a S>,
    {
        let sums = self.indices.chunks_exact(self.segments);
        sums.map(|indices| score(&sum(indices.iter().map(|i| &segments[*i])))).collect()
    }
}

/// A score with the range that holds 95 % of its resamples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The score of the corpus itself, in its own unit.
    pub score: f64,
    /// Mean of the resamples' scores.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Two systems on the same segments.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The baseline.
    pub baseline: Interval,
    /// The system that is compared with it.
    pub system: Interval,
    /// The system's score less the baseline's.
    pub difference: Interval,
    /// How often a difference as large would come about by chance, 0 to 1: the share of resamples (one more than there
    /// are, to be safe) whose absolute difference exceeds its mean by more than the absolute difference itself, as
    /// sacreBLEU counts. 1 where the two are the same on every segment, for which sacreBLEU gives its least value.
    pub p_value: f64,
}

/// The score of summed segment statistics, with its interval; `score` makes one out of a sum.
pub fn interval<S>(
    segments: &[S],
    resamples: &Resamples,
    score: impl Fn(&S) -> f64,
) -> Result<Interval, EvalError>
where
    S: Default + for<'a> AddAssign<&'a S>,
{
    resamples.check(segments.len())?;
    Ok(Interval::new(score(&sum(segments.iter())), resamples.scores(segments, &score)))
}

/// A system against a baseline, by statistics of the same segments in the same order.
pub fn compare<S>(
    baseline: &[S],
    system: &[S],
    resamples: &Resamples,
    score: impl Fn(&S) -> f64,
) -> Result<Comparison, EvalError>
where
    S: Default + for<'a> AddAssign<&'a S>,
{
    resamples.check(baseline.len())?;
    resamples.check(system.len())?;
    let (score_a, score_b) = (score(&sum(baseline.iter())), score(&sum(system.iter())));
    let (a, b) = (resamples.scores(baseline, &score), resamples.scores(system, &score));
    let differences: Vec<f64> = a.iter().zip(&b).map(|(a, b)| b - a).collect();

    let observed = (score_b - score_a).abs();
    let mean = differences.iter().map(|d| d.abs()).sum::<f64>() / differences.len() as f64;
    let beyond = differences.iter().filter(|d| d.abs() - mean > observed).count();
    // Systems that do not differ in any resample would get the least value that there is.
    let same = observed == 0.0 && mean == 0.0;
    Ok(Comparison {
        p_value: if same { 1.0 } else { (beyond + 1) as f64 / (differences.len() + 1) as f64 },
        difference: Interval::new(score_b - score_a, differences),
        baseline: Interval::new(score_a, a),
        system: Interval::new(score_b, b),
    })
}

fn sum<'s, S>(segments: impl Iterator<Item = &'s S>) -> S
where
    S: Default + for<'a> AddAssign<&'a S> + 's,
{
    segments.fold(S::default(), |mut sum, s| {
        sum += s;
        sum
    })
}

impl Interval {
    fn new(score: f64, mut scores: Vec<f64>) -> Self {
        scores.sort_unstable_by(f64::total_cmp);
        let n = scores.len();
        // One fortieth is left out at either end.
        let (low, high) = (scores[n / 40], scores[n - n / 40 - 1]);
        Self { score, mean: scores.iter().sum::<f64>() / n as f64, low, high }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wer::Edits;

    fn recordings(errors: impl IntoIterator<Item = u64>) -> Vec<Edits> {
        errors.into_iter().map(|e| Edits { hits: 100 - e, substitutions: e, ..Edits::default() }).collect()
    }

    #[test]
    fn same_seed_same_draws() {
        let draw = |seed| Resamples::new(50, 100, seed);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        // Fixed, so that a published interval can be had again.
        let first = Resamples::new(1000, 1, 0).map(|r| r.indices[..4].to_vec());
        assert_eq!(first, Ok(vec![709, 465, 699, 60]));
    }

    #[test]
    fn covers_the_known_error() -> Result<(), EvalError> {
        // Error counts uniform on 0..=20: standard error of the mean of 200 is 6.06 / √200 = 0.43 points.
        let a = recordings((0..200).map(|i| i * 8 % 21));
        let resamples = Resamples::new(200, 2000, 7)?;
        let i = interval(&a, &resamples, Edits::rate)?;
        assert!((i.high - i.low - 2.0 * 1.96 * 0.0043).abs() < 0.0015, "{i:?}");
        assert!((i.mean - i.score).abs() < 0.0005);

        // One word more in every recording is a small difference, but a sure one, for the noise is shared.
        let b = recordings((0..200).map(|i| i * 8 % 21 + 1));
        let c = compare(&a, &b, &resamples, Edits::rate)?;
        assert!((c.difference.low - 0.01).abs() < 1e-12 && (c.difference.high - 0.01).abs() < 1e-12, "{c:?}");
        assert!(c.p_value < 0.001);
        assert!(c.baseline.high > c.system.low, "unpaired, the two would not be told apart");
        assert_eq!(compare(&a, &a, &resamples, Edits::rate)?.p_value, 1.0);
        Ok(())
    }

    #[test]
    fn what_cannot_be_resampled() {
        assert_eq!(Resamples::new(0, 10, 0), Err(EvalError::NoSegments));
        assert_eq!(Resamples::new(10, 0, 0), Err(EvalError::NoResamples));
        assert_eq!(Resamples::from_indices(2, vec![0, 2]), Err(EvalError::Index { index: 2, segments: 2 }));
        let Ok(resamples) = Resamples::new(3, 10, 0) else { return };
        let wrong = interval(&recordings([1, 2]), &resamples, Edits::rate);
        assert_eq!(wrong, Err(EvalError::Segments { expected: 3, found: 2 }));
    }
}
