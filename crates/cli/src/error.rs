//! Errors of the command line itself.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use thiserror::Error;
use wnw_bench::BenchError;
use wnw_calibrate::CalibrateError;
use wnw_engine::EngineError;
use wnw_eval::harness::HarnessError;
use wnw_model::ModelError;

use crate::signals;
use crate::system::bytes;

/// Longest name of a file, in bytes, on the usual file systems.
pub const MAX_NAME: usize = 255;

/// What ends a command.
#[derive(Debug, Error)]
pub enum CliError {
    /// A flag or argument.
    #[error("{0}")]
    Usage(String),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Fetching the model, in the hub's words and with what to do.
    #[error("{0}")]
    Hub(String),
    /// Recordings that give no figure, or a data set that is not whole or cannot be made.
    #[error("{0}")]
    Data(String),
    /// A recording.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A calibration.
    #[error(transparent)]
    Calibrate(Box<CalibrateError>),
    /// A run over data sets.
    #[error(transparent)]
    Eval(Box<HarnessError>),
    /// A measurement.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// A measurement for which there is too little memory.
    #[error(
        "this needs about {} of memory ({needed} bytes), of which {} can be had: use a smaller --shape, fewer --layers, a narrower --dtype, less --audio or a smaller --batch",
        bytes(*needed), bytes(*available)
    )]
    Memory {
        /// Bytes needed.
        needed: u64,
        /// Bytes that can be had.
        available: u64,
    },
    /// Writing a result.
    #[error("{path}: cannot write: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A result's name that no file can have.
    #[error(
        "{path}: the file system takes no names of this length ({MAX_NAME} bytes at most); rename the recording"
    )]
    NameTooLong {
        /// The file.
        path: PathBuf,
    },
    /// Drawing a chart.
    #[error(transparent)]
    Plot(#[from] wnw_plot::PlotError),
    /// Standard output.
    #[error("standard output: {0}")]
    Stdout(io::Error),
    /// Making JSON.
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A defect of this program that ended the work on one recording.
    #[error("internal error: {0}; please report it, with the recording and the message above if you can")]
    Internal(String),
    /// Ctrl-C or SIGTERM.
    #[error("interrupted")]
    Interrupted,
}

impl CliError {
    /// Whether standard output was closed by its reader.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Stdout(e) if e.kind() == io::ErrorKind::BrokenPipe)
    }

    /// 2 for wrong usage, as clap has it; 130 after Ctrl-C and 143 after SIGTERM; 1 otherwise.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_)
            | Self::Model(ModelError::Prompt(_) | ModelError::Window { .. })
            | Self::Engine(EngineError::Model(ModelError::Prompt(_) | ModelError::Window { .. })) => {
                ExitCode::from(2)
            }
            Self::Interrupted => ExitCode::from(signals::exit_code()),
            _ => ExitCode::FAILURE,
        }
    }
}

/// Runs the work on one recording, so that a panic in it is that recording's failure and the others go on. The panic's own message
/// is on standard error by then.
pub fn guarded<T>(work: impl FnOnce() -> Result<T, CliError>) -> Result<T, CliError> {
    // What a panic may leave half done is a recording's own: its session, its decoder, its sentence on the screen.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Err(CliError::Internal(text.unwrap_or("a panic without a message").to_owned()))
    })
}

impl From<wnw_eval::dataset::DatasetError> for CliError {
    fn from(error: wnw_eval::dataset::DatasetError) -> Self {
        match error {
            wnw_eval::dataset::DatasetError::Spec(error) => Self::Usage(error.to_string()),
            other => Self::Data(other.to_string()),
        }
    }
}

impl From<CalibrateError> for CliError {
    fn from(error: CalibrateError) -> Self {
        match error {
            CalibrateError::Cancelled => Self::Interrupted,
            CalibrateError::Engine(error) if matches!(*error, EngineError::Cancelled) => Self::Interrupted,
            other => Self::Calibrate(Box::new(other)),
        }
    }
}

impl From<HarnessError> for CliError {
    fn from(error: HarnessError) -> Self {
        match error {
            HarnessError::Engine(EngineError::Cancelled) => Self::Interrupted,
            // Found before anything runs.
            HarnessError::Method { .. } | HarnessError::Language { .. } => Self::Usage(error.to_string()),
            other => Self::Eval(Box::new(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_the_failure_of_its_recording() {
        type Work<'a> = Box<dyn FnOnce() -> Result<usize, CliError> + 'a>;
        let numbers: Vec<usize> = vec![1, 2];
        let index = numbers.len() + 5;
        for (work, says) in [
            (Box::new(|| Ok(numbers[index])) as Work<'_>, "index is 7"),
            (Box::new(|| panic!("plain")), "internal error: plain; please report it"),
            (Box::new(|| std::panic::panic_any(3)), "without a message"),
        ] {
            let error = guarded(work).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(error.exit_code(), ExitCode::FAILURE);
        }
        assert_eq!(guarded(|| Ok(numbers[1])).unwrap(), 2);
        assert!(matches!(guarded::<()>(|| Err(CliError::Interrupted)), Err(CliError::Interrupted)));
    }
}
