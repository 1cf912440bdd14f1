//! What can be wrong with a `tekken.json`.

use thiserror::Error;

/// A `tekken.json` that cannot be used, with the file's name.
#[derive(Debug, Error)]
#[error("{file}: {problem}")]
pub struct TekkenError {
    /// Path of the file, or the name that the caller gave its contents.
    pub file: String,
    /// What is wrong with it.
    #[source]
    pub problem: TekkenProblem,
}

/// The property that a `tekken.json` lacks.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TekkenProblem {
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(#[source] std::io::Error),
    /// Far larger than any vocabulary.
    #[error("{bytes} bytes; a tokenizer has at most {limit}")]
    FileTooLarge {
        /// Size of the file.
        bytes: u64,
        /// Largest accepted.
        limit: u64,
    },
    /// Nothing in it.
    #[error("the file is empty")]
    Empty,
    /// A pointer file of Git LFS instead of the contents.
    #[error("a Git LFS pointer, not the file itself (run 'git lfs pull')")]
    LfsPointer,
    /// Not JSON, or not with the fields of a tokenizer.
    #[error("not a Tekken tokenizer: {0}")]
    Json(#[source] serde_json::Error),
    /// The version is not written as `v` and a number.
    #[error("version '{0}' is not of the form v7")]
    Version(String),
    /// A version that comes before special tokens were listed in the file.
    #[error("version {0} is older than v7, the first that lists its special tokens")]
    VersionTooOld(String),
    /// No special tokens.
    #[error("no special_tokens; version {0} of the file has to list them")]
    NoSpecialTokens(String),
    /// Sizes that no vocabulary has, or that do not fit each other.
    #[error(
        "{special} special tokens in a vocabulary of {total}: at least 256 byte tokens must remain and {limit} is the limit"
    )]
    Sizes {
        /// `default_vocab_size`.
        total: u64,
        /// `default_num_special_tokens`.
        special: u64,
        /// Largest accepted vocabulary.
        limit: u64,
    },
    /// Fewer vocabulary entries than the sizes say.
    #[error("{listed} vocabulary entries are listed and {needed} are needed")]
    TooFewEntries {
        /// Entries in `vocab`.
        listed: usize,
        /// `default_vocab_size - default_num_special_tokens`.
        needed: usize,
    },
    /// Ranks have to be 0, 1, 2, … in the order of the entries.
    #[error(
        "vocabulary entry {index} has rank {rank}; ranks must run 0, 1, 2, … without a gap or a repetition"
    )]
    RankOrder {
        /// Place in the list.
        index: usize,
        /// The rank found there.
        rank: u64,
    },
    /// `token_bytes` is not base64.
    #[error("the bytes of rank {rank} are not base64: {source}")]
    Base64 {
        /// The token.
        rank: usize,
        /// How it is malformed.
        source: base64::DecodeError,
    },
    /// A token without bytes.
    #[error("the token of rank {0} is empty")]
    EmptyToken(usize),
    /// The first 256 tokens have to be the 256 bytes, so that every text can be encoded.
    #[error("rank {0} must be the single byte {0:#04x}")]
    ByteToken(usize),
    /// Two tokens with the same bytes.
    #[error("ranks {first} and {second} have the same bytes")]
    DuplicateToken {
        /// The lower rank.
        first: u32,
        /// The higher rank.
        second: u32,
    },
    /// A special token's rank lies beyond the special ids.
    #[error("special token '{name}' has rank {rank}, beyond the {special} special ids")]
    SpecialRank {
        /// The token.
        name: String,
        /// Its rank.
        rank: u64,
        /// Number of special ids.
        special: usize,
    },
    /// Two special tokens of the same rank.
    #[error("special tokens '{first}' and '{second}' have the same rank {rank}")]
    SpecialRankTwice {
        /// Listed first.
        first: String,
        /// Listed second.
        second: String,
        /// The rank of both.
        rank: u64,
    },
    /// Two special tokens of the same name.
    #[error("special token '{0}' is listed twice")]
    SpecialNameTwice(String),
    /// The pattern is not a regular expression.
    #[error("the pattern is not a regular expression: {0}")]
    Pattern(#[source] Box<fancy_regex::Error>),
    /// The pattern backtracks beyond all bounds on some text, which so cannot be cut into pieces.
    #[error("the pattern gives up on the text from byte {at} on: {source}")]
    GaveUp {
        /// End of the last piece.
        at: usize,
        /// Which limit was reached.
        source: Box<fancy_regex::Error>,
    },
    /// A rate or size of the audio section is not a positive number.
    #[error("audio: {0} must be positive")]
    Audio(&'static str),
    /// A special token that a prompt needs is not there.
    #[error("no special token '{0}': the tokenizer belongs to another kind of model")]
    SpecialAbsent(String),
}
