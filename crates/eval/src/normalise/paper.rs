//! The paper's light normalisation.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use crate::text::split;

/// See [`super::Normaliser::Paper`].
pub(super) fn normalise(text: &str) -> String {
    let kept: String = text
        .to_lowercase()
        .chars()
        .map(|c| if c == '\u{2019}' { '\'' } else { c })
        .filter(|c| matches!(c, '\'' | '.') || !is_punctuation(*c))
        .collect();
    split(&kept).collect::<Vec<_>>().join(" ")
}

fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation() || c.general_category_group() == GeneralCategoryGroup::Punctuation
}

#[cfg(test)]
mod tests {
    use super::normalise;

    #[test]
    fn apostrophe_and_full_stop_stay() {
        assert_eq!(normalise("  “Don’t,” said Mr. X — re-run: $5.20!\n"), "don't said mr. x rerun 5.20");
        assert_eq!(normalise("L’ÉTÉ… «oui» ¿qué? €3"), "l'été oui qué €3");
        assert_eq!(normalise("– !"), "");
    }
}
