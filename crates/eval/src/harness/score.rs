//! From a row's texts to counts.

use std::ops::AddAssign;

use serde::Serialize;

use super::Row;
use crate::bleu::BleuCounts;
use crate::chrf::ChrfCounts;
use crate::wer::{self, Edits};
use crate::{EvalError, Normaliser};

/// How texts are scored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scoring {
    /// What is done to both sides before words and characters are compared. BLEU and chrF see texts as they are.
    pub normaliser: Normaliser,
    /// A hypothesis is cut at so many times the words of its reference, for every score but `plain` (the paper: 1.2).
    pub truncate: f64,
    /// Resamples of the bootstrap.
    pub resamples: usize,
    /// Its seed.
    pub seed: u64,
}

impl Default for Scoring {
    fn default() -> Self {
        Self { normaliser: Normaliser::Paper, truncate: wer::PAPER_RATIO, resamples: 1000, seed: 12345 }
    }
}

/// What a table's score is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Truncated word error rate in per cent; less is better.
    Wer,
    /// BLEU; more is better.
    Bleu,
}

impl Metric {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wer => "WER %",
            Self::Bleu => "BLEU",
        }
    }
}

/// The counts of a recording, or, summed, of many.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Scores {
    /// Word edits of the cut hypothesis.
    pub words: Edits,
    /// Word edits of the whole hypothesis.
    pub plain: Edits,
    /// Character edits of the cut hypothesis.
    pub characters: Edits,
    /// Of the cut hypothesis.
    pub bleu: BleuCounts,
    /// Of the cut hypothesis.
    pub chrf: ChrfCounts,
}

impl AddAssign<&Self> for Scores {
    fn add_assign(&mut self, other: &Self) {
        self.words += &other.words;
        self.plain += &other.plain;
        self.characters += &other.characters;
        self.bleu += &other.bleu;
        self.chrf += &other.chrf;
    }
}

impl Scores {
    /// The score that a table shows.
    pub fn of(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Wer => 100.0 * self.words.rate(),
            Metric::Bleu => self.bleu.score(false).score,
        }
    }
}

/// The counts of a row; none for a recording without a transcript.
pub fn score(row: &Row, scoring: &Scoring) -> Result<Option<Scores>, EvalError> {
    let Some(ran) = row.ran() else { return Ok(None) };
    // One line each: a line break is a space, and no word.
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (reference, hypothesis) = (flat(&row.reference), flat(&ran.text));
    let raw = wer::truncate(&reference, &hypothesis, scoring.truncate);
    let bleu = BleuCounts::new(raw, &[&reference])?;
    let chrf = ChrfCounts::new(raw, &reference);
    let (reference, hypothesis) =
        (scoring.normaliser.apply(&reference), scoring.normaliser.apply(&hypothesis));
    let cut = wer::truncate(&reference, &hypothesis, scoring.truncate);
    Ok(Some(Scores {
        words: wer::word_edits(&reference, cut),
        plain: wer::word_edits(&reference, &hypothesis),
        characters: wer::character_edits(&reference, cut),
        bleu,
        chrf,
    }))
}
