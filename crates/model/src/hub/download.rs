//! Fetching files into the cache.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};

use super::cache::{Repo, create_parent};
use super::http::{Client, Failure, RemoteFile};
use super::{HubError, Progress};

/// A download that has come this far since its last failure is getting on.
const GETTING_ON: u64 = 1 << 20;
const BUFFER: usize = 256 << 10;

/// Makes the snapshot of a commit hold these files.
pub(super) fn fetch(
    client: &Client,
    repo: &Repo,
    commit: &str,
    files: &[RemoteFile],
    progress: &mut Progress,
) -> Result<(), HubError> {
    let mut total: u64 = files.iter().filter_map(|file| file.size).sum();
    let mut done = 0;
    for file in files {
        let path = repo.snapshot_of(commit).join(&file.name);
        if !is_whole(&path, file.size) {
            // Held until the file is in its place.
            let _lock = repo.lock(&file.blob, client.timeout.saturating_mul(4))?;
            let blob = repo.blob(&file.blob);
            if !is_whole(&blob, file.size) {
                let mut transfer = Transfer {
                    client,
                    repo: &repo.name,
                    url: client.file_url(&repo.name, commit, &file.name),
                    name: &file.name,
                    sha256: file.sha256.as_deref(),
                    incomplete: repo.incomplete(&file.blob),
                    size: file.size,
                    progress: &mut |bytes, size| {
                        let unknown = if file.size.is_none() { size.unwrap_or(bytes) } else { 0 };
                        progress(&file.name, done + bytes, total + unknown);
                    },
                };
                transfer.run(&blob)?;
            }
            repo.link(commit, &file.name, &file.blob)?;
        }
        let size = fs::metadata(&path).map_or(0, |m| m.len());
        done += size;
        total += if file.size.is_none() { size } else { 0 };
        progress(&file.name, done, total);
    }
    Ok(())
}

/// Makes `path` hold what is at `url`.
pub(super) fn fetch_one(
    client: &Client,
    url: &str,
    path: &Path,
    sha256: Option<&str>,
    progress: &mut Progress,
) -> Result<(), HubError> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut transfer = Transfer {
        client,
        repo: url,
        url: url.to_owned(),
        name: &name,
        sha256,
        incomplete: path.with_file_name(format!("{name}.incomplete")),
        size: None,
        progress: &mut |bytes, size| progress(&name, bytes, size.unwrap_or(bytes)),
    };
    transfer.run(path)
}

fn is_whole(path: &Path, size: Option<u64>) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && size.is_none_or(|size| size == m.len()))
}

/// One file on its way.
struct Transfer<'a> {
    client: &'a Client,
    /// The model, or the address of a file that is of none.
    repo: &'a str,
    url: String,
    name: &'a str,
    sha256: Option<&'a str>,
    /// Where the contents are until they are whole.
    incomplete: PathBuf,
    size: Option<u64>,
    progress: &'a mut dyn FnMut(u64, Option<u64>),
}

/// The part of a file that is there, and the hash of it.
struct Part<'a> {
    path: &'a Path,
    file: File,
    length: u64,
    hash: Context,
}

impl Part<'_> {
    /// Opens what an earlier run may have left.
    fn open(path: &Path) -> io::Result<Part<'_>> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut hash = Context::new(&SHA256);
        let mut buffer = vec![0; BUFFER];
        let mut length = 0;
        loop {
            let n = file.read(&mut buffer)?;
            if n == 0 {
                return Ok(Part { path, file, length, hash });
            }
            hash.update(&buffer[..n]);
            length += n as u64;
        }
    }

    fn append(&mut self, bytes: &[u8], size: Option<u64>) -> Result<(), HubError> {
        self.file.write_all(bytes).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                let needed = size.unwrap_or(0).saturating_sub(self.length);
                HubError::DiskFull { path: self.path.to_owned(), needed }
            }
            _ => HubError::Io { path: self.path.to_owned(), source },
        })?;
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn clear(&mut self) -> Result<(), HubError> {
        let cleared = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        cleared.map_err(HubError::io(self.path))?;
        (self.length, self.hash) = (0, Context::new(&SHA256));
        Ok(())
    }

    fn sha256(&self) -> String {
        self.hash.clone().finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Transfer<'_> {
    fn run(&mut self, blob: &Path) -> Result<(), HubError> {
        let path = self.incomplete.clone();
        create_parent(&path)?;
        let mut part = Part::open(&path).map_err(HubError::io(&path))?;
        // Without size and checksum there is no telling whether what is there belongs to this file.
        if self.size.map_or(self.sha256.is_none(), |size| part.length > size) {
            part.clear()?;
        }
        let mut continued = part.length > 0;
        loop {
            self.complete(&mut part)?;
            let found = part.sha256();
            match self.sha256 {
                Some(expected) if expected != found => {
                    part.clear()?;
                    // What was there before may have been to blame: once more, from the start.
                    if !std::mem::take(&mut continued) {
                        fs::remove_file(&path).map_err(HubError::io(&path))?;
                        let (file, expected) = (self.name.to_owned(), expected.to_owned());
                        return Err(HubError::Damaged { file, expected, found });
                    }
                }
                _ => break,
            }
        }
        part.file.sync_all().map_err(HubError::io(&path))?;
        match fs::rename(&path, blob) {
            // Where locks do nothing (some network file systems), another process may have been faster.
            Err(_) if is_whole(blob, self.size) => Ok(()),
            moved => moved.map_err(HubError::io(blob)),
        }
    }

    /// Fetches what is missing, with as many requests as it takes.
    fn complete(&mut self, part: &mut Part) -> Result<(), HubError> {
        let mut patience = self.client.patience();
        let mut at_last_failure = part.length;
        while self.size != Some(part.length) {
            let Err(failure) = self.attempt(part) else { return Ok(()) };
            if part.length >= at_last_failure + GETTING_ON {
                patience.reset();
            }
            at_last_failure = part.length;
            patience.wait(failure)?;
        }
        Ok(())
    }

    /// One request; it may bring only some of the rest.
    fn attempt(&mut self, part: &mut Part) -> Result<(), Failure> {
        let opened = self.client.open(self.repo, &self.url, part.length);
        let mut opened = match opened {
            Err(Failure { error: HubError::Status { status: 416, url }, .. }) => {
                // What is there cannot be the beginning of this file.
                part.clear()?;
                return Err(Failure::passing(HubError::Status { status: 416, url }));
            }
            opened => opened?,
        };
        if opened.start != part.length {
            part.clear()?;
        }
        let size = self.size.or(opened.total);
        let broken_off = |done, reason| {
            Failure::passing(HubError::BrokenOff {
                file: self.name.to_owned(),
                done,
                total: size.unwrap_or(done),
                reason,
            })
        };
        let mut buffer = vec![0; BUFFER];
        loop {
            match opened.reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => part.append(&buffer[..n], size)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(broken_off(part.length, e.to_string())),
            }
            if size.is_some_and(|size| part.length > size) {
                let got = part.length;
                part.clear()?;
                return Err(broken_off(got, "more bytes than the file has".into()));
            }
            (self.progress)(part.length, size);
        }
        match size {
            Some(size) if part.length < size => Err(broken_off(part.length, "connection closed".into())),
            _ => Ok(()),
        }
    }
}
