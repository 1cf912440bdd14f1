//! AffPool (Findings of ACL 2026, arXiv 2604.06871): neighbouring audio that is alike becomes one row.

use super::budget::Budget;
use super::grouping::Neighbours;
use super::registry::{BuildError, Entry, Inputs, Keeps};
use crate::merge::{Merge, MergedPosition, PromptRows};
use crate::policy::{HeadSelection, LayerView, Policy};
use crate::{KvShape, PromptLayout};

/// Merges audio rows at the decoder's input, and once more before its last layers.
///
/// Formula. One pass over the audio states h_1 … h_T with a current group: h_t joins it if the largest cosine of h_t with
/// the group's last ω rows is at least τ; otherwise the group becomes its mean, and h_t begins a new one. At the input
/// ω = 1; before one deep layer the same on its input with ω = 3. Text is not touched.
///
/// Readings; there is no public code. Layers below the deep one keep the rows of the input merge while decoding, those
/// from it on the rows of the deep merge; the deep one is the third from the end (27 and 3 layers in 2608.22704).
/// Cosines are with rows as they were before the merge, not with a running mean; a deep mean counts each row once,
/// however many positions it stands for. Groups end at a recording's edges. A merged row keeps the rotary position of
/// its first member, or the rounded mean of all (`position`); text and the answer keep theirs.
///
/// Retention is audio rows over all layers and heads in relation to the audio's length, as for every other method, and
/// τ is bisected in each prompt so that it is met. The paper has a τ for each place, 2608.22704 calibrates them on
/// held-out recordings. A prompt's rows at the deep layer are known only when the layers before it have run, so
/// `deep_share` says beforehand what share of the input's rows the last layers are to keep, and each place has its own
/// τ. With `tau` it is given for both, and retention is what comes of it, whatever the budget.
///
/// What it keeps: at most the budget, but a row of each recording, in every head of a layer the same; nothing is recalled.
#[derive(Clone, Debug)]
pub struct AffPool {
    /// What to keep at most; not used with `tau`.
    pub budget: Budget,
    /// Threshold at both places; without one, it is bisected.
    pub tau: Option<f64>,
    /// Share of the input's rows that the last layers keep (0.5).
    pub deep_share: f64,
    /// Last layers that see the deep merge (3); at most all but the first, 0 for none.
    pub deep_layers: usize,
    /// Rows looked back at in the input merge, ω (1).
    pub input_window: usize,
    /// Rows looked back at in the deep merge, ω (3).
    pub deep_window: usize,
    /// Rotary position of a merged row.
    pub position: MergedPosition,
    shape: KvShape,
    layout: PromptLayout,
}

impl AffPool {
    /// For one prompt.
    pub fn new(budget: Budget, shape: KvShape, layout: PromptLayout) -> Self {
        Self {
            budget,
            tau: None,
            deep_share: 0.5,
            deep_layers: 3,
            input_window: 1,
            deep_window: 3,
            position: MergedPosition::First,
            shape,
            layout,
        }
    }

    /// Layers below the deep merge and from it on; a first layer has no deep merge.
    fn layers(&self) -> (usize, usize) {
        let deep = self.deep_layers.min(self.shape.n_layers.saturating_sub(1));
        (self.shape.n_layers - deep, deep)
    }

    /// Audio rows that one head may keep, summed over the layers.
    fn rows(&self) -> usize {
        self.budget.total(self.shape, self.layout.n_audio()) / self.shape.n_kv_heads.max(1)
    }

    /// Audio rows that the input merge may leave: those of the last layers are `deep_share` of them.
    fn input_rows(&self) -> usize {
        let (before, deep) = self.layers();
        let layers = before as f64 + self.deep_share * deep as f64;
        // A millionth of a row is no row.
        let by_share = (self.rows() as f64 / layers + 1e-6) as usize;
        // The last layers cannot keep less than a row of each recording.
        let least = deep * self.layout.audio().len();
        by_share.min(self.rows().saturating_sub(least) / before.max(1)).min(self.layout.n_audio())
    }

