//! Byte-level BPE as Qwen's tokenizers use it: `tokenizer.json` of Hugging Face, or the older pair `vocab.json` and
//! `merges.txt`.
//!
//! A text is brought into NFC, cut into pieces by a pattern, and each piece's bytes are merged pair by pair in the order of
//! the merges. Control tokens, which the file lists apart from the vocabulary, never come out of a text.

mod file;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use fancy_regex::Regex;
use thiserror::Error;
use unicode_normalization::UnicodeNormalization;

use crate::bpe::{Merger, Merges};
use crate::model::{ModelError, TokenizerSource};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// Why a byte-level tokenizer cannot be used.
#[derive(Debug, Error)]
#[error("{path}: {problem}")]
pub struct ByteLevelError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: ByteLevelProblem,
}

/// What can be wrong with the files of a byte-level tokenizer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ByteLevelProblem {
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(#[source] std::io::Error),
    /// Neither form of the tokenizer is in the directory.
    #[error("no tokenizer here: a Qwen checkpoint has tokenizer.json, or vocab.json with merges.txt")]
    Absent,
    /// Not the JSON of a tokenizer.
    #[error("not a tokenizer: {0}")]
    Json(#[source] serde_json::Error),
    /// Another kind of tokenizer.
    #[error("{0}; only byte-level BPE in the manner of Qwen2 is known")]
    Kind(String),
    /// A token that is not spelled in the byte-level alphabet.
    #[error("token '{0}' is not spelled in the byte-level alphabet")]
    Spelling(String),
    /// A byte without a token: texts with it could not be encoded.
    #[error("byte {0:#04x} has no token")]
    ByteToken(u8),
    /// Two tokens of one id, or one beyond any vocabulary.
    #[error("token '{token}' has id {id}, which another token has or no vocabulary reaches")]
    Id {
        /// The token.
        token: String,
        /// Its id.
        id: u64,
    },
    /// A merge of tokens that are not there.
    #[error("merge {0} is not of two tokens whose union is a token")]
    Merge(usize),
    /// The pattern is not a regular expression.
    #[error("the pattern is not a regular expression: {0}")]
    Pattern(#[source] Box<fancy_regex::Error>),
    /// The pattern backtracks beyond all bounds on some text.
    #[error("the pattern gives up on this text: {0}")]
    GaveUp(#[source] Box<fancy_regex::Error>),
    /// A control token that a prompt needs is not there.
    #[error("no token '{0}': the tokenizer belongs to another kind of model")]
    SpecialAbsent(String),
}

/// A byte-level BPE tokenizer.
pub struct ByteLevelBpe {
    path: PathBuf,
    pattern: Regex,
    normalise: bool,
    rules: Rules,
    /// Bytes of the tokens that stand for text, by id.
    bytes: Vec<Option<Box<[u8]>>>,
    added: HashMap<String, u32>,
    /// Names of control tokens, by id.
    control: HashMap<u32, String>,
}

/// The vocabulary and the order of the merges.
#[derive(Default)]
struct Rules {
    ids: HashMap<Box<[u8]>, u32>,
    /// Place in the list of merges, by the two tokens' ids.
    merges: HashMap<(u32, u32), u32>,
}

impl Merges for Rules {
    fn whole(&self, _piece: &[u8]) -> Option<u32> {
        None
    }

    fn priority(&self, piece: &[u8], start: usize, mid: usize, end: usize) -> Option<u32> {
        let (left, right) = (self.ids.get(&piece[start..mid])?, self.ids.get(&piece[mid..end])?);
        self.merges.get(&(*left, *right)).copied()
    }

    fn id(&self, token: &[u8]) -> Option<u32> {
        self.ids.get(token).copied()
    }
}

impl ByteLevelBpe {
    /// Reads the tokenizer of a checkpoint directory: `tokenizer.json` if it is there, otherwise `vocab.json`,
    /// `merges.txt` and the control tokens of `tokenizer_config.json`.
    pub fn open(dir: &Path) -> Result<Self, ByteLevelError> {
        file::open(dir)
    }

    /// Largest id and one.
    pub fn vocab_size(&self) -> usize {
        let added = self.added.values().max().map_or(0, |id| *id as usize + 1);
        self.bytes.len().max(added)
    }

    fn error(&self, problem: ByteLevelProblem) -> ByteLevelError {
        ByteLevelError { path: self.path.clone(), problem }
    }
}

impl Tokenizer for ByteLevelBpe {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let text: String = if self.normalise { text.nfc().collect() } else { text.to_owned() };
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        let mut merger = Merger::default();
        let mut piece = |piece: &str| merger.encode(&self.rules, piece.as_bytes(), 0, &mut ids);
        let mut done = 0;
        for found in self.pattern.find_iter(&text) {
            let found = found.map_err(|e| self.error(ByteLevelProblem::GaveUp(Box::new(e))))?;
            piece(&text[done..found.start()]);
            piece(found.as_str());
            done = found.end();
        }
        piece(&text[done..]);
        Ok(ids)
    }

    fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id as usize)?.as_deref()
    }

    fn special(&self, name: &str) -> Option<u32> {
        self.added.get(name).copied()
    }

    fn require_special(&self, name: &str) -> Result<u32, TokenizerError> {
        let absent = || self.error(ByteLevelProblem::SpecialAbsent(name.to_owned()));
        self.special(name).ok_or_else(|| absent().into())
    }

    fn special_name(&self, id: u32) -> Option<&str> {
        self.control.get(&id).map(String::as_str)
    }
}

impl std::fmt::Debug for ByteLevelBpe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByteLevelBpe")
            .field("path", &self.path)
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}

/// The tokenizer of a checkpoint with so many embeddings.
pub(crate) fn of_model(source: &TokenizerSource, embeddings: usize) -> Result<ByteLevelBpe, ModelError> {
    let dir = match source {
        TokenizerSource::Dir(dir) => dir,
        TokenizerSource::Tekken { name, .. } => {
            let reason = "a Tekken tokenizer, where the model needs tokenizer.json".into();
            return Err(ModelError::TokenizerMismatch { path: name.into(), reason });
        }
    };
    let tokenizer = ByteLevelBpe::open(dir).map_err(TokenizerError::from)?;
    if tokenizer.vocab_size() > embeddings {
        let reason = format!("{} tokens for a model with {embeddings} embeddings", tokenizer.vocab_size());
        return Err(ModelError::TokenizerMismatch { path: tokenizer.path, reason });
    }
    Ok(tokenizer)
}
