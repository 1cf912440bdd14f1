//! WnW, "waxing and waning" (arXiv 2608.22704): anchor, tidal and fixed heads, and chunk swap.

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::registry::{BuildError, Entry, Inputs, Keeps};
use crate::policy::{HeadId, HeadSelection, LayerView, Policy, Release, SwapPlan};
use crate::profile::{Profile, Signal, WnwOptions};
use crate::report::Role;
use crate::{PromptLayout, Segments};

/// Over what a head's rows compete at prefill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// In each segment the top ⌊retention · rows⌋ stay: no stretch of audio is wholly evicted (section 2.3).
    #[default]
    PerSegment,
    /// The same number of rows in all, wherever they are (ablation A2).
    Global,
}

/// What a release takes off the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReleaseReading {
    /// The recalled rows; those kept at prefill stay. Under this reading the paper's retention and MB/step add up.
    #[default]
    Complement,
    /// The whole segment, with the rows kept at prefill, until it is recalled again.
    Whole,
}

/// Parameters of [`Wnw`], checked together by [`WnwParams::check`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WnwParams {
    /// Role of each KV head, `(n_layers, n_kv_heads)`: anchor, tidal or fixed.
    pub roles: Vec<Role>,
    /// Share of audio rows that each head keeps at prefill, 0 to 1, `(n_layers, n_kv_heads)`; 1 for anchors.
    pub retention: Vec<f64>,
    /// Audio rows of a segment, n_s: the stride of chunks (2 s).
    pub segment_rows: usize,
    /// Segments of a chunk (2, so that chunks are 4 s long).
    pub chunk_segments: usize,
    /// Chunks selected in a step, k; `usize::MAX` for all.
    pub top_chunks: usize,
    /// Consecutive steps without selection after which a segment is released, δ; `u32::MAX` for never.
    pub release_after: u32,
    /// Over what rows compete at prefill.
    pub selection: Selection,
    /// What a release takes.
    pub release: ReleaseReading,
    /// Whether the last prompt query's attention selects chunks for the first step. (The paper does not say.)
    pub warm_start: bool,
    /// What `retention` was made from; it decides nothing by itself.
    pub made: Made,
}

/// Where retentions come from: min(s̃ · λ, 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Made {
    /// The r_GPU aimed at.
    pub target: f64,
    /// λ.
    pub lambda: f64,
    /// What importance is.
    #[serde(default)]
    pub signal: Signal,
}

/// Which parameter is wrong.
#[derive(Debug, Error, PartialEq)]
pub enum WnwError {
    /// One role and one retention per KV head.
    #[error("{roles} roles and {retention} retentions for {heads} KV heads")]
    HeadCount {
        /// Roles given.
        roles: usize,
        /// Retentions given.
        retention: usize,
        /// KV heads of the model.
        heads: usize,
    },
    /// Retention is a share, and 1 for anchors.
    #[error(
        "KV head {head} ({role}) has retention {retention}; it must be between 0 and 1, and 1 for an anchor"
    )]
    Retention {
        /// Index of the head, layer-major.
        head: usize,
        /// Its role.
        role: &'static str,
        /// Its retention.
        retention: f64,
    },
    /// Tidal heads recall what anchors attend to.
    #[error("there are tidal heads but no anchor that says what to recall; use at least one anchor")]
    NoAnchor,
    /// Sizes of at least one.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
}

impl WnwParams {
    /// Checks all parameters for a model of `heads` KV heads.
    pub fn check(&self, heads: usize) -> Result<(), WnwError> {
        let (roles, retention) = (self.roles.len(), self.retention.len());
        if (roles, retention) != (heads, heads) {
            return Err(WnwError::HeadCount { roles, retention, heads });
        }
        for (head, (role, retention)) in self.roles.iter().zip(&self.retention).enumerate() {
            let least = if matches!(role, Role::Anchor | Role::Whole) { 1.0 } else { 0.0 };
            if !(least..=1.0).contains(retention) {
                return Err(WnwError::Retention { head, role: role.name(), retention: *retention });
            }
        }
        if self.roles.contains(&Role::Tidal) && !self.roles.contains(&Role::Anchor) {
            return Err(WnwError::NoAnchor);
        }
        for (name, value) in [
            ("the segment length", self.segment_rows),
            ("the chunk length", self.chunk_segments),
            ("the number of chunks", self.top_chunks),
            ("the number of steps before a release", self.release_after as usize),
        ] {
            if value == 0 {
                return Err(WnwError::Zero(name));
            }
        }
        Ok(())
    }

