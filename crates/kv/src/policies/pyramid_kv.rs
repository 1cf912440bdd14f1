//! PyramidKV (arXiv 2406.02069): SnapKV with more for the lower layers.

use super::budget::{Budget, even, repair};
use super::registry::{Entry, KEEP_WINDOW, KERNEL, Keeps, POOLING, REDUCE, WINDOW};
use super::window::{WindowScore, select};
use crate::PromptLayout;
use crate::policy::{HeadSelection, LayerView, Policy};

/// Keeps rows as [`SnapKv`](super::snap_kv::SnapKv) does, with budgets that fall linearly from the first layer to the last.
///
/// Formula, with B the mean rows per head beside the window: least = B/β, most = 2B − least; where most is more than there
/// are rows n, most = n and least = 2B − n. A head of layer l keeps most − l·(most − least)/(L − 1) rows, and the window.
///
/// Readings. Rows are whole, so the layers' totals are rounded and repaired until the model's total is exact; heads of a
/// layer share evenly. A model of one layer keeps B. The authors' floor divisions lose rows and are not followed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PyramidKv {
    /// What it keeps; the mean over layers.
    pub budget: Budget,
    /// How steep the pyramid is, β (20); at least 1, where the last layer keeps as much as the first.
    pub beta: f64,
    /// How rows are scored.
    pub score: WindowScore,
}

impl PyramidKv {
    /// β = 20 and SnapKV's scores.
    pub fn new(budget: Budget) -> Self {
        Self { budget, beta: 20.0, score: WindowScore::default() }
    }

    /// Rows of each layer over its KV heads, window excluded, `(n_layers)`: `pool` of them in all, `rows` per head at the most.
    pub fn layers(&self, n_layers: usize, n_kv_heads: usize, pool: usize, rows: usize) -> Vec<usize> {
        let limit = n_kv_heads * rows;
        let mean = pool as f64 / n_layers.max(1) as f64;
        let mut least = mean / self.beta.max(1.0);
        let mut most = 2.0 * mean - least;
        if most > limit as f64 {
            (most, least) = (limit as f64, 2.0 * mean - limit as f64);
        }
        let step = if n_layers > 1 { (most - least) / (n_layers - 1) as f64 } else { 0.0 };
        let first = if n_layers > 1 { most } else { mean };
        let ideals: Vec<f64> = (0..n_layers).map(|layer| first - layer as f64 * step).collect();
        let mut shares: Vec<usize> =
            ideals.iter().map(|x| (x.max(0.0).round() as usize).min(limit)).collect();
        repair(&mut shares, &ideals, pool, limit);
        shares
    }
}

pub(super) const ENTRY: Entry = Entry {
    name: "pyramidkv",
    about: "SnapKV with budgets that fall from the first layer to the last",
    keeps: Keeps::Budget,
    needs_profile: false,
    by_attention: true,
    options: &[
        ("beta", "the first layers keep up to 2 − 1/beta of the mean, the last 1/beta"),
        WINDOW,
        KEEP_WINDOW,
        REDUCE,
        KERNEL,
        POOLING,
    ],
    build: |inputs| {
        let new = PyramidKv::new(inputs.budget);
        let beta = inputs.option("beta", new.beta)?;
        if !(1.0..1e9).contains(&beta) {
            return Err(inputs.refuse("beta", "it must be at least 1"));
        }
        Ok(Box::new(PyramidKv { beta, score: inputs.window_score(new.score)?, ..new }))
    },
};

impl Policy for PyramidKv {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let own = vec![("budget", self.budget.to_string()), ("beta", self.beta.to_string())];
        [own, self.score.parameters()].concat()
    }

    fn observes(&self, layout: &PromptLayout) -> Vec<usize> {
        self.score.positions(layout)
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let (shape, n_audio) = (view.shape, view.layout.n_audio());
        let total = self.budget.total(shape, n_audio);
        let heads = shape.n_layers * shape.n_kv_heads;
        let protected = self.score.protected(view.layout);
        // Where the window alone is more than the budget, it is all that there is, evenly.
        let Some(pool) = total.checked_sub(heads * protected) else {
            let budgets = self.budget.heads_of(shape, n_audio, view.layer);
            let none = vec![0.0; n_audio - protected];
            return budgets.into_iter().map(|budget| select(&none, n_audio, budget.min(protected))).collect();
        };
        let layer = self.layers(shape.n_layers, shape.n_kv_heads, pool, n_audio - protected)[view.layer];
        let head = |kv_head| {
            let budget = protected + even(layer, shape.n_kv_heads, kv_head);
            select(&self.score.scores(view, kv_head), n_audio, budget)
        };
        (0..shape.n_kv_heads).map(head).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_fall_linearly_and_add_up() {
        let new = PyramidKv::new(Budget::Rows(0));
        assert_eq!(new.layers(3, 1, 300, 1000), [195, 100, 5]);
        assert_eq!(
            new.layers(3, 1, 300, 150),
            [150, 100, 50],
            "no more than there is: the last layer gets the rest"
        );
        assert_eq!(new.layers(1, 2, 7, 10), [7]);
        assert_eq!(PyramidKv { beta: 1.0, ..new }.layers(3, 2, 14, 10), [5, 5, 4]);
        for (layers, heads, rows) in [(5, 3, 40), (30, 8, 375), (2, 1, 3)] {
            for pool in 0..=layers * heads * rows {
                if pool % 97 == 0 || pool < 50 || pool + 50 > layers * heads * rows {
                    let shares = new.layers(layers, heads, pool, rows);
                    assert_eq!(shares.iter().sum::<usize>(), pool);
                    assert!(shares.iter().all(|s| *s <= heads * rows));
                    assert!(shares.windows(2).all(|w| w[0] + 1 >= w[1]), "{shares:?}");
                }
            }
        }
    }
}
