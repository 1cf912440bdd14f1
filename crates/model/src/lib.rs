//! Speech LLMs: configuration, checkpoint, tokenizer, prompt, encoder and decoder.
//!
//! [`ModelFiles::open`] recognises a checkpoint's family ([`families`]) and checks it in any of its layouts,
//! [`ModelFiles::load`] makes a [`SpeechModel`] of it. Weights stay where they lie, in a memory-mapped file, unless another
//! type is asked for. The numbers follow transformers 5.24, against which `tests/parity.rs` and `tests/qwen.rs` hold them.

mod answer;
mod bpe;
pub mod byte_level;
mod chatml;
pub mod checkpoint;
pub mod config;
mod decoder;
pub mod families;
mod files;
mod fingerprint;
pub mod hub;
mod linear;
mod model;
mod plan;
pub mod prompt;
mod random;
pub mod shapes;
pub mod tekken;
pub mod tokenizer;
mod values;
mod whisper;

pub use answer::AnswerReader;
pub use decoder::{Decoder, PrefillProgress, StepBuffers, StepSession};
pub use families::{AudioEncoder, Family};
pub use linear::WeightDtype;
pub use model::{EmbeddedModel, LoadOptions, ModelError, ModelFiles, SpeechModel, TokenizerSource};
pub use plan::MemoryPlan;
pub use tokenizer::Tokenizer;
pub use values::WeightError;
