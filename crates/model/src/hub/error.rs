//! Why a model could not be found or fetched.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

/// Why a name did not lead to a model directory.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HubError {
    /// Not a name that the hub could have.
    #[error("'{name}' is not a model name: {reason} (expected org/name or org/name@revision)")]
    Name {
        /// What was given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An option that cannot be used.
    #[error("{option}: {reason}")]
    Option {
        /// The environment variable or option.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The hub does not say what there is without a token, or the token does not suffice (401).
    #[error(
        "{model}: the hub denies access (401): the name is wrong, or the model is private; \
         check the name, or set HF_TOKEN to a token that may read it"
    )]
    Unauthorized {
        /// The model.
        model: String,
    },
    /// The licence has not been accepted, or the token does not suffice (403).
    #[error(
        "{model}: access is restricted (403): accept the model's conditions at {page} and set HF_TOKEN to your token"
    )]
    Forbidden {
        /// The model.
        model: String,
        /// Its page.
        page: String,
    },
    /// No such model or revision (404).
    #[error("{model}: the hub has no such model, or no revision '{revision}' of it (404)")]
    NotFound {
        /// The model.
        model: String,
        /// The revision asked for.
        revision: String,
    },
    /// Still too many requests (429) after waiting.
    #[error("{url}: too many requests (429){}; try again later, or set HF_TOKEN for a higher limit", after(.retry_after))]
    RateLimited {
        /// What was asked for.
        url: String,
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// Another failure of the server.
    #[error("{url}: the server answers {status}")]
    Status {
        /// What was asked for.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// An answer that is not the hub's.
    #[error("{url}: not an answer of the hub: {reason}")]
    BadResponse {
        /// What was asked for.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server cannot be reached.
    #[error("{url}: no connection: {reason}")]
    Connection {
        /// What was asked for.
        url: String,
        /// Why.
        reason: String,
    },
    /// The transfer of a file broke off again and again.
    #[error(
        "{file}: the download broke off at {done} of {total} bytes ({reason}); the next run continues there"
    )]
    BrokenOff {
        /// The file.
        file: String,
        /// Bytes that are there.
        done: u64,
        /// Bytes that it has.
        total: u64,
        /// The last failure.
        reason: String,
    },
    /// A file arrived with other contents than the hub announces.
    #[error("{file}: the downloaded file is damaged (SHA-256 {found}, not {expected}); it was removed")]
    Damaged {
        /// The file.
        file: String,
        /// The hub's SHA-256.
        expected: String,
        /// The file's.
        found: String,
    },
    /// Offline, and the cache does not have the model.
    #[error(
        "{model}: {} in the cache ({}) and HF_HUB_OFFLINE is set",
        if *.partial { "only part of it is" } else { "not" },
        .cache.display()
    )]
    Offline {
        /// The model.
        model: String,
        /// The cache directory.
        cache: PathBuf,
        /// Whether some of its files are there.
        partial: bool,
    },
    /// The repository lacks files without which it is no model for this program.
    #[error("{model}: not a Voxtral checkpoint: it has no {missing}")]
    NotAModel {
        /// The model.
        model: String,
        /// What is missing.
        missing: &'static str,
    },
    /// Another process has been downloading the same file, without getting on.
    #[error("{path}: another process holds this download and does not get on; end it, or wait")]
    Busy {
        /// The lock file.
        path: PathBuf,
    },
    /// No space left.
    #[error("{path}: no space left on the disk; {needed} bytes are still to come (HF_HOME moves the cache)")]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// Bytes that had still to be written.
        needed: u64,
    },
    /// A file of the cache cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl HubError {
    /// Whether the hub could not be asked, as opposed to its saying no.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Connection { .. } | Self::RateLimited { .. } => true,
            Self::Status { status, .. } => *status >= 500,
            _ => false,
        }
    }

    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

fn after(wait: &Option<Duration>) -> String {
    wait.map(|wait| format!(", to be asked again after {} s", wait.as_secs())).unwrap_or_default()
}
