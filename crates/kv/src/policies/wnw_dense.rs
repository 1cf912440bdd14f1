//! WnW with recall that stays active at high r_GPU: which heads recall, and how much they keep, are decided apart.

use std::sync::Arc;

use super::registry::{BuildError, Entry, Inputs, Keeps};
use super::wnw::{
    CHUNK, N_ANCHOR, NORMALISE, RELEASE, RELEASE_AFTER, SEGMENT, SELECTION, SIGNAL, TOP_CHUNKS, WARM_START,
    Wnw, WnwParams, profile_and_options,
};
use crate::policy::Policy;
use crate::profile::{Profile, ProfileError, WnwOptions, lambda_for_static, normalised, ranking};
use crate::report::Role;

/// Least normalised importance: heads of no importance share alike what is left when all others keep everything.
const LEAST: f64 = 1e-6;

/// How [`Wnw`] is parametrised so that recall has something to do whatever the target: an answer to the open
/// point in arXiv 2608.22704, where recall lies idle at a high r_GPU.
///
/// There the 30 most important heads are the voice heads at r_GPU 0.6 and 0.8, and λ is so large that nearly all of these keep
/// everything: nothing of theirs is left to recall, and what the fixed heads lost is gone.
///
/// Formula. Retention as in WnW, min(s̃·λ, c), with λ solved for the target alone. Roles follow from it: the `n_anchor` best
/// heads are anchors; of the others, heads that keep everything have nothing to recall and no role; the `n_tidal` most
/// important of those that lose rows are tidal, the rest fixed.
///
/// Readings (ours throughout). By default every head that loses rows is tidal, so that all audio stays within
/// reach: by the paper's own figures recall into 235 of 240 heads costs half a millisecond per token. The
/// ceiling c (1: none) holds rows of the best heads back for the others; it is raised where the target needs more.
/// Recall comes on top of what the target keeps at prefill; `recall_share` takes off what it was measured to add.
#[derive(Clone, Debug, PartialEq)]
pub struct WnwDense {
    /// Target r_GPU, and all options of [`Wnw`] but its number of voice heads and λ.
    pub options: WnwOptions,
    /// Most tidal heads; `usize::MAX` for all that lose rows.
    pub n_tidal: usize,
    /// Largest share that a head keeps unless it is an anchor, c, above 0 and at most 1.
    pub ceiling: f64,
    /// What recall adds to r_GPU on average, taken off the target.
    pub recall_share: f64,
}

impl WnwDense {
    /// Every head that loses rows is tidal, without a ceiling.
    pub fn new(options: WnwOptions) -> Self {
        Self { options, n_tidal: usize::MAX, ceiling: 1.0, recall_share: 0.0 }
    }

    /// The parameters of a run.
    pub fn params(&self, profile: &Profile) -> Result<WnwParams, ProfileError> {
        let options = &self.options;
        let n_anchor = options.n_anchor.unwrap_or_else(|| profile.anchors_for(options.r_gpu));
        // The grid of segments, and the checks of what both methods have in common.
        let grid = profile.params(&WnwOptions {
            n_anchor: Some(n_anchor),
            n_voice: Some(n_anchor),
            lambda: Some(0.0),
            ..options.clone()
        })?;
        let heads = grid.roles.len();
        let others = (heads - n_anchor) as f64;
        let target = options.r_gpu;
        // Rows that the others keep, in heads.
        let rest = (target - self.recall_share) * heads as f64 - n_anchor as f64;
        if rest < 0.0 && target < 1.0 {
            return Err(ProfileError::Unreachable {
                target,
                reason: format!(
                    "{n_anchor} anchor heads keep everything, and recall adds {}; use fewer anchors or a larger r_GPU",
                    self.recall_share
                ),
            });
        }
        if !(self.ceiling > 0.0 && self.ceiling <= 1.0) {
            return Err(ProfileError::Options(format!(
                "the ceiling is {}; it must be above 0 and at most 1",
                self.ceiling
            )));
        }
        let whole = target >= 1.0 || others == 0.0;
        let ceiling = if whole { 1.0 } else { self.ceiling.max(rest / others).min(1.0) };
        let importance: Vec<f64> = normalised(&profile.scores(options.signal), n_anchor, options.normalise)
            .into_iter()
            .map(|s| s.max(LEAST))
            .collect();
        // min(s̃·λ, c) = c·min(s̃·λ/c, 1): solved for λ/c with the target stretched by 1/c.
        let stretched = (n_anchor as f64 + rest / ceiling) / heads as f64;
        let lambda = lambda_for_static(stretched, n_anchor, &importance);
        let (mut roles, mut retention) = (vec![Role::Fixed; heads], vec![1.0; heads]);
        let mut tidal = 0;
        for (place, head) in ranking(&profile.scores(options.signal)).into_iter().enumerate() {
            if place < n_anchor {
                roles[head] = Role::Anchor;
                continue;
            }
            retention[head] = if whole { 1.0 } else { ceiling * (importance[head] * lambda).min(1.0) };
            if retention[head] >= 1.0 {
                roles[head] = Role::Whole;
            } else if tidal < self.n_tidal {
                roles[head] = Role::Tidal;
                tidal += 1;
            }
        }
        let params = WnwParams { roles, retention, ..grid };
        params.check(heads)?;
        Ok(params)
    }
}

