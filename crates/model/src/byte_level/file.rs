//! Reading the files of a byte-level tokenizer.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::build::{Added, Merge, Parts, build};
use super::{ByteLevelBpe, ByteLevelError, ByteLevelProblem, MergePlace};
use crate::files::{is_there, read_regular};

/// Largest file read; the real ones have up to 15 MB.
const MAX_FILE_BYTES: u64 = 512 << 20;
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

fn read(path: &Path) -> Result<Vec<u8>, ByteLevelError> {
    read_regular(path, MAX_FILE_BYTES).map_err(|e| ByteLevelProblem::Unreadable(e).of(path))
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, ByteLevelError> {
    serde_json::from_slice(&read(path)?).map_err(|e| ByteLevelProblem::Json(e).of(path))
}

pub(super) fn open(dir: &Path) -> Result<ByteLevelBpe, ByteLevelError> {
    let whole = dir.join("tokenizer.json");
    if is_there(&whole) {
        let json: TokenizerJson = read_json(&whole)?;
        return from_json(json, &whole);
    }
    let files = ["vocab.json", "merges.txt", "tokenizer_config.json"].map(|name| dir.join(name));
    let [vocab, merges, config] = &files;
    if !vocab.exists() && !merges.exists() {
        return Err(ByteLevelProblem::Absent.of(dir));
    }
    if let Some(absent) = files.iter().find(|file| !file.exists()) {
        return Err(ByteLevelProblem::Incomplete.of(absent));
    }
    let tokens: TokenizerConfig = read_json(config)?;
    let tokens = tokens.added_tokens_decoder.into_iter();
    if tokens.len() == 0 {
        return Err(ByteLevelProblem::NoControlTokens.of(config));
    }
    build(Parts {
        vocab: read_json(vocab)?,
        vocab_path: vocab,
        merges: lines(&read(merges)?).map_err(|problem| problem.of(merges))?,
        merges_path: merges,
        added: tokens.map(|(id, t)| Added { id, content: t.content, special: t.special }).collect(),
        added_path: config,
        pattern: QWEN2_PATTERN,
        normalise: true,
    })
}

/// The merges of a `merges.txt`, one a line after a line with its version; empty lines, blanks around a merge and a byte
/// order mark mean nothing.
fn lines(bytes: &[u8]) -> Result<Vec<Merge>, ByteLevelProblem> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let before = &bytes[..e.valid_up_to()];
        ByteLevelProblem::NotText { line: 1 + before.iter().filter(|byte| **byte == b'\n').count() }
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().map(str::trim).zip(1..).filter(|(line, _)| !line.is_empty());
    let is_version = |i: usize, line: &str| i == 0 && line.starts_with("#version");
    let merges = lines.enumerate().filter(|(i, (line, _))| !is_version(*i, line));
    Ok(merges.map(|(_, (line, n))| merge(line, MergePlace::Line(n))).collect())
}

fn merge(text: &str, place: MergePlace) -> Merge {
    let (left, right) = text.split_once(' ').unwrap_or((text, ""));
    Merge { place, left: left.to_owned(), right: right.to_owned() }
}

fn from_json(json: TokenizerJson, path: &Path) -> Result<ByteLevelBpe, ByteLevelError> {
    let kind = |what: String| Err(ByteLevelProblem::Kind(what).of(path));
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
    let merges = json.model.merges.into_iter().zip(1..).map(|(json, n)| match json {
        MergeJson::Pair(left, right) => Merge { place: MergePlace::Entry(n), left, right },
        MergeJson::Text(text) => merge(&text, MergePlace::Entry(n)),
    });
    let added = json.added_tokens.into_iter();
    build(Parts {
        vocab: json.model.vocab,
        vocab_path: path,
        merges: merges.collect(),
        merges_path: path,
        added: added.map(|a| Added { id: a.id, content: a.content, special: a.special }).collect(),
        added_path: path,
        pattern,
        normalise: normaliser.is_some(),
    })
}
