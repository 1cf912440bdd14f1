//! RazorAttention (arXiv 2407.15891): retrieval heads keep everything, the others the beginning and the end.

use super::budget::{Budget, even};
use super::registry::{BuildError, Entry, Inputs, Keeps, SCORES};
use super::streaming_llm::sinks_and_recent;
use crate::KvShape;
use crate::policy::{HeadSelection, LayerView, Policy};
use crate::profile::ranking;

/// Keeps all audio in the heads with the highest scores, and in the others the first rows and the latest.
///
/// Formula: the best `retrieval_share` of all heads by score keep everything; the others `sinks` first rows and what the
/// budget leaves of the latest.
///
/// Readings. The paper finds its heads (1 % echo and 14 % induction heads) by repeating random text; a speech model's
/// calibration has voice scores instead, which serve here. With a small budget there are only as many retrieval heads
/// as leave every other head its sinks. The paper's local buffer max(S₀, N/C) becomes what the budget leaves. Its
/// *compensation token*, the mean of what was dropped, is left out: it is a row that was never in the prompt. Sinks
/// are audio rows, and several recordings count as one, as in [`StreamingLlm`](super::streaming_llm::StreamingLlm).
#[derive(Clone, Debug, PartialEq)]
pub struct RazorAttention {
    /// What it keeps, over the whole model.
    pub budget: Budget,
    /// Score of each KV head, `(n_layers, n_kv_heads)`; a head without one counts as 0.
    pub head_score: Vec<f64>,
    /// Share of heads that keep everything (0.15).
    pub retrieval_share: f64,
    /// First rows that every head keeps (4).
    pub sinks: usize,
}

impl RazorAttention {
    /// The paper's 15 % of heads and four sinks.
    pub fn new(budget: Budget, head_score: Vec<f64>) -> Self {
        Self { budget, head_score, retrieval_share: 0.15, sinks: 4 }
    }

    /// Audio rows of each KV head of the model, `(n_layers, n_kv_heads)`.
    pub fn heads(&self, shape: KvShape, n_audio: usize) -> Vec<usize> {
        let heads = shape.n_layers * shape.n_kv_heads;
        let total = self.budget.total(shape, n_audio);
        let sinks = self.sinks.min(n_audio);
        let asked = (self.retrieval_share.clamp(0.0, 1.0) * heads as f64).round() as usize;
        // n whole heads and the others' sinks: n · n_audio + (heads − n) · sinks ≤ total.
        let affordable = match n_audio - sinks {
            0 => total / n_audio.max(1),
            more => total.saturating_sub(heads * sinks) / more,
        };
        let whole = asked.min(affordable);
        let mut scores = self.head_score.clone();
        scores.resize(heads, 0.0);
        let mut out = vec![n_audio; heads];
        let mut others = ranking(&scores).split_off(whole);
        others.sort_unstable();
        for (place, head) in others.iter().enumerate() {
            out[*head] = even(total - whole * n_audio, others.len(), place);
        }
        out
    }
}

pub(super) const ENTRY: Entry = Entry {
    name: "razor-attention",
    about: "everything in the heads with the best scores, the beginning and the end in the others",
    keeps: Keeps::Budget,
    needs_profile: true,
    by_attention: false,
    options: &[
        SCORES,
        ("retrieval_share", "share of heads that keep everything, 0 to 1"),
        ("sinks", "first audio rows that stay in the others"),
    ],
    build,
};

fn build(inputs: &Inputs<'_>) -> Result<Box<dyn Policy>, BuildError> {
    let new = RazorAttention::new(inputs.budget, inputs.head_scores(ENTRY.name)?);
    Ok(Box::new(RazorAttention {
        retrieval_share: inputs.share("retrieval_share", new.retrieval_share)?,
        sinks: inputs.option("sinks", new.sinks)?,
        ..new
    }))
}

impl Policy for RazorAttention {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        vec![
            ("budget", self.budget.to_string()),
            ("retrieval_share", self.retrieval_share.to_string()),
            ("sinks", self.sinks.to_string()),
        ]
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let (n_audio, first) = (view.layout.n_audio(), view.layer * view.shape.n_kv_heads);
        let heads = self.heads(view.shape, n_audio);
        let head = |rows: &usize| sinks_and_recent(n_audio, *rows, self.sinks);
        heads[first..first + view.shape.n_kv_heads].iter().map(head).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape { n_layers: 2, n_q_heads: 4, n_kv_heads: 2, head_dim: 8 };

    #[test]
    fn whole_heads_are_those_that_the_budget_affords() {
        let of = |rows, retrieval_share| {
            let new = RazorAttention::new(Budget::Rows(rows), vec![0.1, 0.9, 0.5, 0.9]);
            RazorAttention { retrieval_share, ..new }.heads(SHAPE, 100)
        };
        assert_eq!(of(50, 0.25), [34, 100, 33, 33], "of equals the lower head");
        assert_eq!(of(55, 0.5), [10, 100, 10, 100]);
        assert_eq!(
            of(51, 0.5),
            [35, 100, 35, 34],
            "a second whole head would leave the others less than their sinks"
        );
        assert_eq!(of(3, 0.5), [3; 4]);
        assert_eq!(of(100, 1.0), [100; 4]);
        assert_eq!(RazorAttention::new(Budget::Rows(9), vec![]).heads(SHAPE, 0), [0; 4]);
        assert_eq!(RazorAttention::new(Budget::Ratio(0.5), vec![]).heads(SHAPE, 3), [3, 2, 2, 1]);
    }
}
