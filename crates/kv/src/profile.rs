//! Head roles of a model, made once by calibration, and what follows from them for a budget.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::policies::wnw::{Made, ReleaseReading, Selection, WnwError, WnwParams};
use crate::report::Role;
use crate::{HeadId, KvShape};

/// Version of the profile's format.
pub const PROFILE_VERSION: u32 = 1;

/// Share of a target r_GPU that anchors may take.
const ANCHOR_SHARE: f64 = 0.65;

/// The scores of a model's KV heads, and fitted λ. Heads are layer-major: index `layer · n_kv_heads + kv_head`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Format, [`PROFILE_VERSION`].
    pub version: u32,
    /// Fingerprint of the model that it was made with.
    pub fingerprint: String,
    /// Name of the model, for people.
    pub model: String,
    /// Head counts and sizes.
    pub shape: KvShape,
    /// Audio tokens per second, r_tok.
    pub tokens_per_second: f64,
    /// What it was made from.
    pub calibration: Calibration,
    /// Voice score VS of each head: share of the top-K audio positions that lie in the word being predicted.
    pub voice_score: Vec<f64>,
    /// Head sensitivity HS of each head: mean norm of the loss's gradient with respect to its audio keys.
    pub head_sensitivity: Vec<f64>,
    /// Number of anchor heads, n_anchor, at the most: see [`Profile::anchors_for`].
    pub n_anchor: usize,
    /// λ fitted so that the measured r_GPU meets a target, by target.
    #[serde(default)]
    pub lambda: Vec<Fit>,
    /// What runs take for what they are not told. Those that fits were made with.
    #[serde(default)]
    pub options: WnwOptions,
}

/// What a profile was made from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Where the recordings came from.
    pub source: String,
    /// Whether the model's own transcripts and attention stood in for references and alignments.
    pub label_free: bool,
    /// Recordings.
    pub recordings: usize,
    /// Seconds of audio.
    pub seconds: f64,
    /// Answer tokens that counted for the voice score.
    pub tokens: usize,
    /// K of the voice score.
    pub top_positions: usize,
    /// Least alignment confidence of a token that counted.
    pub min_confidence: f64,
}

/// A fitted λ.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The r_GPU aimed at.
    pub target: f64,
    /// Anchor heads.
    pub n_anchor: usize,
    /// Voice heads.
    pub n_voice: usize,
    /// How importance was normalised.
    #[serde(default)]
    pub normalise: Normalise,
    /// λ.
    pub lambda: f64,
    /// Share kept at prefill with this λ, before rounding.
    pub static_retention: f64,
    /// r_GPU measured on the calibration set, recall counted.
    pub measured: f64,
}

/// How importance becomes retention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Normalise {
    /// VS×HS over its maximum among the heads that are no anchors.
    #[default]
    Max,
    /// Place in the ranking, 1 for the first and towards 0 for the last.
    Rank,
    /// VS×HS scaled so that the least is 0 and the largest is 1.
    MinMax,
}

/// By what heads are ranked, and kept (ablation A3 of arXiv 2608.22704).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    /// VS×HS.
    #[default]
    Product,
    /// The voice score alone.
    Voice,
    /// The head sensitivity alone.
    Sensitivity,
}

/// What a run asks of a profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WnwOptions {
    /// Target r_GPU, 0 to 1.
    pub r_gpu: f64,
    /// Voice heads; by default as the paper has them for the target, in proportion.
    pub n_voice: Option<usize>,
    /// Anchor heads; by default the profile's, or fewer for a small target.
    pub n_anchor: Option<usize>,
    /// λ; by default from the target.
    pub lambda: Option<f64>,
    /// What importance is. λ is fitted for the product; for others it follows from the static retention.
    pub signal: Signal,
    /// How importance becomes retention.
    pub normalise: Normalise,
    /// Segment length in seconds.
    pub segment_seconds: f64,
    /// Chunk length in seconds.
    pub chunk_seconds: f64,
    /// See [`WnwParams::top_chunks`].
    pub top_chunks: usize,
    /// See [`WnwParams::release_after`].
    pub release_after: u32,
    /// See [`WnwParams::selection`].
    pub selection: Selection,
    /// See [`WnwParams::release`].
    pub release: ReleaseReading,
    /// See [`WnwParams::warm_start`].
    pub warm_start: bool,
}

