//! Why something cannot be measured.

use thiserror::Error;
use wnw_audio::AudioError;
use wnw_kv::StoreError;
use wnw_kv::profile::ProfileError;
use wnw_model::ModelError;

/// Why something cannot be measured.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The KV store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Head roles for the share asked for.
    #[error("--r-gpu: {0}")]
    Roles(#[from] ProfileError),
    /// A recording.
    #[error(transparent)]
    Audio(#[from] AudioError),
    /// A parameter.
    #[error("{0}")]
    Parameter(String),
}
