//! Detection of run-away decoding.
//!
//! A speech LLM that loses its place repeats itself, often for as long as it may. Two signs are watched on the token
//! ids: the tail is one short sequence many times over (n-gram), or a long stretch uses very few distinct tokens
//! (token ratio). Both thresholds lie far beyond what speech does, including strings of equal digits.
//! [`PlaceGuard`] is independent of that: it watches where in the audio the model listens.

mod place;

pub use place::{PlaceGuard, PlaceGuardConfig, RunAway};

/// Thresholds of the guard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardConfig {
    /// Longest repeated sequence that is looked for, in tokens.
    pub max_period: usize,
    /// Repetitions that make a loop …
    pub min_repeats: usize,
    /// … if together they are at least this many tokens.
    pub min_tokens: usize,
    /// Stretch over which distinct tokens are counted.
    pub ratio_window: usize,
    /// A smaller share of distinct tokens than this makes a loop.
    pub min_distinct: f64,
}

impl Default for GuardConfig {
    fn default() -> Self {
        Self { max_period: 128, min_repeats: 5, min_tokens: 60, ratio_window: 400, min_distinct: 0.015 }
    }
}

/// A loop that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Repetition {
    /// The last `repeats · period` tokens are one sequence over and over.
    Cycle {
        /// Length of the sequence.
        period: usize,
        /// How often it stands there.
        repeats: usize,
    },
    /// The last stretch has few distinct tokens.
    FewTokens {
        /// Length of the stretch.
        window: usize,
        /// Distinct tokens in it.
        distinct: usize,
    },
}

/// Watches a growing list of tokens.
#[derive(Clone, Debug)]
pub struct RepetitionGuard {
    config: GuardConfig,
    /// `runs[p]` counts how many of the last tokens equal the one `p + 1` before them, without a gap.
    runs: Vec<usize>,
}

impl RepetitionGuard {
    /// A guard for one window.
    pub fn new(config: GuardConfig) -> Self {
        Self { runs: vec![0; config.max_period], config }
    }

    /// Call after each token with all tokens so far. The cost does not grow with their number.
    pub fn check(&mut self, tokens: &[u32]) -> Option<Repetition> {
        let n = tokens.len();
        let last = *tokens.last()?;
        for (i, run) in self.runs.iter_mut().enumerate() {
            let period = i + 1;
            *run = if n > period && tokens[n - 1 - period] == last { *run + 1 } else { 0 };
        }
        for (i, run) in self.runs.iter().enumerate() {
            let period = i + 1;
            let length = run + period;
            if length >= self.config.min_tokens && length / period >= self.config.min_repeats {
                return Some(Repetition::Cycle { period, repeats: length / period });
            }
        }
        let window = self.config.ratio_window;
        if window > 0 && n.is_multiple_of(window) {
            let mut stretch = tokens[n - window..].to_vec();
            stretch.sort_unstable();
            stretch.dedup();
            if (stretch.len() as f64) < self.config.min_distinct * window as f64 {
                return Some(Repetition::FewTokens { window, distinct: stretch.len() });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_alarm(tokens: impl IntoIterator<Item = u32>) -> Option<(usize, Repetition)> {
        let mut guard = RepetitionGuard::new(GuardConfig::default());
        let mut seen = Vec::new();
        for token in tokens {
            seen.push(token);
            if let Some(found) = guard.check(&seen) {
                return Some((seen.len(), found));
            }
        }
        None
    }

    #[test]
    fn loops_of_any_short_period_are_found_soon() {
        for period in [1usize, 2, 7, 40, 128] {
            let prefix = (0..500u32).map(|i| 1000 + i);
            let looped = (0..5000usize).map(|i| (i % period) as u32);
            let (at, found) = first_alarm(prefix.chain(looped)).unwrap();
            assert!(matches!(found, Repetition::Cycle { period: p, .. } if p == period), "{found:?}");
            assert!(at <= 500 + (5 * period).max(60), "period {period} found at {at}");
        }
    }

    #[test]
    fn few_tokens_in_any_order_are_found() {
        let mut state = 1u32;
        let babble = (0..2000).map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            state >> 30
        });
        assert!(matches!(first_alarm(babble), Some((400, Repetition::FewTokens { .. }))));
    }

    #[test]
    fn speech_like_repetition_is_left_alone() {
        // A list read aloud: the same four words before each of 300 different items.
        let list = (0..300u32).flat_map(|i| [1, 2, 3, 4, 100 + i]);
        assert_eq!(first_alarm(list), None);
        // Account numbers read out for minutes: ten digits, a space and a comma in random order.
        let mut state = 9u32;
        let numbers = (0..1600).map(|i| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if i % 5 == 4 { 10 + (state >> 31) } else { (state >> 16) % 10 }
        });
        assert_eq!(first_alarm(numbers), None);
        // "no no no no …" thirty times, a phone number of equal digits.
        assert_eq!(first_alarm(std::iter::repeat_n(7, 30).chain(0..40)), None);
    }
}
