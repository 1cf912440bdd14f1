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
    Alignment(Box<AlignmentError>),
    /// The model.
    #[error(transparent)]
    Model(Box<ModelError>),
    /// A run of the engine.
    #[error(transparent)]
    Engine(Box<wnw_engine::EngineError>),
    /// What the scores lead to.
    #[error("{0}")]
    Profile(String),
    /// The checkpoint's tensors.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// A weight.
    #[error(transparent)]
    Weight(Box<WeightError>),
    /// The file of per-sample results.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The gradient's tensors.
    #[error("gradients: {0}")]
    Tensor(Box<candle_core::Error>),
    /// Values that are not numbers.
    #[error("{0} is not finite; the weights are damaged, or the sequence is none that the model can take")]
    NotFinite(&'static str),
    /// An answer without tokens.
    #[error("the reference is empty")]
    EmptyAnswer,
    /// Something about one recording.
    #[error("{name}: {source}")]
    Recording {
        /// Its name.
        name: String,
        /// What.
        source: Box<CalibrateError>,
    },
    /// No token could be counted for the voice score.
    #[error(
        "no answer token has a time that is sure enough to count; lower --min-confidence, or check that the word alignments belong to the references"
    )]
    NoTimes,
    /// No recording has a transcript that could stand in for a reference.
    #[error(
        "none of the {0} recordings can be used without a reference: {1}; give recordings of speech that the model transcribes to the end"
    )]
    NothingHeard(usize, String),
    /// No head goes through the recordings as the answers do.
    #[error(
        "no head of this model follows the recordings from word to word (the best monotone score is {0:.3}, {least} is needed); calibrate with references and word alignments",
        least = crate::self_label::LEAST_MONOTONE
    )]
    NoFollower(f64),
    /// Values that do not fit each other: a defect of this program.
    #[error("calibration input: {0}")]
    Input(String),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// Errors of other crates are kept behind a pointer: they are large, and a `Result` with them is moved often.
macro_rules! boxed {
    ($($variant:ident from $error:ty),+ $(,)?) => {$(
        impl From<$error> for CalibrateError {
            fn from(error: $error) -> Self {
                Self::$variant(Box::new(error))
            }
        }
    )+};
}

boxed!(
    Alignment from AlignmentError,
    Model from ModelError,
    Engine from wnw_engine::EngineError,
    Checkpoint from CheckpointError,
    Weight from WeightError,
    Tensor from candle_core::Error,
);

impl CalibrateError {
    /// An error of a run, with one name for a stop that the caller asked for.
    pub(crate) fn of_run(error: wnw_engine::EngineError) -> Self {
        match error {
            wnw_engine::EngineError::Cancelled => Self::Cancelled,
            other => other.into(),
        }
    }

    /// The error with the name of the recording that it is about. A stop that was asked for is about none.
    pub fn about(self, name: &str) -> Self {
        match self {
            Self::Cancelled => Self::Cancelled,
            other => Self::Recording { name: name.to_owned(), source: Box::new(other) },
        }
    }
}
