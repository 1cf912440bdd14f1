//! chrF (Popović 2015) and chrF++ (Popović 2017) as sacreBLEU 2.6 computes them: character n-grams up to 6 without white
//! space, for chrF++ also word n-grams up to 2; precision and recall averaged over the orders that both sides have, recall
//! weighing twice as much.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::error::EvalError;
use crate::ngrams::{Ngrams, runs};
use crate::text::{is_space, split};

/// Longest character n-gram.
pub const CHARACTER_ORDER: usize = 6;
/// Longest word n-gram of chrF++.
pub const WORD_ORDER: usize = 2;

/// Which of the two metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Variant {
    /// chrF: characters only.
    #[default]
    #[serde(rename = "chrf")]
    Characters,
    /// chrF++: characters and words.
    #[serde(rename = "chrf++")]
    Words,
}

impl Variant {
    fn orders(self) -> usize {
        CHARACTER_ORDER + if self == Self::Words { WORD_ORDER } else { 0 }
    }
}

/// n-grams of one order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderCounts {
    /// Those of the hypothesis; 0 if the reference has none.
    pub hypothesis: u64,
    /// Those of the reference.
    pub reference: u64,
    /// Those that both have.
    pub matching: u64,
}

/// What chrF and chrF++ need to know of a segment, or, summed, of a corpus: characters 1 to 6, then words 1 and 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChrfCounts {
    orders: [OrderCounts; CHARACTER_ORDER + WORD_ORDER],
}

impl ChrfCounts {
    /// The counts of one segment with one reference.
    pub fn new(hypothesis: &str, reference: &str) -> Self {
        let characters = |text: &str| text.chars().filter(|c| !is_space(*c)).collect::<Vec<_>>();
        let (hypothesis_words, reference_words) = (words(hypothesis), words(reference));
        let (hypothesis, reference) = (characters(hypothesis), characters(reference));
        let mut counts = Self::default();
        let (by_character, by_word) = counts.orders.split_at_mut(CHARACTER_ORDER);
        for (n, order) in (1..).zip(by_character) {
            *order = OrderCounts::new(&hypothesis, &reference, n);
        }
        for (n, order) in (1..).zip(by_word) {
            *order = OrderCounts::new(&hypothesis_words, &reference_words, n);
        }
        counts
    }

    /// The counts of one segment with several references: those of the one with the best score, the first of equals.
    pub fn best<R: AsRef<str>>(
        hypothesis: &str,
        references: &[R],
        variant: Variant,
    ) -> Result<Self, EvalError> {
        let mut best: Option<(f64, Self)> = None;
        for reference in references {
            let counts = Self::new(hypothesis, reference.as_ref());
            let score = counts.score(variant);
            if best.is_none_or(|(b, _)| score > b) {
                best = Some((score, counts));
            }
        }
        best.map(|b| b.1).ok_or(EvalError::NoReference)
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
            sum += &Self::new(hypothesis.as_ref(), reference.as_ref());
        }
        Ok(sum)
    }

    /// The counts of each order, as described at the type.
    pub fn orders(&self) -> &[OrderCounts] {
        &self.orders
    }

    /// The score, 0 to 100.
    pub fn score(&self, variant: Variant) -> f64 {
        let (mut precision, mut recall, mut orders) = (0.0, 0.0, 0.0);
        for order in &self.orders[..variant.orders()] {
            if order.hypothesis > 0 && order.reference > 0 {
                precision += order.matching as f64 / order.hypothesis as f64;
                recall += order.matching as f64 / order.reference as f64;
                orders += 1.0;
            }
        }
        // Without any match both are 0; so are they without any order, where nothing was added.
        if precision + recall == 0.0 {
            return 0.0;
        }
        let (precision, recall) = (precision / orders, recall / orders);
        // beta² = 4.
        100.0 * 5.0 * precision * recall / (4.0 * precision + recall)
    }
}

impl AddAssign<&Self> for ChrfCounts {
    fn add_assign(&mut self, other: &Self) {
        for (own, other) in self.orders.iter_mut().zip(&other.orders) {
            own.hypothesis += other.hypothesis;
            own.reference += other.reference;
            own.matching += other.matching;
        }
    }
}

impl OrderCounts {
    fn new<T: Eq + std::hash::Hash>(hypothesis: &[T], reference: &[T], n: usize) -> Self {
        let in_reference = runs(reference.len(), n);
        Self {
            // As in sacreBLEU, an order that the reference lacks counts for nothing.
            hypothesis: if in_reference > 0 { runs(hypothesis.len(), n) } else { 0 },
            reference: in_reference,
            matching: Ngrams::new(hypothesis, n).shared(&Ngrams::new(reference, n)),
        }
    }
}

/// Words with one ASCII punctuation character split off, the last if it is one, else the first.
fn words(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    for word in split(text) {
        let mut characters = word.chars();
        match (characters.next(), characters.next_back()) {
            (_, Some(last)) if last.is_ascii_punctuation() => {
                let (body, mark) = word.split_at(word.len() - 1);
                out.extend([body, mark]);
            }
            (Some(first), Some(_)) if first.is_ascii_punctuation() => {
                let (mark, body) = word.split_at(1);
                out.extend([mark, body]);
            }
            _ => out.push(word),
        }
    }
    out
}

/// chrF or chrF++ of a corpus with one reference per segment, 0 to 100.
pub fn corpus_chrf<H: AsRef<str>, R: AsRef<str>>(
    hypotheses: &[H],
    references: &[R],
    variant: Variant,
) -> Result<f64, EvalError> {
    Ok(ChrfCounts::corpus(hypotheses, references)?.score(variant))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors() {
        let counts = ChrfCounts::new("le chat est la", "le chat est sur le tapis");
        assert!((counts.score(Variant::Characters) - 44.83).abs() < 0.005);
        assert!((counts.score(Variant::Words) - 45.80).abs() < 0.005);
        assert_eq!(
            words("(hi) \"x a's ,é é, , ()"),
            ["(hi", ")", "\"", "x", "a's", ",", "é", "é", ",", ",", "(", ")"]
        );
    }

    #[test]
    fn several_references() {
        let best = ChrfCounts::best("a cat", &["no", "a cat", "a dog"], Variant::Words);
        assert_eq!(best, Ok(ChrfCounts::new("a cat", "a cat")));
        assert_eq!(ChrfCounts::best("a", &[] as &[&str], Variant::Words), Err(EvalError::NoReference));
        assert_eq!(ChrfCounts::new("", "").score(Variant::Words), 0.0);
    }
}
