//! From scores to roles and retention (paper, section 2.2).
//!
//! All heads are ranked by VS×HS. The first `n_voice` are voice heads; of these the first `n_anchor` are anchors, the
//! rest tidal; all other heads are fixed. An anchor keeps all audio; any other head keeps min(s̃ · λ, 1) of it, where s̃ is
//! its normalised importance and λ is set so that the audio KV on the device meets a target.
//!
//! Heads are numbered `layer · n_kv_heads + kv_head` throughout.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What a KV head does with the audio it does not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Keeps all audio; its attention says what the tidal heads recall.
    Anchor,
    /// Keeps a part; the rest waits on the host and can be recalled.
    Tidal,
    /// Keeps a part; the rest is gone.
    Fixed,
}

/// How importance is brought into 0 to 1, over the heads that are no anchors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalisation {
    /// Divided by the largest. A reading: the paper only says "normalised".
    #[default]
    Max,
    /// By rank: the best 1, the last 1/n.
    Rank,
    /// The largest 1, the smallest 0, linear between.
    MinMax,
}

/// Why scores cannot be turned into roles.
#[derive(Debug, Error, PartialEq)]
pub enum RoleError {
    /// The two scores are of different models.
    #[error("{vs} voice scores and {hs} head sensitivities")]
    Lengths {
        /// Voice scores.
        vs: usize,
        /// Head sensitivities.
        hs: usize,
    },
    /// A score that is not a number, or negative.
    #[error("head {head}: voice score {vs}, head sensitivity {hs}; both must be finite and not negative")]
    Score {
        /// Head index.
        head: usize,
        /// Its voice score.
        vs: f64,
        /// Its head sensitivity.
        hs: f64,
    },
    /// More anchors than voice heads, or more voice heads than heads.
    #[error("{n_anchor} anchors of {n_voice} voice heads of {heads} heads: each must hold the one before")]
    Counts {
        /// Anchors asked for.
        n_anchor: usize,
        /// Voice heads asked for.
        n_voice: usize,
        /// Heads of the model.
        heads: usize,
    },
}

/// The product VS×HS of every head, `(n_heads)`.
pub fn products(vs: &[f64], hs: &[f64]) -> Result<Vec<f64>, RoleError> {
    if vs.len() != hs.len() {
        return Err(RoleError::Lengths { vs: vs.len(), hs: hs.len() });
    }
    let sound = |x: f64| x.is_finite() && x >= 0.0;
    match (0..vs.len()).find(|i| !(sound(vs[*i]) && sound(hs[*i]))) {
        Some(head) => Err(RoleError::Score { head, vs: vs[head], hs: hs[head] }),
        None => Ok(vs.iter().zip(hs).map(|(v, h)| v * h).collect()),
    }
}

/// Heads from the best score to the worst; of equal ones the lower layer, then the lower head, first.
pub fn ranking(scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order
}

/// The role of every head, `(n_heads)`, by its place in `ranking`.
pub fn roles(ranking: &[usize], n_voice: usize, n_anchor: usize) -> Result<Vec<Role>, RoleError> {
    if n_anchor > n_voice || n_voice > ranking.len() {
        return Err(RoleError::Counts { n_anchor, n_voice, heads: ranking.len() });
    }
    let mut roles = vec![Role::Fixed; ranking.len()];
    for (place, head) in ranking[..n_voice].iter().enumerate() {
        roles[*head] = if place < n_anchor { Role::Anchor } else { Role::Tidal };
    }
    Ok(roles)
}

/// Normalised importance s̃ of every head, `(n_heads)`, 0 to 1; anchors have 1. `scores` are VS×HS.
pub fn importance(scores: &[f64], roles: &[Role], normalisation: Normalisation) -> Vec<f64> {
    let graded: Vec<usize> = (0..scores.len()).filter(|i| roles[*i] != Role::Anchor).collect();
    let largest = graded.iter().fold(0.0, |m: f64, i| m.max(scores[*i]));
    let smallest = graded.iter().fold(largest, |m, i| m.min(scores[*i]));
    let mut out = vec![1.0; scores.len()];
    match normalisation {
        Normalisation::Rank => {
            let order = ranking(scores).into_iter().filter(|i| roles[*i] != Role::Anchor);
            for (place, head) in order.enumerate() {
                out[head] = (graded.len() - place) as f64 / graded.len() as f64;
            }
        }
        Normalisation::Max | Normalisation::MinMax => {
            let floor = if normalisation == Normalisation::Max { 0.0 } else { smallest };
            for head in graded {
                // Heads that are all alike are all as important as the best.
                let spread = largest - floor;
                out[head] = if spread > 0.0 { (scores[head] - floor) / spread } else { 1.0 };
            }
        }
    }
    out
}

/// Share of the audio that each head keeps, `(n_heads)`: 1 for an anchor, else min(s̃ · λ, 1).
pub fn retention(importance: &[f64], roles: &[Role], lambda: f64) -> Vec<f64> {
    let kept = |(s, role): (&f64, &Role)| if *role == Role::Anchor { 1.0 } else { (s * lambda).min(1.0) };
    importance.iter().zip(roles).map(kept).collect()
}

/// The λ above which no head keeps more: 1 over the smallest importance that is not 0.
pub fn saturation(importance: &[f64]) -> f64 {
    1.0 / importance.iter().fold(1.0, |m: f64, s| if *s > 0.0 { m.min(*s) } else { m })
}

/// A λ and what it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FittedLambda {
    /// λ.
    pub lambda: f64,
    /// The share of audio KV on the device that was measured with it, 0 to 1.
    pub r_gpu: f64,
}

