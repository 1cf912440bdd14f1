//! Progress on standard error, when that is a terminal.

use std::cell::Cell;
use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use wnw_engine::{Phase, Progress};

use crate::system::clock;

/// One line of progress; does nothing when quiet or when standard error is not a terminal.
pub struct Bar {
    bar: ProgressBar,
    /// Text has been written to the terminal that the bar would draw on: drawing would overwrite it.
    yielded: Cell<bool>,
}

/// Steps of the bar.
const STEPS: u64 = 1000;
/// Share of the work of a window that each phase is, roughly, for the estimate of the remaining time.
const ENCODE_SHARE: f64 = 0.3;
const PREFILL_SHARE: f64 = 0.2;

impl Bar {
    /// A bar that shows nothing yet.
    pub fn new(quiet: bool) -> Self {
        let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(STEPS) };
        // The template is constant; should it not parse, the default style serves.
        if let Ok(style) =
            ProgressStyle::with_template("{prefix} [{bar:24}] {percent:>3}% {msg} {eta:>4} left")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar, yielded: Cell::new(false) }
    }

    /// Shows a recording's progress; `total` is its duration in seconds when known.
    pub fn show(&self, name: &str, progress: &Progress, total: Option<f64>) {
        if self.yielded.get() {
            return;
        }
        let inside = match progress.phase {
            Phase::Read => 0.0,
            Phase::Encode => ENCODE_SHARE * progress.fraction,
            Phase::Prefill => ENCODE_SHARE + PREFILL_SHARE * progress.fraction,
            Phase::Decode => {
                ENCODE_SHARE + PREFILL_SHARE + (1.0 - ENCODE_SHARE - PREFILL_SHARE) * progress.fraction
            }
        };
        let done = progress.window_start + inside * progress.window_seconds;
        let message = match progress.phase {
            Phase::Read => "reading".into(),
            Phase::Encode => format!("encoding {}", clock(progress.audio_position())),
            Phase::Prefill => "prefill".into(),
            Phase::Decode => {
                format!("{} tokens, about {}", progress.tokens, clock(progress.audio_position()))
            }
        };
        self.bar.set_prefix(name.to_owned());
        self.bar.set_message(message);
        // From a pipe the end is unknown, and with it the share and the remaining time.
        if let Some(total) = total {
            self.bar.set_position(((done / total.max(1e-3)).min(1.0) * STEPS as f64) as u64);
        }
    }

    /// Shows a download's progress.
    pub fn download(&self, file: &str, done: u64, total: u64) {
        self.bar.set_prefix(file.to_owned());
        self.bar.set_message(format!("{} of {}", crate::system::bytes(done), crate::system::bytes(total)));
        self.bar.set_length(total.max(1));
        self.bar.set_position(done);
    }

    /// Shows the share of some other work that is done, 0 to 1.
    pub fn work(&self, what: &str, share: f64) {
        self.bar.set_prefix(what.to_owned());
        self.bar.set_message("");
        self.bar.set_length(STEPS);
        self.bar.set_position((share * STEPS as f64) as u64);
    }

    /// Shows that the model is being loaded.
    pub fn loading(&self, done: usize, total: usize) {
        self.bar.set_prefix("loading model");
        self.bar.set_message(format!("layer {done} of {total}"));
        self.bar.set_position((done as f64 / total.max(1) as f64 * STEPS as f64) as u64);
    }

    /// Restarts the clock for a new piece of work.
    pub fn restart(&self) {
        self.yielded.set(false);
        self.bar.reset();
        self.bar.set_length(STEPS);
    }

    /// Takes the bar away for good when the text that now follows goes to the same terminal: the text itself shows the
    /// progress. [`Bar::restart`] brings it back.
    pub fn give_way(&self) {
        if !self.yielded.get() && std::io::stdout().is_terminal() {
            self.bar.finish_and_clear();
            self.yielded.set(true);
        }
    }

    /// Prints a line on standard error above the bar.
    pub fn line(&self, line: &str) {
        // Text that streams to the same terminal may stand in the middle of a line.
        let start = if self.yielded.get() { "\n" } else { "" };
        self.bar.suspend(|| crate::outputs::complain(&format!("{start}{line}")));
    }

    /// Removes the bar.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
