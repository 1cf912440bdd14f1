//! What can be wrong with a copy of a data set.

use std::io;
use std::path::{Path, PathBuf};

use wnw_audio::AudioError;

use super::SpecError;

/// Why a data set, or a recording of it, cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// A specification.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The place does not exist.
    #[error("{path}: no such file or directory; expected {expected}")]
    NotFound {
        /// The place.
        path: PathBuf,
        /// What should be there.
        expected: String,
    },
    /// The place exists but holds nothing of the format.
    #[error("{path}: no recordings; expected {expected}")]
    NoRecordings {
        /// The place.
        path: PathBuf,
        /// What should be there.
        expected: &'static str,
    },
    /// The split is not in this copy.
    #[error("{path}: has no split '{split}'; {}", found_splits(.found))]
    NoSplit {
        /// The place.
        path: PathBuf,
        /// What was asked for.
        split: String,
        /// What is there.
        found: Vec<String>,
    },
    /// A text whose recording is not there.
    #[error(
        "{place}: recording '{id}' has a text but no sound ({missing} of {total} recordings lack theirs); the copy is not whole: \
         fetch it again, or remove the texts"
    )]
    MissingAudio {
        /// Where it should be.
        place: String,
        /// The first recording without sound.
        id: String,
        /// How many have none.
        missing: usize,
        /// Of how many.
        total: usize,
    },
    /// A recording without a reference.
    #[error(
        "{place}: recording '{id}' has no text ({missing} of {total} recordings lack theirs); the copy is not whole: fetch it \
         again, or remove the recordings"
    )]
    MissingText {
        /// Where it should be.
        place: String,
        /// The first recording without text.
        id: String,
        /// How many have none.
        missing: usize,
        /// Of how many.
        total: usize,
    },
    /// Files that belong to the set whatever else is there.
    #[error(
        "{path}: {missing} of {total} {what} are missing, such as {example}; the copy is not whole: fetch it again"
    )]
    Incomplete {
        /// The set's place.
        path: PathBuf,
        /// What is missing, in the plural.
        what: &'static str,
        /// One of them.
        example: String,
        /// How many are missing.
        missing: usize,
        /// Of how many.
        total: usize,
    },
    /// A file of no bytes, or a text without words in a set that has none such.
    #[error("{place}: is empty; the copy is not whole: fetch it again")]
    EmptyFile {
        /// The file.
        place: String,
    },
    /// A pointer that Git LFS leaves where a file was not fetched.
    #[error("{path}: is a Git LFS pointer, not the file itself; run `git lfs pull` in the repository")]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// Two recordings of one name.
    #[error("two recordings are named '{id}': {first} and {second}; rename or remove one")]
    DuplicateId {
        /// The name.
        id: String,
        /// Where the first lies.
        first: String,
        /// Where the second lies.
        second: String,
    },
    /// A line or row of a manifest.
    #[error("{path}, {} {row}: {reason}", if *.is_line { "line" } else { "row" })]
    Row {
        /// The manifest.
        path: PathBuf,
        /// Its number, from 1.
        row: usize,
        /// Whether it is a line of text.
        is_line: bool,
        /// What is wrong with it.
        reason: String,
    },
    /// A text in another encoding.
    #[error("{place}: is not UTF-8 (first at byte {at}); convert it, for instance with `iconv -t utf-8`")]
    NotUtf8 {
        /// The file.
        place: String,
        /// The first byte that does not fit.
        at: usize,
    },
    /// A file that ends too early.
    #[error("{path}: ends too early: {detail}; the copy is not whole: fetch it again")]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What was expected there.
        detail: String,
    },
    /// A name that leads out of the data set.
    #[error("{path}: the name '{name}' leads out of the data set; do not trust this copy")]
    UnsafeName {
        /// The archive or manifest.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A file that is not what its place says.
    #[error("{path}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Reading failed.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The sound itself.
    #[error("{place}: {source}")]
    Audio {
        /// Where it lies.
        place: String,
        /// What is wrong with it.
        source: AudioError,
    },
}

impl DatasetError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    pub(super) fn line(path: &Path, row: usize, reason: impl Into<String>) -> Self {
        Self::Row { path: path.to_owned(), row, is_line: true, reason: reason.into() }
    }

    pub(super) fn malformed(path: &Path, reason: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), reason: reason.into() }
    }
}

fn found_splits(found: &[String]) -> String {
    match found {
        [] => "it has none".into(),
        found => format!("it has {}", found.join(", ")),
    }
}
