//! What can go wrong in a calibration.

use thiserror::Error;
use wnw_model::checkpoint::CheckpointError;
use wnw_model::{ModelError, WeightError};

use crate::alignment::AlignmentError;
use crate::journal::JournalError;

/// What can go wrong in a calibration.
#[derive(Debug, Error)]
pub enum CalibrateError {
    /// A word alignment.
    #[error(transparent)]
    Alignment(#[from] AlignmentError),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A run of the engine.
    #[error(transparent)]
    Engine(#[from] wnw_engine::EngineError),
    /// What the scores lead to.
    #[error("{0}")]
    Profile(String),
    /// The checkpoint's tensors.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A weight.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// The file of per-sample results.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The gradient's tensors.
    #[error("gradients: {0}")]
    Tensor(#[from] candle_core::Error),
    /// Values that are not numbers.
    #[error("{0} is not finite; the weights are damaged, or the sequence is none that the model can take")]
    NotFinite(&'static str),
    /// An answer without tokens.
    #[error("the reference is empty")]
    EmptyAnswer,
    /// Values that do not fit each other: a defect of this program.
    #[error("calibration input: {0}")]
    Input(String),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}
