//! Run-aways seen by where the model listens.
//!
//! A model that jumps back in the recording writes a long stretch again; one that hangs writes on without moving. Both
//! can be varied enough for the rules on token ids. Each sign alone also belongs to sound answers: a translation goes
//! back within a sentence, a summary goes anywhere, a refrain is sung twice. Only place and repeated text together, over
//! a minute of speech or more, make an alarm.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Thresholds of [`PlaceGuard`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlaceGuardConfig {
    /// Attention on the audio (sum over anchor pairs) below which a token does not say where the model listens.
    pub min_mass: f32,
    /// The place is the median of this many tokens, so that single looks elsewhere do not count; at least 1.
    pub smoothing: usize,
    /// Tokens in sequence that must have been written before, together, for the last one to count as repeated; at
    /// least 1.
    pub sequence: usize,
    /// A place this far behind the farthest one counts as a jump back, in seconds.
    pub back_seconds: f64,
    /// Tokens that must be written back there: 256 are about a minute of speech …
    pub back_tokens: usize,
    /// … and the share of them that must be repeated.
    pub back_repeated: f64,
    /// A place that moves less than this stands still, in seconds.
    pub still_seconds: f64,
    /// Tokens that must be written there: 240 where the fastest speech has two dozen …
    pub still_tokens: usize,
    /// … and the share of them that must be repeated.
    pub still_repeated: f64,
}

impl Default for PlaceGuardConfig {
    fn default() -> Self {
        Self {
            min_mass: 0.05,
            smoothing: 15,
            sequence: 6,
            back_seconds: 10.0,
            back_tokens: 256,
            back_repeated: 0.9,
            still_seconds: 1.0,
            still_tokens: 240,
            still_repeated: 0.5,
        }
    }
}

/// A run-away that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunAway {
    /// The model went back and writes again what it wrote there.
    JumpBack {
        /// Where it had got to, in seconds of the window.
        from: f64,
        /// Where it listens now.
        to: f64,
        /// Tokens written since.
        tokens: usize,
    },
    /// The model does not move and repeats itself.
    StandStill {
        /// Where, in seconds of the window.
        at: f64,
        /// Tokens written there.
        tokens: usize,
    },
}

/// Tokens since something began, and how many of them are repeated.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    tokens: usize,
    repeated: usize,
}

impl Stretch {
    fn add(&mut self, repeated: bool) {
        self.tokens += 1;
        self.repeated += usize::from(repeated);
    }

    fn reaches(&self, tokens: usize, share: f64) -> bool {
        self.tokens >= tokens && self.repeated as f64 >= share * self.tokens as f64
    }
}

/// Watches where the model listens while it writes. One for each window.
#[derive(Clone, Debug)]
pub struct PlaceGuard {
    config: PlaceGuardConfig,
    /// The last places, in seconds.
    recent: VecDeque<f64>,
    /// Farthest smoothed place.
    front: Option<f64>,
    /// Smoothed place at which the current stand-still began.
    still_at: Option<f64>,
    /// Hashes of all sequences of tokens so far.
    written: HashSet<u64>,
    behind: Stretch,
    still: Stretch,
}

impl PlaceGuard {
    /// A guard for one window.
    pub fn new(config: PlaceGuardConfig) -> Self {
        Self {
            config,
            recent: VecDeque::new(),
            front: None,
            still_at: None,
            written: HashSet::new(),
            behind: Stretch::default(),
            still: Stretch::default(),
        }
    }

    /// Call after each token with all tokens so far, and with where the anchor heads looked for the last one: the
    /// centre of their attention in seconds and its mass (sum of softmax weights over the pairs), if known.
    pub fn check(&mut self, tokens: &[u32], look: Option<(f64, f32)>) -> Option<RunAway> {
        let repeated = self.remember(tokens);
        let (centre, _) =
            look.filter(|(centre, mass)| centre.is_finite() && *mass >= self.config.min_mass)?;
        let place = self.smooth(centre)?;
        self.jump_back(place, repeated).or_else(|| self.stand_still(place, repeated))
    }

    /// Whether the sequence that ends with the last token was written before.
    fn remember(&mut self, tokens: &[u32]) -> bool {
        let length = self.config.sequence.max(1);
        let Some(from) = tokens.len().checked_sub(length) else { return false };
        let mut hasher = DefaultHasher::new();
        tokens[from..].hash(&mut hasher);
        !self.written.insert(hasher.finish())
    }

    /// The median of the last places; none until there are enough of them.
    fn smooth(&mut self, centre: f64) -> Option<f64> {
        let length = self.config.smoothing.max(1);
        self.recent.push_back(centre);
        if self.recent.len() > length {
            self.recent.pop_front();
        }
        if self.recent.len() < length {
            return None;
        }
        let mut sorted: Vec<f64> = self.recent.iter().copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        Some(sorted[length / 2])
    }

    fn jump_back(&mut self, place: f64, repeated: bool) -> Option<RunAway> {
        let front = self.front.map_or(place, |front| front.max(place));
        self.front = Some(front);
        if place >= front - self.config.back_seconds {
            self.behind = Stretch::default();
            return None;
        }
        self.behind.add(repeated);
        let found = self.behind.reaches(self.config.back_tokens, self.config.back_repeated);
        found.then_some(RunAway::JumpBack { from: front, to: place, tokens: self.behind.tokens })
    }

