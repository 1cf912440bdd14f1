//! The cache on disk, in the layout of `huggingface_hub`:
//!
//! ```text
//! models--org--name/refs/main                     the commit that a revision was at
//! models--org--name/snapshots/COMMIT/config.json  a link to
//! models--org--name/blobs/HASH                    the contents; HASH.incomplete while they are fetched
//! .locks/models--org--name/HASH.lock              held by the process that fetches them
//! ```

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::HubError;
use super::name::{ModelName, is_commit};

/// One model's part of the cache.
pub(super) struct Repo {
    /// `org/name`.
    pub name: String,
    dir: PathBuf,
    locks: PathBuf,
}

impl Repo {
    pub fn new(cache: &Path, name: &ModelName) -> Self {
        let folder = format!("models--{}", name.repo.replace('/', "--"));
        Self { name: name.repo.clone(), dir: cache.join(&folder), locks: cache.join(".locks").join(&folder) }
    }

    /// The snapshot that a revision last stood for, whole or not.
    pub fn snapshot(&self, revision: &str) -> Option<PathBuf> {
        let commit = if is_commit(revision) {
            revision.to_owned()
        } else {
            let text = fs::read_to_string(self.dir.join("refs").join(revision)).ok()?;
            Some(text.trim().to_owned()).filter(|text| is_commit(text))?
        };
        Some(self.snapshot_of(&commit)).filter(|dir| dir.is_dir())
    }

    /// Where the files of a commit are.
    pub fn snapshot_of(&self, commit: &str) -> PathBuf {
        self.dir.join("snapshots").join(commit)
    }

    /// Notes the commit that a revision stands for.
    pub fn set_revision(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) {
            return Ok(());
        }
        let path = self.dir.join("refs").join(revision);
        if fs::read_to_string(&path).is_ok_and(|old| old.trim() == commit) {
            return Ok(());
        }
        create_parent(&path)?;
        fs::write(&path, commit).map_err(HubError::io(&path))
    }

    pub fn blob(&self, hash: &str) -> PathBuf {
        self.dir.join("blobs").join(hash)
    }

    /// Where the contents are while they are fetched; what an earlier run left there is continued.
    pub fn incomplete(&self, hash: &str) -> PathBuf {
        self.dir.join("blobs").join(format!("{hash}.incomplete"))
    }

    /// Makes `file` of a commit point to contents that are there.
    pub fn link(&self, commit: &str, file: &str, hash: &str) -> Result<(), HubError> {
        let path = self.snapshot_of(commit).join(file);
        create_parent(&path)?;
        if path.symlink_metadata().is_ok() {
            fs::remove_file(&path).map_err(HubError::io(&path))?;
        }
        let target = Path::new("../../blobs").join(hash);
        if symlink(&target, &path).is_ok() {
            return Ok(());
        }
        // A file system without links: the contents move to where they are looked for.
        fs::rename(self.blob(hash), &path).map_err(HubError::io(&path))
    }

    /// Waits for the right to fetch these contents; the lock ends with the value or the process.
    ///
    /// The wait lasts as long as the process that holds it gets on.
    pub fn lock(&self, hash: &str, patience: Duration) -> Result<File, HubError> {
        let path = self.locks.join(format!("{hash}.lock"));
        create_parent(&path)?;
        let file = File::create(&path).map_err(HubError::io(&path))?;
        let size = || fs::metadata(self.incomplete(hash)).map_or(0, |m| m.len());
        let (mut last_size, mut since) = (size(), Instant::now());
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                // Some network file systems have no locks; `huggingface_hub` goes on without one there, too.
                Err(TryLockError::Error(_)) => return Ok(file),
                Err(TryLockError::WouldBlock) => {}
            }
            if size() != last_size {
                (last_size, since) = (size(), Instant::now());
            } else if since.elapsed() > patience {
                return Err(HubError::Busy { path });
            }
            std::thread::sleep(Duration::from_millis(200).min(patience / 4));
        }
    }
}

pub(super) fn create_parent(path: &Path) -> Result<(), HubError> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(HubError::io(parent))
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}