    /// Audio rows that the deep merge may leave where the input merge has left `input`.
    fn deep_rows(&self, input: usize) -> usize {
        let (before, deep) = self.layers();
        self.rows().saturating_sub(before * input) / deep.max(1)
    }
}

pub(super) const ENTRY: Entry = Entry {
    name: "affpool",
    about: "neighbouring audio that is alike is merged, at the input and before the last layers",
    keeps: Keeps::Merged,
    needs_profile: false,
    by_attention: false,
    options: &[
        ("tau", "cosine from which neighbours are merged, at both places; budget to bisect it"),
        ("deep_share", "share of the input's rows that the last layers keep, above 0"),
        ("deep_layers", "last layers that see the deep merge"),
        ("input_window", "rows looked back at in the input merge"),
        ("deep_window", "rows looked back at in the deep merge"),
        ("position", "rotary position of a merged row: first or mean"),
    ],
    build,
};

/// Value of `tau` by which the budget decides.
const BY_BUDGET: &str = "budget";

fn build(inputs: &Inputs<'_>) -> Result<Box<dyn Policy>, BuildError> {
    let new = AffPool::new(inputs.budget, inputs.shape, inputs.layout.clone());
    let tau = match inputs.options.get("tau").map(String::as_str) {
        None | Some(BY_BUDGET) => None,
        Some(_) => Some(inputs.option("tau", 1.0)?),
    };
    if tau.is_some_and(|tau| !(-1.0..=1.0).contains(&tau)) {
        return Err(inputs.refuse("tau", "a cosine is between -1 and 1"));
    }
    let position = match inputs.options.get("position").map(String::as_str) {
        None | Some("first") => MergedPosition::First,
        Some("mean") => MergedPosition::Mean,
        Some(_) => return Err(inputs.refuse("position", "use first or mean")),
    };
    let policy = AffPool {
        tau,
        deep_share: inputs.share("deep_share", new.deep_share)?,
        deep_layers: inputs.option("deep_layers", new.deep_layers)?,
        input_window: inputs.option("input_window", new.input_window)?,
        deep_window: inputs.option("deep_window", new.deep_window)?,
        position,
        ..new
    };
    if policy.deep_share == 0.0 {
        return Err(inputs.refuse("deep_share", "it must be above 0"));
    }
    for (option, window) in [("input_window", policy.input_window), ("deep_window", policy.deep_window)] {
        if window == 0 {
            return Err(inputs.refuse(option, "it must be at least 1"));
        }
    }
    Ok(Box::new(policy))
}

impl Policy for AffPool {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let tau = self.tau.map_or(BY_BUDGET.to_owned(), |tau| tau.to_string());
        let position = match self.position {
            MergedPosition::First => "first",
            MergedPosition::Mean => "mean",
        };
        vec![
            ("budget", if self.tau.is_some() { "not used".to_owned() } else { self.budget.to_string() }),
            ("tau", tau),
            ("deep_share", self.deep_share.to_string()),
            ("deep_layers", self.deep_layers.to_string()),
            ("input_window", self.input_window.to_string()),
            ("deep_window", self.deep_window.to_string()),
            ("position", position.to_owned()),
        ]
    }

    fn before_layer(&mut self, layer: usize, rows: &PromptRows, x: &[f32]) -> Option<Merge> {
        let (before, deep) = self.layers();
        let stretches = rows.audio(&self.layout);
        let audio: usize = stretches.iter().map(ExactSizeIterator::len).sum();
        let (most, window) = match layer {
            0 => (self.input_rows(), self.input_window),
            _ if layer == before && deep > 0 => (self.deep_rows(audio), self.deep_window),
            _ => return None,
        };
        if audio == 0 || (self.tau.is_none() && most >= audio) {
            return None;
        }
        let neighbours = Neighbours::new(x, x.len() / rows.len(), stretches.clone(), window);
        let joins_audio = neighbours.joins(self.tau.unwrap_or_else(|| neighbours.threshold(most)));
        let mut joins = vec![false; rows.len()];
        let places = stretches.into_iter().flatten();
        places.zip(joins_audio).for_each(|(row, join)| joins[row] = join);
        Some(Merge { joins, position: self.position })
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        vec![HeadSelection::All; view.shape.n_kv_heads]
    }
}
