//! CPU kernels that the rest of the workspace is built on.
//!
//! Everything here works on plain slices in row-major order, so that the KV store and its policies stay free of any
//! machine-learning framework. Each elementwise or dot kernel is written once, as ordinary Rust over fixed-width
//! accumulators, and compiled three times: for AVX-512, for AVX2 with FMA, and for the baseline of the target. The
//! best one that the processor has is chosen at run time ([`isa`]). The three agree within rounding: the order of the
//! sums is the same, only the contraction of multiply-add differs. Attention over stored rows and steps with half-precision
//! weights are written over vector registers (`registers.rs`): compilers do not keep so many accumulators in registers
//! by themselves.
//!
//! Products with stored weights are written for the instruction set where that pays: bf16 ([`bf16`]) and 8 bits ([`q8`]),
//! each beside a plain twin. Other products of more than a few rows go to the `gemm` crate, half-precision weights widened
//! tile by tile ([`half_linear`]), so that a checkpoint is read once and never expanded in memory.

pub mod bf16;
mod dispatch;
pub mod elementwise;
pub mod half_linear;
pub mod kv_row;
pub mod limit;
pub mod matmul;
pub mod numeric;
pub mod q8;
mod registers;
pub mod tiles;
pub mod vector;

pub use dispatch::{Isa, isa};
pub use half_linear::{half_linear, half_step, tiled_linear};
pub use kv_row::{Int4, Int8, KvRow};
pub use numeric::KvElement;
pub use q8::{Q8Matrix, Q8Rows};
pub use tiles::{TILE, Tile};
