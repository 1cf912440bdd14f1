//! What the machine can do at most, and how close the program comes to it.
//!
//! Models are random weights at the sizes of real ones ([`wnw_model::shapes`]), and recordings are random keys and values
//! ([`session`]), since neither the time of a step nor its bytes depend on the values. What does depend on the recording,
//! the segments that WnW recalls, follows a script of what the anchors attend to ([`sweep`]), through the real planner.
//! Everything is told beside the limit that [`limit`] measures in the same run.

pub mod decode;
mod error;
pub mod growth;
pub mod limit;
mod random;
mod roles;
pub mod session;
pub mod stages;
pub mod statistics;
pub mod sweep;

pub use error::BenchError;
