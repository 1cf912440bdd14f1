//! Which spoken word each token of an answer belongs to, and so when it is said.
//!
//! Both the answer and the aligned words are cut into *units*: maximal runs of letters and digits, an apostrophe inside a
//! word not ending it, and every character of a script that is written without spaces standing for itself. So "okay,",
//! "twenty-one", "l'eau" and "你好" are one, two, one and two units on either side, whatever the file takes for a word.
//! Units are compared in lower case without apostrophes, and matched by an edit-distance alignment: where the texts
//! differ, the answer's unit has no time, and its neighbours keep theirs.
//!
//! A token belongs to the unit that its first letter or digit lies in; a token without any (punctuation, space, the
//! later bytes of a character) belongs to the unit before it, or to the first one if none is.

use std::collections::HashMap;
use std::ops::Range;

use wnw_model::Tokenizer;

use crate::alignment::AlignedWord;

/// When a token is said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenTime {
    /// Start of its word in seconds.
    pub start: f64,
    /// End of its word in seconds, not before `start`.
    pub end: f64,
    /// The aligner's confidence, 0 to 1; none where the format does not say.
    pub confidence: Option<f32>,
}

impl TokenTime {
    /// Whether the alignment is trusted at `threshold` (0.85 in the paper). One of unknown confidence is.
    pub fn is_confident(&self, threshold: f32) -> bool {
        self.confidence.is_none_or(|c| c >= threshold)
    }
}

/// When each token of `answer` is said; none for special tokens and where the words differ.
pub fn token_times(
    tokenizer: &dyn Tokenizer,
    answer: &[u32],
    words: &[AlignedWord],
) -> Vec<Option<TokenTime>> {
    let pieces: Vec<&[u8]> = answer.iter().map(|id| tokenizer.token_bytes(*id).unwrap_or_default()).collect();
    piece_times(&pieces, words)
}

/// [`token_times`] of tokens given as their bytes; a special token has none.
pub fn piece_times(pieces: &[&[u8]], words: &[AlignedWord]) -> Vec<Option<TokenTime>> {
    let bytes = pieces.concat();
    let answer = units(&bytes);
    let mut aligned = Vec::new();
    for word in words {
        let time = word.start.zip(word.end);
        let time = time.map(|(start, end)| TokenTime { start, end, confidence: word.confidence });
        aligned.extend(units(word.text.as_bytes()).into_iter().map(|unit| (unit.key, time)));
    }

    let mut ids = HashMap::new();
    let mut id = |key: String| {
        let next = ids.len();
        *ids.entry(key).or_insert(next)
    };
    let spans: Vec<Range<usize>> = answer.iter().map(|u| u.bytes.clone()).collect();
    let answer: Vec<usize> = answer.into_iter().map(|u| id(u.key)).collect();
    let (aligned, times): (Vec<usize>, Vec<_>) =
        aligned.into_iter().map(|(key, time)| (id(key), time)).unzip();
    let mut matched = vec![None; answer.len()];
    align(&answer, &aligned, (0, 0), &mut matched);

    let mut at = 0;
    pieces
        .iter()
        .map(|piece| {
            let token = at..at + piece.len();
            at = token.end;
            if piece.is_empty() {
                return None;
            }
            // The first unit that ends after the token's start is the one it lies in, if it begins inside the token.
            let next = spans.partition_point(|unit| unit.end <= token.start);
            let unit = match spans.get(next) {
                Some(unit) if unit.start < token.end => next,
                _ => next.saturating_sub(1),
            };
            times[(*matched.get(unit)?)?]
        })
        .collect()
}

/// A stretch of text that is compared as a whole.
struct Unit {
    /// Its bytes in the text.
    bytes: Range<usize>,
    /// Lower case, without apostrophes.
    key: String,
}

