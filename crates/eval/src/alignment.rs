//! The least edits that turn a reference into a hypothesis.
//!
//! Of all alignments with the fewest edits one is chosen by the rule of RapidFuzz 3, on which jiwer 4 stands, since the
//! split into substitutions, deletions and insertions depends on it: common ends are matched first; walking back from the
//! end, a deletion is preferred where one is optimal, then an insertion where the value above falls, then a match or
//! substitution. Matrices of a mebibyte or more are halved at the middle of the hypothesis (Hirschberg 1975), at the first
//! column where the sum is least, so a long text's split can differ from that of an undivided matrix; the number of
//! edits never does.
//!
//! **Limits.** Memory: about a mebibyte, plus some 100 bytes per symbol. Time grows with the length times the number of
//! edits: two transcripts of 30,000 words take about a tenth of a second with few errors and a third with nothing in
//! common, their 165,000 characters some thirty times as long.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::band::{Band, Pattern, Rows};

/// What happens to a stretch of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// It is in the hypothesis.
    Equal,
    /// Each of its symbols is replaced by another.
    Substitute,
    /// Nothing of the reference; the hypothesis has more here.
    Insert,
    /// It is missing from the hypothesis.
    Delete,
}

/// Neighbouring symbols with the same operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// What happens here.
    pub operation: Operation,
    /// Which symbols of the reference, counted from 0.
    pub reference: Range<usize>,
    /// Which symbols of the hypothesis, counted from 0.
    pub hypothesis: Range<usize>,
}

/// A least-cost alignment, as chunks that follow each other and cover both sides; neighbours have different operations.
pub fn align<T: Eq + Hash>(reference: &[T], hypothesis: &[T]) -> Vec<Chunk> {
    let mut ids = HashMap::new();
    let reference = number(&mut ids, reference);
    let hypothesis = number(&mut ids, hypothesis);
    let mut chunks = Chunks::default();
    chunks.align(&reference, &hypothesis, None);
    chunks.0
}

/// Symbols as numbers; only their equality matters from here on.
fn number<'a, T: Eq + Hash>(ids: &mut HashMap<&'a T, usize>, symbols: &'a [T]) -> Vec<usize> {
    let mut numbers = Vec::with_capacity(symbols.len());
    for symbol in symbols {
        let next = ids.len();
        numbers.push(*ids.entry(symbol).or_insert(next));
    }
    numbers
}

/// The least number of edits; both sides without common ends.
fn distance(reference: &[usize], hypothesis: &[usize]) -> usize {
    if reference.is_empty() || hypothesis.is_empty() {
        return reference.len() + hypothesis.len();
    }
    let pattern = Pattern::new(reference.iter().copied());
    let most = reference.len().max(hypothesis.len());
    let mut bound = most.min(reference.len().abs_diff(hypothesis.len()) + 63);
    loop {
        let mut band = Band::new(&pattern, hypothesis.len(), bound);
        hypothesis.iter().for_each(|s| band.advance(*s));
        // Never too small, and exact once it is within the bound.
        let found = band.values().last().unwrap_or(most);
        if found <= bound {
            return found;
        }
        bound = most.min(bound * 2);
    }
}

/// Where RapidFuzz divides a matrix instead of storing it: 2 bits a cell of its band, in bytes.
const UNDIVIDED: usize = 1 << 20;

#[derive(Default)]
struct Chunks(Vec<Chunk>);

impl Chunks {
    fn push(&mut self, operation: Operation, count: usize) {
        if count == 0 {
            return;
        }
        let (r, h) = self.0.last().map_or((0, 0), |c| (c.reference.end, c.hypothesis.end));
        let more_r = if operation == Operation::Insert { 0 } else { count };
        let more_h = if operation == Operation::Delete { 0 } else { count };
        match self.0.last_mut() {
            Some(last) if last.operation == operation => {
                last.reference.end += more_r;
                last.hypothesis.end += more_h;
            }
            _ => self.0.push(Chunk { operation, reference: r..r + more_r, hypothesis: h..h + more_h }),
        }
    }

    /// Appends an alignment; `cost` is its number of edits where it is known.
    fn align(&mut self, reference: &[usize], hypothesis: &[usize], cost: Option<usize>) {
        let prefix = reference.iter().zip(hypothesis).take_while(|(r, h)| r == h).count();
        let (reference, hypothesis) = (&reference[prefix..], &hypothesis[prefix..]);
        let suffix = reference.iter().rev().zip(hypothesis.iter().rev()).take_while(|(r, h)| r == h).count();
        let reference = &reference[..reference.len() - suffix];
        let hypothesis = &hypothesis[..hypothesis.len() - suffix];

        self.push(Operation::Equal, prefix);
        let longest = reference.len().max(hypothesis.len());
        let bound = cost.unwrap_or_else(|| distance(reference, hypothesis));
        // RapidFuzz does not know the cost of the whole; its choice to divide is taken over with that ignorance.
        let assumed = cost.unwrap_or(longest).min(longest);
        let columns = reference.len().min(2 * assumed + 1);
        if 2 * columns * hypothesis.len() / 8 < UNDIVIDED || reference.len() < 65 || hypothesis.len() < 10 {
            self.walk_back(reference, hypothesis, bound);
        } else {
            self.divide(reference, hypothesis, bound);
        }
        self.push(Operation::Equal, suffix);
    }

