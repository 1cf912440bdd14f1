//! Runs of neighbouring symbols, counted.

use std::collections::HashMap;
use std::hash::Hash;

/// How often each run of `n` symbols occurs.
pub(crate) struct Ngrams<'a, T>(HashMap<&'a [T], u64>);

impl<'a, T: Eq + Hash> Ngrams<'a, T> {
    /// Those of one sequence.
    pub(crate) fn new(symbols: &'a [T], n: usize) -> Self {
        let mut counts = HashMap::new();
        for run in symbols.windows(n) {
            *counts.entry(run).or_default() += 1;
        }
        Self(counts)
    }

    /// Takes in those of another sequence, where they are more.
    pub(crate) fn at_least(&mut self, other: Self) {
        for (run, count) in other.0 {
            let own = self.0.entry(run).or_default();
            *own = count.max(*own);
        }
    }

    /// Runs that both have, each as often as the one that has it less often.
    pub(crate) fn shared(&self, other: &Self) -> u64 {
        self.0.iter().filter_map(|(run, count)| other.0.get(run).map(|o| o.min(count))).sum()
    }
}

/// Number of runs of `n` symbols in a sequence of `len`.
pub(crate) fn runs(len: usize, n: usize) -> u64 {
    (len + 1).saturating_sub(n) as u64
}
