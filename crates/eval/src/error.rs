//! What can be wrong with what a metric is given.

/// An input from which a metric cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// A corpus whose two sides do not pair up.
    #[error(
        "there are {references} references but {hypotheses} hypotheses; give one hypothesis for each reference, an \
         empty string where a recording produced none"
    )]
    Unpaired {
        /// Number of references.
        references: usize,
        /// Number of hypotheses.
        hypotheses: usize,
    },
    /// A segment without any reference.
    #[error("a segment has no reference; give at least one, an empty string if nothing is said in it")]
    NoReference,
    /// A bootstrap over nothing.
    #[error("there are no segments to resample; score at least one recording")]
    NoSegments,
    /// A bootstrap without resamples.
    #[error("a bootstrap needs at least one resample; 1000 is usual")]
    NoResamples,
    /// Resamples that were drawn for a corpus of another size.
    #[error(
        "the resamples were drawn for {expected} segments, but there are {found}; draw them again for this corpus, and \
         compare only systems that were scored on the same segments"
    )]
    Segments {
        /// Number of segments that the resamples are for.
        expected: usize,
        /// Number of segments that were given.
        found: usize,
    },
    /// Resamples that name a segment which is not there.
    #[error("a resample names segment {index}, but there are only {segments}, counted from 0")]
    Index {
        /// The index that was given.
        index: usize,
        /// Number of segments.
        segments: usize,
    },
    /// A name that is no normaliser's.
    #[error("{0:?} is not a normaliser; use one of none, paper, whisper-en, whisper-basic")]
    Normaliser(String),
}
