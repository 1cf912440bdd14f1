//! HeadKV (arXiv 2410.19258): budgets over the whole model by calibrated head scores.

use super::budget::{Budget, split};
use super::registry::{
    BuildError, Entry, Inputs, KEEP_WINDOW, KERNEL, Keeps, POOLING, REDUCE, SCORES, WINDOW,
};
use super::window::{WindowScore, select};
use crate::policy::{HeadSelection, LayerView, Policy};
use crate::{KvShape, PromptLayout};

/// Keeps rows as [`SnapKv`](super::snap_kv::SnapKv) does, with a budget for each head of the model by its score.
///
/// Formula, with B the mean rows per head beside the window: least = B − ⌊B/β⌋, and the rest of the model's rows in
/// proportion to S_h^temperature.
///
/// Readings. The paper's score is how well a head retrieves and reasons over planted text; a speech model's calibration
/// has voice scores instead, which is what S is here by default. It is per KV head (the paper's per query head, averaged
/// over the group elsewhere). Rounded by largest remainder; what a head cannot hold is re-shared. β is 1.01
/// (KVCache-Factory's; papers go from 1.005 to 10, and smaller is more adaptive): nearly everything goes by the scores, and a head
/// with none keeps next to nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadKv {
    /// What it keeps, over the whole model.
    pub budget: Budget,
    /// Score of each KV head, 0 or more, `(n_layers, n_kv_heads)`; a head without one counts as 0.
    pub head_score: Vec<f64>,
    /// How much goes by the scores, β: 1/β of the budget; at least 1.
    pub beta: f64,
    /// Exponent of the scores.
    pub temperature: f64,
    /// How rows are scored.
    pub score: WindowScore,
}

impl HeadKv {
    /// β = 1.01, the scores as they are, and SnapKV's way of scoring rows.
    pub fn new(budget: Budget, head_score: Vec<f64>) -> Self {
        Self { budget, head_score, beta: 1.01, temperature: 1.0, score: WindowScore::default() }
    }

    /// Rows of each KV head of the model, window excluded, `(n_layers, n_kv_heads)`: `pool` in all, `rows` each at the most.
    pub fn heads(&self, shape: KvShape, pool: usize, rows: usize) -> Vec<usize> {
        let heads = shape.n_layers * shape.n_kv_heads;
        let mean = pool / heads.max(1);
        let least = mean - ((mean as f64 / self.beta.max(1.0)).floor() as usize).min(mean);
        let mut weights: Vec<f64> = self.head_score.iter().map(|s| s.powf(self.temperature)).collect();
        weights.resize(heads, 0.0);
        let by_score = split(pool - heads * least, &weights, rows - least);
        by_score.into_iter().map(|rows| rows + least).collect()
    }
}

pub(super) const ENTRY: Entry = Entry {
    name: "headkv",
    about: "SnapKV with a budget for each head of the model by its score",
    keeps: Keeps::Budget,
    needs_profile: true,
    by_attention: true,
    options: &[
        SCORES,
        ("beta", "1/beta of the budget goes by the scores; at least 1"),
        ("temperature", "exponent of the scores"),
        WINDOW,
        KEEP_WINDOW,
        REDUCE,
        KERNEL,
        POOLING,
    ],
    build,
};

fn build(inputs: &Inputs<'_>) -> Result<Box<dyn Policy>, BuildError> {
    let new = HeadKv::new(inputs.budget, inputs.head_scores(ENTRY.name)?);
    let (beta, temperature) =
        (inputs.option("beta", new.beta)?, inputs.option("temperature", new.temperature)?);
    if !(1.0..1e9).contains(&beta) {
        return Err(inputs.refuse("beta", "it must be at least 1"));
    }
    if !(0.0..=100.0).contains(&temperature) {
        return Err(inputs.refuse("temperature", "it must be between 0 and 100"));
    }
    Ok(Box::new(HeadKv { beta, temperature, score: inputs.window_score(new.score)?, ..new }))
}

impl Policy for HeadKv {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let own = vec![
            ("budget", self.budget.to_string()),
            ("beta", self.beta.to_string()),
            ("temperature", self.temperature.to_string()),
        ];
        [own, self.score.parameters()].concat()
    }

    fn observes(&self, layout: &PromptLayout) -> Vec<usize> {
        self.score.positions(layout)
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let (shape, n_audio) = (view.shape, view.layout.n_audio());
        let (first, protected) = (view.layer * shape.n_kv_heads, self.score.protected(view.layout));
        let window = shape.n_layers * shape.n_kv_heads * protected;
        // Where the window alone is more than the budget, it is all that there is, evenly.
        let budgets: Vec<usize> = match self.budget.total(shape, n_audio).checked_sub(window) {
            Some(pool) => {
                let heads = self.heads(shape, pool, n_audio - protected);
                heads[first..first + shape.n_kv_heads].iter().map(|rows| rows + protected).collect()
            }
            None => self.budget.heads_of(shape, n_audio, view.layer),
        };
        let head = |(kv_head, budget)| select(&self.score.scores(view, kv_head), n_audio, budget);
        budgets.into_iter().enumerate().map(head).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape { n_layers: 2, n_q_heads: 4, n_kv_heads: 2, head_dim: 8 };

    #[test]
    fn budgets_go_by_the_scores_above_a_least() {
        let of = |beta, scores: &[f64], pool| {
            HeadKv { beta, ..HeadKv::new(Budget::Rows(0), scores.to_vec()) }.heads(SHAPE, pool, 200)
        };
        assert_eq!(of(2.0, &[0.4, 0.3, 0.2, 0.1], 400), [130, 110, 90, 70], "50 each, and 200 in proportion");
        assert_eq!(of(1.01, &[1.0, 1.0, 0.0, 0.0], 400), [199, 199, 1, 1]);
        assert_eq!(
            of(1.0, &[1.0, 0.0, 0.0, 0.0], 400),
            [200, 67, 67, 66],
            "what a head cannot hold is re-shared"
        );
        assert_eq!(of(1.01, &[0.0; 4], 402), [101, 101, 100, 100]);
        let hot =
            HeadKv { temperature: 2.0, beta: 1.0, ..HeadKv::new(Budget::Rows(0), vec![2.0, 1.0, 0.0, 0.0]) };
        assert_eq!(hot.heads(SHAPE, 50, 200), [40, 10, 0, 0]);
    }
}
