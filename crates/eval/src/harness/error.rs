//! What ends a run over data sets. A recording that fails does not: it becomes a row.

use std::path::PathBuf;

use wnw_calibrate::journal::JournalError;
use wnw_engine::EngineError;
use wnw_kv::policies::registry::BuildError;
use wnw_model::prompt::PromptError;

use crate::EvalError;

/// Why a run over data sets ended.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// A method with wrong options, or without a profile that it needs.
    #[error("{method}: {error}")]
    Method {
        /// The method as it was asked for.
        method: String,
        /// What is wrong.
        error: BuildError,
    },
    /// A language that the model's prompts do not know.
    #[error("{dataset}: {error}")]
    Language {
        /// The data set.
        dataset: String,
        /// What is wrong.
        error: PromptError,
    },
    /// The results file.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A results file of another data set under the same name.
    #[error(
        "{path}: has results of {recording} of {dataset} with another reference or task: the data set was changed; give another --out"
    )]
    OtherData {
        /// The results file.
        path: PathBuf,
        /// The data set.
        dataset: String,
        /// The recording.
        recording: String,
    },
    /// Two runs that are to be one disagree.
    #[error(
        "{first} and {second} have different results for {recording} of {dataset} with {method}: they are not parts of one run"
    )]
    Disagree {
        /// One results file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
        /// The data set.
        dataset: String,
        /// The recording.
        recording: String,
        /// The method.
        method: String,
    },
    /// Nothing to put together, or to score.
    #[error("{0}: there are no results; run `wnw eval --out` first")]
    Empty(PathBuf),
    /// A metric.
    #[error(transparent)]
    Metric(#[from] EvalError),
    /// What no recording is to blame for: the caller broke off.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