impl Default for WnwOptions {
    /// The paper's values at r_GPU = 0.2.
    fn default() -> Self {
        Self {
            r_gpu: 0.2,
            n_voice: None,
            n_anchor: None,
            lambda: None,
            signal: Signal::default(),
            normalise: Normalise::default(),
            segment_seconds: 2.0,
            chunk_seconds: 4.0,
            top_chunks: 3,
            release_after: 3,
            selection: Selection::default(),
            release: ReleaseReading::default(),
            warm_start: true,
        }
    }
}

/// Why a profile cannot be used.
#[derive(Debug, Error, PartialEq)]
pub enum ProfileError {
    /// A later or earlier format.
    #[error(
        "the profile has format {0}, this program reads {PROFILE_VERSION}; make it anew with `wnw calibrate`"
    )]
    Version(u32),
    /// Made with another model.
    #[error(
        "the profile was made with {made} ({made_fingerprint}), not with this model ({fingerprint}); make one with `wnw calibrate`"
    )]
    OtherModel {
        /// Name of the model that it was made with.
        made: String,
        /// That model's fingerprint.
        made_fingerprint: String,
        /// This model's fingerprint.
        fingerprint: String,
    },
    /// Lists of the wrong length, or scores that are no numbers.
    #[error("the profile is damaged: {0}")]
    Damaged(String),
    /// A target that the heads cannot meet.
    #[error("r_GPU {target} cannot be met: {reason}")]
    Unreachable {
        /// The target.
        target: f64,
        /// Why.
        reason: String,
    },
    /// Options that do not fit each other.
    #[error("{0}")]
    Options(String),
    /// Parameters that do not fit each other.
    #[error(transparent)]
    Params(#[from] WnwError),
}

impl Profile {
    /// Checks that the profile is whole and made with the model of this fingerprint and shape.
    pub fn check(&self, fingerprint: &str, shape: KvShape) -> Result<(), ProfileError> {
        if self.version != PROFILE_VERSION {
            return Err(ProfileError::Version(self.version));
        }
        if self.fingerprint == fingerprint && self.shape != shape {
            let heads = |s: &KvShape| format!("{} layers of {} KV heads", s.n_layers, s.n_kv_heads);
            return Err(ProfileError::Damaged(format!(
                "{} where the model has {}",
                heads(&self.shape),
                heads(&shape)
            )));
        }
        if self.fingerprint != fingerprint {
            return Err(ProfileError::OtherModel {
                made: self.model.chars().take(80).collect(),
                made_fingerprint: self.fingerprint.chars().take(80).collect(),
                fingerprint: fingerprint.to_owned(),
            });
        }
        let heads = shape.n_layers * shape.n_kv_heads;
        for (name, scores) in
            [("voice_score", &self.voice_score), ("head_sensitivity", &self.head_sensitivity)]
        {
            if scores.len() != heads {
                return Err(ProfileError::Damaged(format!(
                    "{} values of {name} for {heads} KV heads",
                    scores.len()
                )));
            }
            if let Some(bad) = scores.iter().find(|s| !(s.is_finite() && **s >= 0.0)) {
                return Err(ProfileError::Damaged(format!("a {name} is {bad}")));
            }
        }
        if let Some(bad) = self.voice_score.iter().find(|s| **s > 1.0 + 1e-9) {
            return Err(ProfileError::Damaged(format!("a voice_score is {bad}, more than 1")));
        }
        if self.importance().iter().all(|s| *s == 0.0) {
            return Err(ProfileError::Damaged(
                "no head listens: every voice score × head sensitivity is 0; calibrate with recordings whose words have times".into(),
            ));
        }
        for fit in &self.lambda {
            let share = |x: f64| (0.0..=1.0).contains(&x);
            let counts = 1 <= fit.n_anchor && fit.n_anchor <= fit.n_voice && fit.n_voice <= heads;
            let numbers = fit.lambda >= 0.0 && fit.lambda.is_finite();
            if !(counts && numbers && share(fit.target) && share(fit.measured) && share(fit.static_retention))
            {
                return Err(ProfileError::Damaged(format!(
                    "the fit for r_GPU {} is no fit: {fit:?}",
                    fit.target
                )));
            }
        }
        if !(self.tokens_per_second > 0.0 && self.tokens_per_second <= 1000.0) {
            return Err(ProfileError::Damaged(format!("tokens_per_second is {}", self.tokens_per_second)));
        }
        if self.n_anchor == 0 || self.n_anchor > heads {
            return Err(ProfileError::Damaged(format!("n_anchor is {} of {heads} heads", self.n_anchor)));
        }
        Ok(())
    }