    fn walk_back(&mut self, reference: &[usize], hypothesis: &[usize], bound: usize) {
        let (mut column, mut row) = (reference.len(), hypothesis.len());
        let mut backwards = Vec::new();
        if column > 0 && row > 0 {
            let pattern = Pattern::new(reference.iter().copied());
            let rows = Rows::new(Band::new(&pattern, row, bound), hypothesis);
            while column > 0 && row > 0 {
                backwards.push(if rows.step(row - 1, column - 1).0 {
                    column -= 1;
                    Operation::Delete
                } else {
                    row -= 1;
                    if row > 0 && rows.step(row - 1, column - 1).1 {
                        Operation::Insert
                    } else {
                        column -= 1;
                        let equal = reference[column] == hypothesis[row];
                        if equal { Operation::Equal } else { Operation::Substitute }
                    }
                });
            }
        }
        self.push(Operation::Delete, column);
        self.push(Operation::Insert, row);
        for operation in backwards.into_iter().rev() {
            self.push(operation, 1);
        }
    }

    fn divide(&mut self, reference: &[usize], hypothesis: &[usize], bound: usize) {
        let middle = hypothesis.len() / 2;
        let backwards = Pattern::new(reference.iter().rev().copied());
        let mut right = Band::new(&backwards, hypothesis.len(), bound);
        hypothesis[middle..].iter().rev().for_each(|s| right.advance(*s));
        let right_first = right.first_column();
        let right: Vec<usize> = right.values().collect();

        let forwards = Pattern::new(reference.iter().copied());
        let mut left = Band::new(&forwards, hypothesis.len(), bound);
        hypothesis[..middle].iter().for_each(|s| left.advance(*s));
        let best = (left.first_column()..)
            .zip(left.values())
            .filter_map(|(column, left)| {
                let right = right.get((reference.len() - column).checked_sub(right_first)?)?;
                Some((left + right, column, left, *right))
            })
            .min();
        // The bands overlap where the best alignments cross, so there always is one.
        let Some((_, column, left, right)) = best else {
            return self.walk_back(reference, hypothesis, bound);
        };
        self.align(&reference[..column], &hypothesis[..middle], Some(left));
        self.align(&reference[column..], &hypothesis[middle..], Some(right));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The plain matrix.
    fn levenshtein(a: &[u8], b: &[u8]) -> usize {
        let mut row: Vec<usize> = (0..=a.len()).collect();
        for (i, y) in b.iter().enumerate() {
            let mut diagonal = std::mem::replace(&mut row[0], i + 1);
            for (j, x) in a.iter().enumerate() {
                let best = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
                diagonal = std::mem::replace(&mut row[j + 1], best);
            }
        }
        row[a.len()]
    }

    fn check(a: &[u8], b: &[u8]) {
        let chunks = align(a, b);
        let (mut r, mut h, mut edits) = (0, 0, 0);
        for c in &chunks {
            assert_eq!((c.reference.start, c.hypothesis.start), (r, h));
            (r, h) = (c.reference.end, c.hypothesis.end);
            let (n, m) = (c.reference.len(), c.hypothesis.len());
            match c.operation {
                Operation::Equal => assert_eq!(a[c.reference.clone()], b[c.hypothesis.clone()]),
                Operation::Substitute => {
                    assert_eq!(n, m);
                    assert!(a[c.reference.clone()].iter().zip(&b[c.hypothesis.clone()]).all(|(x, y)| x != y));
                }
                Operation::Insert => assert_eq!(n, 0),
                Operation::Delete => assert_eq!(m, 0),
            }
            if c.operation != Operation::Equal {
                edits += n.max(m);
            }
        }
        assert!(chunks.windows(2).all(|w| w[0].operation != w[1].operation));
        assert_eq!((r, h, edits), (a.len(), b.len(), levenshtein(a, b)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn covers_both_sides_at_least_cost(
            a in prop::collection::vec(0u8..4, 0..400), b in prop::collection::vec(0u8..4, 0..400),
        ) {
            check(&a, &b);
        }

        #[test]
        fn few_edits_in_long_texts(
            a in prop::collection::vec(0u8..9, 1..1500), cuts in prop::collection::vec((0usize..1500, 0u8..9, 0usize..90), 0..9),
        ) {
            let mut b = a.clone();
            for (at, symbol, gone) in cuts {
                let at = at.min(b.len());
                let end = (at + gone).min(b.len());
                b.splice(at..end, [symbol, 8 - symbol]);
            }
            check(&a, &b);
        }
    }

    #[test]
    fn divided_matrices() {
        // Far more than a mebibyte, so several levels of division; unrelated, and one far longer than the other.
        let noise = |n: usize, seed: u32| {
            let mut state = seed;
            let step = move |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8 % 5
            };
            (0..n).map(step).collect::<Vec<u8>>()
        };
        check(&noise(6000, 1), &noise(6000, 2));
        check(&noise(700, 1), &noise(16_000, 2));
        check(&noise(16_000, 3), &noise(300, 4));
        let loops = [noise(700, 5), noise(7, 6).repeat(2500)].concat();
        check(&noise(3000, 5), &loops);
    }
}
