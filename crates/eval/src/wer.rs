//! Word and character error rates.
//!
//! Semantics are jiwer 4's defaults: no change of case or punctuation (that is a [`crate::Normaliser`]'s work); a corpus
//! rate is the sum of all edits over the sum of all reference lengths. An empty reference adds the insertions it was
//! answered with; when *all* references are empty the rate is the number of insertions.

use std::iter::Sum;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::alignment::{Chunk, Operation, align};
use crate::error::EvalError;
use crate::text::{is_space, split, strip};

/// How often the paper lets a hypothesis be as long as its reference.
pub const PAPER_RATIO: f64 = 1.2;

/// Numbers of edits, in words or characters, of one recording or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edits {
    /// Units that are the same on both sides.
    pub hits: u64,
    /// Units that were replaced.
    pub substitutions: u64,
    /// Units that are missing from the hypothesis.
    pub deletions: u64,
    /// Units that only the hypothesis has.
    pub insertions: u64,
}

impl Edits {
    /// The counts of an alignment.
    pub fn of(chunks: &[Chunk]) -> Self {
        let mut edits = Self::default();
        for chunk in chunks {
            let (count, units) = match chunk.operation {
                Operation::Equal => (&mut edits.hits, &chunk.reference),
                Operation::Substitute => (&mut edits.substitutions, &chunk.reference),
                Operation::Delete => (&mut edits.deletions, &chunk.reference),
                Operation::Insert => (&mut edits.insertions, &chunk.hypothesis),
            };
            *count += units.len() as u64;
        }
        edits
    }

    /// Edits in all.
    pub fn errors(&self) -> u64 {
        self.substitutions + self.deletions + self.insertions
    }

    /// Units of the reference.
    pub fn reference_len(&self) -> u64 {
        self.hits + self.substitutions + self.deletions
    }

    /// Units of the hypothesis.
    pub fn hypothesis_len(&self) -> u64 {
        self.hits + self.substitutions + self.insertions
    }

    /// WER or CER as a fraction: 0 is perfect, and it can exceed 1. Without any reference unit the number of
    /// insertions.
    pub fn rate(&self) -> f64 {
        match self.reference_len() {
            0 => self.insertions as f64,
            n => self.errors() as f64 / n as f64,
        }
    }

    /// Match error rate: the share of edits among all aligned units, 0 to 1.
    pub fn match_error_rate(&self) -> f64 {
        match self.hits + self.errors() {
            0 => 0.0,
            n => self.errors() as f64 / n as f64,
        }
    }

    /// Word information preserved (Morris et al. 2004): the hits' share of the reference times their share of the
    /// hypothesis, 0 to 1.
    pub fn information_preserved(&self) -> f64 {
        match (self.reference_len(), self.hypothesis_len()) {
            (0, 0) => 1.0,
            (0, _) | (_, 0) => 0.0,
            (r, h) => (self.hits as f64 / r as f64) * (self.hits as f64 / h as f64),
        }
    }

    /// Word information lost: what is not preserved, 0 to 1.
    pub fn information_lost(&self) -> f64 {
        1.0 - self.information_preserved()
    }
}

impl AddAssign<&Self> for Edits {
    fn add_assign(&mut self, other: &Self) {
        self.hits += other.hits;
        self.substitutions += other.substitutions;
        self.deletions += other.deletions;
        self.insertions += other.insertions;
    }
}

impl Sum for Edits {
    fn sum<I: Iterator<Item = Self>>(edits: I) -> Self {
        edits.fold(Self::default(), |mut sum, e| {
            sum += &e;
            sum
        })
    }
}

/// The words that are compared: what spaces, or two and more white-space characters in a row, separate. A single line
/// break, tab or no-break space does *not* separate words, as in jiwer; the normalisers leave none.
pub fn words(text: &str) -> Vec<&str> {
    let text = strip(text);
    let mut words = Vec::new();
    let mut start = 0;
    // Where a run of white space began, and whether it separates words.
    let mut run: Option<(usize, bool)> = None;
    for (at, c) in text.char_indices() {
        if is_space(c) {
            run = Some(run.map_or((at, c == ' '), |(from, _)| (from, true)));
        } else if let Some((from, true)) = run.take() {
            words.push(&text[start..from]);
            start = at;
        }
    }
    if start < text.len() {
        words.push(&text[start..]);
    }
    words
}

/// The characters that are compared: code points, spaces between words included, those at the ends not.
pub fn characters(text: &str) -> Vec<char> {
    strip(text).chars().collect()
}

/// Edits in words.
pub fn word_edits(reference: &str, hypothesis: &str) -> Edits {
    Edits::of(&align(&words(reference), &words(hypothesis)))
}

/// Edits in characters.
pub fn character_edits(reference: &str, hypothesis: &str) -> Edits {
    Edits::of(&align(&characters(reference), &characters(hypothesis)))
}

/// Edits in words of a whole corpus.
pub fn corpus_word_edits<R: AsRef<str>, H: AsRef<str>>(
    references: &[R],
    hypotheses: &[H],
) -> Result<Edits, EvalError> {
    corpus(references, hypotheses, word_edits)
}

