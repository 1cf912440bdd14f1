//! SnapKV (arXiv 2404.14469): the end of the prompt chooses what is worth keeping.

use super::budget::Budget;
use super::registry::{Entry, KEEP_WINDOW, KERNEL, Keeps, POOLING, REDUCE, WINDOW};
use super::window::{WindowScore, select};
use crate::PromptLayout;
use crate::policy::{HeadSelection, LayerView, Policy};

/// Keeps the rows that the last prompt positions attended to most, with their neighbours.
///
/// Formula: s = pool( Σ over the last w positions of attention ); the best B − w rows of each head stay, and the window.
/// [`WindowScore`] tells how rows are scored and which readings that has.
///
/// Readings. The authors' code selects per *query* head and stores the cache once for each of them; here, as in kvpress,
/// a KV head's group is averaged and stores its rows once. Every head keeps the same number of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SnapKv {
    /// What it keeps; the same in every head.
    pub budget: Budget,
    /// How rows are scored: 32 positions, average pooling over 5.
    pub score: WindowScore,
}

impl SnapKv {
    /// The authors' default parameters.
    pub fn new(budget: Budget) -> Self {
        Self { budget, score: WindowScore::default() }
    }
}

pub(super) const ENTRY: Entry = Entry {
    name: "snapkv",
    about: "rows that the end of the prompt attended to most, with their neighbours",
    keeps: Keeps::Budget,
    needs_profile: false,
    by_attention: true,
    options: &[WINDOW, KEEP_WINDOW, REDUCE, KERNEL, POOLING],
    build: |inputs| {
        let new = SnapKv::new(inputs.budget);
        Ok(Box::new(SnapKv { score: inputs.window_score(new.score)?, ..new }))
    },
};

impl Policy for SnapKv {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        [vec![("budget", self.budget.to_string())], self.score.parameters()].concat()
    }

    fn observes(&self, layout: &PromptLayout) -> Vec<usize> {
        self.score.positions(layout)
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let n_audio = view.layout.n_audio();
        let budgets = self.budget.heads_of(view.shape, n_audio, view.layer);
        let head = |(kv_head, budget)| select(&self.score.scores(view, kv_head), n_audio, budget);
        budgets.into_iter().enumerate().map(head).collect()
    }
}
