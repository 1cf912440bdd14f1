//! What can be wrong with an alignment file.

use std::fmt;

use thiserror::Error;

/// An alignment file that cannot be used, with its name and the line at fault.
#[derive(Debug, Error)]
pub struct AlignmentError {
    /// Path of the file, or the name that the caller gave its contents.
    pub file: String,
    /// Line, counted from 1, where one can be named.
    pub line: Option<usize>,
    /// What is wrong.
    #[source]
    pub problem: AlignmentProblem,
}

impl fmt::Display for AlignmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.problem),
            None => write!(f, "{}: {}", self.file, self.problem),
        }
    }
}

/// The property that an alignment file lacks.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AlignmentProblem {
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(#[source] std::io::Error),
    /// Far larger than the words of any recording.
    #[error("{bytes} bytes; an alignment has at most {limit}")]
    TooLarge {
        /// Size of the file.
        bytes: u64,
        /// Largest accepted.
        limit: u64,
    },
    /// Nothing in it.
    #[error("the file is empty")]
    Empty,
    /// Neither UTF-8 nor UTF-16.
    #[error("not {0} text")]
    Encoding(&'static str),
    /// JSON that does not parse, or has a field of the wrong type.
    #[error("{0}")]
    Json(String),
    /// JSON without words.
    #[error(
        "no word times: expected 'words', 'word_segments', or 'segments' with 'words' (WhisperX writes the latter two after alignment)"
    )]
    NoWords,
    /// Praat's binary form.
    #[error("a binary TextGrid; save it from Praat as a text file")]
    BinaryTextGrid,
    /// A Praat text file of another class.
    #[error("a Praat file of class '{0}', not a TextGrid")]
    NotATextGrid(String),
    /// A TextGrid that ends too soon or has something else where a value should be.
    #[error("TextGrid: expected {expected}, found {found}")]
    TextGrid {
        /// The value that should come here.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// No tier of the wanted name.
    #[error("no interval tier named '{wanted}'; the file has {}", .there.join(", "))]
    Tier {
        /// The name asked for.
        wanted: String,
        /// Tiers of the file with their kind.
        there: Vec<String>,
    },
    /// A line that is not CTM, in a file that is nothing else either.
    #[error(
        "neither JSON nor TextGrid, and no CTM line: expected 'recording channel start duration word [confidence]'"
    )]
    Ctm,
    /// A CTM field that is no number.
    #[error("'{text}' is no {field}")]
    CtmNumber {
        /// What the field says.
        text: String,
        /// What it should be.
        field: &'static str,
    },
    /// A CTM file of several recordings, and none was chosen.
    #[error("words of several recordings ({}); say which one", .0.join(", "))]
    CtmRecordings(Vec<String>),
    /// The chosen recording is not in the CTM file.
    #[error("no words of recording '{wanted}'; the file has {}", .there.join(", "))]
    CtmNoSuchRecording {
        /// The recording asked for.
        wanted: String,
        /// Recordings of the file.
        there: Vec<String>,
    },
}