/// Edits in characters of a whole corpus.
pub fn corpus_character_edits<R: AsRef<str>, H: AsRef<str>>(
    references: &[R],
    hypotheses: &[H],
) -> Result<Edits, EvalError> {
    corpus(references, hypotheses, character_edits)
}

fn corpus<R: AsRef<str>, H: AsRef<str>>(
    references: &[R],
    hypotheses: &[H],
    edits: fn(&str, &str) -> Edits,
) -> Result<Edits, EvalError> {
    if references.len() != hypotheses.len() {
        let (references, hypotheses) = (references.len(), hypotheses.len());
        return Err(EvalError::Unpaired { references, hypotheses });
    }
    Ok(references.iter().zip(hypotheses).map(|(r, h)| edits(r.as_ref(), h.as_ref())).sum())
}

/// Edits in words after the hypothesis was cut to `ratio` times as many words as the reference has, rounded down, so
/// that one that never ended costs at most about that ratio. The paper's *truncated WER* is this with [`PAPER_RATIO`]
/// on texts that [`crate::Normaliser::Paper`] made. Its "tokens" are read as words here. Nothing is left of an answer
/// to an empty reference: report [`word_edits`] too.
pub fn truncated_word_edits(reference: &str, hypothesis: &str, ratio: f64) -> Edits {
    let (reference, mut hypothesis) = (words(reference), words(hypothesis));
    hypothesis.truncate(allowed(reference.len(), ratio));
    Edits::of(&align(&reference, &hypothesis))
}

/// The beginning of `hypothesis` that has at most `ratio` times as many words as `reference`, rounded down; words are
/// what white space separates. For translations, which are scored without normalisation.
pub fn truncate<'a>(reference: &str, hypothesis: &'a str, ratio: f64) -> &'a str {
    let allowed = allowed(split(reference).count(), ratio);
    let (mut words, mut in_word) = (0, false);
    for (at, c) in hypothesis.char_indices() {
        if !is_space(c) && !in_word {
            if words == allowed {
                return hypothesis[..at].trim_end_matches(is_space);
            }
            words += 1;
        }
        in_word = !is_space(c);
    }
    hypothesis.trim_end_matches(is_space)
}

fn allowed(reference_words: usize, ratio: f64) -> usize {
    (ratio * reference_words as f64).floor() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(reference: &str, hypothesis: &str) -> [u64; 4] {
        let e = word_edits(reference, hypothesis);
        [e.hits, e.substitutions, e.deletions, e.insertions]
    }

    #[test]
    fn choice_among_best_alignments() {
        assert_eq!(counts("a b", "b a"), [1, 0, 1, 1]);
        assert_eq!(counts("a b c d", "x a y c"), [2, 1, 1, 1]);
        assert_eq!(counts("a", "b c"), [0, 1, 0, 1]);
        assert_eq!(counts("a b", "c"), [0, 1, 1, 0]);
        assert_eq!(counts("a b c", "b c a"), [2, 0, 1, 1]);
    }

    #[test]
    fn what_separates_words() {
        assert_eq!(words(" a\nb  c \n d\u{a0}e\t\tf\n"), ["a\nb", "c", "d\u{a0}e", "f"]);
        assert_eq!(word_edits("a b", "a\nb").rate(), 1.0);
        assert_eq!(word_edits("a\nb", "a b").rate(), 2.0);
        assert_eq!(word_edits("a\n\nb", "a b").rate(), 0.0);
        assert!(words(" \n ").is_empty());
        assert_eq!(character_edits("e\u{301}", "é").rate(), 1.0, "no normalisation");
    }

    #[test]
    fn empty_sides() {
        let nothing = word_edits("", "");
        assert_eq!(
            (nothing.rate(), nothing.match_error_rate(), nothing.information_preserved()),
            (0., 0., 1.)
        );
        let invented = word_edits("", "x y z");
        assert_eq!((invented.rate(), invented.match_error_rate(), invented.information_lost()), (3., 1., 1.));
        let missed = word_edits("x y", "");
        assert_eq!((missed.rate(), missed.information_preserved()), (1.0, 0.0));
        // Beside others an empty reference only adds insertions.
        let corpus = corpus_word_edits(&["", "a b"], &["x", "a b"]);
        assert_eq!(corpus.map(|e| e.rate()), Ok(0.5));
        let unpaired = corpus_word_edits(&["a"], &[] as &[&str]);
        assert_eq!(unpaired, Err(EvalError::Unpaired { references: 1, hypotheses: 0 }));
    }

    #[test]
    fn a_loop_costs_a_bounded_amount() {
        let reference = "one two three four five";
        let hypothesis = format!("{reference} {}", "again ".repeat(1000));
        assert_eq!(word_edits(reference, &hypothesis).rate(), 200.0);
        assert_eq!(truncated_word_edits(reference, &hypothesis, PAPER_RATIO).rate(), 0.2);
        assert_eq!(truncate(reference, &hypothesis, PAPER_RATIO), "one two three four five again");
        assert_eq!(truncate(reference, "one  two\n", PAPER_RATIO), "one  two");
        assert_eq!(truncate("", "x y", PAPER_RATIO), "");
        // Every multiple of five is cut at exactly six fifths of it.
        assert!((0..20_000).all(|n| allowed(5 * n, PAPER_RATIO) == 6 * n));
    }
}
