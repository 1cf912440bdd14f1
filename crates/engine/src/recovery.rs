//! Beginning again where a model lost its place.
//!
//! On a window of minutes a speech LLM sometimes skips half a minute of clear speech, writes a stretch twice, ends
//! early, or repeats one sentence for as long as it may. Where a profile's anchor heads listen tells all four: the text
//! is cut where it is still good, and a new window begins there. `docs/recovery.md` says what was measured.

pub(crate) mod detector;
pub(crate) mod loudness;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use crate::times::{self, AttentionTrace, is_unspaced};
use crate::transcript::Warning;
use detector::{Begins, Cut, Fault, Loss};
use loudness::Loudness;

/// Thresholds of the recovery. The defaults were chosen on recordings of the embedded model that no figure is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecoveryConfig {
    /// Tokens of which the text is held back, since they may still be taken back.
    pub held_back: usize,
    /// Tokens after which the places are looked at again.
    pub interval: usize,
    /// Tokens whose places are looked at.
    pub tail: usize,
    /// Cost of a step back on the path, in natural-log units of attention; a token that sees its word brings about 5.
    pub back_cost: f64,
    /// A step back by more than this is a fault, in seconds.
    pub back_seconds: f64,
    /// Loud seconds without text that make a skip …
    pub skip_seconds: f64,
    /// … passed over within this many tokens …
    pub skip_tokens: usize,
    /// … each of which accounts for this many loud seconds.
    pub token_seconds: f64,
    /// Tokens with a place that must follow a jump, itself included …
    pub confirm: usize,
    /// … or once the model has ended.
    pub confirm_at_end: usize,
    /// Tokens without a move that make a stand-still, if half of them were written before.
    pub still_tokens: usize,
    /// Tokens in sequence that must have been written before for the last one to count as repeated.
    pub sequence: usize,
    /// Loud seconds behind the last word that make an early end.
    pub end_seconds: f64,
    /// A restart that is not this far behind the last one is another try at the same place, in seconds.
    pub least_advance: f64,
    /// Longest window of the second and third try, in seconds.
    pub short_window: f64,
    /// How far a stretch is passed over at which all tries ran away, in seconds.
    pub give_up_seconds: f64,
    /// Seconds that may be given to the model again, for each second of the recording.
    pub cost: f64,
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self {
            held_back: 40,
            interval: 4,
            tail: 128,
            back_cost: 40.0,
            back_seconds: 2.0,
            skip_seconds: 1.5,
            skip_tokens: 8,
            token_seconds: 0.6,
            confirm: 10,
            confirm_at_end: 4,
            still_tokens: 12,
            sequence: 4,
            end_seconds: 1.5,
            least_advance: 2.0,
            short_window: 30.0,
            give_up_seconds: 5.0,
            cost: 1.5,
        }
    }
}

impl RecoveryConfig {
    /// For translations, whose words stand in another order than they were said.
    pub fn for_translation() -> Self {
        Self { skip_seconds: 3.0, back_seconds: 4.0, ..Self::default() }
    }
}

/// Tries and their cost over a recording; decides how a window is dealt with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tries {
    /// Restarts since the last one that got on.
    same_place: usize,
    /// Samples of the recording that were given to the model for the first time, as seconds.
    read: f64,
    /// Seconds that were given to it again.
    again: f64,
    /// Seconds of the recording up to which it was given to the model.
    front: f64,
}

/// Most restarts at one place.
pub(crate) const MOST_TRIES: usize = 3;

impl Tries {
    /// A window of the recording is given to the model.
    pub fn begin(&mut self, start: f64, end: f64) {
        let new = (end - self.front.max(start)).max(0.0);
        self.read += new;
        self.again += (end - start - new).max(0.0);
        self.front = self.front.max(end);
    }

    /// Whether there may be another restart.
    pub fn affordable(&self, config: &RecoveryConfig) -> bool {
        self.again < config.cost * self.read
    }

    /// Whether a skip, a step back or an early end in the present window is mended. The last try is taken as it is.
    pub fn mends(&self) -> bool {
        self.same_place + 1 < MOST_TRIES
    }

    /// A restart `at` seconds into the window. Says whether it is one too many at this place.
    pub fn restart(&mut self, at: f64, config: &RecoveryConfig) -> bool {
        self.same_place = if at < config.least_advance { self.same_place + 1 } else { 0 };
        let too_many = self.same_place >= MOST_TRIES;
        if too_many {
            self.same_place = 0;
        }
        too_many
    }

    /// A window was dealt with to its end.
    pub fn done(&mut self) {
        self.same_place = 0;
    }

    /// Longest next window in seconds, if it is to be shorter than usual: what fails in a long one often goes well in
    /// a short one.
    pub fn next_window(&self, config: &RecoveryConfig) -> Option<f64> {
        (self.same_place > 0).then_some(config.short_window)
    }
}

/// Where a window is to be begun again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restart {
    pub cut: Cut,
    pub loss: Loss,
}

/// What becomes of the audio behind a cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rest {
    /// A new window begins there.
    Again,
    /// Nothing: there is no speech in it.
    Quiet,
    /// All tries ran away: it is passed over up to so many seconds of the window.
    GivenUp(f64),
}

