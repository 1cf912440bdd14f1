//! Ada-KV (arXiv 2407.11550) as its authors' code has it: a layer's budget goes to the heads that can use it.

use super::budget::{Budget, repair};
use super::pooling::Pooling;
use super::ranking::{best, counts_of_best};
use super::registry::{BuildError, Entry, Inputs, KEEP_WINDOW, KERNEL, Keeps, POOLING, REDUCE, WINDOW};
use super::window::{WindowScore, select};
use crate::PromptLayout;
use crate::policy::{HeadSelection, LayerView, Policy};

/// Keeps rows as [`SnapKv`](super::snap_kv::SnapKv) does, with budgets of a layer's heads moved a part of the way
/// towards where the layer's best rows are.
///
/// Formula, for a layer of H heads with mean budget B beside the window: of the H·B best scores over all heads, c_h fall
/// to head h; it keeps round( c_h·(1 − α) + ⌊B·α⌋ ) rows, its own best, and the window.
///
/// Readings. α = `floor_alpha` = 0.8 with kernel 7 and max pooling is what arXiv 2608.22704 compares with: 80 % uniform
/// and 20 % adaptive. (The name means something else in [`AdaKvSafeguard`](super::ada_kv_safeguard::AdaKvSafeguard).)
/// Rounding is half to even; ⌊B·α⌋ and rounding lose rows, so the sum is repaired to exactly the layer's budget: largest
/// remainder, ties to the lower head. The group is reduced by its mean before pooling. Of equal scores the lower row comes
/// first, then the lower head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaKv {
    /// What it keeps; the same in every layer.
    pub budget: Budget,
    /// Uniform part of the budgets, α: 0 for fully adaptive, 1 for SnapKV.
    pub floor_alpha: f64,
    /// Whether a head's scores are first multiplied by the share of its attention that its best B rows hold.
    pub normalise: bool,
    /// How rows are scored: 32 positions, max pooling over 7.
    pub score: WindowScore,
}

impl AdaKv {
    /// The parameters of arXiv 2608.22704, appendix F.
    pub fn new(budget: Budget) -> Self {
        let score = WindowScore { kernel: 7, pooling: Pooling::Max, ..WindowScore::default() };
        Self { budget, floor_alpha: 0.8, normalise: false, score }
    }

    /// What each head would keep of its `counts` among the layer's best, by the formula alone; `mean` is B.
    pub fn ideals(&self, counts: &[usize], mean: usize) -> Vec<f64> {
        let floor = (mean as f64 * self.floor_alpha).floor();
        counts.iter().map(|c| *c as f64 * (1.0 - self.floor_alpha) + floor).collect()
    }

    /// Rows of each head of a layer, window excluded, `(heads)`: `pool` in all. `scores` is `(heads, rows)`.
    pub fn heads(&self, scores: &[Vec<f64>], pool: usize) -> Vec<usize> {
        let mean = pool / scores.len().max(1);
        let counts = if self.normalise {
            counts_of_best(&normalised(scores, mean), pool)
        } else {
            counts_of_best(scores, pool)
        };
        let ideals = self.ideals(&counts, mean);
        let limit = scores.first().map_or(0, Vec::len);
        let mut caps: Vec<usize> = ideals.iter().map(|x| (x.round_ties_even() as usize).min(limit)).collect();
        repair(&mut caps, &ideals, pool, limit);
        caps
    }
}

/// Each head's scores times the share that its best `mean` have of them.
fn normalised(scores: &[Vec<f64>], mean: usize) -> Vec<Vec<f64>> {
    let head = |scores: &Vec<f64>| {
        let all: f64 = scores.iter().sum();
        let most: f64 = best(scores, mean).iter().map(|row| scores[*row as usize]).sum();
        let share = if all > 0.0 { most / all } else { 1.0 };
        scores.iter().map(|s| s * share).collect()
    };
    scores.iter().map(head).collect()
}

/// The selections of a layer whose heads share its budget: the window, and of the rest as many rows per head as `heads`
/// says when given the scores, `(heads, rows)`, and how many there are.
pub(super) fn share_layer(
    view: &LayerView<'_>,
    budget: Budget,
    score: &WindowScore,
    heads: impl Fn(&[Vec<f64>], usize) -> Vec<usize>,
) -> Vec<HeadSelection> {
    let n_audio = view.layout.n_audio();
    let uniform = budget.heads_of(view.shape, n_audio, view.layer);
    let protected = score.protected(view.layout);
    let scores: Vec<Vec<f64>> = (0..view.shape.n_kv_heads).map(|h| score.scores(view, h)).collect();
    // Where the window alone is more than the budget, it is all that there is.
    let budgets = match uniform.iter().sum::<usize>().checked_sub(uniform.len() * protected) {
        Some(pool) => heads(&scores, pool).into_iter().map(|rows| rows + protected).collect(),
        None => uniform,
    };
    scores.iter().zip(budgets).map(|(scores, budget)| select(scores, n_audio, budget)).collect()
}

