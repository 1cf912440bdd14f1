//! Where the keys and values of a recording live, and who decides what stays.
//!
//! Two contracts meet here. A [`Policy`] is a KV method: after a layer's prefill it says which audio rows each KV head
//! keeps on the device, what goes to the host, and what is dropped. The [`KvStore`] holds both tiers with exact accounting,
//! runs decode attention over the device, and carries out the policy's swap plans. The full cache is the policy
//! [`policies::Full`]; the engine knows no method by name.
//!
//! Only *audio* rows may ever be dropped: the text of the prompt and of the answer always stays. Each KV head has its
//! own list of resident rows, so heads may keep different amounts ("ragged"). Keys are stored after rotary embedding,
//! so attention needs no positions.

mod arena;
pub mod attention;
mod head;
mod host;
mod layout;
mod merge;
mod mover;
mod observation;
mod page;
pub mod policies;
mod policy;
pub mod profile;
mod report;
mod segments;
mod shape;
mod store;
mod tiers;

pub use arena::{Arena, ArenaError, Working};
pub use host::{HostError, HostPlace};
pub use layout::{LayoutError, PromptLayout};
pub use merge::{Merge, MergeError, MergedPosition, PromptRows};
pub use mover::SwapMode;
pub use page::PAGE_ROWS;
pub use policy::{HeadId, HeadSelection, LayerView, Pager, Policy, Release, SelectionError, SwapPlan};
pub use report::{Role, RoleReport, StoreReport, SwapCounters};
pub use segments::Segments;
pub use shape::{KvDtype, KvShape};
pub use store::{KvStore, StoreError, StoreOptions};