    /// Share of audio rows that prefill leaves on the device, mean over heads, before rounding to rows: r_GPU without
    /// recall.
    pub fn static_retention(&self) -> f64 {
        self.retention.iter().sum::<f64>() / self.retention.len().max(1) as f64
    }

    /// Audio rows that a share keeps at prefill: ⌊retention · rows⌋ of each segment.
    pub fn kept_rows(retention: f64, segments: &Segments) -> usize {
        segments.ranges().iter().map(|segment| kept_rows(retention, segment.len())).sum()
    }
}

/// The WnW method.
///
/// *Prefill* (section 2.3): each head that is no anchor ranks audio rows by p(τ) = Σ over the text queries after the
/// audio, and over the group's query heads, of the softmax attention at τ (over all visible keys); per segment the top
/// ⌊retention · n_s⌋ stay, ties to the lower position. What else a tidal head has goes to the host, what else a fixed
/// head has is dropped.
///
/// *Decode*: after a step, A(τ) is the attention of all anchor query heads at τ. A chunk's score is the mean of A over
/// it; the `top_chunks` best (ties to the earlier) are wanted whole in every tidal head. A recalled segment that was not
/// wanted for `release_after` consecutive steps is released.
pub struct Wnw {
    /// Parameters, checked.
    pub params: Arc<WnwParams>,
    segments: Segments,
    chunks: Vec<std::ops::Range<usize>>,
    /// Segments recalled, with the number of steps since they were last wanted.
    idle: BTreeMap<u32, u32>,
    /// Attention of the last prompt query in the anchors, `(n_audio)`.
    seed: Vec<f32>,
    /// KV heads of a layer, known from the first layer on.
    n_kv_heads: usize,
    name: &'static str,
}

impl Wnw {
    /// A policy for one prompt; `params` must have passed [`WnwParams::check`].
    pub fn new(params: Arc<WnwParams>) -> Self {
        Self::named(params, ENTRY.name)
    }

    /// The same under another name: for methods that differ in where their parameters come from.
    pub(super) fn named(params: Arc<WnwParams>, name: &'static str) -> Self {
        let (segments, chunks) = (Segments::default(), Vec::new());
        Self { params, segments, chunks, idle: BTreeMap::new(), seed: Vec::new(), n_kv_heads: 1, name }
    }

    fn plan(&mut self, attention: &[f32]) -> SwapPlan {
        // Chunks overlap: each segment is summed once.
        let sum = |segment: &std::ops::Range<usize>| {
            (attention[segment.clone()].iter().map(|w| f64::from(*w)).sum::<f64>(), segment.len())
        };
        let sums: Vec<(f64, usize)> = self.segments.ranges().iter().map(sum).collect();
        let score = |chunk: &std::ops::Range<usize>| {
            let add = |a: (f64, usize), b: &(f64, usize)| (a.0 + b.0, a.1 + b.1);
            let (sum, rows) = sums[chunk.clone()].iter().fold((0.0, 0), add);
            sum / rows as f64
        };
        let mut ranked: Vec<(f64, usize)> =
            self.chunks.iter().enumerate().map(|(i, chunk)| (score(chunk), i)).collect();
        ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        ranked.truncate(self.params.top_chunks);
        let chosen = ranked.iter().flat_map(|(_, i)| self.chunks[*i].clone());
        let mut wanted: Vec<u32> = chosen.map(|segment| segment as u32).collect();
        wanted.sort_unstable();
        wanted.dedup();

        let mut release = Vec::new();
        let whole = self.params.release == ReleaseReading::Whole;
        self.idle.retain(|segment, steps| {
            let selected = wanted.binary_search(segment).is_ok();
            *steps = if selected { 0 } else { steps.saturating_add(1) };
            let stays = *steps < self.params.release_after;
            if !stays {
                release.push(Release { segment: *segment, whole });
            }
            stays
        });
        self.idle.extend(wanted.iter().map(|segment| (*segment, 0)));
        SwapPlan { wanted, release }
    }
}

