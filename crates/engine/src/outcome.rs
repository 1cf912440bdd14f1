//! How a window's decoding ended, and what is said of it.

use crate::guard::{Repetition, RunAway};
use crate::transcript::{FinishReason, Warning};

/// How a window's decoding ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Stop,
    /// The cap of tokens.
    Length,
    /// The positions that the model supports.
    Context,
    /// The KV budget.
    Budget,
    Repetition(Repetition),
    /// Where the model listens says that it runs away.
    RunAway(RunAway),
}

impl Outcome {
    /// Whether the model wrote on for too long.
    pub fn ran_away(self) -> bool {
        matches!(self, Self::Length | Self::Repetition(_) | Self::RunAway(_))
    }

    /// The reason and the warning, for a window from `start` to `end` seconds with `n_tokens` tokens; none if the model
    /// ended by itself.
    pub fn warning(self, start: f64, end: f64, n_tokens: usize) -> Option<(FinishReason, Warning)> {
        let missing = |what: String, advice: &str| {
            (
                FinishReason::Length,
                "length",
                format!("{what} before the model ended: text is missing; {advice}"),
            )
        };
        let stopped = |what: String| {
            let message = format!(
                "the model {what} and was stopped: text is missing or wrong there; --no-repetition-guard lets it run"
            );
            (FinishReason::Repetition, "repetition", message)
        };
        let (reason, kind, what) = match self {
            Self::Stop => return None,
            Self::Length => {
                missing(format!("the cap of {n_tokens} tokens was reached"), "raise --max-new-tokens")
            }
            Self::Context => missing(
                format!("the model's context was full after {n_tokens} tokens,"),
                "use a shorter --window",
            ),
            Self::Budget => missing(
                format!("the KV budget was full after {n_tokens} tokens,"),
                "raise --kv-budget or use a shorter --window",
            ),
            Self::Repetition(Repetition::Cycle { period, repeats }) => {
                stopped(format!("repeated {period} tokens {repeats} times"))
            }
            Self::Repetition(Repetition::FewTokens { window, distinct }) => {
                stopped(format!("used only {distinct} different tokens in {window}"))
            }
            Self::RunAway(RunAway::JumpBack { from, to, tokens }) => stopped(format!(
                "went back from {:.1} s to {:.1} s and repeated itself for {tokens} tokens",
                start + from,
                start + to
            )),
            Self::RunAway(RunAway::StandStill { at, tokens }) => {
                stopped(format!("stood still at {:.1} s for {tokens} tokens, repeating itself", start + at))
            }
        };
        let message = format!("between {start:.1} s and {end:.1} s {what}");
        Some((reason, Warning { kind, message, start: Some(start), end: Some(end) }))
    }
}
