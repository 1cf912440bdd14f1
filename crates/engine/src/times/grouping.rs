//! Tokens to words.
//!
//! - Words are separated by white space. Punctuation that stands alone (`Bonjour !`) sticks to the word before it,
//!   opening brackets, quotes and dashes to the word after it.
//! - In scripts without spaces a word is what one token writes: tokens are about as long as words there, and nothing
//!   shorter has a time of its own. Marks and small letters stay with the letter before them.
//! - A token belongs to the word that its first character other than white space falls in. Tokens that complete no
//!   such character (white space, the first bytes of a character) belong to the word that comes next.
//! - A word in which no token begins has the times of the token that its first character is from.

use wnw_model::tokenizer::{TextDecoder, Tokenizer};

use super::script::{follows, is_punctuation, is_unspaced, opens, precedes};

/// A word's text and the tokens that it takes its times from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Without white space around it.
    pub text: String,
    /// White space stands before it, or nothing does.
    pub spaced: bool,
    /// Indices of tokens, ascending, never empty. Tokens of mere punctuation are left out if there are others: the
    /// model writes them looking at the pause, or at the next word.
    pub tokens: Vec<usize>,
}

/// The text that each token completes; together the text of the whole.
pub(super) fn pieces(tokens: &[u32], tokenizer: &dyn Tokenizer) -> Vec<String> {
    let mut decoder = TextDecoder::new(tokenizer);
    let mut pieces: Vec<String> = tokens.iter().map(|&token| decoder.push(token)).collect();
    if let Some(last) = pieces.last_mut() {
        last.push_str(&decoder.finish());
    }
    pieces
}

/// A character and the token that completes it.
#[derive(Clone, Copy)]
struct Letter {
    c: char,
    token: usize,
}

/// A range of characters.
#[derive(Clone, Copy)]
struct Stretch {
    from: usize,
    to: usize,
    spaced: bool,
}

/// Groups tokens, given by the texts they complete.
pub(super) fn group(pieces: &[String]) -> Vec<Group> {
    let letters: Vec<Letter> = pieces
        .iter()
        .enumerate()
        .flat_map(|(token, p)| p.chars().map(move |c| Letter { c, token }))
        .collect();
    let words = attach_punctuation(&letters, split(&letters));
    let mut groups: Vec<Group> = words
        .iter()
        .map(|w| Group { text: text(&letters[w.from..w.to]), spaced: w.spaced, tokens: Vec::new() })
        .collect();
    assign_tokens(&letters, pieces.len(), &words, &mut groups);
    groups
}

/// Cuts at white space and, in scripts without spaces, where a token ends or the script changes.
fn split(letters: &[Letter]) -> Vec<Stretch> {
    let mut words: Vec<Stretch> = Vec::new();
    let mut before: Option<Letter> = None;
    for (i, letter) in letters.iter().enumerate() {
        if letter.c.is_whitespace() {
            before = None;
            continue;
        }
        match (before, words.last_mut()) {
            (Some(previous), Some(word)) if !parts(previous, *letter) => word.to = i + 1,
            _ => words.push(Stretch { from: i, to: i + 1, spaced: before.is_none() }),
        }
        before = Some(*letter);
    }
    words
}

/// Neighbouring characters are of different words.
fn parts(a: Letter, b: Letter) -> bool {
    let (a_unspaced, b_unspaced) = (is_unspaced(a.c), is_unspaced(b.c));
    (a_unspaced || b_unspaced)
        && !(follows(b.c) || precedes(a.c) || opens(a.c))
        && (a.token != b.token || a_unspaced != b_unspaced)
}

/// Joins punctuation that stands alone to the word before it, or to the one after it where that is its place.
fn attach_punctuation(letters: &[Letter], words: Vec<Stretch>) -> Vec<Stretch> {
    let mut joined: Vec<Stretch> = Vec::with_capacity(words.len());
    let mut prefix: Option<Stretch> = None;
    for word in words {
        let mut chars = letters[word.from..word.to].iter().map(|l| l.c);
        let alone = chars.clone().all(is_punctuation);
        let opening = chars.all(opens);
        match (prefix, joined.last_mut()) {
            (None, Some(last)) if alone && !opening => last.to = word.to,
            (start, _) => {
                let start = start.unwrap_or(word);
                let whole = Stretch { from: start.from, to: word.to, spaced: start.spaced };
                prefix = alone.then_some(whole);
                if !alone {
                    joined.push(whole);
                }
            }
        }
    }
    // Nothing came after it.
    match (prefix, joined.last_mut()) {
        (Some(rest), Some(last)) => last.to = rest.to,
        (Some(rest), None) => joined.push(rest),
        (None, _) => {}
    }
    joined
}

/// Text with white space inside (before a French `!`) as one space.
fn text(letters: &[Letter]) -> String {
    let mut text = String::with_capacity(letters.len());
    for letter in letters {
        match letter.c.is_whitespace() {
            false => text.push(letter.c),
            true if !text.ends_with(' ') => text.push(' '),
            true => {}
        }
    }
    text
}