pub(super) const ENTRY: Entry = Entry {
    name: "wnw",
    about: "waxing and waning: anchor, tidal and fixed heads; what tidal heads lack is recalled in time",
    keeps: Keeps::AtMost,
    needs_profile: true,
    by_attention: true,
    options: &[
        ("n_voice", "voice heads, anchor and tidal"),
        N_ANCHOR,
        ("lambda", "scale from a head's importance to its retention"),
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

pub(super) const N_ANCHOR: (&str, &str) = ("n_anchor", "anchor heads");
pub(super) const SIGNAL: (&str, &str) =
    ("signal", "what importance is: product (VS×HS), voice (VS) or sensitivity (HS)");
pub(super) const NORMALISE: (&str, &str) = ("normalise", "how importance is normalised: max, rank or minmax");
pub(super) const SEGMENT: (&str, &str) = ("segment", "segment length in seconds");
pub(super) const CHUNK: (&str, &str) = ("chunk", "chunk length in seconds, a multiple of segment");
pub(super) const TOP_CHUNKS: (&str, &str) = ("top_chunks", "chunks selected in each step, or all");
pub(super) const RELEASE_AFTER: (&str, &str) =
    ("release_after", "steps without selection after which a segment is released, or all for never");
pub(super) const SELECTION: (&str, &str) = ("selection", "over what rows compete: per-segment or global");
pub(super) const RELEASE: (&str, &str) = ("release", "what a release takes: complement or whole");
pub(super) const WARM_START: (&str, &str) =
    ("warm_start", "whether the prompt's end selects the first chunks");

fn build(inputs: &Inputs<'_>) -> Result<Box<dyn Policy>, BuildError> {
    let (profile, options) = profile_and_options(inputs, ENTRY.name)?;
    let given = |name: &str| inputs.options.contains_key(name);
    let options = WnwOptions {
        n_voice: if given("n_voice") { Some(inputs.option("n_voice", 0)?) } else { options.n_voice },
        lambda: if given("lambda") { Some(inputs.option("lambda", 0.0)?) } else { options.lambda },
        ..options
    };
    Ok(Box::new(Wnw::new(Arc::new(profile.params(&options)?))))
}

/// The profile, and the options that WnW and its kin have in common.
pub(super) fn profile_and_options<'a>(
    inputs: &Inputs<'a>,
    method: &'static str,
) -> Result<(&'a Profile, WnwOptions), BuildError> {
    let profile = inputs.profile.ok_or(BuildError::NeedsProfile(method))?;
    let new = profile.options.clone();
    let n_anchor = inputs.options.contains_key("n_anchor");
    let options = WnwOptions {
        r_gpu: inputs.budget.share(inputs.shape, inputs.layout.n_audio()),
        n_anchor: if n_anchor { Some(inputs.option("n_anchor", 0)?) } else { new.n_anchor },
        signal: inputs.choice("signal", new.signal, "product, voice or sensitivity")?,
        normalise: inputs.choice("normalise", new.normalise, "max, rank or minmax")?,
        segment_seconds: inputs.option("segment", new.segment_seconds)?,
        chunk_seconds: inputs.option("chunk", new.chunk_seconds)?,
        top_chunks: inputs.count("top_chunks", new.top_chunks)?,
        release_after: u32::try_from(inputs.count("release_after", new.release_after as usize)?)
            .unwrap_or(u32::MAX),
        selection: inputs.choice("selection", new.selection, "per-segment or global")?,
        release: inputs.choice("release", new.release, "complement or whole")?,
        warm_start: inputs.option("warm_start", new.warm_start)?,
        ..new
    };
    Ok((profile, options))
}

impl Policy for Wnw {
    fn name(&self) -> &'static str {
        self.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let p = &self.params;
        let count = |role: Role| p.roles.iter().filter(|r| **r == role).count().to_string();
        let or_all = |n: u64, all: u64| if n == all { "all".to_owned() } else { n.to_string() };
        let name = |value: serde_json::Result<serde_json::Value>| {
            value.ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
        };
        vec![
            ("anchor_heads", count(Role::Anchor)),
            ("tidal_heads", count(Role::Tidal)),
            ("fixed_heads", count(Role::Fixed)),
            ("target_r_gpu", format!("{:.4}", p.made.target)),
            ("lambda", format!("{:.6}", p.made.lambda)),
            ("static_retention", format!("{:.4}", p.static_retention())),
            ("signal", name(serde_json::to_value(p.made.signal))),
            ("segment_tokens", p.segment_rows.to_string()),
            ("chunk_tokens", (p.segment_rows * p.chunk_segments).to_string()),
            ("top_chunks", or_all(p.top_chunks as u64, usize::MAX as u64)),
            ("release_after", or_all(p.release_after.into(), u32::MAX.into())),
            ("selection", name(serde_json::to_value(p.selection))),
            ("release", name(serde_json::to_value(p.release))),
            ("warm_start", p.warm_start.to_string()),
        ]
    }

    fn segment_rows(&self) -> usize {
        self.params.segment_rows
    }

    fn observes(&self, layout: &PromptLayout) -> Vec<usize> {
        let first_audio = layout.audio().first().map_or(layout.len(), |audio| audio.start);
        layout
            .stretches()
            .into_iter()
            .filter(|(stretch, is_audio)| !is_audio && stretch.start > first_audio)
            .flat_map(|(stretch, _)| stretch)
            .collect()
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let n_audio = view.layout.n_audio();
        if view.layer == 0 {
            self.segments = Segments::new(view.layout, self.params.segment_rows);
            self.chunks = self.segments.chunks(self.params.chunk_segments);
            self.seed = vec![0.0; n_audio];
            self.n_kv_heads = view.shape.n_kv_heads;
        }
        // The seed is the attention of the position whose logits are the first token.
        let last = view.observed.len().checked_sub(1).filter(|i| view.observed[*i] + 1 == view.layout.len());
        let head = |kv_head: usize| view.layer * view.shape.n_kv_heads + kv_head;
        let params = &self.params;
        if let Some(last) = last.filter(|_| params.warm_start) {
            for kv_head in (0..self.n_kv_heads).filter(|h| params.roles[head(*h)] == Role::Anchor) {
                let seed = &mut self.seed;
                view.audio_attention(kv_head, last..last + 1, |_, _, weights| {
                    seed.iter_mut().zip(weights).for_each(|(sum, w)| *sum += w);
                });
            }
        }
        (0..self.n_kv_heads)
            .into_par_iter()
            .map(|kv_head| {
                let (role, retention) = (params.roles[head(kv_head)], params.retention[head(kv_head)]);
                if role == Role::Anchor || role == Role::Whole || retention >= 1.0 {
                    return HeadSelection::All;
                }
                let mut importance = vec![0f32; n_audio];
                view.audio_attention(kv_head, 0..view.observed.len(), |_, _, weights| {
                    importance.iter_mut().zip(weights).for_each(|(sum, w)| *sum += w);
                });
                let kept = keep(&importance, &self.segments, retention, params.selection);
                if role == Role::Tidal { HeadSelection::Tiered(kept) } else { HeadSelection::Only(kept) }
            })
            .collect()
    }

    fn roles(&self) -> Vec<Role> {
        self.params.roles.clone()
    }

    fn watches(&self) -> Vec<HeadId> {
        let anchors = self.params.roles.iter().enumerate().filter(|(_, role)| **role == Role::Anchor);
        anchors.map(|(i, _)| HeadId { layer: i / self.n_kv_heads, kv_head: i % self.n_kv_heads }).collect()
    }

    fn before_decode(&mut self) -> SwapPlan {
        if !self.params.warm_start || self.seed.iter().all(|w| *w == 0.0) {
            return SwapPlan::default();
        }
        let seed = std::mem::take(&mut self.seed);
        self.plan(&seed)
    }

    fn after_step(&mut self, attention: &[f32]) -> SwapPlan {
        self.plan(attention)
    }
}