fn units(bytes: &[u8]) -> Vec<Unit> {
    let mut out: Vec<Unit> = Vec::new();
    let mut open = false;
    let mut at = 0;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let here = at..at + c.len_utf8();
            at = here.end;
            if c.is_alphanumeric() {
                let alone = is_written_without_spaces(c);
                match out.last_mut() {
                    Some(unit) if open && !alone => {
                        unit.bytes.end = here.end;
                        unit.key.extend(c.to_lowercase());
                    }
                    _ => out.push(Unit { bytes: here, key: c.to_lowercase().collect() }),
                }
                open = !alone;
            } else if !matches!(c, '\'' | '’' | 'ʼ' | '`' | '´' | '＇') {
                open = false;
            }
        }
        at += chunk.invalid().len();
        open &= chunk.invalid().is_empty();
    }
    out
}

/// Letters of Thai, Lao, Burmese, Khmer, Chinese and Japanese.
fn is_written_without_spaces(c: char) -> bool {
    matches!(u32::from(c),
        0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x3040..=0x30FF | 0x31F0..=0x31FF
        | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF | 0xFF66..=0xFF9D | 0x20000..=0x3FFFF)
}

/// A Levenshtein alignment of `a` and `b` in linear memory (Hirschberg 1975): `matched[offset.0 + i]` becomes
/// `offset.1 + j` where `a[i]` is kept as the equal `b[j]`.
fn align(mut a: &[usize], mut b: &[usize], mut offset: (usize, usize), matched: &mut [Option<usize>]) {
    while let ([x, rest_a @ ..], [y, rest_b @ ..]) = (a, b)
        && x == y
    {
        matched[offset.0] = Some(offset.1);
        (a, b, offset) = (rest_a, rest_b, (offset.0 + 1, offset.1 + 1));
    }
    while let ([rest_a @ .., x], [rest_b @ .., y]) = (a, b)
        && x == y
    {
        matched[offset.0 + rest_a.len()] = Some(offset.1 + rest_b.len());
        (a, b) = (rest_a, rest_b);
    }
    match (a, b) {
        ([], _) | (_, []) => {}
        ([x], _) => matched[offset.0] = b.iter().position(|y| x == y).map(|j| offset.1 + j),
        (_, [y]) => {
            if let Some(i) = a.iter().position(|x| x == y) {
                matched[offset.0 + i] = Some(offset.1);
            }
        }
        _ => {
            let middle = a.len() / 2;
            let before = distances(a[..middle].iter(), b.iter());
            let after = distances(a[middle..].iter().rev(), b.iter().rev());
            let split = (0..=b.len()).min_by_key(|j| before[*j] + after[b.len() - j]).unwrap_or(0);
            align(&a[..middle], &b[..split], offset, matched);
            align(&a[middle..], &b[split..], (offset.0 + middle, offset.1 + split), matched);
        }
    }
}

