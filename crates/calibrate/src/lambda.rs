//! λ by measurement: the share of audio KV on the device that runs have, recall counted, meets a target.

/// A λ and what it leads to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FittedLambda {
    /// λ.
    pub lambda: f64,
    /// The share of audio KV on the device that was measured with it, r_GPU, 0 to 1.
    pub r_gpu: f64,
}

/// Looks for the λ with which `measure` finds a share within `tolerance` of `target`, in at most `steps` (at least one)
/// measurements; the closest λ tried is returned.
///
/// A measurement is a run over the calibration set, so few are made: from `guess` (above 0, such as the λ that meets the
/// target without recall) by doubling or halving until the target lies between two, then on the straight line between
/// these, kept off their ends. `measure` should rise with λ; where it does not, the answer is only less close.
pub fn fit_lambda<E>(
    target: f64,
    tolerance: f64,
    guess: f64,
    steps: usize,
    mut measure: impl FnMut(f64) -> Result<f64, E>,
) -> Result<FittedLambda, E> {
    let mut best = FittedLambda { lambda: guess, r_gpu: measure(guess)? };
    let (mut below, mut above): (Option<FittedLambda>, Option<FittedLambda>) = (None, None);
    let mut last = best;
    for _ in 1..steps {
        if (best.r_gpu - target).abs() <= tolerance {
            break;
        }
        *(if last.r_gpu < target { &mut below } else { &mut above }) = Some(last);
        let lambda = match (below, above) {
            (Some(below), Some(above)) => {
                let share = (target - below.r_gpu) / (above.r_gpu - below.r_gpu);
                below.lambda + (above.lambda - below.lambda) * share.clamp(0.1, 0.9)
            }
            (Some(below), None) => below.lambda * 2.0,
            (None, _) => last.lambda / 2.0,
        };
        last = FittedLambda { lambda, r_gpu: measure(lambda)? };
        if (last.r_gpu - target).abs() < (best.r_gpu - target).abs() {
            best = last;
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn targets_out_of_reach_give_the_nearer_end() {
        let measure = |l: f64| Ok::<_, ()>(0.3 + 0.2 * l.min(2.0));
        let low = fit_lambda(0.1, 0.005, 1.0, 12, measure).unwrap();
        assert!(low.lambda < 1e-3 && low.r_gpu < 0.301, "{low:?}");
        let high = fit_lambda(0.9, 0.005, 1.0, 12, measure).unwrap();
        assert_eq!((high.lambda, high.r_gpu), (2.0, 0.7));
    }

    #[test]
    fn one_step_is_one_measurement_and_errors_pass() {
        let mut calls = 0;
        let fitted = fit_lambda(0.2, 0.0, 3.0, 1, |l| {
            calls += 1;
            Ok::<_, ()>(l / 10.0)
        });
        assert_eq!((fitted, calls), (Ok(FittedLambda { lambda: 3.0, r_gpu: 0.3 }), 1));
        assert_eq!(fit_lambda(0.2, 0.0, 1.0, 9, |l| if l < 1.0 { Err("no") } else { Ok(0.5) }), Err("no"));
    }

    proptest! {
        /// Heads that keep whole rows of segments of 25, with and without a recall that adds a constant.
        #[test]
        fn few_measurements_meet_the_target(
            heads in proptest::collection::vec(0.02f64..1.0, 24..64),
            target in 0.25f64..0.9,
            recall in 0.0f64..0.1,
        ) {
            let kept = |l: f64| heads.iter().map(|s| (s * l).min(1.0)).sum::<f64>() / heads.len() as f64;
            let measured = |l: f64| {
                let rows = |s: &f64| ((s * l).min(1.0) * 25.0).floor() / 25.0;
                (heads.iter().map(rows).sum::<f64>() / heads.len() as f64 + recall).min(1.0)
            };
            let mut guess = 1.0;
            while kept(guess) < target { guess *= 1.1; }
            let mut calls = 0;
            let fitted = fit_lambda(target, 0.005, guess, 12, |l| { calls += 1; Ok::<_, ()>(measured(l)) });
            let fitted = fitted.unwrap();
            prop_assert!((fitted.r_gpu - target).abs() <= 0.02, "{:?} for {} in {}", fitted, target, calls);
        }
    }
}
