//! Reading and checking the files of a byte-level tokenizer.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use fancy_regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::{ByteLevelBpe, ByteLevelError, ByteLevelProblem, Rules};
use crate::model::read_regular;

/// Largest file read; the real ones have up to 15 MB.
const MAX_FILE_BYTES: u64 = 512 << 20;
/// Largest id; the real ones reach 152,064.
const MAX_ID: u64 = 1 << 22;
/// Qwen2's pattern, for `vocab.json` and `merges.txt`, which do not carry one.
const QWEN2_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

#[derive(Deserialize)]
struct TokenizerJson {
    model: ModelJson,
    #[serde(default)]
    added_tokens: Vec<AddedJson>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
}

#[derive(Deserialize)]
struct ModelJson {
    r#type: Option<String>,
    vocab: HashMap<String, u64>,
    merges: Vec<MergeJson>,
    #[serde(default)]
    ignore_merges: bool,
}

/// A merge as text, `Ġ t`, or as a pair.
#[derive(Deserialize)]
#[serde(untagged)]
enum MergeJson {
    Text(String),
    Pair(String, String),
}

#[derive(Deserialize)]
struct AddedJson {
    id: u64,
    content: String,
    #[serde(default)]
    special: bool,
}

/// What `tokenizer_config.json` says of control tokens.
#[derive(Deserialize)]
struct TokenizerConfig {
    #[serde(default)]
    added_tokens_decoder: BTreeMap<u64, AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    special: bool,
}

fn wrap(path: &Path) -> impl Fn(ByteLevelProblem) -> ByteLevelError + '_ {
    |problem| ByteLevelError { path: path.into(), problem }
}

fn read(path: &Path) -> Result<Vec<u8>, ByteLevelError> {
    read_regular(path, MAX_FILE_BYTES).map_err(|e| wrap(path)(ByteLevelProblem::Unreadable(e)))
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, ByteLevelError> {
    serde_json::from_slice(&read(path)?).map_err(|e| wrap(path)(ByteLevelProblem::Json(e)))
}

pub(super) fn open(dir: &Path) -> Result<ByteLevelBpe, ByteLevelError> {
    let whole = dir.join("tokenizer.json");
    if whole.exists() {
        let json: TokenizerJson = read_json(&whole)?;
        return from_json(json, &whole);
    }
    let (vocab, merges, config) =
        (dir.join("vocab.json"), dir.join("merges.txt"), dir.join("tokenizer_config.json"));
    if !vocab.exists() || !merges.exists() {
        return Err(wrap(dir)(ByteLevelProblem::Absent));
    }
    let text = String::from_utf8_lossy(&read(&merges)?).into_owned();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let config: TokenizerConfig = read_json(&config)?;
    let added = config.added_tokens_decoder.into_iter();
    build(
        &read_json(&vocab)?,
        lines.map(|line| MergeJson::Text(line.to_owned())),
        added.map(|(id, t)| AddedJson { id, content: t.content, special: t.special }),
        QWEN2_PATTERN,
        true,
        &vocab,
    )
}

fn from_json(json: TokenizerJson, path: &Path) -> Result<ByteLevelBpe, ByteLevelError> {
    let kind = |what: String| Err(wrap(path)(ByteLevelProblem::Kind(what)));
    if let Some(other) = json.model.r#type.as_deref().filter(|t| *t != "BPE") {
        return kind(format!("a tokenizer of type {other}"));
    }
    if json.model.ignore_merges {
        return kind("a tokenizer that ignores merges".into());
    }
    let normaliser = json.normalizer.as_ref().and_then(|n| n.get("type")).and_then(Value::as_str);
    if let Some(other) = normaliser.filter(|n| *n != "NFC") {
        return kind(format!("a tokenizer with the normaliser {other}"));
    }
    // Sequence [Split by the pattern, ByteLevel].
    let parts = json.pre_tokenizer.as_ref().and_then(|p| p.get("pretokenizers")).and_then(Value::as_array);
    let of = |name: &str| parts.into_iter().flatten().find(|p| p["type"] == name);
    let pattern = of("Split").and_then(|p| p["pattern"]["Regex"].as_str());
    let (Some(pattern), Some(level)) = (pattern, of("ByteLevel")) else {
        return kind("a tokenizer that does not split by a pattern into bytes".into());
    };
    if level["add_prefix_space"] == true || parts.is_some_and(|p| p.len() != 2) {
        return kind("a tokenizer with other steps before its merges".into());
    }
    let normalise = normaliser.is_some();
    build(
        &json.model.vocab,
        json.model.merges.into_iter(),
        json.added_tokens.into_iter(),
        pattern,
        normalise,
        path,
    )
}

