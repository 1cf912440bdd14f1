//! What writing systems ask of words and lines: where words end without spaces, what punctuation belongs to.

/// A letter of a script that writes no spaces between words: Chinese, Japanese, Thai, Lao, Khmer, Burmese.
pub fn is_unspaced(c: char) -> bool {
    matches!(c as u32,
        0x0E01..=0x0E4E | 0x0E81..=0x0ECE | 0x1000..=0x109F | 0x1780..=0x17D3 | 0x3005..=0x3007 | 0x3031..=0x3035
        | 0x3041..=0x309F | 0x30A1..=0x30FA | 0x30FC..=0x30FF | 0x31F0..=0x31FF | 0x3400..=0x4DBF | 0x4E00..=0x9FFF
        | 0xF900..=0xFAFF | 0xFF66..=0xFF9F | 0x20000..=0x3FFFD)
}

/// A character that takes two columns: East Asian wide and full-width forms, emoji.
pub fn is_wide(c: char) -> bool {
    matches!(c as u32,
        0x1100..=0x115F | 0x2E80..=0x303E | 0x3041..=0x33FF | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xA960..=0xA97F
        | 0xAC00..=0xD7A3 | 0xF900..=0xFAFF | 0xFE30..=0xFE6F | 0xFF01..=0xFF60 | 0xFFE0..=0xFFE6
        | 0x1F300..=0x1F64F | 0x1F900..=0x1F9FF | 0x20000..=0x3FFFD)
}

/// Columns that a text takes: wide characters count two.
pub fn columns(text: &str) -> usize {
    text.chars().map(|c| if is_wide(c) { 2 } else { 1 }).sum()
}

/// A character that cannot begin a word of its own in a script without spaces: what is no letter or digit, and vowel
/// signs, tone marks, small kana and the like, which belong to the letter before them.
pub(super) fn follows(c: char) -> bool {
    let attached = matches!(c as u32,
        0x0E30..=0x0E3A | 0x0E45 | 0x0E47..=0x0E4E | 0x0EB0..=0x0EBC | 0x0EC8..=0x0ECE | 0x102B..=0x103E
        | 0x1056..=0x1059 | 0x105E..=0x1060 | 0x1062..=0x1064 | 0x1067..=0x106D | 0x1071..=0x1074 | 0x1082..=0x108D
        | 0x17B4..=0x17D3 | 0x3005 | 0x3099..=0x309E | 0x30FC..=0x30FE | 0xFF70 | 0xFF9E | 0xFF9F)
        || "ぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶ".contains(c);
    attached || !(c.is_alphanumeric() || opens(c))
}

/// A vowel that is written before the consonant it belongs to (Thai, Lao).
pub(super) fn precedes(c: char) -> bool {
    matches!(c as u32, 0x0E40..=0x0E44 | 0x0EC0..=0x0EC4)
}

/// Punctuation that belongs to what comes after it: opening brackets and quotes, and the dash before a speech.
pub(super) fn opens(c: char) -> bool {
    "([{«‹“„‘‚¿¡-–—―•「『（【〈《〔［｛".contains(c)
}

/// Punctuation. Signs that are read aloud, as in `Rock & Roll` or `50 %`, are none.
pub(super) fn is_punctuation(c: char) -> bool {
    opens(c) || ".,;:!?'\")]}_…·»›”’、。，．！？：；」』）】〉》〕］｝・।॥،؛؟‐‑".contains(c)
}

/// Closing quotes and brackets, which may stand after the mark that ends a sentence.
fn closes(c: char) -> bool {
    "\"')]}»›”’」』）】〉》〕］｝".contains(c)
}

/// How a word ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// In a mark that ends a sentence.
    Sentence,
    /// In a full stop, which also ends abbreviations.
    FullStop,
    /// In a comma or the like.
    Clause,
    /// In none.
    Open,
}

/// The mark at a word's end, closing quotes aside.
pub(super) fn ending(word: &str) -> Ending {
    match word.trim_end_matches(|c: char| closes(c) || c.is_whitespace()).chars().next_back() {
        Some('.') => Ending::FullStop,
        Some(c) if "!?…。．！？।॥؟".contains(c) => Ending::Sentence,
        Some(c) if ",;:、，：；،؛–—".contains(c) => Ending::Clause,
        _ => Ending::Open,
    }
}
