//! The contract between a KV method and the rest of the program.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::merge::{Merge, PromptRows};
use crate::page::PAGE_ROWS;
use crate::report::Role;
use crate::{KvShape, PromptLayout};

/// A KV-cache method.
///
/// A method is a value with its parameters as public fields. It lives for one prompt: the engine makes a fresh one for
/// every window of a recording. Its calls come in this order: [`Policy::observes`], then [`Policy::before_layer`] and
/// [`Policy::after_prefill`] once per layer in ascending order, [`Policy::watches`] and [`Policy::before_decode`] once, and [`Policy::after_step`] after
/// every step. The store checks each answer when it takes it.
pub trait Policy: Send {
    /// The name that reports and tables print.
    fn name(&self) -> &'static str;

    /// The parameters that reports print, by name.
    fn parameters(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Audio rows of a segment, the unit of [`HeadSelection::Tiered`] and [`SwapPlan`].
    fn segment_rows(&self) -> usize {
        PAGE_ROWS
    }

    /// Prompt positions, ascending, whose queries [`Policy::after_prefill`] wants to see.
    fn observes(&self, layout: &PromptLayout) -> Vec<usize> {
        let _ = layout;
        Vec::new()
    }

    /// Which neighbouring audio rows become one before `layer` and all that follow it run. `x` is the layer's input,
    /// `(rows, hidden_size)`. Such a method observes nothing. What was merged away is in no [`LayerView`] (its keys and
    /// values read zero), and [`HeadSelection::All`] is all rows that are left.
    fn before_layer(&mut self, layer: usize, rows: &PromptRows, x: &[f32]) -> Option<Merge> {
        let _ = (layer, rows, x);
        None
    }

    /// What each KV head of `view.layer` keeps of the audio, in head order (`n_kv_heads` selections).
    ///
    /// The layer's full keys and values exist only during this call. Text rows are not up for selection.
    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection>;

    /// Role of each KV head, `(n_layers, n_kv_heads)`, for reports; empty when a head's role is just what it keeps.
    fn roles(&self) -> Vec<Role> {
        Vec::new()
    }

    /// KV heads whose attention to audio, summed over their query heads, [`Policy::after_step`] wants to see.
    fn watches(&self) -> Vec<HeadId> {
        Vec::new()
    }

    /// What to recall before the first step.
    fn before_decode(&mut self) -> SwapPlan {
        SwapPlan::default()
    }

    /// Who chooses what each layer sees once a step's queries are known; asked once, after the last layer's prefill, and
    /// given to [`crate::KvStore::set_pager`].
    fn pager(&mut self) -> Option<Box<dyn Pager>> {
        None
    }

    /// What to recall and release after a step, when all layers have run. `attention` is `(n_audio)`: the softmax weight
    /// on each audio row, summed over the watched heads' query heads, of this step alone.
    fn after_step(&mut self, attention: &[f32]) -> SwapPlan {
        let _ = attention;
        SwapPlan::default()
    }
}

/// Chooses in each step, layer by layer, what the heads' attention sees.
///
/// Plans are one per KV head of the layer, in head order, or none at all for no change. Queries are
/// `(n_q_heads, head_dim)`, after rotary embedding.
pub trait Pager: Send + fmt::Debug {
    /// Bytes on the device that it chooses by; the store counts them with its own.
    fn bytes(&self) -> u64;

    /// What is on the device when decoding begins, beside what the heads kept. It is part of the prefill, and not counted
    /// as recalled.
    fn at_first(&mut self, layer: usize) -> Vec<SwapPlan> {
        let _ = layer;
        Vec::new()
    }

    /// What to recall and release before `layer`'s attention, which waits for what is recalled.
    fn before_attention(&mut self, layer: usize, q: &[f32]) -> Vec<SwapPlan>;

    /// The same after it: recalls then have the time until the layer's next attention.
    fn after_attention(&mut self, layer: usize, q: &[f32]) -> Vec<SwapPlan> {
        let _ = (layer, q);
        Vec::new()
    }
}

/// A KV head: the unit of everything that a method decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeadId {
    /// Layer index, from 0.
    pub layer: usize,
    /// KV head index in the layer, from 0.
    pub kv_head: usize,
}

/// What a policy sees of a layer when its prefill attention is done.
pub struct LayerView<'a> {
    /// Layer index, from 0.
    pub layer: usize,
    /// Head counts and sizes.
    pub shape: KvShape,
    /// Which positions are audio.
    pub layout: &'a PromptLayout,
    /// Keys after rotary embedding, `(n_kv_heads, len, head_dim)`.
    pub k: &'a [f32],
    /// Values, `(n_kv_heads, len, head_dim)`.
    pub v: &'a [f32],
    /// The positions that [`Policy::observes`] named.
    pub observed: &'a [usize],
    /// Their queries after rotary embedding, `(observed, n_q_heads, head_dim)`.
    pub q: &'a [f32],
    /// What scores are multiplied by.
    pub scale: f32,
}

