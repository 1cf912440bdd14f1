//! English contractions and abbreviated titles, written out.
//!
//! The lists are data of OpenAI Whisper (MIT, see `data/LICENSE-whisper`).

use crate::text::{is_word, no_word_before, no_word_from};

/// Words said while thinking, which are dropped.
const FILLERS: [&str; 6] = ["hmm", "mm", "mhm", "mmm", "uh", "um"];

/// Whole words.
const WORDS: [(&str, &str); 18] = [
    ("won't", "will not"),
    ("can't", "can not"),
    ("let's", "let us"),
    ("ain't", "aint"),
    ("y'all", "you all"),
    ("wanna", "want to"),
    ("kinda", "kind of"),
    ("sorta", "sort of"),
    ("dunno", "do not know"),
    ("gotta", "got to"),
    ("gonna", "going to"),
    ("i'ma", "i am going to"),
    ("imma", "i am going to"),
    ("woulda", "would have"),
    ("coulda", "could have"),
    ("shoulda", "should have"),
    ("cause", "because"),
    ("ma'am", "madam"),
];

/// Whole words that a name follows; a space is put behind them.
const TITLES: [(&str, &str); 21] = [
    ("mr", "mister "),
    ("mrs", "missus "),
    ("st", "saint "),
    ("dr", "doctor "),
    ("prof", "professor "),
    ("capt", "captain "),
    ("gov", "governor "),
    ("ald", "alderman "),
    ("gen", "general "),
    ("sen", "senator "),
    ("rep", "representative "),
    ("pres", "president "),
    ("rev", "reverend "),
    ("hon", "honorable "),
    ("asst", "assistant "),
    ("assoc", "associate "),
    ("lt", "lieutenant "),
    ("col", "colonel "),
    ("jr", "junior "),
    ("sr", "senior "),
    ("esq", "esquire "),
];

/// Ends of words; the first ones decide what `'d` and `'s` stand for.
const ENDINGS: [(&str, &str); 14] = [
    ("'d been", " had been"),
    ("'s been", " has been"),
    ("'d gone", " had gone"),
    ("'s gone", " has gone"),
    ("'d done", " had done"),
    ("'s got", " has got"),
    ("n't", " not"),
    ("'re", " are"),
    ("'s", " is"),
    ("'d", " would"),
    ("'ll", " will"),
    ("'t", " not"),
    ("'ve", " have"),
    ("'m", " am"),
];

/// Without fillers.
pub(super) fn remove_fillers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for piece in text.split_inclusive(|c| !is_word(c)) {
        let word = piece.trim_end_matches(|c| !is_word(c));
        out.push_str(if FILLERS.contains(&word) { &piece[word.len()..] } else { piece });
    }
    out
}

/// Contractions and titles of a lower-case text written out, one entry of the lists after the other.
pub(super) fn write_out(text: String) -> String {
    let whole = WORDS.iter().chain(&TITLES).map(|p| (p, true));
    let ends = ENDINGS.iter().map(|p| (p, false));
    whole.chain(ends).fold(text, |text, ((short, long), whole)| replace(text, short, long, whole))
}

/// Replaces `short` where a word ends with it and, if `whole`, begins with it.
fn replace(text: String, short: &str, long: &str, whole: bool) -> String {
    let mut out = String::new();
    let (mut copied, mut from) = (0, 0);
    while let Some(found) = text[from..].find(short) {
        let (at, end) = (from + found, from + found + short.len());
        if no_word_from(&text, end) && (!whole || no_word_before(&text, at)) {
            out.push_str(&text[copied..at]);
            out.push_str(long);
            (copied, from) = (end, end);
        } else {
            // All entries begin with an ASCII character.
            from = at + 1;
        }
    }
    if copied == 0 {
        return text;
    }
    out.push_str(&text[copied..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_at_word_boundaries() {
        let out = |t: &str| write_out(t.to_owned());
        assert_eq!(out("st. stop mr x sr, can't cant"), "saint . stop mister  x senior , can not cant");
        assert_eq!(out("he'd been; she'd go; isn't it's"), "he had been; she would go; is not it is");
        assert_eq!(out("_mr mré because"), "_mr mré because");
        assert_eq!(remove_fillers("um, hmm-mm uh2 umm (uh)"), ", - uh2 umm ()");
        assert_eq!(remove_fillers("um"), "");
    }
}
