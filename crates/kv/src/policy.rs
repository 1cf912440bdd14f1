//! The contract between a KV method and the rest of the program.

use thiserror::Error;

use crate::{KvShape, PromptLayout};

/// A KV-cache method.
///
/// A method is a value with its parameters as public fields. It lives for one prompt: the engine makes a fresh one for
/// every window of a recording, calls [`Policy::after_prefill`] once per layer in ascending order, and hands each
/// selection to the store, which checks it.
pub trait Policy: Send {
    /// The name that reports and tables print.
    fn name(&self) -> &'static str;

    /// What each KV head of `view.layer` keeps of the audio, in head order (`n_kv_heads` selections).
    ///
    /// The layer's full keys and values exist only during this call. Text rows are not up for selection.
    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection>;
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
}

/// The audio rows that one KV head keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadSelection {
    /// Every audio row.
    All,
    /// The audio rows with these ordinals (0 = the prompt's first audio position), ascending, each once; the others
    /// are dropped for good.
    Only(Vec<u32>),
}

/// Which invariant a selection broke.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SelectionError {
    /// A layer's answer must have one selection per KV head.
    #[error("layer {layer}: {got} head selections for {want} KV heads")]
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
        let HeadSelection::Only(kept) = head else { continue };
        if let Some(entry) = kept.windows(2).position(|w| w[0] >= w[1]) {
            return Err(SelectionError::Unsorted { layer, kv_head, entry: entry + 1 });
        }
        if let Some(&ordinal) = kept.last().filter(|last| **last as usize >= n_audio) {
            return Err(SelectionError::OutOfRange { layer, kv_head, ordinal, n_audio });
        }
    }
    Ok(())
}
