//! KV methods, one file each.

mod full;

pub use full::Full;
