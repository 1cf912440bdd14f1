//! What the program asks of a tokenizer, of whatever format.

use std::fmt;

use thiserror::Error;

use crate::byte_level::ByteLevelError;
use crate::tekken::TekkenError;

mod stream;

pub use stream::TextDecoder;

/// Why a tokenizer cannot be read or cannot encode a text.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// Mistral's format.
    #[error(transparent)]
    Tekken(#[from] TekkenError),
    /// `tokenizer.json`, or `vocab.json` with `merges.txt`.
    #[error(transparent)]
    ByteLevel(#[from] ByteLevelError),
}

/// A tokenizer. Ordinary text never yields special tokens, whatever it contains: they are placed by id.
pub trait Tokenizer: Send + Sync + fmt::Debug {
    /// Ids of a text. Names of special tokens in it are ordinary text.
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError>;

    /// Bytes of a token that stands for text; none for control tokens and for ids beyond the vocabulary.
    fn token_bytes(&self, id: u32) -> Option<&[u8]>;

    /// Id of a special token by its name, such as `[INST]`.
    fn special(&self, name: &str) -> Option<u32>;

    /// Id of a special token that the caller cannot do without.
    fn require_special(&self, name: &str) -> Result<u32, TokenizerError>;

    /// Name of a control token; none for tokens that stand for text.
    fn special_name(&self, id: u32) -> Option<&str>;
}

impl dyn Tokenizer + '_ {
    /// Text of ids, without control tokens. Bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut decoder = TextDecoder::new(self);
        let mut text: String = ids.iter().map(|&id| decoder.push(id)).collect();
        text.push_str(&decoder.finish());
        text
    }
}
