//! Files of a model directory: what is wrong with one that cannot be read, in words that help.

use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// How the text begins that Git leaves in place of a large file.
const LFS_POINTER: &[u8] = b"version https://git-lfs";
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads a file that is one: pipes and devices would block or never end. A byte order mark is left out.
pub(crate) fn read_regular(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let metadata = std::fs::metadata(path).map_err(|e| explain(path, e))?;
    if !metadata.is_file() || metadata.len() > limit {
        let reason = if metadata.is_file() { "larger than any such file" } else { "not a regular file" };
        return Err(Error::other(reason));
    }
    let mut bytes = std::fs::read(path)?;
    check_lfs(&bytes)?;
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(bytes)
}

/// Whether there is something of this name, be it a link that points nowhere: that is better reported than passed over.
pub(crate) fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// The reason why a file cannot be opened; of a link that points nowhere the system says only that there is no such file.
pub(crate) fn explain(path: &Path, error: Error) -> Error {
    match std::fs::read_link(path) {
        Ok(target) if error.kind() == ErrorKind::NotFound => Error::other(format!(
            "a symbolic link to {}, where nothing is; fetch the file again, or make the link anew",
            target.display()
        )),
        _ => error,
    }
}

/// Refuses what Git leaves where the large file was not fetched.
pub(crate) fn check_lfs(bytes: &[u8]) -> Result<()> {
    if !bytes.starts_with(LFS_POINTER) {
        return Ok(());
    }
    Err(Error::other("a Git LFS pointer in place of the file; run 'git lfs pull' in its directory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_and_links_are_explained_and_marks_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let read = || read_regular(&path, 100).map_err(|e| e.to_string());
        std::fs::write(&path, b"\xef\xbb\xbf{}").unwrap();
        assert_eq!(read().unwrap(), b"{}");
        std::fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\n").unwrap();
        assert!(read().unwrap_err().contains("run 'git lfs pull'"));
        std::fs::write(&path, [b' '; 101]).unwrap();
        assert!(read().unwrap_err().contains("larger"));
        std::fs::remove_file(&path).unwrap();
        assert!(!is_there(&path));
        assert!(read().unwrap_err().contains("No such file"));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("../blobs/0123", &path).unwrap();
            assert!(is_there(&path));
            assert!(read().unwrap_err().starts_with("a symbolic link to ../blobs/0123, where nothing is"));
        }
    }
}
