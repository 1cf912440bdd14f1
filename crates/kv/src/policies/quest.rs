//! Quest (ICML 2024, arXiv 2406.10774): everything stays, attention reads what the query may want.

use super::budget::Budget;
use super::pages::{Body, Choice, Pages, Radius};
use super::registry::{BuildError, Entry, Inputs, Keeps};
use crate::Segments;
use crate::policy::{HeadSelection, LayerView, Pager, Policy};

/// Reads in each step only the pages with the highest bounds of q·k.
///
/// Formula. A page has its keys' least and largest value per channel; its score is Σ over channels of max(q·least,
/// q·largest), which no q·k of it exceeds. The best max(3, B/page) pages of each head are read.
///
/// Readings. The budget is what is *read*, rounded to the nearest page: all audio stays on the device, so the method saves
/// time, not memory: the store's r_GPU is 1, and the share that attention reads stands beside it.
/// Scores are the mean over a KV head's group (the original has one query head per KV head). The first two layers read
/// everything, as in the original, on top of the budget. Text is always read.
#[derive(Debug)]
pub struct Quest {
    /// What is read in each step, in layers that choose; the same in every head.
    pub budget: Budget,
    /// Rows of a page (16).
    pub page_rows: usize,
    /// Least pages that are read (3).
    pub least_pages: usize,
    /// First layers that read everything (2).
    pub dense_layers: usize,
    pages: Option<Pages>,
}

impl Quest {
    /// The authors' parameters.
    pub fn new(budget: Budget) -> Self {
        Self { budget, page_rows: 16, least_pages: 3, dense_layers: 2, pages: None }
    }
}

pub(super) const ENTRY: Entry = Entry {
    name: "quest",
    about: "all audio stays on the device; attention reads the pages with the highest bounds",
    keeps: Keeps::Everything,
    needs_profile: false,
    by_attention: false,
    options: &[
        ("page", "rows of a page"),
        ("least_pages", "least pages that are read"),
        ("dense_layers", "first layers that read everything"),
    ],
    build,
};

fn build(inputs: &Inputs<'_>) -> Result<Box<dyn Policy>, BuildError> {
    let new = Quest::new(inputs.budget);
    let policy = Quest {
        page_rows: inputs.option("page", new.page_rows)?,
        least_pages: inputs.option("least_pages", new.least_pages)?,
        dense_layers: inputs.option("dense_layers", new.dense_layers)?,
        ..new
    };
    if policy.page_rows == 0 {
        return Err(inputs.refuse("page", "it must be at least 1"));
    }
    Ok(Box::new(policy))
}

impl Policy for Quest {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        vec![
            ("budget", self.budget.to_string()),
            ("page", self.page_rows.to_string()),
            ("least_pages", self.least_pages.to_string()),
            ("dense_layers", self.dense_layers.to_string()),
        ]
    }

    fn segment_rows(&self) -> usize {
        self.page_rows
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let (n_audio, page) = (view.layout.n_audio(), self.page_rows.max(1));
        let pages = Segments::new(view.layout, page).len();
        let rows = self.budget.heads_of(view.shape, n_audio, view.layer);
        let capacity: Vec<usize> =
            rows.into_iter().map(|rows| ((rows + page / 2) / page).max(self.least_pages)).collect();
        if view.layer < self.dense_layers || capacity.iter().all(|c| *c >= pages) {
            return vec![HeadSelection::All; view.shape.n_kv_heads];
        }
        let choice =
            Choice { top: usize::MAX, sinks: 0, recent: 0, per_head: true, hide: true, softmax: None };
        let all = self.pages.get_or_insert_with(|| Pages::new(view.shape, choice));
        // Channels' least and largest are the cuboid with the largest radius.
        all.admit(view, page, Body::Cuboid, Radius::Max, capacity);
        vec![HeadSelection::Tiered((0..n_audio as u32).collect()); view.shape.n_kv_heads]
    }

    fn pager(&mut self) -> Option<Box<dyn Pager>> {
        self.pages.take().map(|pages| Box::new(pages) as Box<dyn Pager>)
    }
}
