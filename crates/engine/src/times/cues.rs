//! Words to cues: a sentence, or a piece of one that can be read at once.

use super::script::{Ending, columns, ending};
use super::{Cue, Word};

/// What a cue may hold at most, and what ends it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CueLimits {
    /// Longest cue in seconds, unless a single word lasts longer.
    pub seconds: f64,
    /// Most columns of text (two lines of 42), unless a single word has more. Wide characters count two.
    pub columns: usize,
    /// A pause between two words of at least this many seconds ends a cue.
    pub pause: f64,
}

impl Default for CueLimits {
    fn default() -> Self {
        Self { seconds: 7.0, columns: 84, pause: 1.0 }
    }
}

/// Cues of at most 7 s and 84 columns, for [`Word`]s of a whole recording. Their texts together are the words' texts.
pub fn segments(words: &[Word]) -> Vec<Cue> {
    segments_within(words, &CueLimits::default())
}

/// Cues within other limits.
pub fn segments_within(words: &[Word], limits: &CueLimits) -> Vec<Cue> {
    let mut cues = Vec::new();
    let mut rest = words;
    while !rest.is_empty() {
        let n = (1..rest.len()).find(|&i| ends(&rest[i - 1], &rest[i], limits)).unwrap_or(rest.len());
        let (sentence, after) = rest.split_at(n);
        // Halves of halves, left one first; a stack, since the words come from outside.
        let mut stack = vec![sentence];
        while let Some(part) = stack.pop() {
            if part.len() > 1 && !fits(part, limits) {
                let (left, right) = part.split_at(best_break(part));
                stack.extend([right, left]);
            } else {
                cues.extend(cue(part));
            }
        }
        rest = after;
    }
    cues
}

/// A sentence ends between these words, or a long pause lies there.
fn ends(word: &Word, next: &Word, limits: &CueLimits) -> bool {
    if next.start - word.end >= limits.pause {
        return true;
    }
    match ending(&word.word) {
        Ending::Sentence => true,
        // `e.g. this` goes on, as does `3.` in `3.5` if a token ends there.
        Ending::FullStop => {
            next.spaced && !next.word.chars().find(|c| c.is_alphanumeric()).is_some_and(char::is_lowercase)
        }
        Ending::Clause | Ending::Open => false,
    }
}

fn fits(words: &[Word], limits: &CueLimits) -> bool {
    let (Some(first), Some(last)) = (words.first(), words.last()) else { return true };
    last.end - first.start <= limits.seconds && columns(&text(words)) <= limits.columns
}

/// Where a sentence that is too long is best cut: after a comma, at a pause, near the middle. Between the outer
/// quarters, so that the number of cuts grows with the logarithm of the length.
fn best_break(words: &[Word]) -> usize {
    let n = words.len();
    let quarter = n / 4;
    let cost = |i: usize| {
        let (word, next) = (&words[i - 1], &words[i]);
        let off_centre = (2.0 * i as f64 / n as f64 - 1.0).abs();
        let mark = if ending(&word.word) == Ending::Open { 0.0 } else { 1.0 };
        let pause = (next.start - word.end).clamp(0.0, 1.0);
        off_centre - mark - 1.5 * pause
    };
    (quarter.max(1)..=(n - quarter).min(n - 1)).min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(1)
}

fn text(words: &[Word]) -> String {
    let mut text = String::new();
    for word in words {
        if word.spaced && !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&word.word);
    }
    text
}

fn cue(words: &[Word]) -> Option<Cue> {
    let (first, last) = (words.first()?, words.last()?);
    let text = text(words).trim().to_owned();
    let confidence = words.iter().map(|w| w.confidence).sum::<f64>() / words.len() as f64;
    (!text.is_empty()).then_some(Cue { start: first.start, end: last.end.max(first.start), text, confidence })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str, seconds: f64) -> Vec<Word> {
        let word = |(i, word): (usize, &str)| Word {
            word: word.into(),
            start: i as f64 * seconds,
            end: (i + 1) as f64 * seconds,
            confidence: 0.5,
            spaced: true,
        };
        text.split_whitespace().enumerate().map(word).collect()
    }

    fn texts(words: &[Word]) -> Vec<String> {
        segments(words).into_iter().map(|c| c.text).collect()
    }

    #[test]
    fn sentences_become_cues() {
        let words = words("Is it? \"Yes.\" I think so, e.g. this one... Good.", 0.3);
        assert_eq!(texts(&words), ["Is it?", "\"Yes.\"", "I think so, e.g. this one...", "Good."]);
        let cues = segments(&words);
        assert_eq!((cues[0].start, cues[0].end, cues[0].confidence), (0.0, 0.6, 0.5));
    }

    #[test]
    fn pauses_end_cues() {
        let mut words = words("one two three four", 0.3);
        words[2].start += 2.0;
        words[2].end += 2.0;
        words[3].start += 2.0;
        words[3].end += 2.0;
        assert_eq!(texts(&words), ["one two", "three four"]);
    }

    #[test]
    fn long_sentences_are_cut_at_commas_near_the_middle() {
        let long = "this is a sentence of many words, as one that reads from a page would say, without a stop for breath";
        assert_eq!(
            texts(&words(long, 0.1)),
            [
                "this is a sentence of many words,",
                "as one that reads from a page would say, without a stop for breath"
            ]
        );
        assert_eq!(texts(&words("a b c d e f g h", 1.0)), ["a b c d", "e f g h"]);
        assert_eq!(texts(&words(&"x".repeat(100), 9.0)), ["x".repeat(100)]);
    }

    #[test]
    fn scripts_without_spaces_get_none() {
        let mut words = words("我 们 好。 你 呢？", 0.2);
        words.iter_mut().for_each(|w| w.spaced = false);
        assert_eq!(texts(&words), ["我们好。", "你呢？"]);
    }
}
