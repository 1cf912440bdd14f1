//! What can be wrong with the files of a byte-level tokenizer.

use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a byte-level tokenizer cannot be used.
#[derive(Debug, Error)]
#[error("{path}: {problem}")]
pub struct ByteLevelError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: ByteLevelProblem,
}

/// What can be wrong with the files of a byte-level tokenizer. Tokens are given as the file spells them.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ByteLevelProblem {
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(#[source] std::io::Error),
    /// Neither form of the tokenizer is in the directory.
    #[error(
        "no tokenizer here: a Qwen checkpoint has tokenizer.json, or vocab.json with merges.txt and tokenizer_config.json; put these beside the weights"
    )]
    Absent,
    /// One file of the older form is not there.
    #[error(
        "no such file: without tokenizer.json, a tokenizer is vocab.json, merges.txt and tokenizer_config.json (its control tokens); put all three beside the weights"
    )]
    Incomplete,
    /// Not the JSON of a tokenizer.
    #[error("not a tokenizer: {0}")]
    Json(#[source] serde_json::Error),
    /// A file for control tokens without any.
    #[error("lists no control tokens (added_tokens_decoder); fetch the file of the model's release")]
    NoControlTokens,
    /// Not a text.
    #[error("line {line} is not UTF-8: fetch the file again")]
    NotText {
        /// The line, from 1.
        line: usize,
    },
    /// Another kind of tokenizer.
    #[error("{0}; only byte-level BPE in the manner of Qwen2 is known")]
    Kind(String),
    /// A token that is not spelled in the byte-level alphabet.
    #[error("token '{}' is not spelled in the byte-level alphabet", shown(.0))]
    Spelling(String),
    /// A byte without a token: texts with it could not be encoded.
    #[error("byte {0:#04x} has no token: the vocabulary is cut or damaged; fetch the file again")]
    ByteToken(u8),
    /// An id beyond any vocabulary.
    #[error("token '{}' has id {id}, which no vocabulary reaches; fetch the file again", shown(token))]
    Id {
        /// The token.
        token: String,
        /// Its id.
        id: u64,
    },
    /// Two tokens of one id.
    #[error(
        "tokens '{}' and '{}' both have id {id}: the file is damaged; fetch it again",
        shown(first),
        shown(second)
    )]
    SameId {
        /// A token.
        first: String,
        /// Another.
        second: String,
        /// The id of both.
        id: u64,
    },
    /// A token that is listed with two ids.
    #[error(
        "token '{}' is listed with the ids {first} and {second}: the file is damaged; fetch it again",
        shown(token)
    )]
    TwoIds {
        /// The token.
        token: String,
        /// An id.
        first: u64,
        /// Another.
        second: u64,
    },
    /// An id without a token among those of a text.
    #[error(
        "no token has id {id}, but others have higher ones: the vocabulary is cut or damaged; fetch the file again"
    )]
    Gap {
        /// The lowest such id.
        id: usize,
    },
    /// A merge that cannot be in such a list at this place.
    #[error("{place}: {reason}: the file is damaged, or of another vocabulary; fetch it again")]
    Merge {
        /// Where it stands.
        place: MergePlace,
        /// What is wrong with it.
        reason: String,
    },
    /// A token that no text would ever become.
    #[error(
        "no merge makes token '{}' (id {id}): the list of merges is cut, or of another vocabulary; fetch the file again",
        shown(token)
    )]
    Unmade {
        /// The token.
        token: String,
        /// Its id.
        id: u32,
    },
    /// The pattern is not a regular expression.
    #[error("the pattern is not a regular expression: {0}")]
    Pattern(#[source] Box<fancy_regex::Error>),
    /// The pattern backtracks beyond all bounds on some text.
    #[error("the pattern gives up on this text: {0}")]
    GaveUp(#[source] Box<fancy_regex::Error>),
    /// A control token that a prompt needs is not there.
    #[error(
        "no token '{0}': the tokenizer belongs to another kind of model; use that of the model's release"
    )]
    SpecialAbsent(String),
}

impl ByteLevelProblem {
    /// The error of a file with this problem.
    pub(super) fn of(self, path: &Path) -> ByteLevelError {
        ByteLevelError { path: path.into(), problem: self }
    }
}

/// Where a merge stands, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergePlace {
    /// A line of `merges.txt`.
    Line(usize),
    /// An entry of the list in `tokenizer.json`.
    Entry(usize),
}

impl fmt::Display for MergePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(n) => write!(f, "line {n}"),
            Self::Entry(n) => write!(f, "model.merges, entry {n}"),
        }
    }
}

/// A text of a damaged file as a message can hold it: short, and without what a terminal would obey.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 40;
    let mut out = String::new();
    for c in text.chars().take(MOST) {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    if text.chars().nth(MOST).is_some() {
        out.push('…');
    }
    out
}
