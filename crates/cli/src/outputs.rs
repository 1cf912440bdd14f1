//! Results: on standard output, or in files that are whole or not there.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use wnw_engine::{Timing, Transcript};

use crate::error::{CliError, MAX_NAME};

/// A transcript as JSON, with the recording's name and, on request, the times taken.
#[derive(Serialize)]
pub struct JsonTranscript<'a> {
    /// The recording.
    pub file: &'a str,
    #[serde(flatten)]
    pub transcript: &'a Transcript,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timing: Option<Timing>,
}

/// A recording that failed, in place of its transcript in a JSON array.
#[derive(Serialize)]
pub struct JsonFailure<'a> {
    /// The recording.
    pub file: &'a str,
    /// Why.
    pub error: String,
}

/// Writes `contents` to `path`: to a temporary file beside it first, which is then renamed. A link is followed; what is
/// there and no file, such as a pipe or /dev/stdout, is written to as it is.
pub fn write_whole(path: &Path, contents: &str) -> Result<(), CliError> {
    write_bytes(path, contents.as_bytes())
}

/// [`write_whole`] for what is no text.
pub fn write_bytes(path: &Path, contents: &[u8]) -> Result<(), CliError> {
    let write = || -> io::Result<()> {
        let there = std::fs::metadata(path).ok();
        if there.as_ref().is_some_and(|m| !m.is_file() && !m.is_dir()) {
            return std::fs::OpenOptions::new().write(true).open(path)?.write_all(contents);
        }
        let linked = there.and_then(|_| std::fs::canonicalize(path).ok());
        let path = linked.as_deref().unwrap_or(path);
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent)?;
        let mut builder = tempfile::Builder::new();
        // Temporary files are private by default; a result gets the permissions that any new file would.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut file = builder.prefix(".wnw-").suffix(".tmp").tempfile_in(parent)?;
        file.write_all(contents)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|e| e.error)?;
        Ok(())
    };
    write().map_err(|source| CliError::Write { path: path.into(), source })
}

/// Makes a directory for results and checks that files can be written there.
pub fn prepare_directory(dir: &Path) -> Result<(), CliError> {
    std::fs::create_dir_all(dir)
        .and_then(|()| tempfile::Builder::new().prefix(".wnw-").tempfile_in(dir))
        .map(drop)
        .map_err(|source| CliError::Write { path: dir.into(), source })
}

/// Refuses a result's path that no file can have. (Temporary files have short names of their own.)
pub fn check_name(path: &Path) -> Result<(), CliError> {
    let too_long = path.components().any(|part| part.as_os_str().len() > MAX_NAME)
        // Some file systems take less, and paths have a limit, too.
        || path.symlink_metadata().is_err_and(|e| e.kind() == io::ErrorKind::InvalidFilename);
    if too_long { Err(CliError::NameTooLong { path: path.into() }) } else { Ok(()) }
}

/// Writes a line to standard error; when nobody reads it any more, there is nobody to tell. Names and contents of files that
/// are quoted in it do not reach the terminal as commands.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{}", harmless(line));
}

/// The text with control characters other than line ends and tabs replaced.
fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c }).collect()
}

/// Writes text to standard output and passes it on at once.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(harmless("a\tb\u{1b}[2J\r\u{7}é\nc"), "a\tb\u{fffd}[2J\u{fffd}\u{fffd}é\nc");
    }
}