pub(super) const ENTRY: Entry = Entry {
    name: "adakv",
    about: "SnapKV with a layer's budget moved towards the heads with the best rows (authors' form)",
    keeps: Keeps::Budget,
    needs_profile: false,
    by_attention: true,
    options: &[
        ("floor_alpha", "uniform part of the budgets, 0 to 1"),
        ("normalise", "whether scores are weighted by how concentrated a head is"),
        WINDOW,
        KEEP_WINDOW,
        REDUCE,
        KERNEL,
        POOLING,
    ],
    build,
};

fn build(inputs: &Inputs<'_>) -> Result<Box<dyn Policy>, BuildError> {
    let new = AdaKv::new(inputs.budget);
    Ok(Box::new(AdaKv {
        floor_alpha: inputs.share("floor_alpha", new.floor_alpha)?,
        normalise: inputs.option("normalise", new.normalise)?,
        score: inputs.window_score(new.score)?,
        ..new
    }))
}

impl Policy for AdaKv {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let own = vec![
            ("budget", self.budget.to_string()),
            ("floor_alpha", self.floor_alpha.to_string()),
            ("normalise", self.normalise.to_string()),
        ];
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
pub(super) mod tests {
    use super::super::ranking::top;
    use super::*;

    /// Scores of the worked example "Ada-KV": H = 2, B = 4.
    pub fn example() -> Vec<Vec<f64>> {
        vec![
            vec![9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0],
            vec![0.5, 0.4, 9.5, 0.3, 0.2, 0.1, 0.05, 0.04, 0.03, 0.02],
        ]
    }

    /// Worked example "Ada-KV", form 2.1: caps and rows by the formula alone, and caps after repair.
    #[test]
    fn worked_example_ada_kv_authors_form() {
        let scores = example();
        assert_eq!(counts_of_best(&scores, 8), [7, 1]);
        #[allow(clippy::type_complexity)] // a table of expectations
        let table: [(f64, [usize; 2], [&[u32]; 2], [usize; 2]); 5] = [
            (0.0, [7, 1], [&[0, 1, 2, 3, 4, 5, 6], &[2]], [7, 1]),
            (0.2, [6, 1], [&[0, 1, 2, 3, 4, 5], &[2]], [6, 2]),
            (0.5, [6, 2], [&[0, 1, 2, 3, 4, 5], &[0, 2]], [6, 2]),
            (0.8, [4, 3], [&[0, 1, 2, 3], &[0, 1, 2]], [5, 3]),
            (1.0, [4, 4], [&[0, 1, 2, 3], &[0, 1, 2, 3]], [4, 4]),
        ];
        for (floor_alpha, caps, rows, repaired) in table {
            let policy = AdaKv { floor_alpha, ..AdaKv::new(Budget::Rows(4)) };
            let formula = policy.ideals(&[7, 1], 4);
            assert_eq!(formula.iter().map(|x| x.round_ties_even() as usize).collect::<Vec<_>>(), caps);
            for head in 0..2 {
                assert_eq!(top(&scores[head], caps[head]), rows[head], "α = {floor_alpha}");
            }
            assert_eq!(policy.heads(&scores, 8), repaired, "α = {floor_alpha}");
        }
    }

    #[test]
    fn heads_share_exactly_whatever_the_scores() {
        let policy = AdaKv { floor_alpha: 0.1, ..AdaKv::new(Budget::Rows(4)) };
        assert_eq!(policy.heads(&[vec![9.0; 4], vec![1.0; 4]], 6), [4, 2], "no head keeps more than it has");
        assert_eq!(policy.heads(&[vec![], vec![]], 0), [0, 0]);
        assert_eq!(policy.heads(&[vec![0.0; 3], vec![0.0; 3]], 3), [2, 1]);
        let concentrated = AdaKv { floor_alpha: 0.0, normalise: true, ..policy };
        let scores = vec![vec![2.0; 4], vec![3.0, 1.0, 0.0, 0.0]];
        assert_eq!(
            concentrated.heads(&scores, 4),
            [2, 2],
            "the first head's best two hold half of its attention"
        );
        assert_eq!(AdaKv { normalise: false, ..concentrated }.heads(&scores, 4), [3, 1]);
    }
}