/// Bisects λ in 0 to `largest` until the share of audio KV on the device that `measure` finds is within `tolerance` of
/// `target`, or `steps` measurements are made; the closest is returned.
///
/// `measure` must not fall as λ rises. Where the target lies outside what any λ reaches, the nearer end is the answer.
pub fn fit_lambda<E>(
    target: f64,
    tolerance: f64,
    largest: f64,
    steps: usize,
    mut measure: impl FnMut(f64) -> Result<f64, E>,
) -> Result<FittedLambda, E> {
    let (mut low, mut high) = (0.0, largest);
    let mut best = FittedLambda { lambda: low, r_gpu: measure(low)? };
    // The ends first, then the middle of what is left.
    let mut next = high;
    for _ in 1..steps.max(1) {
        let distance = (best.r_gpu - target).abs();
        if distance <= tolerance || best.lambda == low && best.r_gpu > target {
            break;
        }
        let r_gpu = measure(next)?;
        if (r_gpu - target).abs() < distance {
            best = FittedLambda { lambda: next, r_gpu };
        }
        if r_gpu >= target {
            high = next;
        } else {
            low = next;
        }
        if low == high {
            break;
        }
        next = low + (high - low) / 2.0;
    }
    Ok(best)
}

/// [`fit_lambda`] for the mean of [`retention`]: what stays on the device without any recall, before the share of each
/// segment is rounded down to whole positions.
pub fn fit_static_lambda(target: f64, importance: &[f64], roles: &[Role]) -> FittedLambda {
    let measure = |lambda| {
        let kept: f64 = retention(importance, roles, lambda).iter().sum();
        Ok::<_, std::convert::Infallible>(kept / roles.len().max(1) as f64)
    };
    let Ok(fitted) = fit_lambda(target, 1e-9, saturation(importance), 200, measure);
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ties_go_to_the_lower_head() {
        assert_eq!(ranking(&[0.1, 0.5, 0.5, 0.0, 0.7]), [4, 1, 2, 0, 3]);
        let roles = roles(&[4, 1, 2, 0, 3], 3, 1).unwrap();
        use Role::{Anchor, Fixed, Tidal};
        assert_eq!(roles, [Fixed, Tidal, Tidal, Fixed, Anchor]);
    }

    #[test]
    fn bad_scores_and_counts_are_refused() {
        assert_eq!(products(&[0.5, 1.0], &[2.0, 3.0]), Ok(vec![1.0, 3.0]));
        assert_eq!(products(&[0.5], &[]), Err(RoleError::Lengths { vs: 1, hs: 0 }));
        assert!(products(&[0.5, f64::NAN], &[1.0, 1.0]).is_err());
        assert!(products(&[0.5], &[-1.0]).unwrap_err().to_string().contains("head 0"));
        assert!(roles(&[0, 1], 3, 1).is_err());
        assert!(roles(&[0, 1], 1, 2).is_err());
        assert_eq!(roles(&[], 0, 0), Ok(vec![]));
    }

    #[test]
    fn importance_is_relative_to_the_heads_that_are_no_anchors() {
        let scores = [8.0, 1.0, 4.0, 2.0];
        let roles = roles(&ranking(&scores), 2, 1).unwrap();
        assert_eq!(importance(&scores, &roles, Normalisation::Max), [1.0, 0.25, 1.0, 0.5]);
        assert_eq!(importance(&scores, &roles, Normalisation::MinMax), [1.0, 0.0, 1.0, 1.0 / 3.0]);
        assert_eq!(importance(&scores, &roles, Normalisation::Rank), [1.0, 1.0 / 3.0, 1.0, 2.0 / 3.0]);
        // Heads that no score tells apart share alike.
        assert_eq!(importance(&[0.0; 3], &[Role::Fixed; 3], Normalisation::Max), [1.0; 3]);
        assert_eq!(importance(&[2.0; 3], &[Role::Fixed; 3], Normalisation::MinMax), [1.0; 3]);
        assert_eq!(retention(&[1.0, 0.25, 1.0, 0.5], &roles, 1.5), [1.0, 0.375, 1.0, 0.75]);
    }

    #[test]
    fn a_target_out_of_reach_gives_the_nearer_end() {
        let (importance, roles) = ([1.0, 0.5, 0.0], [Role::Anchor, Role::Fixed, Role::Fixed]);
        let low = fit_static_lambda(0.1, &importance, &roles);
        assert_eq!((low.lambda, low.r_gpu), (0.0, 1.0 / 3.0));
        let high = fit_static_lambda(0.9, &importance, &roles);
        assert_eq!((high.lambda, high.r_gpu), (2.0, 2.0 / 3.0));
    }

    #[test]
    fn measuring_stops_when_close_enough_and_passes_errors_on() {
        let mut calls = 0;
        let fitted = fit_lambda(0.2, 0.005, 4.0, 30, |lambda| {
            calls += 1;
            Ok::<_, ()>((lambda / 2.0).min(1.0))
        });
        let fitted = fitted.unwrap();
        assert!((fitted.r_gpu - 0.2).abs() <= 0.005 && calls < 12, "{fitted:?} after {calls}");
        assert_eq!(fit_lambda(0.2, 0.005, 4.0, 30, |l| if l > 0.0 { Err("no") } else { Ok(0.0) }), Err("no"));
    }

    proptest! {
        #[test]
        fn a_static_target_is_met(
            scores in proptest::collection::vec(0.01f64..1.0, 8..64),
            target in 0.2f64..1.0,
        ) {
            let roles = roles(&ranking(&scores), 4, 1).unwrap();
            for normalisation in [Normalisation::Max, Normalisation::Rank] {
                let importance = importance(&scores, &roles, normalisation);
                let fitted = fit_static_lambda(target, &importance, &roles);
                prop_assert!((fitted.r_gpu - target).abs() < 1e-6, "{:?} for {}", fitted, target);
            }
        }
    }
}
