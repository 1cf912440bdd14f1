//! Byte-level BPE as Qwen's tokenizers use it: `tokenizer.json` of Hugging Face, or the older pair `vocab.json` and
//! `merges.txt`.
//!
//! A text is brought into NFC, cut into pieces by a pattern, and each piece's bytes are merged pair by pair in the order of
//! the merges. Control tokens, which the file lists apart from the vocabulary, never come out of a text.

mod build;
mod error;
mod file;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use fancy_regex::Regex;
use unicode_normalization::UnicodeNormalization;

use crate::bpe::{Merger, Merges};
use crate::chatml::StatedTokens;
use crate::model::{ModelError, TokenizerSource};
use crate::tokenizer::{Tokenizer, TokenizerError};

pub use error::{ByteLevelError, ByteLevelProblem, MergePlace};

/// A byte-level BPE tokenizer.
pub struct ByteLevelBpe {
    /// The file of the vocabulary.
    path: PathBuf,
    /// The file that lists the control tokens.
    added_path: PathBuf,
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
}

impl Tokenizer for ByteLevelBpe {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let text: String = if self.normalise { text.nfc().collect() } else { text.to_owned() };
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        let mut merger = Merger::default();
        let mut piece = |piece: &str| merger.encode(&self.rules, piece.as_bytes(), 0, &mut ids);
        let mut done = 0;
        for found in self.pattern.find_iter(&text) {
            let found = found.map_err(|e| ByteLevelProblem::GaveUp(Box::new(e)).of(&self.path))?;
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
        let absent = || ByteLevelProblem::SpecialAbsent(name.to_owned()).of(&self.added_path);
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

/// The tokenizer of a checkpoint with so many embeddings, whose configuration states ids of tokens.
pub(crate) fn of_model(
    source: &TokenizerSource,
    embeddings: usize,
    stated: &StatedTokens,
) -> Result<ByteLevelBpe, ModelError> {
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
    if let Some(reason) = stated.mismatch(&tokenizer) {
        return Err(ModelError::TokenizerMismatch { path: tokenizer.added_path, reason });
    }
    Ok(tokenizer)
}
