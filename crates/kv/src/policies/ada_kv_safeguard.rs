//! Ada-KV in the safeguard form of NVIDIA kvpress and of the authors' fork of it.

use super::ada_kv::share_layer;
use super::budget::Budget;
use super::ranking::{best, counts_of_best};
use super::registry::{BuildError, Entry, Inputs, KEEP_WINDOW, KERNEL, Keeps, POOLING, REDUCE, WINDOW};
use super::window::WindowScore;
use crate::PromptLayout;
use crate::policy::{HeadSelection, LayerView, Policy};

/// Keeps the best rows of a layer whatever their heads, after a few of each head's own best.
///
/// Formula, for a layer of H heads with mean budget B beside the window: each head's best ⌊B·α⌋ rows stay, and of all other
/// rows of the layer the best H·B − H·⌊B·α⌋.
///
/// Readings. α means something else than in [`AdaKv`](super::ada_kv::AdaKv): a guarantee, not a mixture. It counts rows
/// beside the window, which is kept anyway. kvpress masks keys and saves no memory; here heads keep different numbers
/// of rows. Defaults are the reference's: α = 0.2, 64 positions, average pooling over 5. Of equal scores the lower row
/// comes first, then the lower head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaKvSafeguard {
    /// What it keeps; the same in every layer.
    pub budget: Budget,
    /// Share of the mean budget that every head is sure of, α.
    pub safeguard: f64,
    /// How rows are scored.
    pub score: WindowScore,
}

impl AdaKvSafeguard {
    /// kvpress's defaults.
    pub fn new(budget: Budget) -> Self {
        Self { budget, safeguard: 0.2, score: WindowScore { window: 64, ..WindowScore::default() } }
    }

    /// Rows of each head of a layer, window excluded, `(heads)`: `pool` in all. `scores` is `(heads, rows)`.
    pub fn heads(&self, scores: &[Vec<f64>], pool: usize) -> Vec<usize> {
        let mean = pool / scores.len().max(1);
        let safe = (mean as f64 * self.safeguard).floor() as usize;
        let mut forced = scores.to_vec();
        for head in &mut forced {
            best(head, safe).into_iter().for_each(|row| head[row as usize] = f64::INFINITY);
        }
        counts_of_best(&forced, pool)
    }
}

pub(super) const ENTRY: Entry = Entry {
    name: "adakv-safeguard",
    about: "the best rows of a layer whatever their heads, after some of each head's own (kvpress's form of Ada-KV)",
    keeps: Keeps::Budget,
    needs_profile: false,
    by_attention: true,
    options: &[
        ("safeguard", "share of the mean budget that every head is sure of, 0 to 1"),
        WINDOW,
        KEEP_WINDOW,
        REDUCE,
        KERNEL,
        POOLING,
    ],
    build,
};

fn build(inputs: &Inputs<'_>) -> Result<Box<dyn Policy>, BuildError> {
    let new = AdaKvSafeguard::new(inputs.budget);
    Ok(Box::new(AdaKvSafeguard {
        safeguard: inputs.share("safeguard", new.safeguard)?,
        score: inputs.window_score(new.score)?,
        ..new
    }))
}

impl Policy for AdaKvSafeguard {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let own = vec![("budget", self.budget.to_string()), ("safeguard", self.safeguard.to_string())];
        [own, self.score.parameters()].concat()
    }

    fn observes(&self, layout: &PromptLayout) -> Vec<usize> {
        self.score.positions(layout)
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        share_layer(view, self.budget, &self.score, |scores, pool| self.heads(scores, pool))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ada_kv::tests::example;
    use super::super::ranking::top;
    use super::*;

    /// Worked example "Ada-KV", form 2.3 (safeguard).
    #[test]
    fn worked_example_ada_kv_safeguard_form() {
        let table: [(f64, [&[u32]; 2]); 5] = [
            (0.0, [&[0, 1, 2, 3, 4, 5, 6], &[2]]),
            (0.2, [&[0, 1, 2, 3, 4, 5, 6], &[2]]),
            (0.5, [&[0, 1, 2, 3, 4, 5], &[0, 2]]),
            (0.8, [&[0, 1, 2, 3, 4], &[0, 1, 2]]),
            (1.0, [&[0, 1, 2, 3], &[0, 1, 2, 3]]),
        ];
        let scores = example();
        for (safeguard, rows) in table {
            let policy = AdaKvSafeguard { safeguard, ..AdaKvSafeguard::new(Budget::Rows(4)) };
            let heads = policy.heads(&scores, 8);
            for head in 0..2 {
                assert_eq!(top(&scores[head], heads[head]), rows[head], "α = {safeguard}");
            }
        }
    }
}
