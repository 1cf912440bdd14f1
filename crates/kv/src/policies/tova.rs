//! TOVA, "token omission via attention" (arXiv 2401.06104), as it is used at prefill.

use super::budget::Budget;
use super::registry::{Entry, Keeps};
use super::window::{GroupReduce, group_attention, rows_in_window, select};
use crate::PromptLayout;
use crate::policy::{HeadSelection, LayerView, Policy};

/// Keeps the rows that the last prompt position attended to most, the same in every head of a layer.
///
/// Formula: s(τ) = mean over all query heads of the layer of the last position's softmax attention at τ; the best B stay.
///
/// Readings. The last position is always kept: it is text, or, where the prompt ends in audio, the last row. The original
/// drops one row per step while decoding; this is its prefill form (as in kvpress). Where a budget in bytes does not
/// divide by the heads, some keep the next best row too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tova {
    /// What it keeps; the same in every head.
    pub budget: Budget,
}

pub(super) const ENTRY: Entry = Entry {
    name: "tova",
    about: "rows that the last position attended to most, the same in every head of a layer (prefill form)",
    keeps: Keeps::Budget,
    needs_profile: false,
    by_attention: true,
    options: &[],
    build: |inputs| Ok(Box::new(Tova { budget: inputs.budget })),
};

impl Policy for Tova {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        vec![("budget", self.budget.to_string())]
    }

    fn observes(&self, layout: &PromptLayout) -> Vec<usize> {
        layout.len().checked_sub(1).into_iter().collect()
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let n_audio = view.layout.n_audio();
        let mut scores = vec![0.0; n_audio];
        for kv_head in 0..view.shape.n_kv_heads {
            let of_head = group_attention(view, kv_head, GroupReduce::Mean);
            scores.iter_mut().zip(of_head).for_each(|(sum, s)| *sum += s);
        }
        scores.truncate(n_audio - rows_in_window(view.layout, 1));
        let budgets = self.budget.heads_of(view.shape, n_audio, view.layer);
        budgets.into_iter().map(|budget| select(&scores, n_audio, budget)).collect()
    }
}
