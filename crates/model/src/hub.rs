//! Model names on the Hugging Face hub, and the directory that a name stands for.
//!
//! [`resolve`] turns `mistralai/Voxtral-Mini-3B-2507`, or `name@revision`, into a local directory. The cache is laid out
//! as Python's `huggingface_hub` lays it out (`models--org--name/{blobs,refs,snapshots}`), so what one has fetched the
//! other finds. Only the files that a checkpoint needs are fetched, and of two copies of the weights only one.
//!
//! A download that breaks off is continued where it stopped, at once or in the next run; weights are compared with the
//! hub's SHA-256 before they take their place. "Too many requests" is answered by waiting as long as the server asks.
//! With [`HubOptions::offline`], or where the hub cannot be reached, the cache alone decides.
//!
//! The HTTP is done here with `ureq` and not by the `hf-hub` crate: its blocking interface (0.5) appends to a
//! half-finished file even if the server sends it from the start, checks neither size nor hash, retries what was
//! denied but does not wait when told to, and knows no offline mode; 1.0 brings an asynchronous runtime
//! for what is one file after another.

mod cache;
mod download;
mod error;
mod http;
mod name;
mod options;
mod select;

use std::path::{Path, PathBuf};

pub use error::HubError;
pub use options::{HubOptions, RetryPolicy};

use cache::Repo;
use http::Client;
use name::ModelName;

/// Is told, during a download, the file at hand and the bytes that are there and that are needed, of all files together.
pub type Progress<'a> = dyn FnMut(&str, u64, u64) + 'a;

/// Finds the local directory of `model`, fetching what is not in the cache.
///
/// `model` is a name on the hub, `org/name` or `org/name@revision`, where the revision is a branch (`main` by default),
/// a tag or a commit.
pub fn resolve(model: &str, options: &HubOptions, progress: &mut Progress) -> Result<PathBuf, HubError> {
    let name = ModelName::parse(model)?;
    let repo = Repo::new(&options.cache_dir, &name);
    let cached = repo.snapshot(&name.revision);
    let complete = cached.as_deref().filter(|dir| select::is_complete(dir)).map(PathBuf::from);
    if options.offline {
        return complete.ok_or_else(|| HubError::Offline {
            model: model.to_owned(),
            cache: options.cache_dir.clone(),
            partial: cached.is_some(),
        });
    }
    if let Some(dir) = complete.as_ref().filter(|_| name.is_commit()) {
        return Ok(dir.clone());
    }

    let client = Client::new(options)?;
    // With the model at hand, an unreachable hub is no reason to wait.
    let attempts = if complete.is_some() { 1 } else { options.retry.attempts };
    let listing = match client.listing(&name, attempts) {
        Err(error) if error.is_outage() => return complete.ok_or(error),
        listing => listing?,
    };
    let dir = repo.snapshot_of(&listing.commit);
    if !select::is_complete(&dir) {
        let files = listing.needed(model)?;
        download::fetch(&client, &repo, &listing.commit, &files, progress)?;
    }
    // Last, so that a revision never points to a snapshot that is not whole while an older one is.
    repo.set_revision(&name.revision, &listing.commit)?;
    Ok(dir)
}

/// Fetches one file from any address to `path`, with what `options` says of proxy, certificates and patience, but without the
/// hub's token. What an earlier run left in `path` with `.incomplete` added is continued if there is a checksum to prove
/// that it belongs to the file.
///
/// # Errors
/// Any [`HubError`] of a download; [`HubError::Connection`] where `options.offline` is set.
pub fn fetch_url(
    url: &str,
    path: &Path,
    sha256: Option<&str>,
    options: &HubOptions,
    progress: &mut Progress,
) -> Result<(), HubError> {
    if options.offline {
        let reason = "HF_HUB_OFFLINE is set".to_owned();
        return Err(HubError::Connection { url: url.to_owned(), reason });
    }
    let options = HubOptions { token: None, token_file: None, ..options.clone() };
    download::fetch_one(&Client::new(&options)?, url, path, sha256, progress)
}