    /// VS×HS of each head.
    pub fn importance(&self) -> Vec<f64> {
        self.voice_score.iter().zip(&self.head_sensitivity).map(|(vs, hs)| vs * hs).collect()
    }

    /// What a signal says of each head, `(n_layers, n_kv_heads)`.
    pub fn scores(&self, signal: Signal) -> Vec<f64> {
        match signal {
            Signal::Product => self.importance(),
            Signal::Voice => self.voice_score.clone(),
            Signal::Sensitivity => self.head_sensitivity.clone(),
        }
    }

    /// Head indices from the most important to the least; of equals the lower layer, then the lower head.
    pub fn ranking(&self) -> Vec<usize> {
        ranking(&self.importance())
    }

    /// The anchor heads, most important first.
    pub fn anchors(&self) -> Vec<HeadId> {
        let id = |i: usize| HeadId { layer: i / self.shape.n_kv_heads, kv_head: i % self.shape.n_kv_heads };
        self.ranking().into_iter().take(self.n_anchor).map(id).collect()
    }

    /// Anchor heads for a target: the profile's number, unless these alone, which keep everything, would take most of
    /// what the target allows. That happens only in small models: 5 of 240 heads are 2 %.
    pub fn anchors_for(&self, r_gpu: f64) -> usize {
        let affordable = (ANCHOR_SHARE * r_gpu * self.voice_score.len() as f64) as usize;
        self.n_anchor.min(affordable).max(1)
    }