/// How many rows a share of `rows` is, ⌊retention · rows⌋; the small term makes 0.29 · 100 be 29 in binary too.
fn kept_rows(retention: f64, rows: usize) -> usize {
    ((retention * rows as f64 + 1e-9).floor() as usize).min(rows)
}

/// The ordinals that a head keeps, ascending.
fn keep(importance: &[f32], segments: &Segments, retention: f64, selection: Selection) -> Vec<u32> {
    let count = |rows: usize| kept_rows(retention, rows);
    let mut kept = Vec::new();
    match selection {
        Selection::PerSegment => {
            for segment in segments.ranges() {
                top(importance, segment.clone(), count(segment.len()), &mut kept);
            }
        }
        Selection::Global => {
            let total = WnwParams::kept_rows(retention, segments);
            top(importance, 0..importance.len(), total, &mut kept);
        }
    }
    kept
}

/// Appends the `n` best of `range`, ascending; of equals the lower.
fn top(importance: &[f32], range: std::ops::Range<usize>, n: usize, kept: &mut Vec<u32>) {
    let mut ranked: Vec<u32> = range.map(|i| i as u32).collect();
    ranked
        .sort_unstable_by(|a, b| importance[*b as usize].total_cmp(&importance[*a as usize]).then(a.cmp(b)));
    ranked.truncate(n);
    ranked.sort_unstable();
    kept.extend(ranked);
}
