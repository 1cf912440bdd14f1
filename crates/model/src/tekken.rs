//! The Tekken tokenizer: Mistral's byte-level BPE, read from `tekken.json` (version 7 and later).
//!
//! A text is cut into pieces by the file's own pattern, and each piece is merged by ranks: again and again the
//! neighbours whose union has the lowest rank become one, until no union is in the vocabulary. The rank of a token is
//! also its id, after the special tokens, which take the first ids.
//!
//! Three things that readers of this format get wrong:
//! - the file lists more entries than the model has (150,000 for 130,072); those beyond the vocabulary size do not exist;
//! - a token may end inside a character, so text is decoded with [`TextDecoder`], which holds the rest back;
//! - the number of a special token depends on the version of the file, so they are looked up by name.
//!
//! Ordinary text never yields special tokens, whatever it contains: they are placed by id.
//!
//! ```no_run
//! # fn main() -> Result<(), wnw_model::tekken::TekkenError> {
//! use wnw_model::tekken::Tekken;
//!
//! let tokenizer = Tekken::from_file("tekken.json".as_ref())?;
//! let end = tokenizer.require_special("</s>")?;
//! let mut ids = tokenizer.encode("Bonjour à tous.")?;
//! ids.push(end);
//! assert_eq!(tokenizer.decode(&ids), "Bonjour à tous.");
//! # Ok(())
//! # }
//! ```

mod error;
mod file;

use std::collections::HashMap;
use std::path::Path;

use fancy_regex::Regex;

use crate::bpe::{Merger, Ranks};
use crate::files::read_regular;
use crate::tokenizer::{TextDecoder, Tokenizer, TokenizerError};

pub use error::{TekkenError, TekkenProblem};
pub use file::{AudioConfig, AudioUse, SpectrogramConfig, TranscriptionFormat};

/// A Tekken tokenizer.
pub struct Tekken {
    file: String,
    version: u32,
    pattern: Regex,
    ranks: Ranks,
    /// Names of the special tokens, by id.
    specials: Vec<String>,
    special_ids: HashMap<String, u32>,
    audio: Option<AudioConfig>,
}

impl Tekken {
    /// Reads a `tekken.json`.
    pub fn from_file(path: &Path) -> Result<Self, TekkenError> {
        let name = path.display().to_string();
        let wrap = |problem| TekkenError { file: name.clone(), problem };
        let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        if size > file::MAX_FILE_BYTES {
            return Err(wrap(TekkenProblem::FileTooLarge { bytes: size, limit: file::MAX_FILE_BYTES }));
        }
        let bytes =
            read_regular(path, file::MAX_FILE_BYTES).map_err(|e| wrap(TekkenProblem::Unreadable(e)))?;
        Self::from_bytes(&bytes, &name)
    }

    /// Reads the contents of a `tekken.json`; `name` stands in errors.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self, TekkenError> {
        file::parse(bytes, name).map_err(|problem| TekkenError { file: name.to_owned(), problem })
    }

    /// Ids of a text. Names of special tokens in it are ordinary text.
    ///
    /// # Errors
    /// [`TekkenProblem::GaveUp`] when the file's pattern backtracks beyond all bounds on this text; Mistral's
    /// does so on a million white spaces in a row.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TekkenError> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        let mut merger = Merger::default();
        let offset = self.specials.len() as u32;
        let mut piece = |piece: &str| merger.encode(&self.ranks, piece.as_bytes(), offset, &mut ids);
        let mut done = 0;
        for found in self.pattern.find_iter(text) {
            let found = found.map_err(|source| TekkenError {
                file: self.file.clone(),
                problem: TekkenProblem::GaveUp { at: done, source: Box::new(source) },
            })?;
            // Mistral's pattern leaves nothing between two matches; text that another one leaves out is kept.
            piece(&text[done..found.start()]);
            piece(found.as_str());
            done = found.end();
        }
        piece(&text[done..]);
        Ok(ids)
    }

    /// Text of ids, without special tokens. Bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut decoder = TextDecoder::new(self);
        let mut text: String = ids.iter().map(|&id| decoder.push(id)).collect();
        text.push_str(&decoder.finish());
        text
    }

    /// Bytes of an ordinary token; none for special tokens and for ids beyond the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.ranks.bytes((id as usize).checked_sub(self.specials.len())?)
    }

    /// Id of a special token by its name, such as `[INST]`.
    pub fn special(&self, name: &str) -> Option<u32> {
        self.special_ids.get(name).copied()
    }

    /// Id of a special token that the caller cannot do without.
    pub fn require_special(&self, name: &str) -> Result<u32, TekkenError> {
        let absent = || TekkenProblem::SpecialAbsent(name.to_owned());
        self.special(name).ok_or_else(|| TekkenError { file: self.file.clone(), problem: absent() })
    }

    /// Name of a special token; none for ordinary tokens.
    pub fn special_name(&self, id: u32) -> Option<&str> {
        self.specials.get(id as usize).map(String::as_str)
    }

    /// Number of ids, special ones included.
    pub fn vocab_size(&self) -> usize {
        self.specials.len() + self.ranks.len()
    }

    /// Number of special ids, the first ones.
    pub fn num_special(&self) -> usize {
        self.specials.len()
    }

    /// Version of the format: 7 for `v7`.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// How audio is turned into tokens; none for a text model.
    pub fn audio(&self) -> Option<&AudioConfig> {
        self.audio.as_ref()
    }

    /// What kind of model the file belongs to.
    pub fn audio_use(&self) -> AudioUse {
        self.audio.as_ref().map_or(AudioUse::None, AudioConfig::purpose)
    }
}

impl Tokenizer for Tekken {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.encode(text)?)
    }

    fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.token_bytes(id)
    }

    fn special(&self, name: &str) -> Option<u32> {
        self.special(name)
    }

    fn require_special(&self, name: &str) -> Result<u32, TokenizerError> {
        Ok(self.require_special(name)?)
    }

    fn special_name(&self, id: u32) -> Option<&str> {
        self.special_name(id)
    }
}

impl std::fmt::Debug for Tekken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tekken")
            .field("file", &self.file)
            .field("version", &self.version)
            .field("vocab_size", &self.vocab_size())
            .field("num_special", &self.num_special())
            .finish_non_exhaustive()
    }
}
