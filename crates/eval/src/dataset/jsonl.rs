//! Lines of JSON, also compressed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use serde::de::DeserializeOwned;

use super::DatasetError;

/// No line of a manifest is longer; an hour of text is some 60 kB.
const MAX_LINE: u64 = 64 << 20;

/// Calls `each` with every row and its line number, from 1. Empty lines, a byte order mark and carriage returns are
/// skipped.
pub(super) fn each<T: DeserializeOwned>(
    path: &Path,
    expected: &str,
    mut each: impl FnMut(usize, T) -> Result<(), DatasetError>,
) -> Result<(), DatasetError> {
    let file = File::open(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            DatasetError::NotFound { path: path.to_owned(), expected: expected.to_owned() }
        }
        _ => DatasetError::Io { path: path.to_owned(), source },
    })?;
    let mut file = BufReader::new(file);
    let start = file.fill_buf().map_err(DatasetError::io(path))?;
    let mut reader: Box<dyn BufRead> = match start {
        [] => return Err(DatasetError::EmptyFile { place: path.display().to_string() }),
        [0x1f, 0x8b, ..] => Box::new(BufReader::new(MultiGzDecoder::new(file))),
        _ => Box::new(file),
    };
    let (mut line, mut number) = (Vec::new(), 0);
    loop {
        line.clear();
        number += 1;
        let read =
            (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line).map_err(|source| {
                match source.kind() {
                    io::ErrorKind::UnexpectedEof => DatasetError::Truncated {
                        path: path.to_owned(),
                        detail: format!("in line {number} ({source})"),
                    },
                    _ => DatasetError::Io { path: path.to_owned(), source },
                }
            })?;
        if read == 0 {
            return Ok(());
        }
        if read as u64 == MAX_LINE {
            return Err(DatasetError::line(path, number, "is too long for a manifest's"));
        }
        let mut text = std::str::from_utf8(&line)
            .map_err(|error| DatasetError::line(path, number, format!("is not UTF-8 ({error})")))?;
        if number == 1 {
            text = text.strip_prefix('\u{feff}').unwrap_or(text);
        }
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        let row = serde_json::from_str(text).map_err(|error| {
            let hint = if error.is_eof() { "; the line is cut off" } else { "" };
            DatasetError::line(path, number, format!("{error}{hint}; expected {expected}"))
        })?;
        each(number, row)?;
    }
}
