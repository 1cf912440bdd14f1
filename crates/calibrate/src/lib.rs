//! Calibration: which heads of a model listen to the audio, and which of them the answer depends on.
//!
//! From recordings, their references and word alignments ([`alignment`]) come two scores per KV head: the voice score
//! ([`voice`]: how often a head looks where the current word is said) and the head sensitivity ([`sensitivity`]: how much
//! the loss moves with its audio keys). Their product ranks the heads: `wnw_kv::profile` has what follows. Source: WnW,
//! section 2.2 and Appendix E.
//!
//! Both scores are read from one sequence, the prompt with its reference answer behind it ([`forced`]), whose tokens are
//! tied to times by [`mapping`]; [`sample`] does this for one recording, [`journal`] keeps what came of it, [`scores`] takes
//! the mean. Without references and alignments, [`self_label`] takes the model's own transcripts for answers and reads
//! the times off the heads that [`monotone`] finds. [`calibration`] makes the profile, and [`lambda`] fits λ to what runs measure.
//!
//! [`mismatch`] uses the same forced pass to compare what a prefill's attention says with that of the whole answer.

pub mod alignment;
pub mod calibration;
mod error;
pub mod forced;
pub mod journal;
pub mod kept_mass;
pub mod lambda;
pub mod mapping;
pub mod mismatch;
pub mod monotone;
pub mod sample;
pub mod scores;
pub mod self_label;
pub mod sensitivity;
pub mod voice;

pub use error::CalibrateError;