    /// The parameters of a run.
    pub fn params(&self, options: &WnwOptions) -> Result<WnwParams, ProfileError> {
        let importance = self.scores(options.signal);
        let heads = importance.len();
        if !(options.r_gpu > 0.0 && options.r_gpu <= 1.0) {
            return Err(ProfileError::Options(format!(
                "r_GPU is {}; it must be above 0 and at most 1",
                options.r_gpu
            )));
        }
        let meant = |fit: &&Fit| {
            (fit.target - options.r_gpu).abs() < 1e-9
                && fit.normalise == options.normalise
                && options.signal == Signal::Product
        };
        let fit = self.lambda.iter().find(meant);
        let n_anchor = options.n_anchor.unwrap_or_else(|| self.anchors_for(options.r_gpu));
        let n_voice =
            options.n_voice.or(fit.map(|f| f.n_voice)).unwrap_or_else(|| voice_heads(options.r_gpu, heads));
        let n_voice = if options.n_voice.is_none() { n_voice.max(n_anchor) } else { n_voice };
        if n_anchor == 0 || n_anchor > n_voice || n_voice > heads {
            return Err(ProfileError::Options(format!(
                "{n_anchor} anchor heads among {n_voice} voice heads among {heads} KV heads: each must be at least 1 and fit in the next"
            )));
        }
        let normalised = normalised(&importance, n_anchor, options.normalise);
        let lambda = match (options.lambda, fit) {
            (Some(lambda), _) => lambda,
            (None, Some(fit)) if (n_anchor, n_voice) == (fit.n_anchor, fit.n_voice) => fit.lambda,
            _ => self.lambda_for(options.r_gpu, n_anchor, &normalised)?,
        };
        if !(lambda >= 0.0 && lambda.is_finite()) {
            return Err(ProfileError::Options(format!("λ is {lambda}; it must be 0 or more")));
        }
        let mut roles = vec![Role::Fixed; heads];
        for (place, head) in ranking(&importance).into_iter().take(n_voice).enumerate() {
            roles[head] = if place < n_anchor { Role::Anchor } else { Role::Tidal };
        }
        let whole = options.r_gpu >= 1.0 && options.lambda.is_none();
        let retention = roles
            .iter()
            .zip(&normalised)
            .map(|(role, s)| if whole || *role == Role::Anchor { 1.0 } else { (s * lambda).min(1.0) })
            .collect();
        // The small term makes 1.12 s at 12.5 a second be 14 tokens in binary too.
        let segment = (options.segment_seconds * self.tokens_per_second - 1e-9).ceil();
        let ratio = options.chunk_seconds / options.segment_seconds;
        let chunk_segments = ratio.round();
        if !(1.0..1e6).contains(&segment)
            || !(1.0..1e6).contains(&chunk_segments)
            || (ratio - chunk_segments).abs() > 1e-6
        {
            return Err(ProfileError::Options(format!(
                "chunks of {} s must be a whole number of segments of {} s, and a segment at least one audio token ({} s)",
                options.chunk_seconds,
                options.segment_seconds,
                1.0 / self.tokens_per_second
            )));
        }
        let params = WnwParams {
            roles,
            retention,
            segment_rows: segment as usize,
            chunk_segments: chunk_segments as usize,
            top_chunks: options.top_chunks,
            release_after: options.release_after,
            selection: options.selection,
            release: options.release,
            warm_start: options.warm_start,
            made: Made { target: options.r_gpu, lambda, signal: options.signal },
        };
        params.check(heads)?;
        Ok(params)
    }

    /// λ at which the share kept at prefill is the target less what recall will add, as measured by the fits.
    fn lambda_for(&self, target: f64, n_anchor: usize, normalised: &[f64]) -> Result<f64, ProfileError> {
        let recall = recall_share(&self.lambda, target);
        let want = target - recall;
        let anchors = n_anchor as f64 / normalised.len() as f64;
        if anchors > want && target < 1.0 {
            return Err(ProfileError::Unreachable {
                target,
                reason: format!(
                    "{n_anchor} anchor heads keep everything, which is {anchors:.3}, and recall adds about {recall:.3}; use fewer anchors or a larger r_GPU"
                ),
            });
        }
        Ok(lambda_for_static(want, n_anchor, normalised))
    }
}

/// Head indices from the most important to the least; of equals the lower.
pub fn ranking(importance: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..importance.len()).collect();
    order.sort_by(|a, b| importance[*b].total_cmp(&importance[*a]).then(a.cmp(b)));
    order
}

/// Normalised importance s̃ of each head, 0 to 1, over the heads that are not among the first `n_anchor`.
pub fn normalised(importance: &[f64], n_anchor: usize, how: Normalise) -> Vec<f64> {
    let order = ranking(importance);
    let rest = &order[n_anchor.min(order.len())..];
    let most = rest.first().map_or(0.0, |h| importance[*h]);
    let least = rest.last().map_or(0.0, |h| importance[*h]);
    let mut out = vec![1.0; importance.len()];
    for (place, &head) in rest.iter().enumerate() {
        out[head] = match how {
            Normalise::Max if most > 0.0 => importance[head] / most,
            Normalise::MinMax if most > least => (importance[head] - least) / (most - least),
            Normalise::Rank => 1.0 - place as f64 / rest.len() as f64,
            // All the same: nobody is preferred.
            _ => 1.0,
        };
    }
    out
}

