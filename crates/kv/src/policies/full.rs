//! The full cache: every head keeps everything. The reference that all other methods are measured against.

use crate::policy::{HeadSelection, LayerView, Policy};

/// Keeps every key and value of every head.
#[derive(Clone, Copy, Debug, Default)]
pub struct Full;

impl Policy for Full {
    fn name(&self) -> &'static str {
        "full"
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        vec![HeadSelection::All; view.shape.n_kv_heads]
    }
}
