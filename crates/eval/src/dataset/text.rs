//! References as text files hold them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::DatasetError;

/// A reference is some kilobytes; a larger "text" is something else.
pub(super) const MAX_TEXT: u64 = 64 << 20;

/// The contents as text, without a byte order mark. `place` is for messages.
pub(super) fn decode(bytes: Vec<u8>, place: &str) -> Result<String, DatasetError> {
    let text = String::from_utf8(bytes).map_err(|error| DatasetError::NotUtf8 {
        place: place.to_owned(),
        at: error.utf8_error().valid_up_to(),
    })?;
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    })
}

pub(super) fn read(path: &Path) -> Result<String, DatasetError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(DatasetError::io(path))?;
    file.take(MAX_TEXT + 1).read_to_end(&mut bytes).map_err(DatasetError::io(path))?;
    if bytes.len() as u64 > MAX_TEXT {
        return Err(DatasetError::malformed(path, format!("larger than a text can be ({MAX_TEXT} bytes)")));
    }
    decode(bytes, &path.display().to_string())
}

/// The text on one line: line ends of any kind become one space.
pub(super) fn flatten(text: &str) -> String {
    let lines = text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_line_ends_and_encodings() {
        assert_eq!(decode(b"\xef\xbb\xbfa b\r\n".to_vec(), "x").unwrap(), "a b\r\n");
        assert_eq!(flatten("\r\n a  b \r\nc\n\n\rd"), "a  b c d");
        assert_eq!(flatten("\n"), "");
        assert!(matches!(decode(b"abc\xe9".to_vec(), "x"), Err(DatasetError::NotUtf8 { at: 3, .. })));
    }
}
