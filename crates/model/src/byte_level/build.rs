//! Making a tokenizer of a vocabulary, merges and control tokens, and refusing parts that do not fit each other: a list that
//! was cut or mixed up gives other tokens, from which the model writes another text.

use std::collections::HashMap;
use std::path::Path;

use fancy_regex::Regex;

use super::error::shown;
use super::{ByteLevelBpe, ByteLevelError, ByteLevelProblem, MergePlace, Rules};

/// Largest id; the real ones reach 152,064.
const MAX_ID: u64 = 1 << 22;

/// What a tokenizer is made of, with the files that the parts are from.
pub(super) struct Parts<'a> {
    pub vocab: HashMap<String, u64>,
    pub vocab_path: &'a Path,
    pub merges: Vec<Merge>,
    pub merges_path: &'a Path,
    pub added: Vec<Added>,
    pub added_path: &'a Path,
    pub pattern: &'a str,
    pub normalise: bool,
}

/// Two tokens that become one, as the file spells them; what is not two tokens has nothing on the right.
pub(super) struct Merge {
    pub place: MergePlace,
    pub left: String,
    pub right: String,
}

/// A token that stands beside the vocabulary.
pub(super) struct Added {
    pub id: u64,
    pub content: String,
    /// One that is not special is text that is a token as a whole, such as `<asr_text>`.
    pub special: bool,
}

pub(super) fn build(parts: Parts<'_>) -> Result<ByteLevelBpe, ByteLevelError> {
    let Parts { vocab, vocab_path, merges, merges_path, added, added_path, pattern, normalise } = parts;
    let letters = Letters::new();
    let mut places = Places::default();
    let mut rules = Rules::default();

    // Some files list the added tokens in the vocabulary too.
    let names: HashMap<&str, u64> = added.iter().map(|a| (a.content.as_str(), a.id)).collect();
    let mut tokens: Vec<(u64, &str)> = vocab.iter().map(|(token, id)| (*id, token.as_str())).collect();
    tokens.sort_unstable();
    for (id, token) in tokens {
        match names.get(token) {
            Some(other) if *other == id => continue,
            Some(other) => {
                let problem = ByteLevelProblem::TwoIds { token: token.to_owned(), first: id, second: *other };
                return Err(problem.of(added_path));
            }
            None => {}
        }
        let bytes = letters.bytes(token).filter(|bytes| !bytes.is_empty());
        let bytes = bytes.ok_or_else(|| ByteLevelProblem::Spelling(token.to_owned()).of(vocab_path))?;
        let place = places.take(id, token, Some(bytes.clone())).map_err(|p| p.of(vocab_path))?;
        rules.ids.insert(bytes, place);
    }
    if let Some(byte) = (0..=u8::MAX).find(|byte| !rules.ids.contains_key(&[*byte][..])) {
        return Err(ByteLevelProblem::ByteToken(byte).of(vocab_path));
    }
    let n_text = places.bytes.len();

    let mut ids: HashMap<String, u32> = HashMap::new();
    let mut control = HashMap::new();
    for token in added {
        if let Some(first) = ids.get(&token.content) {
            if u64::from(*first) == token.id && control.contains_key(first) == token.special {
                continue; // The same again.
            }
            let first = u64::from(*first);
            let problem = ByteLevelProblem::TwoIds { token: token.content, first, second: token.id };
            return Err(problem.of(added_path));
        }
        let text = (!token.special).then(|| token.content.as_bytes().into());
        let id = places.take(token.id, &token.content, text).map_err(|p| p.of(added_path))?;
        if token.special {
            control.insert(id, token.content.clone());
        }
        ids.insert(token.content, id);
    }
    if let Some(id) = places.gap(n_text) {
        return Err(ByteLevelProblem::Gap { id }.of(vocab_path));
    }

    rules.merges = order(&merges, &rules.ids, &letters).map_err(|problem| problem.of(merges_path))?;
    let pattern = Regex::new(pattern).map_err(|e| ByteLevelProblem::Pattern(Box::new(e)).of(vocab_path))?;
    Ok(ByteLevelBpe {
        path: vocab_path.into(),
        added_path: added_path.into(),
        pattern,
        normalise,
        rules,
        bytes: places.bytes,
        added: ids,
        control,
    })
}

/// Tokens by id.
#[derive(Default)]
struct Places {
    /// Bytes of those that stand for text.
    bytes: Vec<Option<Box<[u8]>>>,
    names: Vec<Option<String>>,
}

