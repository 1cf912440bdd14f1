//! Asides, marks, symbols and punctuation out of a text, as both of Whisper's normalisers take them out.

use std::sync::LazyLock;

use regex::Regex;
use unicode_normalization::UnicodeNormalization;
use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};

static BRACKETS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[<\[][^>\]]*[>\]]").expect("the pattern is constant"));
static PARENTHESES: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\([^)]+\)").expect("the pattern is constant"));

/// Without what stands in brackets of any kind.
pub(super) fn remove_asides(text: &str) -> String {
    PARENTHESES.replace_all(&BRACKETS.replace_all(text, ""), "").into_owned()
}

/// Every symbol and punctuation character as a space, in normal form KC; marks too unless `keep_marks`.
pub(super) fn remove_symbols(text: &str, keep_marks: bool) -> String {
    let blank = |c: char| match c.general_category_group() {
        GeneralCategoryGroup::Symbol | GeneralCategoryGroup::Punctuation => true,
        GeneralCategoryGroup::Mark => !keep_marks,
        _ => false,
    };
    text.nfkc().map(|c| if blank(c) { ' ' } else { c }).collect()
}

/// Without diacritics, in normal form KD, and with every other mark, symbol and punctuation character as a space unless
/// it is in `keep`.
pub(super) fn remove_symbols_and_diacritics(text: &str, keep: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.nfkd() {
        if keep.contains(c) {
            out.push(c);
        } else if let Some(plain) = undecomposed(c) {
            out.push_str(plain);
        } else if c.general_category() != GeneralCategory::NonspacingMark {
            let blank = matches!(
                c.general_category_group(),
                GeneralCategoryGroup::Mark | GeneralCategoryGroup::Symbol | GeneralCategoryGroup::Punctuation
            );
            out.push(if blank { ' ' } else { c });
        }
    }
    out
}

/// Letters that normal form KD does not take apart.
fn undecomposed(c: char) -> Option<&'static str> {
    Some(match c {
        'œ' => "oe",
        'Œ' => "OE",
        'ø' => "o",
        'Ø' => "O",
        'æ' => "ae",
        'Æ' => "AE",
        'ß' => "ss",
        'ẞ' => "SS",
        'đ' | 'ð' => "d",
        'Đ' | 'Ð' => "D",
        'þ' | 'Þ' => "th",
        'ł' => "l",
        'Ł' => "L",
        _ => return None,
    })
}
