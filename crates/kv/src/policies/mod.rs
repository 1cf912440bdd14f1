//! KV methods, one file each.

mod full;
pub mod wnw;

pub use full::Full;
pub use wnw::Wnw;
