//! The full cache: every head keeps everything. The reference that all other methods are measured against.

use super::registry::{Entry, Keeps};
use crate::policy::{HeadSelection, LayerView, Policy};

/// Keeps every key and value of every head.
#[derive(Clone, Copy, Debug, Default)]
pub struct Full;

pub(super) const ENTRY: Entry = Entry {
    name: "full",
    about: "keeps everything",
    keeps: Keeps::Everything,
    needs_profile: false,
    by_attention: false,
    options: &[],
    build: |_| Ok(Box::new(Full)),
};

impl Policy for Full {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        vec![HeadSelection::All; view.shape.n_kv_heads]
    }
}
