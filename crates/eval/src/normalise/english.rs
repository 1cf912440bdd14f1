//! Whisper's normaliser of English.

use std::sync::LazyLock;

use regex::Regex;

use super::contractions::{remove_fillers, write_out};
use super::numbers::write_numbers;
use super::spelling::american;
use super::symbols::{remove_asides, remove_symbols_and_diacritics};
use crate::text::{SPACE, collapse_spaces, split};

/// Symbols that may belong to a number; they outlive the other punctuation until the numbers are known.
const NUMERIC: &str = ".%$¢€£";

struct Patterns {
    before_apostrophe: Regex,
    digit_comma: Regex,
    full_stop: Regex,
    loose_prefix: Regex,
    loose_percent: Regex,
}

static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| {
    let regex = |pattern: &str| Regex::new(pattern).expect("the pattern is constant");
    Patterns {
        before_apostrophe: regex(&format!("{SPACE}+'")),
        digit_comma: regex(r"(\d),(\d)"),
        full_stop: regex(r"\.([^0-9]|$)"),
        loose_prefix: regex(r"[.$¢€£]([^0-9])"),
        loose_percent: regex(r"([^0-9])%"),
    }
});

/// See [`super::Normaliser::WhisperEn`].
pub(super) fn normalise(text: &str) -> String {
    let p = &*PATTERNS;
    let text = remove_fillers(&remove_asides(&text.to_lowercase()));
    let text = write_out(p.before_apostrophe.replace_all(&text, "'").into_owned());
    let text = p.digit_comma.replace_all(&text, "${1}${2}");
    let text = p.full_stop.replace_all(&text, " ${1}");
    let text = write_numbers(&remove_symbols_and_diacritics(&text, NUMERIC));
    let text = split(&text).map(american).collect::<Vec<_>>().join(" ");
    let text = p.loose_prefix.replace_all(&text, " ${1}");
    collapse_spaces(&p.loose_percent.replace_all(&text, "${1} "))
}
