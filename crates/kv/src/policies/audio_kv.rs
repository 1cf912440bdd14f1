//! AudioKV (arXiv 2604.06694): more for heads that listen, and scores smoothed along time.

use super::budget::{Budget, split};
use super::pooling::Pooling;
use super::registry::{BuildError, Entry, Inputs, KEEP_WINDOW, Keeps, REDUCE, SCORES, WINDOW};
use super::spectral::{Cutoff, smooth};
use super::window::{GroupReduce, WindowScore, select, stretches};
use crate::policy::{HeadSelection, LayerView, Policy};
use crate::{KvShape, PromptLayout};

/// Gives heads a uniform part and a part by their voice score, and keeps the rows that the end of the prompt attended
/// to most, after a low-pass along time.
///
/// Formula. Budgets over the whole model (Eq. 1): b_h = u + P·S_h/ΣS, with u = ⌊`base_share` · mean⌋ and P what remains.
/// Rows: s = mean over the last w positions of attention, ŝ = (1 − α)·s + α·IRFFT(RFFT(s) up to bin k*), k* the first
/// bin at which the one-sided energy reaches ρ; the best b_h by ŝ stay.
///
/// Readings, as the paper's code is not public. "50 %" is half of the audio budget, and there is no extra window: text is
/// always kept (`keep_window` gives the window's audio back its place). S of a KV head is that of its query heads taken
/// together. Smoothing follows the group's reduction, without other pooling, and ends at a recording's edges; the cosine
/// band round k* of the paper's prose has no width there and is left out; `cutoff` has both of its one-bin readings.
/// Rows are handed out by largest remainder, ties to the lower layer, then head; what a head cannot hold is re-shared.
/// Which score is used is the caller's: the paper's is the share of a head's 24 most attended positions that lie
/// in the word being said, over all positions; arXiv 2608.22704's has 4 audio positions.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioKv {
    /// What it keeps, over the whole model.
    pub budget: Budget,
    /// Voice score of each KV head, 0 or more, `(n_layers, n_kv_heads)`; a head without one counts as 0.
    pub voice_score: Vec<f64>,
    /// Part of the budget that all heads get alike (0.5).
    pub base_share: f64,
    /// Last prompt positions whose attention ranks rows, w (32).
    pub window: usize,
    /// Whether audio inside the window is kept before all else (no).
    pub keep_window: bool,
    /// How a group's query heads become one.
    pub reduce: GroupReduce,
    /// Weight of the smoothed scores, α (0.5).
    pub alpha: f64,
    /// Share of the energy below the cutoff, ρ (0.7).
    pub rho: f64,
    /// Which bins the cutoff leaves.
    pub cutoff: Cutoff,
}

impl AudioKv {
    /// The paper's parameters.
    pub fn new(budget: Budget, voice_score: Vec<f64>) -> Self {
        Self {
            budget,
            voice_score,
            base_share: 0.5,
            window: 32,
            keep_window: false,
            reduce: GroupReduce::Mean,
            alpha: 0.5,
            rho: 0.7,
            cutoff: Cutoff::Equation17,
        }
    }

    /// Audio rows of each KV head of the model, `(n_layers, n_kv_heads)`.
    pub fn heads(&self, shape: KvShape, n_audio: usize) -> Vec<usize> {
        let heads = shape.n_layers * shape.n_kv_heads;
        let total = self.budget.total(shape, n_audio);
        let uniform = (self.base_share.clamp(0.0, 1.0) * total as f64 / heads.max(1) as f64).floor() as usize;
        let mut scores = self.voice_score.clone();
        scores.resize(heads, 0.0);
        let extra = split(total - heads * uniform, &scores, n_audio - uniform);
        extra.into_iter().map(|extra| uniform + extra).collect()
    }

    fn score(&self) -> WindowScore {
        let (kernel, pooling) = (1, Pooling::Average);
        WindowScore {
            window: self.window,
            keep_window: self.keep_window,
            reduce: self.reduce,
            kernel,
            pooling,
        }
    }
}

pub(super) const ENTRY: Entry = Entry {
    name: "audiokv",
    about: "budgets by voice score, rows by spectrally smoothed attention of the end of the prompt",
    keeps: Keeps::Budget,
    needs_profile: true,
    by_attention: true,
    options: &[
        SCORES,
        ("base_share", "part of the budget that all heads get alike"),
        WINDOW,
        KEEP_WINDOW,
        REDUCE,
        ("alpha", "weight of the smoothed scores, 0 to 1"),
        ("rho", "share of the energy below the cutoff, 0 to 1"),
        ("cutoff", "bins up to the cutoff's (equation-17) or below it (algorithm-1)"),
    ],
    build,
};

fn build(inputs: &Inputs<'_>) -> Result<Box<dyn Policy>, BuildError> {
    let new = AudioKv::new(inputs.budget, inputs.head_scores(ENTRY.name)?);
    let score = inputs.window_score(new.score())?;
    Ok(Box::new(AudioKv {
        base_share: inputs.share("base_share", new.base_share)?,
        window: score.window,
        keep_window: score.keep_window,
        reduce: score.reduce,
        alpha: inputs.share("alpha", new.alpha)?,
        rho: inputs.share("rho", new.rho)?,
        cutoff: inputs.option("cutoff", new.cutoff)?,
        ..new
    }))
}

impl Policy for AudioKv {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        vec![
            ("budget", self.budget.to_string()),
            ("base_share", self.base_share.to_string()),
            ("window", self.window.to_string()),
            ("keep_window", self.keep_window.to_string()),
            ("reduce", self.reduce.to_string()),
            ("alpha", self.alpha.to_string()),
            ("rho", self.rho.to_string()),
            ("cutoff", self.cutoff.to_string()),
        ]
    }

    fn observes(&self, layout: &PromptLayout) -> Vec<usize> {
        self.score().positions(layout)
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let (score, n_audio) = (self.score(), view.layout.n_audio());
        let budgets = self.heads(view.shape, n_audio);
        let head = |kv_head| {
            let scores = score.scores(view, kv_head);
            let smoothed: Vec<f64> = stretches(view.layout, scores.len())
                .into_iter()
                .flat_map(|stretch| smooth(&scores[stretch], self.alpha, self.rho, self.cutoff))
                .collect();
            select(&smoothed, n_audio, budgets[view.layer * view.shape.n_kv_heads + kv_head])
        };
        (0..view.shape.n_kv_heads).map(head).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape { n_layers: 2, n_q_heads: 4, n_kv_heads: 2, head_dim: 8 };

    #[test]
    fn budgets_follow_the_voice_scores_and_add_up() {
        let of = |rows, scores: &[f64]| AudioKv::new(Budget::Rows(rows), scores.to_vec()).heads(SHAPE, 40);
        assert_eq!(of(10, &[0.4, 0.3, 0.2, 0.1]), [13, 11, 9, 7], "5 each, and 20 as 8, 6, 4, 2");
        assert_eq!(of(10, &[0.0; 4]), [10; 4]);
        assert_eq!(
            of(30, &[1.0, 0.0, 0.0, 0.0]),
            [40, 27, 27, 26],
            "what a head cannot hold goes to the others"
        );
        assert_eq!(of(40, &[1.0, 0.5, 0.0, 0.0]), [40; 4]);
        assert_eq!(of(1, &[1.0, 1.0, 1.0, 1.0]), [1; 4]);
        assert_eq!(of(0, &[1.0]), [0; 4]);
        assert_eq!(of(10, &[1.0]), [25, 5, 5, 5], "no score is a score of 0");
    }
}