/// What one KV head keeps of the audio. Ordinals number audio rows: 0 is the prompt's first audio position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadSelection {
    /// Every audio row, on the device.
    All,
    /// The audio rows with these ordinals, ascending, each once; the others are dropped for good.
    Only(Vec<u32>),
    /// The audio rows with these ordinals on the device; the others go to the host, from where a [`SwapPlan`] recalls
    /// them by segments.
    Tiered(Vec<u32>),
}

/// What the store is to move: between two steps for every head whose selection was [`HeadSelection::Tiered`], or before
/// a layer's attention for one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapPlan {
    /// Segments that the next step is to see whole, ascending. What of them is not on the device is recalled.
    pub wanted: Vec<u32>,
    /// Segments whose recalled rows are to leave the device, ascending; none of them is wanted.
    pub release: Vec<Release>,
}

/// A segment that leaves the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The segment.
    pub segment: u32,
    /// Whether the rows that the head kept at prefill go too; they stay until then, and come back with a recall. Their
    /// places in the compact run stay allocated.
    pub whole: bool,
}

/// Which invariant a selection broke.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SelectionError {
    /// A layer's answer must have one selection, or one plan, per KV head.
    #[error("layer {layer}: {got} head selections or plans for {want} KV heads")]
    HeadCount {
        /// Layer index.
        layer: usize,
        /// Selections given.
        got: usize,
        /// KV heads of the model.
        want: usize,
    },
    /// Ordinals must ascend.
    #[error("layer {layer}, KV head {kv_head}: selection is not strictly ascending at entry {entry}")]
    Unsorted {
        /// Layer index.
        layer: usize,
        /// KV head index.
        kv_head: usize,
        /// Index of the first entry out of order.
        entry: usize,
    },
    /// Ordinals must name audio rows.
    #[error("layer {layer}, KV head {kv_head}: ordinal {ordinal} is past the {n_audio} audio rows")]
    OutOfRange {
        /// Layer index.
        layer: usize,
        /// KV head index.
        kv_head: usize,
        /// The ordinal.
        ordinal: u32,
        /// Audio rows of the prompt.
        n_audio: usize,
    },
    /// A swap plan names a segment that does not exist, names one twice or out of order, or releases what it wants.
    #[error(
        "swap plan: segment {segment} of {n_segments} is out of order, out of range, or both wanted and released"
    )]
    Plan {
        /// The segment.
        segment: u32,
        /// Segments of the prompt.
        n_segments: usize,
    },
}

/// Checks a plan against the number of segments.
pub(crate) fn check_plan(plan: &SwapPlan, n_segments: usize) -> Result<(), SelectionError> {
    let wanted = plan.wanted.iter().copied();
    let release = plan.release.iter().map(|r| r.segment);
    let broken = |segment| Err(SelectionError::Plan { segment, n_segments });
    for list in [wanted.collect::<Vec<_>>(), release.collect()] {
        if let Some(w) = list.windows(2).find(|w| w[0] >= w[1]) {
            return broken(w[1]);
        }
        if let Some(last) = list.last().filter(|s| **s as usize >= n_segments) {
            return broken(*last);
        }
    }
    match plan.release.iter().find(|r| plan.wanted.binary_search(&r.segment).is_ok()) {
        Some(both) => broken(both.segment),
        None => Ok(()),
    }
}

/// Checks the answer of [`Policy::after_prefill`] for one layer.
pub(crate) fn check_selection(
    view: &LayerView<'_>,
    selection: &[HeadSelection],
) -> Result<(), SelectionError> {
    let (layer, want) = (view.layer, view.shape.n_kv_heads);
    if selection.len() != want {
        return Err(SelectionError::HeadCount { layer, got: selection.len(), want });
    }
    let n_audio = view.layout.n_audio();
    for (kv_head, head) in selection.iter().enumerate() {
        let (HeadSelection::Only(kept) | HeadSelection::Tiered(kept)) = head else { continue };
        if let Some(entry) = kept.windows(2).position(|w| w[0] >= w[1]) {
            return Err(SelectionError::Unsorted { layer, kv_head, entry: entry + 1 });
        }
        if let Some(&ordinal) = kept.last().filter(|last| **last as usize >= n_audio) {
            return Err(SelectionError::OutOfRange { layer, kv_head, ordinal, n_audio });
        }
    }
    Ok(())
}