fn assign_tokens(letters: &[Letter], n_tokens: usize, words: &[Stretch], groups: &mut [Group]) {
    // By token: where its first character other than white space is, and whether all of these are punctuation.
    let mut first: Vec<Option<usize>> = vec![None; n_tokens];
    let mut mute = vec![false; n_tokens];
    for (i, letter) in letters.iter().enumerate().filter(|(_, l)| !l.c.is_whitespace()) {
        let token = letter.token;
        mute[token] = (first[token].is_none() || mute[token]) && is_punctuation(letter.c);
        first[token].get_or_insert(i);
    }
    let mut word = 0;
    let mut waiting: Vec<usize> = Vec::new();
    for (token, at) in first.iter().enumerate() {
        waiting.push(token);
        let Some(at) = *at else { continue };
        while word < words.len() && words[word].to <= at {
            word += 1;
        }
        if let Some(group) = groups.get_mut(word) {
            group.tokens.append(&mut waiting);
        }
    }
    for (group, word) in groups.iter_mut().zip(words) {
        if group.tokens.iter().any(|&t| !mute[t]) {
            group.tokens.retain(|&t| !mute[t]);
        } else if group.tokens.is_empty() {
            group.tokens.push(letters[word.from].token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wnw_model::tekken::Tekken;

    fn grouped(pieces: &[&str]) -> Vec<(String, Vec<usize>)> {
        let pieces: Vec<String> = pieces.iter().map(ToString::to_string).collect();
        group(&pieces).into_iter().map(|g| (g.text, g.tokens)).collect()
    }

    fn owned(words: &[(&str, &[usize])]) -> Vec<(String, Vec<usize>)> {
        words.iter().map(|(word, tokens)| (word.to_string(), tokens.to_vec())).collect()
    }

    #[test]
    fn punctuation_sticks_to_its_word_and_has_no_say_in_its_times() {
        assert_eq!(
            grouped(&[" Hel", "lo", ",", " wor", "ld", ".\"", "\n"]),
            owned(&[("Hello,", &[0, 1]), ("world.\"", &[3, 4])])
        );
        assert_eq!(grouped(&["Oui", " !", " « ", "Non", " »"]), owned(&[("Oui !", &[0]), ("« Non »", &[3])]));
        assert_eq!(grouped(&["- ", "Ja", " -", " Nein", " …"]), owned(&[("- Ja", &[1]), ("- Nein …", &[3])]));
        assert_eq!(grouped(&[" ...", " —"]), owned(&[("... —", &[0, 1])]));
        assert_eq!(
            grouped(&["R", " &", " B", " 5", " %"]),
            owned(&[("R", &[0]), ("&", &[1]), ("B", &[2]), ("5", &[3]), ("%", &[4])])
        );
    }

    #[test]
    fn white_space_and_halves_of_characters_belong_to_what_comes_next() {
        assert_eq!(grouped(&["a", " ", "", "é", " "]), owned(&[("a", &[0]), ("é", &[1, 2, 3])]));
        assert_eq!(grouped(&["of the", "m all"]), owned(&[("of", &[0]), ("them", &[1]), ("all", &[1])]));
        assert_eq!(grouped(&[]), owned(&[]));
        assert_eq!(grouped(&["", " ", "\n"]), owned(&[]));
    }

    #[test]
    fn scripts_without_spaces_are_cut_where_tokens_end() {
        assert_eq!(
            grouped(&["我们", "用", "iPhone", "手机", "。", "好", "（", "吧", "）"]),
            owned(&[
                ("我们", &[0]),
                ("用", &[1]),
                ("iPhone", &[2]),
                ("手机。", &[3]),
                ("好", &[5]),
                ("（吧）", &[7])
            ])
        );
        assert_eq!(
            grouped(&["き", "ゃ", "く", "です"]),
            owned(&[("きゃ", &[0, 1]), ("く", &[2]), ("です", &[3])])
        );
        assert_eq!(grouped(&["เ", "ด", "ิน", "ทาง"]), owned(&[("เดิน", &[0, 1, 2]), ("ทาง", &[3])]));
        let spaced: Vec<bool> =
            group(&["你".into(), "好".into(), " a".into()]).iter().map(|g| g.spaced).collect();
        assert_eq!(spaced, [true, false, true]);
    }

    #[test]
    fn bytes_of_the_tokenizer_come_together() {
        let tokenizer = Tekken::from_bytes(wnw_tiny::TEKKEN, "tiny").unwrap();
        for text in ["Déjà vu, 12 fois.", "我们 🎉 ok", "ครับ", "\u{0}x"] {
            let tokens = tokenizer.encode(text).unwrap();
            let pieces = pieces(&tokens, &tokenizer);
            assert_eq!(pieces.concat(), text);
            let words: String = group(&pieces).iter().map(|g| g.text.as_str()).collect();
            assert_eq!(bare(&words), bare(text));
        }
        let mut cut = tokenizer.encode("ab 我").unwrap();
        cut.pop();
        assert_eq!(group(&pieces(&cut, &tokenizer)).last().map(|g| g.text.clone()), Some("\u{FFFD}".into()));
    }

    fn bare(text: &str) -> String {
        text.chars().filter(|c| !c.is_whitespace()).collect()
    }

    proptest! {
        #[test]
        fn no_text_and_no_order_is_lost(pieces in prop::collection::vec("[ a-c.,!«(\\-我んゃเิ\\n]{0,4}", 0..40)) {
            let groups = group(&pieces);
            let words: String = groups.iter().map(|g| g.text.as_str()).collect();
            prop_assert_eq!(bare(&words), bare(&pieces.concat()));
            let mut last = 0;
            for group in &groups {
                prop_assert!(!group.text.is_empty() && group.text.trim() == group.text);
                prop_assert!(!group.tokens.is_empty());
                prop_assert!(group.tokens.is_sorted() && group.tokens[0] >= last);
                last = group.tokens[0];
            }
        }
    }
}
