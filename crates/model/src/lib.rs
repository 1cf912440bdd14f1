//! Speech LLMs of the Voxtral family: configuration, checkpoint, tokenizer, prompt, encoder and decoder.
//!
//! [`ModelFiles::open`] finds and checks a checkpoint in any of its layouts, [`ModelFiles::load`] makes a [`Voxtral`]
//! of it. Weights stay where they lie, in a memory-mapped file, unless another type is asked for. The numbers follow
//! transformers 5.24 (`modeling_voxtral.py`, `modeling_llama.py`), against which `tests/parity.rs` holds them.

pub mod checkpoint;
pub mod config;
mod decoder;
mod encoder;
mod fingerprint;
pub mod hub;
mod linear;
mod plan;
pub mod prompt;
pub mod tekken;
mod voxtral;

pub use decoder::{Decoder, PrefillProgress, StepBuffers};
pub use encoder::AudioEncoder;
pub use linear::{WeightDtype, WeightError};
pub use plan::MemoryPlan;
pub use voxtral::{EmbeddedModel, LoadOptions, ModelError, ModelFiles, Voxtral};
