//! Whisper's normaliser of languages other than English.

use unicode_segmentation::UnicodeSegmentation;

use super::symbols::{remove_asides, remove_symbols, remove_symbols_and_diacritics};
use crate::text::collapse_spaces;

/// What becomes of combining marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Marks {
    /// Those that have no precomposed character become spaces, vowel signs of Indic scripts among them: Whisper's default.
    #[default]
    Space,
    /// They stay: for scripts whose vowels are marks.
    Keep,
    /// Diacritics go, and letters such as `ø` become plain ones.
    Plain,
}

/// Whisper's `BasicTextNormalizer`: lower case, nothing in brackets, symbols and punctuation as spaces, normal form KC.
/// White space becomes single spaces, those at the ends too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Basic {
    /// What becomes of combining marks.
    pub marks: Marks,
    /// Puts a space between any two characters (grapheme clusters), so that a word error rate counts characters: for
    /// languages that are written without spaces.
    pub split_letters: bool,
}

impl Basic {
    /// The normalised text.
    pub fn apply(&self, text: &str) -> String {
        let text = remove_asides(&text.to_lowercase());
        let mut text = match self.marks {
            Marks::Space => remove_symbols(&text, false),
            Marks::Keep => remove_symbols(&text, true),
            Marks::Plain => remove_symbols_and_diacritics(&text, ""),
        }
        .to_lowercase();
        if self.split_letters {
            text = text.graphemes(true).collect::<Vec<_>>().join(" ");
        }
        collapse_spaces(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options() {
        let text = "L’Été [bruit] à Łódź (rire), हिन्दी!";
        let with = |marks, split_letters| Basic { marks, split_letters }.apply(text);
        assert_eq!(with(Marks::Space, false), "l été à łódź ह न द ");
        assert_eq!(with(Marks::Keep, false), "l été à łódź हिन्दी ");
        assert_eq!(with(Marks::Plain, false), "l ete a lodz ह नद ");
        assert_eq!(Basic { marks: Marks::Keep, split_letters: true }.apply("日本 語"), "日 本 語");
    }
}