/// Levenshtein distances of all of `a` to every prefix of `b`, `(b.len() + 1)`.
fn distances<'a>(
    a: impl Iterator<Item = &'a usize>,
    b: impl ExactSizeIterator<Item = &'a usize> + Clone,
) -> Vec<u32> {
    let mut row: Vec<u32> = (0..=b.len() as u32).collect();
    for x in a {
        let mut diagonal = row[0];
        row[0] += 1;
        for (j, y) in b.clone().enumerate() {
            let replaced = diagonal + u32::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Words said one second after another.
    fn spoken(words: &[&str]) -> Vec<AlignedWord> {
        let word = |(i, text): (usize, &&str)| AlignedWord {
            text: (*text).to_owned(),
            start: Some(i as f64),
            end: Some(i as f64 + 0.5),
            confidence: Some(0.9),
        };
        words.iter().enumerate().map(word).collect()
    }

    /// Index of each piece's word; '·' for none.
    fn map(pieces: &[&str], words: &[&str]) -> String {
        let pieces: Vec<&[u8]> = pieces.iter().map(|p| p.as_bytes()).collect();
        let times = piece_times(&pieces, &spoken(words));
        times.iter().map(|t| t.map_or('·', |t| (b'0' + t.start as u8) as char)).collect()
    }

    #[test]
    fn tokens_belong_to_the_word_their_text_falls_in() {
        // Case, punctuation after and before, a token inside a word, one that is space, one that spans two words.
        assert_eq!(map(&["Well", ",", " \"", "Hel", "lo", "!\""], &["well,", "hello"]), "000111");
        assert_eq!(map(&["(", "a", " ", " of the", " end"], &["a", "of", "the", "end"]), "00013");
        assert_eq!(map(&["Twenty", "-", "one", "."], &["twenty-one"]), "0000");
        assert_eq!(map(&["don", "’", "t", " L", "'", "eau"], &["don't", "l’eau"]), "000111");
        assert_eq!(map(&["3", ".", "5", " %"], &["3.5"]), "0000");
        assert_eq!(map(&["你", "好吗", "。", "ok"], &["你", "好", "吗", "OK"]), "0123");
        assert_eq!(map(&["...", "—"], &["a"]), "··");
        assert_eq!(map(&["", "a", ""], &["a"]), "·0·");
        assert_eq!(map(&[], &["a"]), "");
        assert_eq!(map(&["a"], &[]), "·");
    }

    #[test]
    fn a_differing_word_has_no_time_and_spares_its_neighbours() {
        assert_eq!(map(&["one", " too", " three"], &["one", "two", "three"]), "0·2");
        assert_eq!(map(&["one", " three"], &["one", "two", "three"]), "02");
        assert_eq!(map(&["one", " and", " two", " and", " three"], &["one", "two", "three"]), "0·1·2");
        assert_eq!(map(&["x", " y"], &["a", "b", "c"]), "··");
        let mut words = spoken(&["a", "b"]);
        words[0].start = None;
        let times = piece_times(&[b"a", b" b"], &words);
        assert_eq!((times[0], times[1].map(|t| t.start)), (None, Some(1.0)));
    }

    #[test]
    fn tokens_that_split_a_character_stay_with_its_word() {
        // "né" with é in two tokens, then a stray byte.
        let times = piece_times(&[b"n", b"\xC3", b"\xA9", b" ", b"\xA9", b"b"], &spoken(&["né", "b"]));
        let starts: Vec<_> = times.iter().map(|t| t.map(|t| t.start)).collect();
        assert_eq!(starts, [Some(0.0), Some(0.0), Some(0.0), Some(0.0), Some(0.0), Some(1.0)]);
    }

    #[test]
    fn confidence_is_compared_where_there_is_one() {
        let time = |confidence| TokenTime { start: 0.0, end: 1.0, confidence };
        assert!(time(None).is_confident(0.85) && time(Some(0.85)).is_confident(0.85));
        assert!(!time(Some(0.84)).is_confident(0.85) && !time(Some(f32::NAN)).is_confident(0.85));
    }

    proptest! {
        /// The alignment is monotone, matches only equals, and has the textbook's distance.
        #[test]
        fn alignments_are_minimal(
            a in proptest::collection::vec(0usize..4, 0..24),
            b in proptest::collection::vec(0usize..4, 0..24),
        ) {
            let mut matched = vec![None; a.len()];
            align(&a, &b, (0, 0), &mut matched);
            let mut cost = 0;
            let mut last = (0, 0);
            let pairs = matched.iter().enumerate().filter_map(|(i, j)| j.map(|j| (i, j)));
            for (i, j) in pairs.chain([(a.len(), b.len())]) {
                prop_assert!(j >= last.1);
                if i < a.len() { prop_assert_eq!(a[i], b[j]); }
                cost += (i - last.0).max(j - last.1);
                last = (i + 1, j + 1);
            }
            prop_assert_eq!(cost as u32, distances(a.iter(), b.iter())[b.len()]);
        }

        #[test]
        fn any_bytes_are_mapped(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..6), 0..20),
            words in proptest::collection::vec(".{1,6}", 0..6),
        ) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            prop_assert_eq!(piece_times(&pieces, &spoken(&words)).len(), pieces.len());
        }
    }
}
