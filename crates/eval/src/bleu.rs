//! BLEU (Papineni et al. 2002) as sacreBLEU 2.6 computes it (Post 2018): tokeniser 13a, case kept, n-grams up to 4, smoothing
//! by halving ("exp").

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::error::EvalError;
use crate::ngrams::{Ngrams, runs};
use crate::tokens13a::tokenise;

/// Longest n-gram.
pub const MAX_ORDER: usize = 4;

/// sacreBLEU's signature of a corpus score by these rules, with one reference per segment.
pub const SIGNATURE: &str = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0";

/// What BLEU needs to know of a segment, or, summed, of a corpus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BleuCounts {
    /// Tokens of the hypothesis.
    pub hypothesis_len: u64,
    /// Tokens of the reference, of the one closest in length if there are several.
    pub reference_len: u64,
    /// n-grams of the hypothesis that a reference has, n = 1 to 4.
    pub correct: [u64; MAX_ORDER],
    /// n-grams of the hypothesis.
    pub total: [u64; MAX_ORDER],
}

/// A score and what it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bleu {
    /// 0 to 100.
    pub score: f64,
    /// Share of n-grams that are correct, smoothed, 0 to 100, n = 1 to 4.
    pub precisions: [f64; MAX_ORDER],
    /// The factor for hypotheses that are too short, 0 to 1.
    pub brevity_penalty: f64,
}

impl BleuCounts {
    /// The counts of one segment, which may have several references.
    pub fn new<R: AsRef<str>>(hypothesis: &str, references: &[R]) -> Result<Self, EvalError> {
        let hypothesis = tokenise(hypothesis);
        let references: Vec<_> = references.iter().map(|r| tokenise(r.as_ref())).collect();
        // Closest in length, and of two as close the shorter.
        let closest = references.iter().map(Vec::len).min_by_key(|l| (l.abs_diff(hypothesis.len()), *l));
        let mut counts = Self {
            hypothesis_len: hypothesis.len() as u64,
            reference_len: closest.ok_or(EvalError::NoReference)? as u64,
            ..Self::default()
        };
        for n in 1..=MAX_ORDER {
            let mut allowed = Ngrams::new(&[], n);
            for reference in &references {
                allowed.at_least(Ngrams::new(reference, n));
            }
            counts.correct[n - 1] = Ngrams::new(&hypothesis, n).shared(&allowed);
            counts.total[n - 1] = runs(hypothesis.len(), n);
        }
        Ok(counts)
    }

    /// The counts of a corpus with one reference per segment.
    pub fn corpus<H: AsRef<str>, R: AsRef<str>>(
        hypotheses: &[H],
        references: &[R],
    ) -> Result<Self, EvalError> {
        if references.len() != hypotheses.len() {
            let (references, hypotheses) = (references.len(), hypotheses.len());
            return Err(EvalError::Unpaired { references, hypotheses });
        }
        let mut sum = Self::default();
        for (hypothesis, reference) in hypotheses.iter().zip(references) {
            sum += &Self::new(hypothesis.as_ref(), &[reference])?;
        }
        Ok(sum)
    }

    /// The score of these counts. With `effective_order` only n-grams as long as the hypothesis has any count, which
    /// sacreBLEU recommends for single segments and leaves off for a corpus.
    pub fn score(&self, effective_order: bool) -> Bleu {
        let (sys, reference) = (self.hypothesis_len as f64, self.reference_len as f64);
        let brevity_penalty = match self.hypothesis_len {
            0 if self.reference_len > 0 => 0.0,
            _ if sys < reference => (1.0 - reference / sys).exp(),
            _ => 1.0,
        };
        let mut precisions = [0.0; MAX_ORDER];
        if self.correct.iter().all(|c| *c == 0) {
            return Bleu { score: 0.0, precisions, brevity_penalty };
        }
        let (mut order, mut halving) = (MAX_ORDER, 1.0);
        for (n, precision) in precisions.iter_mut().enumerate() {
            let (correct, total) = (self.correct[n] as f64, self.total[n] as f64);
            if self.total[n] == 0 {
                break;
            }
            if effective_order {
                order = n + 1;
            }
            *precision = if self.correct[n] == 0 {
                halving *= 2.0;
                100.0 / (halving * total)
            } else {
                100.0 * correct / total
            };
        }
        // An order without n-grams has precision 0, whose logarithm makes the score 0.
        let mean = precisions[..order].iter().map(|p| p.ln()).sum::<f64>() / order as f64;
        Bleu { score: brevity_penalty * mean.exp(), precisions, brevity_penalty }
    }
}

impl AddAssign<&Self> for BleuCounts {
    fn add_assign(&mut self, other: &Self) {
        self.hypothesis_len += other.hypothesis_len;
        self.reference_len += other.reference_len;
        for n in 0..MAX_ORDER {
            self.correct[n] += other.correct[n];
            self.total[n] += other.total[n];
        }
    }
}

/// BLEU of a corpus with one reference per segment.
pub fn corpus_bleu<H: AsRef<str>, R: AsRef<str>>(
    hypotheses: &[H],
    references: &[R],
) -> Result<Bleu, EvalError> {
    Ok(BleuCounts::corpus(hypotheses, references)?.score(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(hypothesis: &str, reference: &str, effective_order: bool) -> f64 {
        BleuCounts::new(hypothesis, &[reference]).map_or(f64::NAN, |c| c.score(effective_order).score)
    }

    #[test]
    fn vectors() {
        let score = sentence("bonjour le monde entier oui", "salut le monde entier non", false);
        assert!((score - 39.763_536_438_352_52).abs() < 1e-9, "{score}");
        assert!((sentence("a b c d e", "a b c d e", false) - 100.0).abs() < 1e-9);
        assert_eq!(sentence("a b", "a b", false), 0.0);
        assert!((sentence("a b", "a b", true) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn empty_sides() {
        assert_eq!(sentence("", "a b", false), 0.0);
        assert_eq!(sentence("", "", true), 0.0);
        assert_eq!(sentence("a", "", true), 0.0);
        assert_eq!(BleuCounts::new("a", &[] as &[&str]), Err(EvalError::NoReference));
        assert!(corpus_bleu(&["a"], &[] as &[&str]).is_err());
        assert_eq!(corpus_bleu(&[] as &[&str], &[] as &[&str]).map(|b| b.score), Ok(0.0));
    }
}