/// λ such that the mean of min(s̃·λ, 1), with 1 for the first `n_anchor` of the ranking (whose s̃ is 1), is `target`; the
/// largest sensible λ if even that keeps less.
pub fn lambda_for_static(target: f64, n_anchor: usize, normalised: &[f64]) -> f64 {
    let heads = normalised.len();
    // Anchors have s̃ = 1 like the best of the rest: count `n_anchor` of those ones as kept.
    let mut rest = normalised.to_vec();
    rest.sort_by(|a, b| b.total_cmp(a));
    let rest = &rest[n_anchor.min(heads)..];
    let kept = |lambda: f64| n_anchor as f64 + rest.iter().map(|s| (s * lambda).min(1.0)).sum::<f64>();
    let goal = target * heads as f64;
    let (mut low, mut high) = (0.0, 1.0);
    while kept(high) < goal && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if kept(middle) < goal { low = middle } else { high = middle }
    }
    high
}

/// Voice heads for a target, from the paper's table for 240 heads (90, 50, 30, 30 at 0.2, 0.4, 0.6, 0.8) in proportion.
pub fn voice_heads(r_gpu: f64, heads: usize) -> usize {
    let share = if r_gpu < 0.3 {
        90.0 / 240.0
    } else if r_gpu < 0.5 {
        50.0 / 240.0
    } else {
        30.0 / 240.0
    };
    ((share * heads as f64).round() as usize).clamp(1, heads)
}

/// What recall adds to r_GPU near `target`: the nearest fit's, or nothing without fits.
fn recall_share(fits: &[Fit], target: f64) -> f64 {
    if target >= 1.0 {
        return 0.0;
    }
    let nearest = fits.iter().min_by(|a, b| (a.target - target).abs().total_cmp(&(b.target - target).abs()));
    nearest.map_or(0.0, |fit| (fit.measured - fit.static_retention).max(0.0))
}

