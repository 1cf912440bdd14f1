//! Where the watched heads listen, token by token.

use wnw_kv::KvStore;

use crate::guard::{PlaceGuard, PlaceGuardConfig, RunAway};
use crate::times::AttentionTrace;

/// Collects the watched heads' attention of one window.
pub(crate) struct Listening {
    /// One entry for each generated token.
    pub trace: AttentionTrace,
    guard: Option<PlaceGuard>,
    seconds_per_token: f64,
    stepped: bool,
}

impl Listening {
    /// For one window; `guarded` switches the watch for run-aways on.
    pub fn new(seconds_per_token: f64, guarded: bool) -> Self {
        let guard = guarded.then(|| PlaceGuard::new(PlaceGuardConfig::default()));
        Self { trace: AttentionTrace::default(), guard, seconds_per_token, stepped: false }
    }

    /// Call for each token that was chosen, with all tokens so far and the store as the step that chose it left it.
    pub fn heard(&mut self, tokens: &[u32], store: &KvStore) -> Option<RunAway> {
        // The first token comes from the prefill, whose attention is not kept.
        if self.stepped {
            self.trace.push(store.attention());
        } else {
            self.trace.push_unknown();
        }
        self.stepped = true;
        let centre =
            self.trace.last_centre().map(|(position, mass)| (position * self.seconds_per_token, mass));
        self.guard.as_mut()?.check(tokens, centre)
    }
}
