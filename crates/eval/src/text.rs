//! White space and words as Python sees them.
//!
//! The reference implementations are written in Python, whose notions differ a little from Unicode's properties: four
//! control characters count as white space, and a word character is a letter or a number of any kind, not a mark.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// A regular-expression class of the same characters as [`is_space`].
pub(crate) const SPACE: &str = r"[\s\x1c-\x1f]";

/// Whether Python's `str.isspace` (and `\s`) holds.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Whether Python's `\w` holds.
pub(crate) fn is_word(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || c == '_';
    }
    matches!(c.general_category_group(), GeneralCategoryGroup::Letter | GeneralCategoryGroup::Number)
}

/// Python's `str.strip()`.
pub(crate) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Python's `str.split()`: what lies between runs of white space, none of it empty.
pub(crate) fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|w| !w.is_empty())
}

/// Every run of white space as one space, those at the ends too.
pub(crate) fn collapse_spaces(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_run = false;
    for c in text.chars() {
        let space = is_space(c);
        if !space {
            out.push(c);
        } else if !in_run {
            out.push(' ');
        }
        in_run = space;
    }
    out
}

/// Whether a word ends at byte `at` of `text`, or none goes through it: the following character is no word character.
pub(crate) fn no_word_from(text: &str, at: usize) -> bool {
    !text[at..].chars().next().is_some_and(is_word)
}

/// Whether the character before byte `at` of `text` is no word character.
pub(crate) fn no_word_before(text: &str, at: usize) -> bool {
    !text[..at].chars().next_back().is_some_and(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_white_space() {
        assert_eq!(split("\u{1c}a\u{a0}b\u{3000}\n").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(strip("\u{1f} a b\u{85}"), "a b");
        assert_eq!(collapse_spaces(" \ta\n\nb "), " a b ");
        assert_eq!(collapse_spaces("a\u{200b}b"), "a\u{200b}b", "a zero-width space is none");
    }

    #[test]
    fn python_words() {
        for c in ['a', 'é', '_', '7', '²', '½', '語', 'ー'] {
            assert!(is_word(c), "{c}");
        }
        for c in ['\u{301}', '-', '\'', '€', '\u{200d}', ' '] {
            assert!(!is_word(c), "{c:?}");
        }
    }
}