fn build(
    vocab: &HashMap<String, u64>,
    merges: impl Iterator<Item = MergeJson>,
    added: impl Iterator<Item = AddedJson>,
    pattern: &str,
    normalise: bool,
    path: &Path,
) -> Result<ByteLevelBpe, ByteLevelError> {
    let wrap = wrap(path);
    let letters = alphabet();
    let spell =
        |token: &str| -> Option<Box<[u8]>> { token.chars().map(|c| letters.get(&c).copied()).collect() };
    let added: Vec<AddedJson> = added.collect();
    let mut rules = Rules::default();
    let mut bytes: Vec<Option<Box<[u8]>>> = Vec::new();
    let mut place = |token: &str, id: u64, text: Option<Box<[u8]>>| {
        let twice = || wrap(ByteLevelProblem::Id { token: token.to_owned(), id });
        let slot = usize::try_from(id).ok().filter(|_| id < MAX_ID).ok_or_else(twice)?;
        if bytes.len() <= slot {
            bytes.resize(slot + 1, None);
        }
        if bytes[slot].is_some() {
            return Err(twice());
        }
        bytes[slot] = text;
        Ok(slot as u32)
    };
    for (token, id) in vocab {
        // Some files list the added tokens in the vocabulary too.
        if added.iter().any(|a| a.id == *id) {
            continue;
        }
        let text = spell(token).ok_or_else(|| wrap(ByteLevelProblem::Spelling(token.clone())))?;
        let id = place(token, *id, Some(text.clone()))?;
        rules.ids.insert(text, id);
    }
    if let Some(byte) = (0..=u8::MAX).find(|byte| !rules.ids.contains_key(&[*byte][..])) {
        return Err(wrap(ByteLevelProblem::ByteToken(byte)));
    }
    let mut names = HashMap::new();
    let mut control = HashMap::new();
    for token in added {
        // One that is not special is text that is a token as a whole, such as <asr_text>.
        let text = (!token.special).then(|| token.content.as_bytes().into());
        let id = place(&token.content, token.id, text)?;
        if token.special {
            control.insert(id, token.content.clone());
        }
        names.insert(token.content, id);
    }
    for (i, merge) in merges.enumerate() {
        let (left, right) = match &merge {
            MergeJson::Pair(left, right) => (left.as_str(), right.as_str()),
            MergeJson::Text(text) => text.split_once(' ').unwrap_or((text, "")),
        };
        let id = |token: &[u8]| rules.ids.get(token).copied();
        let pair = spell(left).zip(spell(right)).and_then(|(left, right)| {
            id(&[&*left, &*right].concat())?;
            Some((id(&left)?, id(&right)?))
        });
        let pair = pair.ok_or_else(|| wrap(ByteLevelProblem::Merge(i)))?;
        rules.merges.entry(pair).or_insert(i as u32);
    }
    let pattern = Regex::new(pattern).map_err(|e| wrap(ByteLevelProblem::Pattern(Box::new(e))))?;
    Ok(ByteLevelBpe { path: path.into(), pattern, normalise, rules, bytes, added: names, control })
}

/// GPT-2's spelling of bytes: those that print stand for themselves, the others for the characters from U+0100 on.
fn alphabet() -> HashMap<char, u8> {
    let prints = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let others = (0..=u8::MAX).filter(|b| !prints(*b)).zip('\u{100}'..).map(|(b, c)| (c, b));
    (0..=u8::MAX).filter(|b| prints(*b)).map(|b| (char::from(b), b)).chain(others).collect()
}
