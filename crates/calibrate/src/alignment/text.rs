//! Bytes to text: UTF-8, or UTF-16 with a byte-order mark as Praat writes it.

use std::borrow::Cow;

use super::{AlignmentProblem, Located};

/// Decodes a file's bytes; the byte-order mark is left out.
pub(super) fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, Located> {
    match bytes {
        [0xFF, 0xFE, rest @ ..] => utf16(rest, u16::from_le_bytes).map(Cow::Owned),
        [0xFE, 0xFF, rest @ ..] => utf16(rest, u16::from_be_bytes).map(Cow::Owned),
        _ => {
            let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
            std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|e| {
                let line = 1 + bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count();
                (Some(line), AlignmentProblem::Encoding("UTF-8"))
            })
        }
    }
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, Located> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let mut text = String::with_capacity(bytes.len() / 2);
    let bad = |text: &str| (Some(1 + text.matches('\n').count()), AlignmentProblem::Encoding("UTF-16"));
    for c in char::decode_utf16(pairs.iter().map(|p| unit(*p))) {
        text.push(c.map_err(|_| bad(&text))?);
    }
    if rest.is_empty() { Ok(text) } else { Err(bad(&text)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_and_their_damage() {
        let text = "été\n𝄞";
        let le: Vec<u8> =
            [0xFF, 0xFE].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect();
        let be: Vec<u8> =
            [0xFE, 0xFF].into_iter().chain(text.encode_utf16().flat_map(u16::to_be_bytes)).collect();
        let marked: Vec<u8> = b"\xEF\xBB\xBF".iter().copied().chain(text.bytes()).collect();
        for bytes in [&le[..], &be, &marked, text.as_bytes()] {
            assert_eq!(decode(bytes).unwrap(), text);
        }
        // Half a surrogate pair; half a unit; Latin-1.
        assert_eq!(decode(&le[..le.len() - 2]).unwrap_err().0, Some(2));
        assert_eq!(decode(&le[..le.len() - 1]).unwrap_err().0, Some(2));
        assert_eq!(decode(b"a\nb\n\xE9").unwrap_err().0, Some(3));
    }
}