pub(super) const ENTRY: Entry = Entry {
    name: "wnw-dense",
    about: "WnW in which every head that loses rows recalls them, at any r_GPU",
    keeps: Keeps::AtMost,
    needs_profile: true,
    by_attention: true,
    options: &[
        ("n_tidal", "most tidal heads, or all"),
        ("ceiling", "largest share that a head keeps unless it is an anchor"),
        ("recall_share", "what recall adds to r_GPU, taken off the target"),
        N_ANCHOR,
        SIGNAL,
        NORMALISE,
        SEGMENT,
        CHUNK,
        TOP_CHUNKS,
        RELEASE_AFTER,
        SELECTION,
        RELEASE,
        WARM_START,
    ],
    build,
};

fn build(inputs: &Inputs<'_>) -> Result<Box<dyn Policy>, BuildError> {
    let (profile, options) = profile_and_options(inputs, ENTRY.name)?;
    let new = WnwDense::new(options);
    let dense = WnwDense {
        n_tidal: inputs.count("n_tidal", new.n_tidal)?,
        ceiling: inputs.share("ceiling", new.ceiling)?,
        recall_share: inputs.share("recall_share", new.recall_share)?,
        ..new
    };
    Ok(Box::new(Wnw::named(Arc::new(dense.params(profile)?), ENTRY.name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvShape;
    use crate::profile::{Calibration, PROFILE_VERSION};

    fn profile() -> Profile {
        let heads = 40;
        Profile {
            version: PROFILE_VERSION,
            fingerprint: "x".into(),
            model: "m".into(),
            shape: KvShape { n_layers: 10, n_q_heads: 8, n_kv_heads: 4, head_dim: 8 },
            tokens_per_second: 12.5,
            calibration: Calibration::default(),
            voice_score: (0..heads).map(|i| if i < 30 { 1.0 / (1.0 + i as f64) } else { 0.0 }).collect(),
            head_sensitivity: vec![1.0; heads],
            n_anchor: 2,
            lambda: vec![],
            options: WnwOptions::default(),
        }
    }

    fn count(params: &WnwParams, role: Role) -> usize {
        params.roles.iter().filter(|r| **r == role).count()
    }

    #[test]
    fn recall_stays_active_at_any_target() {
        for r_gpu in [0.2, 0.4, 0.6, 0.8, 0.95] {
            let options = WnwOptions { r_gpu, ..WnwOptions::default() };
            let params = WnwDense::new(options.clone()).params(&profile()).unwrap();
            assert!(
                (params.static_retention() - r_gpu).abs() < 1e-6,
                "{r_gpu}: {}",
                params.static_retention()
            );
            assert_eq!((count(&params, Role::Anchor), count(&params, Role::Fixed)), (2, 0));
            assert!(count(&params, Role::Tidal) > 0);
            let few = WnwDense { n_tidal: 3, ..WnwDense::new(options.clone()) }.params(&profile()).unwrap();
            assert_eq!((count(&few, Role::Tidal), few.retention), (3, params.retention));
            let low = WnwDense { ceiling: 0.5, recall_share: 0.05, ..WnwDense::new(options) };
            let low = low.params(&profile()).unwrap();
            assert!((low.static_retention() - r_gpu + 0.05).abs() < 1e-6);
            assert!(r_gpu > 0.5 || low.retention.iter().all(|r| *r <= 0.5 + 1e-9 || *r == 1.0));
            assert_eq!(count(&low, Role::Whole), 0, "nobody but anchors is above the ceiling: {r_gpu}");
        }
        let whole = WnwOptions { r_gpu: 1.0, ..WnwOptions::default() };
        assert_eq!(WnwDense::new(whole).params(&profile()).unwrap().static_retention(), 1.0);
        // WnW itself at 0.8: its voice heads keep everything, and there is nothing to recall.
        let wnw = profile().params(&WnwOptions { r_gpu: 0.8, ..WnwOptions::default() }).unwrap();
        let idle =
            wnw.roles.iter().zip(&wnw.retention).filter(|(role, r)| **role == Role::Tidal && **r < 1.0);
        assert_eq!(idle.count(), 0);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let options = WnwOptions { r_gpu: 0.1, n_anchor: Some(10), ..WnwOptions::default() };
        assert!(matches!(WnwDense::new(options).params(&profile()), Err(ProfileError::Unreachable { .. })));
        let none = WnwDense { ceiling: 0.0, ..WnwDense::new(WnwOptions::default()) };
        assert!(matches!(none.params(&profile()), Err(ProfileError::Options(_))));
    }
}
