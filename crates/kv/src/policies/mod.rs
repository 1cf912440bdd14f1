//! KV methods, one file each, what they share, and the registry that has them by name.

pub mod budget;
pub mod grouping;
pub mod pages;
pub mod pooling;
pub mod ranking;
pub mod registry;
pub mod spectral;
pub mod window;

pub mod ada_kv;
pub mod ada_kv_safeguard;
pub mod aff_pool;
pub mod ark_vale;
pub mod audio_kv;
pub mod free_kv;
mod full;
pub mod h2o;
pub mod head_kv;
pub mod pyramid_kv;
pub mod quest;
pub mod razor_attention;
pub mod snap_kv;
pub mod streaming_llm;
pub mod tova;
pub mod wnw;
pub mod wnw_dense;

pub use full::Full;
pub use wnw::Wnw;

/// Every method, in the order in which lists show them.
pub static METHODS: &[registry::Entry] = &[
    full::ENTRY,
    wnw::ENTRY,
    wnw_dense::ENTRY,
    streaming_llm::ENTRY,
    h2o::ENTRY,
    snap_kv::ENTRY,
    pyramid_kv::ENTRY,
    tova::ENTRY,
    ada_kv::ENTRY,
    ada_kv_safeguard::ENTRY,
    audio_kv::ENTRY,
    head_kv::ENTRY,
    razor_attention::ENTRY,
    ark_vale::ENTRY,
    quest::ENTRY,
    free_kv::ENTRY,
    aff_pool::ENTRY,
];
