//! H2O, "heavy hitters" (arXiv 2306.14048), as it is used at prefill.

use super::budget::Budget;
use super::registry::{Entry, KEEP_WINDOW, Keeps, REDUCE};
use super::window::{GroupReduce, attention_sums, reduce_group, rows_in_window, select};
use crate::PromptLayout;
use crate::policy::{HeadSelection, LayerView, Policy};

/// Keeps the rows that the whole prompt attended to most, and the latest.
///
/// Formula: s(τ) = Σ over all prompt positions of the softmax attention at τ, reduced over the group; the best B − w stay
/// and the audio among the last w positions.
///
/// Readings. This is the form that later papers compare with (KVCache-Factory: no pooling, w = 32, mean over the group);
/// the original also accumulates while decoding. The raw sum favours early rows, which more queries see;
/// `per_query` divides by the number of positions that can see τ (as kvpress does). Rows in the window count against
/// the budget; `keep_window` false lets them compete.
///
/// Cost: attention of every position is computed a second time, and a layer's queries are held in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct H2o {
    /// What it keeps; the same in every head.
    pub budget: Budget,
    /// Last prompt positions whose audio is kept, w (32).
    pub recent: usize,
    /// Whether audio among these is kept before all else.
    pub keep_window: bool,
    /// How a group's query heads become one.
    pub reduce: GroupReduce,
    /// Whether a row's sum is divided by the number of positions that can see it.
    pub per_query: bool,
}

impl H2o {
    /// KVCache-Factory's parameters.
    pub fn new(budget: Budget) -> Self {
        Self { budget, recent: 32, keep_window: true, reduce: GroupReduce::Mean, per_query: false }
    }
}

pub(super) const ENTRY: Entry = Entry {
    name: "h2o",
    about: "rows that the whole prompt attended to most, and the latest (prefill form)",
    keeps: Keeps::Budget,
    needs_profile: false,
    by_attention: true,
    options: &[
        ("recent", "last prompt positions whose audio is kept"),
        KEEP_WINDOW,
        REDUCE,
        ("per_query", "whether sums are divided by the number of positions that see a row"),
    ],
    build: |inputs| {
        let new = H2o::new(inputs.budget);
        Ok(Box::new(H2o {
            recent: inputs.option("recent", new.recent)?,
            keep_window: inputs.option("keep_window", new.keep_window)?,
            reduce: inputs.option("reduce", new.reduce)?,
            per_query: inputs.option("per_query", new.per_query)?,
            ..new
        }))
    },
};

impl Policy for H2o {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        vec![
            ("budget", self.budget.to_string()),
            ("recent", self.recent.to_string()),
            ("keep_window", self.keep_window.to_string()),
            ("reduce", self.reduce.to_string()),
            ("per_query", self.per_query.to_string()),
        ]
    }

    /// Positions before the audio cannot see it.
    fn observes(&self, layout: &PromptLayout) -> Vec<usize> {
        let first = layout.audio().first().map_or(layout.len(), |stretch| stretch.start);
        (first..layout.len()).collect()
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let n_audio = view.layout.n_audio();
        let protected = if self.keep_window { rows_in_window(view.layout, self.recent) } else { 0 };
        let budgets = self.budget.heads_of(view.shape, n_audio, view.layer);
        let head = |(kv_head, budget)| {
            let mut scores = reduce_group(&attention_sums(view, kv_head), self.reduce);
            if self.per_query {
                let positions = view.layout.audio().iter().flat_map(Clone::clone);
                let seen_by = positions.map(|position| (view.layout.len() - position) as f64);
                scores.iter_mut().zip(seen_by).for_each(|(score, queries)| *score /= queries);
            }
            scores.truncate(n_audio - protected);
            select(&scores, n_audio, budget)
        };
        budgets.into_iter().enumerate().map(head).collect()
    }
}
