//! FreeKV (ICLR 2026, arXiv 2505.13109): pages chosen one step ahead, and corrected where the query has turned.

use super::budget::Budget;
use super::pages::{Body, Choice, Pages, Radius, capacity};
use super::registry::{BuildError, Entry, Inputs, Keeps};
use crate::policy::{HeadSelection, LayerView, Pager, Policy, SwapPlan};
use crate::{PromptLayout, Segments};

/// Reads in each step the pages that the step before it chose, which had a whole step's time to come.
///
/// Formula. A page has its keys' least and largest value per channel; a query head scores it Σ over channels of
/// max(q·least, q·largest), and a KV head takes the best by the mean over its group of softmax(score/√d). Attention of
/// step t reads the pages chosen by q of t − 1; but where the cosine of the two queries, mean over the group, is below τ,
/// that KV head chooses by q of t and waits for its pages.
///
/// Readings, for audio alone. Pages tile the audio, never text; the last of a recording may be short. The budget in
/// pages is rounded to the nearest, the same in every head ([`capacity`]). The authors keep 512 sink and 512 recent
/// tokens beside the budget and leave the first layer whole: text before and after audio is always kept here, so sink and
/// window pages are off (`sink_pages`, `window_pages`), and what `dense_layers` cost is taken from the others. τ is 0.9,
/// the more careful of the authors' two values. The first step's pages are those that the last prompt position wants,
/// and its query is what the first step's is compared with. A query without a direction is corrected.
///
/// What it keeps: its pages on the device, in blocks; all audio on the host, from prefill on; digests of two vectors of f32
/// per page and head, and each layer's last query, on the device.
#[derive(Debug)]
pub struct FreeKv {
    /// What is on the device while decoding.
    pub budget: Budget,
    /// Rows of a page (32).
    pub page_rows: usize,
    /// Cosine of successive queries below which a KV head is corrected, τ (0.9).
    pub tau: f32,
    /// How far a page's box reaches (max).
    pub radius: Radius,
    /// Whether weights are averaged over a group, not scores (yes).
    pub softmax: bool,
    /// First audio pages that always stay.
    pub sink_pages: usize,
    /// Last audio pages that always stay.
    pub window_pages: usize,
    /// First layers that keep everything.
    pub dense_layers: usize,
    pager: Option<Speculative>,
}

impl FreeKv {
    /// Pages of 32, τ = 0.9; no sinks, windows or dense layers.
    pub fn new(budget: Budget) -> Self {
        Self {
            budget,
            page_rows: 32,
            tau: 0.9,
            radius: Radius::Max,
            softmax: true,
            sink_pages: 0,
            window_pages: 0,
            dense_layers: 0,
            pager: None,
        }
    }
}

pub(super) const ENTRY: Entry = Entry {
    name: "freekv",
    about: "pages of audio chosen a step ahead, corrected where the query has turned; all audio on the host",
    keeps: Keeps::Pages,
    needs_profile: false,
    by_attention: false,
    options: &[
        ("page", "rows of a page"),
        ("tau", "cosine of successive queries below which a head is corrected"),
        ("radius", "how far a page's box reaches: mean, max or centre"),
        ("softmax", "whether weights are averaged over a group, not scores"),
        ("sink_pages", "first audio pages that always stay"),
        ("window_pages", "last audio pages that always stay"),
        ("dense_layers", "first layers that keep everything, out of the same budget"),
    ],
    build,
};

fn build(inputs: &Inputs<'_>) -> Result<Box<dyn Policy>, BuildError> {
    let new = FreeKv::new(inputs.budget);
    let policy = FreeKv {
        page_rows: inputs.option("page", new.page_rows)?,
        tau: inputs.option("tau", new.tau)?,
        radius: inputs.option("radius", new.radius)?,
        softmax: inputs.option("softmax", new.softmax)?,
        sink_pages: inputs.option("sink_pages", new.sink_pages)?,
        window_pages: inputs.option("window_pages", new.window_pages)?,
        dense_layers: inputs.option("dense_layers", new.dense_layers)?,
        ..new
    };
    if policy.page_rows == 0 {
        return Err(inputs.refuse("page", "it must be at least 1"));
    }
    if !(-1.0..=1.0).contains(&policy.tau) {
        return Err(inputs.refuse("tau", "a cosine is between -1 and 1"));
    }
    Ok(Box::new(policy))
}

