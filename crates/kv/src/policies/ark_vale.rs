//! ArkVale (NeurIPS 2024, "Efficient Generative LLM Inference with Recallable Key-Value Eviction"): pages that come back.

use super::budget::Budget;
use super::pages::{Body, Choice, Pages, Radius, capacity};
use super::registry::{BuildError, Entry, Inputs, Keeps};
use crate::policy::{HeadSelection, LayerView, Pager, Policy};
use crate::{PromptLayout, Segments};

/// Keeps a fixed number of pages on the device and exchanges them before every attention for those that the query wants.
///
/// Formula. The digest of a page is per channel a box about c = ½(max + min) of its keys with the mean of |c − k| as radius;
/// the score of a page is Σ over channels of max(q·low, q·high), mean over query heads. The best pages are recalled, those
/// of the lowest scores leave, and attention reads every page that is there.
///
/// Readings, for audio alone. Pages tile the audio, never text; the last of a recording may be short, and counts as
/// filled. The budget in pages is rounded to the nearest, the same in every head ([`capacity`]). Sink and window pages are off, as text
/// before and after is always kept (`sink_pages`, `window_pages`). The authors leave the first two layers whole; here
/// none are, and what `dense_layers` cost is taken from the others. All heads of a layer share their pages, as in
/// the authors' code (`per_head` for pages of their own). The query chooses as many pages as there are places
/// (`top_pages` for fewer: others then stay until they are the least wanted). At first the pages are those that the last
/// prompt position wants. Recall waits: nothing is fetched ahead.
///
/// What it keeps: its pages on the device, in blocks; all audio on the host, from prefill on; digests of two
/// vectors of f32 per page and head on the device.
#[derive(Debug)]
pub struct ArkVale {
    /// What is on the device while decoding.
    pub budget: Budget,
    /// Rows of a page (32).
    pub page_rows: usize,
    /// What stands for a page (a cuboid).
    pub body: Body,
    /// How far it reaches (mean).
    pub radius: Radius,
    /// Most pages that a step's query chooses; `usize::MAX` for as many as there are places.
    pub top_pages: usize,
    /// First audio pages that always stay.
    pub sink_pages: usize,
    /// Last audio pages that always stay.
    pub window_pages: usize,
    /// First layers that keep everything.
    pub dense_layers: usize,
    /// Whether each KV head has its own pages.
    pub per_head: bool,
    pages: Option<Pages>,
}

impl ArkVale {
    /// Pages of 32 with mean cuboids, shared by a layer's heads; no sinks, windows or dense layers.
    pub fn new(budget: Budget) -> Self {
        Self {
            budget,
            page_rows: 32,
            body: Body::Cuboid,
            radius: Radius::Mean,
            top_pages: usize::MAX,
            sink_pages: 0,
            window_pages: 0,
            dense_layers: 0,
            per_head: false,
            pages: None,
        }
    }
}

pub(super) const ENTRY: Entry = Entry {
    name: "arkvale",
    about: "pages of audio exchanged before every attention for those that the query wants; all audio on the host",
    keeps: Keeps::Pages,
    needs_profile: false,
    by_attention: false,
    options: &[
        ("page", "rows of a page"),
        ("body", "what stands for a page's keys: cuboid or sphere"),
        ("radius", "how far it reaches: mean, max or centre"),
        ("top_pages", "most pages that a step's query chooses, or all"),
        ("sink_pages", "first audio pages that always stay"),
        ("window_pages", "last audio pages that always stay"),
        ("dense_layers", "first layers that keep everything, out of the same budget"),
        ("per_head", "whether each KV head has its own pages"),
    ],
    build,
};

fn build(inputs: &Inputs<'_>) -> Result<Box<dyn Policy>, BuildError> {
    let new = ArkVale::new(inputs.budget);
    let policy = ArkVale {
        page_rows: inputs.option("page", new.page_rows)?,
        body: inputs.option("body", new.body)?,
        radius: inputs.option("radius", new.radius)?,
        top_pages: inputs.count("top_pages", new.top_pages)?,
        sink_pages: inputs.option("sink_pages", new.sink_pages)?,
        window_pages: inputs.option("window_pages", new.window_pages)?,
        dense_layers: inputs.option("dense_layers", new.dense_layers)?,
        per_head: inputs.option("per_head", new.per_head)?,
        ..new
    };
    if policy.page_rows == 0 {
        return Err(inputs.refuse("page", "it must be at least 1"));
    }
    Ok(Box::new(policy))
}

impl Policy for ArkVale {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let all = |n: usize| if n == usize::MAX { "all".to_owned() } else { n.to_string() };
        vec![
            ("budget", self.budget.to_string()),
            ("page", self.page_rows.to_string()),
            ("body", self.body.to_string()),
            ("radius", self.radius.to_string()),
            ("top_pages", all(self.top_pages)),
            ("sink_pages", self.sink_pages.to_string()),
            ("window_pages", self.window_pages.to_string()),
            ("dense_layers", self.dense_layers.to_string()),
            ("per_head", self.per_head.to_string()),
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
            top: self.top_pages,
            sinks: self.sink_pages,
            recent: self.window_pages,
            per_head: self.per_head,
            hide: false,
            softmax: None,
        };
        let all = self.pages.get_or_insert_with(|| Pages::new(view.shape, choice));
        all.admit(view, self.page_rows, self.body, self.radius, capacity);
        vec![HeadSelection::Tiered(Vec::new()); view.shape.n_kv_heads]
    }

    fn pager(&mut self) -> Option<Box<dyn Pager>> {
        self.pages.take().map(|pages| Box::new(pages) as Box<dyn Pager>)
    }
}
