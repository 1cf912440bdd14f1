//! When each word was said, read off the attention of the anchor heads.
//!
//! A speech LLM writes no times, but some of its heads look at the piece of audio that they are about to write down.
//! Per generated token that gives a distribution over audio positions ([`AttentionTrace`]). It is noisy: a head looks
//! ahead, looks at a similar word elsewhere, or not at the audio at all. So the tokens are put on one path that never
//! goes back (`path`), and a word lasts as long as the attention of its tokens does around the path (`spans`).
//! Words become cues for subtitles ([`segments`]).
//!
//! All times are seconds of the recording; a position is `seconds_per_token` long (0.08 s in Voxtral).

mod cues;
mod grouping;
mod path;
mod script;
mod spans;
#[cfg(test)]
mod tests;
mod trace;

use serde::Serialize;
use wnw_model::Tokenizer;

pub use cues::{CueLimits, segments, segments_within};
pub use script::{columns, is_unspaced, is_wide};
pub use trace::{AttentionTrace, MAX_KEPT};

/// A word and when it was said.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Word {
    /// The word with its punctuation, without white space around it. In scripts without spaces between words, what one
    /// token writes.
    pub word: String,
    /// Seconds from the start of the recording.
    pub start: f64,
    /// End in seconds; at least `start`, at most the next word's `start`.
    pub end: f64,
    /// Share of the attention that supports these times, from 0 (guessed from the neighbours) to 1.
    pub confidence: f64,
    /// White space stands before it in the text; set for the first word of a window too, since windows are joined by it.
    #[serde(skip)]
    pub spaced: bool,
}

/// A stretch of text short enough to be shown at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cue {
    /// Seconds from the start of the recording.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// Its text; never empty, no white space around it.
    pub text: String,
    /// Mean confidence of its words, 0 to 1.
    pub confidence: f64,
}

/// How attention is turned into times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeOptions {
    /// A word starts where this share of its attention lies before; 0 to 1, by default 0.25.
    pub onset: f64,
    /// A word ends where this share of its attention lies before; 0 to 1, by default 0.95.
    pub offset: f64,
    /// Attention that lies farther than this from the path does not count, in seconds; by default 0.8.
    pub neighbourhood: f64,
    /// Added to all times, in seconds: for models whose heads look ahead or lag behind; by default 0.
    pub bias: f64,
    /// A token is left off the path rather than put where it has a smaller share of its attention than this; 0 to 1, by default 0.002.
    pub least_share: f64,
    /// The path may go on by this much from one token to the next at no cost, in seconds; by default 2.
    pub free_jump: f64,
    /// What each further factor of four costs, in natural-log units of attention; by default 1.
    pub jump_penalty: f64,
}

/// The best of a grid on held-out recordings of the embedded model. The quantiles are not symmetric: heads look for the
/// beginning of a word, and a little before it.
impl Default for TimeOptions {
    fn default() -> Self {
        Self {
            onset: 0.25,
            offset: 0.95,
            neighbourhood: 0.8,
            bias: 0.0,
            least_share: 0.002,
            free_jump: 2.0,
            jump_penalty: 1.0,
        }
    }
}

impl TimeOptions {
    /// The same with every number inside its range, so that no choice can break an order of times.
    fn sane(&self) -> Self {
        let default = Self::default();
        let within = |x: f64, low: f64, high: f64, otherwise: f64| {
            if x.is_finite() { x.clamp(low, high) } else { otherwise }
        };
        let onset = within(self.onset, 0.0, 1.0, default.onset);
        Self {
            onset,
            offset: within(self.offset, 0.0, 1.0, default.offset).max(onset),
            neighbourhood: within(self.neighbourhood, 0.0, 1e6, default.neighbourhood),
            bias: within(self.bias, -1e6, 1e6, default.bias),
            least_share: within(self.least_share, 1e-9, 1.0, default.least_share),
            free_jump: within(self.free_jump, 0.0, 1e6, default.free_jump),
            jump_penalty: within(self.jump_penalty, 0.0, 1e6, default.jump_penalty),
        }
    }
}

/// Words of one window with their times, in order and without overlap, all inside the window.
///
/// `tokens` are the window's generated ids and `trace` holds one entry for each; ids beyond its length count as
/// unknown. `seconds_per_token` is the length of an audio position. The window's real audio, without the padding that
/// the encoder sees, goes from `start` to `end` (seconds of the recording); attention beyond is ignored.
///
/// Words without any usable attention are spread between their neighbours and have confidence 0.
pub fn words(
    trace: &AttentionTrace,
    tokens: &[u32],
    tokenizer: &dyn Tokenizer,
    options: &TimeOptions,
    seconds_per_token: f64,
    start: f64,
    end: f64,
) -> Vec<Word> {
    let groups = grouping::group(&grouping::pieces(tokens, tokenizer));
    let window = spans::Window::new(start, end, seconds_per_token);
    timed(trace, groups, tokens.len(), options, window)
}

/// Where each token listens, in seconds from the window's start, on a path that may go back at a cost of `back`
/// (natural-log units of attention; a token that sees its word clearly brings about 5); none for tokens that look
/// elsewhere. `seconds` is the length of the window's real audio.
pub(crate) fn places(
    trace: &AttentionTrace,
    seconds_per_token: f64,
    seconds: f64,
    back: f64,
) -> Vec<Option<f64>> {
    let window = spans::Window::new(0.0, seconds, seconds_per_token);
    let shares = path::Shares::new(trace, trace.len(), window.positions());
    let path = path::wandering(&shares, &TimeOptions::default(), window.seconds_per_token(), back);
    let middle = |position: u32| (f64::from(position) + 0.5) * window.seconds_per_token();
    path.into_iter().map(|place| place.map(middle)).collect()
}

fn timed(
    trace: &AttentionTrace,
    groups: Vec<grouping::Group>,
    n_tokens: usize,
    options: &TimeOptions,
    window: spans::Window,
) -> Vec<Word> {
    let options = options.sane();
    let shares = path::Shares::new(trace, n_tokens, window.positions());
    let path = path::monotone(&shares, &options, window.seconds_per_token());
    let spans = spans::spans(&groups, &shares, &path, &options, window);
    let word = |(group, span): (grouping::Group, spans::Span)| Word {
        word: group.text,
        start: span.start,
        end: span.end,
        confidence: span.confidence,
        spaced: group.spaced,
    };
    groups.into_iter().zip(spans).map(word).collect()
}
