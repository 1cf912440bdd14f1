//! How close a transcript or a translation is to its reference, for any KV method on any data set.
//!
//! - [`wer`]: word and character errors as jiwer 4 counts them, also with the hypothesis cut (the paper's *truncated WER*);
//! - [`alignment`]: the edits themselves, for texts of any length in bounded memory;
//! - [`normalise`]: the paper's light normaliser, Whisper's English one and its basic one;
//! - [`bleu`] and [`chrf`]: as sacreBLEU 2.6 computes them;
//! - [`bootstrap`]: confidence intervals and paired comparisons for all of these;
//! - [`dataset`]: recordings with references, in the forms in which they are published;
//! - [`harness`]: methods × budgets × data sets, resumable, and the tables of it.
//!
//! Counts agree exactly with the reference implementations, scores to within rounding; `tests/goldens` holds both
//! sides together. Every corpus score is a function of summed per-segment statistics ([`wer::Edits`],
//! [`bleu::BleuCounts`], [`chrf::ChrfCounts`]), so a run can be scored again, and resampled, without its texts.

pub mod alignment;
mod band;
pub mod bleu;
pub mod bootstrap;
pub mod chrf;
pub mod dataset;
mod error;
pub mod harness;
mod ngrams;
pub mod normalise;
mod text;
mod tokens13a;
pub mod wer;

pub use error::EvalError;
pub use normalise::Normaliser;
