//! From a stream of samples to a stream of events.
//!
//! [`Engine::transcribe`] cuts a recording into windows that the model can take in one pass ([`window`]), and for each
//! one encodes, prefills layer by layer, and decodes token by token with the KV policy that the request names. What
//! happens is told to the caller as [`Event`]s; command line, server and evaluation are readers of the same events.
//! Nothing here prints, exits, or reads the environment.

mod embeddings;
mod engine;
mod event;
mod group;
mod guard;
mod kv_statistics;
mod listening;
mod method;
mod outcome;
mod recovery;
mod run;
mod sampling;
pub mod times;
mod transcript;
pub mod window;

pub use engine::{Engine, EngineError, Request};
pub use event::{Event, Phase, Progress, StepRecord};
pub use group::StepGroup;
pub use guard::{GuardConfig, PlaceGuard, PlaceGuardConfig, Repetition, RepetitionGuard, RunAway};
pub use kv_statistics::{KvStatistics, RoleStatistics};
pub use method::{KvOptions, Method, MethodError, Roles, WindowKv};
pub use recovery::RecoveryConfig;
pub use sampling::{Sampler, Sampling};
pub use transcript::{FinishReason, Segment, Statistics, Timing, Transcript, Warning};