/// Parameters for a model without a profile: anchors spread evenly over the layers, every other head tidal with the same
/// retention. Only for those who insist; it knows nothing about the model.
pub fn uniform_params(
    shape: KvShape,
    tokens_per_second: f64,
    options: &WnwOptions,
) -> Result<WnwParams, ProfileError> {
    let heads = shape.n_layers * shape.n_kv_heads;
    let n_anchor = options.n_anchor.unwrap_or(5).min(heads);
    // A profile in which the evenly spread anchors come first and all others are alike.
    let mut voice_score = vec![0.5; heads];
    for i in 0..n_anchor {
        voice_score[(2 * i + 1) * heads / (2 * n_anchor)] = 1.0;
    }
    let profile = Profile {
        version: PROFILE_VERSION,
        fingerprint: String::new(),
        model: String::new(),
        shape,
        tokens_per_second,
        calibration: Calibration::default(),
        voice_score,
        head_sensitivity: vec![1.0; heads],
        n_anchor,
        lambda: Vec::new(),
        options: WnwOptions::default(),
    };
    profile.params(&WnwOptions { n_voice: Some(options.n_voice.unwrap_or(heads)), ..options.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(importance: &[f64], n_anchor: usize) -> Profile {
        Profile {
            version: PROFILE_VERSION,
            fingerprint: "x".into(),
            model: "m".into(),
            shape: KvShape { n_layers: importance.len() / 2, n_q_heads: 4, n_kv_heads: 2, head_dim: 8 },
            tokens_per_second: 12.5,
            calibration: Calibration::default(),
            voice_score: importance.to_vec(),
            head_sensitivity: vec![1.0; importance.len()],
            n_anchor,
            lambda: vec![],
            options: WnwOptions::default(),
        }
    }

    #[test]
    fn roles_follow_the_ranking_and_retention_the_target() {
        let importance =
            [0.1, 0.9, 0.4, 0.4, 0.0, 0.2, 0.8, 0.05, 0.3, 0.02, 0.6, 0.01, 0.03, 0.04, 0.07, 0.06];
        let profile = profile(&importance, 1);
        assert_eq!(profile.anchors(), [HeadId { layer: 0, kv_head: 1 }]);
        assert_eq!(profile.ranking()[..5], [1, 6, 10, 2, 3], "of equals the lower comes first");
        for target in [0.1, 0.2, 0.5, 0.8] {
            let options = WnwOptions { r_gpu: target, n_voice: Some(4), ..WnwOptions::default() };
            let params = profile.params(&options).unwrap();
            assert!((params.static_retention() - target).abs() < 1e-6, "{target}");
            assert_eq!(params.roles.iter().filter(|r| **r == Role::Tidal).count(), 3);
            assert_eq!((params.segment_rows, params.chunk_segments), (25, 2));
        }
        let whole = profile.params(&WnwOptions { r_gpu: 1.0, ..WnwOptions::default() }).unwrap();
        assert!(
            whole.retention.iter().all(|r| *r == 1.0),
            "even a head of importance 0 keeps everything at 1"
        );
        let short =
            profile.params(&WnwOptions { n_anchor: Some(4), n_voice: Some(4), ..WnwOptions::default() });
        assert!(matches!(short, Err(ProfileError::Unreachable { .. })), "{short:?}");
        let exact = WnwOptions { segment_seconds: 1.12, chunk_seconds: 2.24, ..WnwOptions::default() };
        let params = profile.params(&exact).unwrap();
        assert_eq!((params.segment_rows, params.chunk_segments), (14, 2));
        let rounded = WnwOptions { segment_seconds: 1.0, chunk_seconds: 2.0, ..WnwOptions::default() };
        let params = profile.params(&rounded).unwrap();
        assert_eq!((params.segment_rows, params.chunk_segments), (13, 2));
        let odd = WnwOptions { chunk_seconds: 5.0, ..WnwOptions::default() };
        assert!(matches!(profile.params(&odd), Err(ProfileError::Options(_))));
    }

    #[test]
    fn a_fit_is_used_for_its_target_and_its_recall_near_it() {
        let mut profile = profile(&[0.9, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1], 1);
        profile.lambda = vec![Fit {
            target: 0.2,
            n_anchor: 1,
            n_voice: 4,
            normalise: Normalise::Max,
            lambda: 0.123,
            static_retention: 0.15,
            measured: 0.2,
        }];
        let params = profile.params(&WnwOptions::default()).unwrap();
        assert!((params.retention[1] - 0.123).abs() < 1e-12);
        let ranked = WnwOptions { normalise: Normalise::Rank, ..WnwOptions::default() };
        let params = profile.params(&ranked).unwrap();
        assert!(params.made.lambda != 0.123, "a λ is for the normalisation that it was fitted with");
        let near = profile.params(&WnwOptions { r_gpu: 0.25, ..WnwOptions::default() }).unwrap();
        assert!((near.static_retention() - 0.2).abs() < 1e-6);
    }

    #[test]
    fn foreign_and_damaged_profiles_are_refused() {
        let good = profile(&[0.5; 4], 1);
        good.check("x", good.shape).unwrap();
        assert!(matches!(good.check("y", good.shape), Err(ProfileError::OtherModel { .. })));
        let newer = Profile { version: 9, ..good.clone() };
        assert_eq!(newer.check("x", good.shape), Err(ProfileError::Version(9)));
        let short = Profile { voice_score: vec![0.1; 3], ..good.clone() };
        assert!(matches!(short.check("x", good.shape), Err(ProfileError::Damaged(_))));
        let nan = Profile { head_sensitivity: vec![f64::NAN; 4], ..good.clone() };
        assert!(matches!(nan.check("x", good.shape), Err(ProfileError::Damaged(_))));
    }

    #[test]
    fn uniform_parameters_spread_the_anchors() {
        let shape = KvShape { n_layers: 8, n_q_heads: 8, n_kv_heads: 4, head_dim: 8 };
        let options = WnwOptions { r_gpu: 0.4, n_anchor: Some(4), ..WnwOptions::default() };
        let params = uniform_params(shape, 12.5, &options).unwrap();
        let anchors: Vec<usize> = (0..32).filter(|i| params.roles[*i] == Role::Anchor).collect();
        assert_eq!(anchors, [4, 12, 20, 28]);
        assert!((params.static_retention() - 0.4).abs() < 1e-6);
        assert_eq!(params.roles.iter().filter(|r| **r == Role::Tidal).count(), 28);
    }
}