impl Policy for FreeKv {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        vec![
            ("budget", self.budget.to_string()),
            ("page", self.page_rows.to_string()),
            ("tau", self.tau.to_string()),
            ("radius", self.radius.to_string()),
            ("softmax", self.softmax.to_string()),
            ("sink_pages", self.sink_pages.to_string()),
            ("window_pages", self.window_pages.to_string()),
            ("dense_layers", self.dense_layers.to_string()),
        ]
    }

    fn segment_rows(&self) -> usize {
        self.page_rows
    }

    fn observes(&self, layout: &PromptLayout) -> Vec<usize> {
        layout.len().checked_sub(1).into_iter().collect()
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let capacity =
            capacity(self.budget, self.page_rows, self.dense_layers, view.shape, view.layout, view.layer);
        let pages = Segments::new(view.layout, self.page_rows).len();
        if capacity.iter().all(|c| *c >= pages) {
            return vec![HeadSelection::All; view.shape.n_kv_heads];
        }
        let choice = Choice {
            top: usize::MAX,
            sinks: self.sink_pages,
            recent: self.window_pages,
            per_head: true,
            hide: false,
            softmax: self.softmax.then_some(view.scale),
        };
        let pager = self.pager.get_or_insert_with(|| Speculative {
            pages: Pages::new(view.shape, choice),
            tau: self.tau,
            group: view.shape.group(),
            head_dim: view.shape.head_dim,
            last: vec![Vec::new(); view.shape.n_layers],
        });
        pager.pages.admit(view, self.page_rows, Body::Cuboid, self.radius, capacity);
        let row = view.shape.n_q_heads * view.shape.head_dim;
        pager.last[view.layer] = view.q[view.q.len().saturating_sub(row)..].to_vec();
        vec![HeadSelection::Tiered(Vec::new()); view.shape.n_kv_heads]
    }

    fn pager(&mut self) -> Option<Box<dyn Pager>> {
        self.pager.take().map(|pager| Box::new(pager) as Box<dyn Pager>)
    }
}

/// Chooses after each attention for the next, and before it where the query has turned.
#[derive(Debug)]
struct Speculative {
    pages: Pages,
    tau: f32,
    group: usize,
    head_dim: usize,
    last: Vec<Vec<f32>>, // per layer (n_q_heads, head_dim); empty in layers without pages
}

impl Speculative {
    /// Whether each KV head's queries have turned by more than τ allows, `(n_kv_heads)`.
    fn turned(&self, last: &[f32], q: &[f32]) -> Vec<bool> {
        let size = self.group * self.head_dim;
        let head = |(last, q): (&[f32], &[f32])| {
            let pairs = last.chunks_exact(self.head_dim).zip(q.chunks_exact(self.head_dim));
            let mean = pairs.map(|(last, q)| cosine(last, q)).sum::<f32>() / self.group as f32;
            // Without a direction there is no cosine, and nothing to go by.
            mean.is_nan() || mean < self.tau
        };
        last.chunks_exact(size).zip(q.chunks_exact(size)).map(head).collect()
    }
}

impl Pager for Speculative {
    fn bytes(&self) -> u64 {
        self.pages.bytes() + self.last.iter().map(|q| size_of_val(&q[..]) as u64).sum::<u64>()
    }

    fn at_first(&mut self, layer: usize) -> Vec<SwapPlan> {
        self.pages.at_first(layer)
    }

    fn before_attention(&mut self, layer: usize, q: &[f32]) -> Vec<SwapPlan> {
        let turned = self.turned(&self.last[layer], q);
        match turned.contains(&true) {
            true => self.pages.turn(layer, q, |kv_head| turned[kv_head]),
            false => Vec::new(),
        }
    }

    fn after_attention(&mut self, layer: usize, q: &[f32]) -> Vec<SwapPlan> {
        let plans = self.pages.turn(layer, q, |_| true);
        if !plans.is_empty() {
            self.last[layer].clear();
            self.last[layer].extend_from_slice(q);
        }
        plans
    }
}

/// Cosine of the angle between two vectors; no number if one is zero.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a).sqrt() * dot(b, b).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvShape;

    fn pager(tau: f32) -> Speculative {
        let shape = KvShape { n_layers: 1, n_q_heads: 4, n_kv_heads: 2, head_dim: 2 };
        let choice =
            Choice { top: usize::MAX, sinks: 0, recent: 0, per_head: true, hide: false, softmax: None };
        Speculative { pages: Pages::new(shape, choice), tau, group: 2, head_dim: 2, last: Vec::new() }
    }

    #[test]
    fn a_head_has_turned_when_the_mean_cosine_of_its_group_is_below_tau() {
        let last = [1.0, 0.0, 0.0, 2.0, 3.0, 0.0, 0.0, 4.0];
        // Cosines 1 and 0.6 in the first group (mean 0.8), 1 and 1 in the second; lengths say nothing.
        let q = [5.0, 0.0, 0.8, 0.6, 1.0, 0.0, 0.0, 0.1];
        assert_eq!(pager(0.9).turned(&last, &q), [true, false]);
        assert_eq!(pager(0.79).turned(&last, &q), [false, false]);
        assert_eq!(
            pager(-1.0).turned(&last, &last.map(|x| -x)),
            [false, false],
            "cosines of −1 are not below −1"
        );
        assert_eq!(pager(-1.0).turned(&[0.0; 8], &q), [true, true]);
        assert!(pager(0.9).turned(&[], &q).is_empty(), "a layer without pages");
    }
}
