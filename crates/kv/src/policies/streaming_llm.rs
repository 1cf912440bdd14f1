//! StreamingLLM (arXiv 2309.17453): the first rows and the latest.

use super::budget::Budget;
use super::registry::{Entry, Keeps};
use super::window::selection;
use crate::policy::{HeadSelection, LayerView, Policy};

/// Keeps the first `sinks` audio rows and the most recent others, whatever is attended to.
///
/// Formula: rows τ < sinks and τ ≥ n_audio − (B − sinks), B the head's budget.
///
/// Readings. Audio rows alone are counted, so the sinks are the first *audio* rows: the prompt's first positions are text
/// and stay anyway. With fewer rows than sinks the first B stay. Several recordings of a prompt count as one. Decided at
/// prefill: the answer's rows are text, and do not push audio out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamingLlm {
    /// What it keeps; the same in every head.
    pub budget: Budget,
    /// First rows that stay (4).
    pub sinks: usize,
}

impl StreamingLlm {
    /// The paper's four sinks.
    pub fn new(budget: Budget) -> Self {
        Self { budget, sinks: 4 }
    }
}

pub(super) const ENTRY: Entry = Entry {
    name: "streaming-llm",
    about: "the first rows and the latest, whatever is attended to",
    keeps: Keeps::Budget,
    needs_profile: false,
    by_attention: false,
    options: &[("sinks", "first audio rows that stay")],
    build: |inputs| {
        let new = StreamingLlm::new(inputs.budget);
        Ok(Box::new(StreamingLlm { sinks: inputs.option("sinks", new.sinks)?, ..new }))
    },
};

/// The first `sinks` and the last `rows − sinks` of `n_audio` rows.
pub(super) fn sinks_and_recent(n_audio: usize, rows: usize, sinks: usize) -> HeadSelection {
    let rows = rows.min(n_audio);
    let sinks = sinks.min(rows);
    let kept = (0..sinks).chain(n_audio - (rows - sinks)..n_audio).map(|row| row as u32);
    selection(kept.collect(), n_audio)
}

impl Policy for StreamingLlm {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        vec![("budget", self.budget.to_string()), ("sinks", self.sinks.to_string())]
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let n_audio = view.layout.n_audio();
        let budgets = self.budget.heads_of(view.shape, n_audio, view.layer);
        budgets.into_iter().map(|rows| sinks_and_recent(n_audio, rows, self.sinks)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinks_come_first() {
        assert_eq!(sinks_and_recent(10, 6, 4), HeadSelection::Only(vec![0, 1, 2, 3, 8, 9]));
        assert_eq!(sinks_and_recent(10, 3, 4), HeadSelection::Only(vec![0, 1, 2]));
        assert_eq!(sinks_and_recent(10, 2, 0), HeadSelection::Only(vec![8, 9]));
        assert_eq!(sinks_and_recent(3, 9, 4), HeadSelection::All);
        assert_eq!(sinks_and_recent(0, 0, 4), HeadSelection::All);
    }
}