    fn stand_still(&mut self, place: f64, repeated: bool) -> Option<RunAway> {
        let at = *self.still_at.get_or_insert(place);
        if (place - at).abs() > self.config.still_seconds {
            self.still_at = Some(place);
            self.still = Stretch::default();
            return None;
        }
        self.still.add(repeated);
        let found = self.still.reaches(self.config.still_tokens, self.config.still_repeated);
        found.then_some(RunAway::StandStill { at, tokens: self.still.tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of speech for a token.
    const PACE: f64 = 0.25;

    fn first_alarm(
        steps: impl IntoIterator<Item = (u32, Option<(f64, f32)>)>,
        config: PlaceGuardConfig,
    ) -> Option<(usize, RunAway)> {
        let mut guard = PlaceGuard::new(config);
        let mut tokens = Vec::new();
        for (token, look) in steps {
            tokens.push(token);
            if let Some(found) = guard.check(&tokens, look) {
                return Some((tokens.len(), found));
            }
        }
        None
    }

    fn alarm(steps: impl IntoIterator<Item = (u32, f64)>) -> Option<(usize, RunAway)> {
        let steps = steps.into_iter().map(|(token, centre)| (token, Some((centre, 1.0))));
        first_alarm(steps, PlaceGuardConfig::default())
    }

    /// A number that looks random.
    fn noise(i: usize) -> u32 {
        (i as u32).wrapping_mul(2_654_435_761).rotate_left(15).wrapping_mul(2_246_822_519) >> 8
    }

    /// `n` tokens of text that does not repeat, said from second 0 on.
    fn speech(n: usize) -> impl Iterator<Item = (u32, f64)> {
        (0..n).map(|i| (noise(i) % 5000, i as f64 * PACE))
    }

    #[test]
    fn a_meeting_told_twice_is_noticed() {
        // As in FireRedAudio#5: from 12:34 on the text of 6:30 to 12:34 again.
        let again = speech(3000).skip(1560);
        let (at, found) = alarm(speech(3000).chain(again)).unwrap();
        assert!((3256..3290).contains(&at), "{at}");
        assert!(
            matches!(found, RunAway::JumpBack { from, to, .. } if from > 745.0 && to < 470.0),
            "{found:?}"
        );
    }

    #[test]
    fn a_stand_still_is_noticed() {
        // Nine sentences in turn at one place: too long a period for the rules on tokens alone.
        let stuck = (0..2000).map(|i| (noise(i % 135) % 5000, 60.0 + 0.3 * (i as f64).sin()));
        let (at, found) = alarm(speech(240).chain(stuck)).unwrap();
        assert!((480..560).contains(&at), "{at}");
        assert!(matches!(found, RunAway::StandStill { at, .. } if (at - 60.0).abs() < 1.0), "{found:?}");
    }

    #[test]
    fn speech_is_left_alone() {
        assert_eq!(alarm(speech(8000)), None);
        // One token in ten looks elsewhere.
        let strays = speech(8000)
            .enumerate()
            .map(|(i, (t, c))| (t, if i % 10 == 0 { f64::from(noise(i) % 1800) } else { c }));
        assert_eq!(alarm(strays), None);
        // A list with the same words before each entry, and a refrain sung every two minutes.
        let list = speech(6000).enumerate().map(|(i, (t, c))| (if i % 6 < 5 { i as u32 % 6 } else { t }, c));
        assert_eq!(alarm(list), None);
        let refrain =
            (0..6000usize).map(|i| (noise(if i % 480 < 160 { i % 480 } else { i }) % 5000, i as f64 * PACE));
        assert_eq!(alarm(refrain.clone()), None);
        // Even if the model listens to the refrain's first time.
        let confused =
            refrain.map(|(t, c)| (t, if (c / PACE) as usize % 480 < 160 { c % (480.0 * PACE) } else { c }));
        assert_eq!(alarm(confused), None);
        // A minute read out twice, heard where it is said.
        let twice = (0..2400usize).map(|i| (noise(i % 1200) % 5000, i as f64 * PACE));
        assert_eq!(alarm(twice), None);
    }

    #[test]
    fn translations_and_summaries_are_left_alone() {
        // Verbs move by up to a long sentence.
        let translation = speech(4000).enumerate().map(|(i, (t, c))| (t, c + f64::from(noise(i) % 12) - 6.0));
        assert_eq!(alarm(translation), None);
        // An answer that goes back and forth in the recording, one that looks at its middle only, one that looks at
        // nothing.
        let summary = (0..1500usize).map(|i| (noise(i) % 5000, f64::from(noise(i / 40) % 1800)));
        assert_eq!(alarm(summary), None);
        assert_eq!(alarm((0..1500usize).map(|i| (noise(i) % 5000, 900.0))), None);
        let blind =
            (0..3000usize).map(|i| (noise(i % 100), if i % 2 == 0 { None } else { Some((f64::NAN, 1.0)) }));
        assert_eq!(first_alarm(blind, PlaceGuardConfig::default()), None);
        let faint = (0..3000usize).map(|i| (noise(i % 100), Some((5.0, 0.01))));
        assert_eq!(first_alarm(faint, PlaceGuardConfig::default()), None);
    }

    #[test]
    fn thresholds_are_the_callers() {
        let config = PlaceGuardConfig {
            back_tokens: 20,
            back_seconds: 2.0,
            smoothing: 0,
            sequence: 0,
            ..PlaceGuardConfig::default()
        };
        let steps = speech(100).chain(speech(50)).map(|(t, c)| (t, Some((c, 1.0))));
        assert!(matches!(first_alarm(steps, config), Some((120..130, RunAway::JumpBack { .. }))));
    }
}
