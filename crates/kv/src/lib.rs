//! Where the keys and values of a recording live, and who decides what stays.
//!
//! Two contracts meet here. A [`Policy`] is a KV method: after a layer's prefill it says which audio rows each KV head
//! keeps. The [`KvStore`] holds what was kept, in pages, with exact accounting, and runs decode attention over it. The
//! full cache is the policy [`policies::Full`]; the engine knows no method by name.
//!
//! Only *audio* rows may ever be dropped: the text of the prompt and of the answer always stays. Each KV head has its
//! own list of resident rows, so heads may keep different amounts ("ragged"). Keys are stored after rotary embedding,
//! so attention needs no positions.

pub mod attention;
mod layout;
mod page;
pub mod policies;
mod policy;
mod shape;
mod store;

pub use layout::{LayoutError, PromptLayout};
pub use policy::{HeadSelection, LayerView, Policy, SelectionError};
pub use shape::{KvDtype, KvShape};
pub use store::{KvStore, StoreError, StoreReport};
