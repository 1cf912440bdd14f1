//! Ctrl-C, SIGTERM, and the limit on file sizes.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Exit code that the first signal asks for; 0 as long as none came.
static INTERRUPTED: AtomicU8 = AtomicU8::new(0);
static LISTENING: AtomicBool = AtomicBool::new(false);

/// Signals that end the program, held back from every thread until [`Held::listen`] takes them.
#[cfg(unix)]
pub struct Held(nix::sys::signal::SigSet);

/// Holds signals back. Must be called before any thread is started, for they inherit it.
#[cfg(unix)]
pub fn hold() -> Held {
    use nix::sys::signal::{SigSet, Signal};
    let taken = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    // A file that grows beyond the limit of the process is then a failed write like any other, not a sudden death that
    // leaves a temporary file.
    let unwanted = SigSet::from_iter([Signal::SIGXFSZ]);
    // They fail only for wrong arguments; the signals then end the process at once.
    let _ = unwanted.thread_block();
    let _ = taken.thread_block();
    Held(taken)
}

#[cfg(unix)]
impl Held {
    /// Makes Ctrl-C and SIGTERM ask the engine to stop while it works on a recording ([`while_listening`]); at any other
    /// time, and the second time, the process ends at once.
    pub fn listen(self) {
        let signals = self.0;
        let answer = move || {
            while let Ok(signal) = signals.wait() {
                let code = 128 + signal as u8;
                if INTERRUPTED.swap(code, Ordering::Relaxed) != 0 || !LISTENING.load(Ordering::Relaxed) {
                    std::process::exit(code.into());
                }
            }
        };
        if std::thread::Builder::new().name("signals".into()).spawn(answer).is_err() {
            // Nobody would answer: let them end the process, as without us.
            let _ = signals.thread_unblock();
        }
    }
}

/// Elsewhere Ctrl-C ends the process at once; nothing partial is ever left under a result's name.
#[cfg(not(unix))]
pub struct Held;

/// Nothing to hold back.
#[cfg(not(unix))]
pub fn hold() -> Held {
    Held
}

#[cfg(not(unix))]
impl Held {
    /// Nothing to listen to.
    pub fn listen(self) {}
}

/// Runs `work`, which asks [`interrupted`] often.
pub fn while_listening<T>(work: impl FnOnce() -> T) -> T {
    LISTENING.store(true, Ordering::Relaxed);
    let result = work();
    LISTENING.store(false, Ordering::Relaxed);
    result
}

/// Whether Ctrl-C or SIGTERM came.
pub fn interrupted() -> bool {
    exit_code() != 0
}

/// Exit code that the signal asks for, as shells report it: 130 after Ctrl-C, 143 after SIGTERM.
pub fn exit_code() -> u8 {
    INTERRUPTED.load(Ordering::Relaxed)
}