impl Places {
    fn take(&mut self, id: u64, token: &str, text: Option<Box<[u8]>>) -> Result<u32, ByteLevelProblem> {
        let place = usize::try_from(id).ok().filter(|_| id < MAX_ID);
        let place = place.ok_or_else(|| ByteLevelProblem::Id { token: token.to_owned(), id })?;
        if self.names.len() <= place {
            self.names.resize(place + 1, None);
            self.bytes.resize(place + 1, None);
        }
        if let Some(first) = self.names[place].replace(token.to_owned()) {
            return Err(ByteLevelProblem::SameId { first, second: token.to_owned(), id });
        }
        self.bytes[place] = text;
        Ok(place as u32)
    }

    /// The lowest id without a token, among those of the text (which end before `n_text`) and up to the first control token
    /// behind these. Between control tokens a place may be free: no text becomes another for that.
    fn gap(&self, n_text: usize) -> Option<usize> {
        let next = self.names.iter().skip(n_text).position(Option::is_some);
        let end = n_text + next.unwrap_or_default();
        self.names[..end].iter().position(Option::is_none)
    }
}

/// When each pair of tokens becomes one.
///
/// In Qwen's tokenizers, as training makes them, every token of more than one byte is the result of a merge, merges are of
/// bytes and of results of earlier merges, and new results have ids in ascending order. A list that is cut, mixed up, or of
/// another vocabulary breaks one of these rules, or has a token that is not in the vocabulary.
fn order(
    merges: &[Merge],
    ids: &HashMap<Box<[u8]>, u32>,
    letters: &Letters,
) -> Result<HashMap<(u32, u32), u32>, ByteLevelProblem> {
    let mut out: HashMap<(u32, u32), u32> = HashMap::with_capacity(merges.len());
    let mut made: HashMap<u32, MergePlace> = HashMap::with_capacity(merges.len());
    let mut last: Option<(u32, MergePlace)> = None;
    for (i, merge) in merges.iter().enumerate() {
        let Merge { place, left, right } = merge;
        let bad = |reason: String| ByteLevelProblem::Merge { place: *place, reason };
        let text = || shown(&format!("{left} {right}"));
        let pair = letters.bytes(left).zip(letters.bytes(right));
        let pair = pair.filter(|(left, right)| !left.is_empty() && !right.is_empty());
        let (l, r) = pair.ok_or_else(|| bad(format!("'{}' is not a pair of tokens", text().trim())))?;
        let id = |bytes: &[u8], token: &str| {
            let absent = || bad(format!("'{}' of '{}' is not in the vocabulary", shown(token), text()));
            ids.get(bytes).copied().ok_or_else(absent)
        };
        let (a, b) = (id(&l, left)?, id(&r, right)?);
        let union = format!("{left}{right}");
        let whole = id(&[&*l, &*r].concat(), &union)?;
        for (bytes, id, token) in [(&l, a, left), (&r, b, right)] {
            if bytes.len() > 1 && !made.contains_key(&id) {
                return Err(bad(format!(
                    "'{}' needs '{}', which no earlier merge makes",
                    text(),
                    shown(token)
                )));
            }
        }
        if out.insert((a, b), i as u32).is_some() {
            return Err(bad(format!("'{}' was merged before", text())));
        }
        if made.contains_key(&whole) {
            continue;
        }
        if let Some((_, before)) = last.filter(|(id, _)| *id > whole) {
            return Err(bad(format!("'{}' is out of order: {before} makes a token of a higher id", text())));
        }
        last = Some((whole, *place));
        made.insert(whole, *place);
    }
    let unmade = ids.iter().filter(|(bytes, id)| bytes.len() > 1 && !made.contains_key(id));
    match unmade.min_by_key(|(_, id)| **id) {
        Some((bytes, id)) => Err(ByteLevelProblem::Unmade { token: letters.spelled(bytes), id: *id }),
        None => Ok(out),
    }
}

/// GPT-2's spelling of bytes: those that print stand for themselves, the others for the characters from U+0100 on.
struct Letters {
    bytes: HashMap<char, u8>,
    letters: Vec<char>,
}

impl Letters {
    fn new() -> Self {
        let mut others = '\u{100}'..;
        let letter = |byte: u8| match byte {
            33..=126 | 161..=172 | 174..=255 => Some(char::from(byte)),
            _ => others.next(),
        };
        let letters: Vec<char> = (0..=u8::MAX).filter_map(letter).collect();
        let bytes = letters.iter().copied().zip(0..=u8::MAX).collect();
        Self { bytes, letters }
    }

    fn bytes(&self, token: &str) -> Option<Box<[u8]>> {
        token.chars().map(|c| self.bytes.get(&c).copied()).collect()
    }

    fn spelled(&self, bytes: &[u8]) -> String {
        bytes.iter().filter_map(|byte| self.letters.get(usize::from(*byte))).collect()
    }
}