impl Restart {
    /// Where the model lost its place, in a window from `start` to `end` seconds, and what became of it.
    pub fn warning(&self, start: f64, end: f64, rest: Rest) -> Warning {
        let (at, to) = (start + self.cut.at, start + self.loss.to);
        let (what, to) = match self.loss.fault {
            Fault::Skip => (format!("passed over speech up to {to:.1} s"), to),
            Fault::Back => (format!("went back to {to:.1} s"), at),
            Fault::Still => ("repeated itself".to_owned(), at),
            Fault::End => ("ended before the speech did".to_owned(), end),
        };
        let (kind, done, to) = match rest {
            Rest::Again => ("restart", format!("transcribed again from {at:.1} s"), to),
            Rest::Quiet => {
                ("restart", "what it wrote from there on is left out, since no speech follows".into(), end)
            }
            Rest::GivenUp(seconds) => {
                let lost = (start + seconds).min(end);
                (
                    "repetition",
                    format!("after {MOST_TRIES} tries the text up to {lost:.1} s is missing"),
                    lost,
                )
            }
        };
        let message = format!("at {at:.1} s the model {what}: {done}");
        Warning { kind, message, start: Some(at), end: Some(to.max(at)) }
    }
}

/// What a sentence ends in.
const SENTENCE_ENDS: [char; 7] = ['.', '!', '?', '…', '。', '！', '？'];

/// Watches one window.
pub(crate) struct Recovery {
    pub config: RecoveryConfig,
    pub loudness: Loudness,
    seconds_per_token: f64,
    mends: bool,
    /// For each token so far.
    begins: Vec<Begins>,
    /// Whether a token ends a sequence that was written before.
    repeated: Vec<bool>,
    written: HashSet<Vec<u32>>,
    /// The last character, and the last one that is no white space.
    last: (char, char),
}

impl Recovery {
    /// For a window. `mends` is whether skips and the like are looked for, or run-aways only.
    pub fn new(config: RecoveryConfig, samples: &[f32], seconds_per_token: f64, mends: bool) -> Self {
        Self {
            config,
            loudness: Loudness::new(samples),
            seconds_per_token,
            mends,
            begins: Vec::new(),
            repeated: Vec::new(),
            written: HashSet::new(),
            last: (' ', '.'),
        }
    }

    /// Call for each token with all tokens so far and the text that it completes. Returns how many tokens' text may be
    /// passed on; always up to the beginning of a word.
    pub fn push(&mut self, tokens: &[u32], piece: &str) -> usize {
        let begins = piece
            .chars()
            .next()
            .is_some_and(|first| first.is_whitespace() || self.last.0.is_whitespace() || is_unspaced(first));
        self.begins.push(match begins {
            false => Begins::Nothing,
            true if SENTENCE_ENDS.contains(&self.last.1) => Begins::Sentence,
            true => Begins::Word,
        });
        for c in piece.chars() {
            self.last = (c, if c.is_whitespace() { self.last.1 } else { c });
        }
        let sequence = tokens.len().checked_sub(self.config.sequence).map(|from| tokens[from..].to_vec());
        self.repeated.push(sequence.is_some_and(|s| !self.written.insert(s)));
        let free = self.begins.len().saturating_sub(self.config.held_back);
        (0..=free.min(tokens.len() - 1)).rev().find(|t| self.begins[*t] >= Begins::Word).unwrap_or(0)
    }

    /// Looks for a lost place, every few tokens and when the model has ended. `said` tokens were passed on.
    pub fn look(&self, trace: &AttentionTrace, said: usize, ended: bool) -> Option<Restart> {
        let n = trace.len();
        if !ended && !n.is_multiple_of(self.config.interval) {
            return None;
        }
        let from = n.saturating_sub(self.config.tail);
        let places = self.places(trace, from);
        let loss = self.mends.then(|| {
            let start = (from == 0).then_some(0.0);
            detector::jump(&places, start, said.saturating_sub(from), &self.loudness, &self.config, ended)
        });
        let loss = loss.flatten().or_else(|| {
            if !ended {
                return detector::still(&places, &self.repeated[from..], &self.config);
            }
            let found = detector::early_end(&places, &self.loudness, &self.config);
            found.filter(|_| self.mends)
        })?;
        let loss = Loss { last_good: loss.last_good.map(|t| t + from), ..loss };
        Some(self.restart(loss, from, &places, said))
    }

    /// After a run-away: the text up to where the model had got. None if nothing says where that was.
    pub fn run_away(&self, trace: &AttentionTrace, said: usize) -> Option<Restart> {
        let places = self.places(trace, 0);
        let (token, from) = detector::front(&places)?;
        let loss = Loss { fault: Fault::Still, last_good: Some(token), from, to: from };
        Some(self.restart(loss, 0, &places, said))
    }

    fn restart(&self, loss: Loss, from: usize, places: &[Option<f64>], said: usize) -> Restart {
        let mut all = vec![None; from];
        all.extend_from_slice(places);
        // Words before the tail are far behind what was passed on.
        let cut = detector::cut(&loss, &all, &self.begins, said, &self.loudness);
        Restart { cut, loss }
    }

    fn places(&self, trace: &AttentionTrace, from: usize) -> Vec<Option<f64>> {
        let (second, cost) = (self.seconds_per_token, self.config.back_cost);
        times::places(&trace.since(from), second, self.loudness.seconds(), cost)
    }
}
