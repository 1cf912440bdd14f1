//! The Tekken tokenizer against mistral-common (`tools/goldens/tekken.py`), and against files that are wrong.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wnw_model::families::Dialogue;
use wnw_model::families::voxtral::ControlTokens;
use wnw_model::prompt::{Part, Task};
use wnw_model::tekken::{AudioUse, Tekken, TekkenError, TekkenProblem};
use wnw_model::tokenizer::TextDecoder;

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tekken").join(file)
}

fn reduced() -> Tekken {
    Tekken::from_file(&data("tekken.json")).unwrap()
}

fn golden() -> Value {
    serde_json::from_slice(&std::fs::read(data("golden.json")).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn stream(tokenizer: &Tekken, ids: &[u32], keep: bool) -> String {
    let mut decoder = TextDecoder::new(tokenizer).keep_specials(keep);
    let mut text: String = ids.iter().map(|&id| decoder.push(id)).collect();
    text.push_str(&decoder.finish());
    text
}

/// All that the golden file knows of one tokenizer.
fn compare(tokenizer: &Tekken, which: &str) {
    let golden = golden();
    let strings = golden["strings"].as_array().unwrap();
    assert_eq!(strings.len(), 500);
    for case in strings {
        let (text, want) = (case["text"].as_str().unwrap(), ids(&case[which]));
        assert_eq!(tokenizer.encode(text).unwrap(), want, "{text:?}");
        assert_eq!(tokenizer.decode(&want), text);
        assert_eq!(stream(tokenizer, &want, false), text);
    }
    for case in golden["sequences"][which].as_array().unwrap() {
        let sequence = ids(&case["ids"]);
        assert_eq!(tokenizer.decode(&sequence), case["text"].as_str().unwrap(), "{sequence:?}");
        assert_eq!(stream(tokenizer, &sequence, true), case["kept"].as_str().unwrap(), "{sequence:?}");
    }
    let control = ControlTokens::resolve(tokenizer).unwrap();
    for case in golden["prompts"][which].as_array().unwrap() {
        let want: Vec<u32> = case["ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(ids)
            .flat_map(|run| vec![run[0]; run[1] as usize])
            .collect();
        let prompt = match case["chat"].as_array() {
            Some(parts) => {
                let part = |v: &Value| match v.as_str() {
                    Some(text) => Part::Text(text.to_owned()),
                    None => Part::Audio { tokens: v.as_u64().unwrap() as usize },
                };
                control.chat(tokenizer, &parts.iter().map(part).collect::<Vec<_>>()).unwrap()
            }
            None => {
                let task = Task::transcribe(case["language"].as_str()).unwrap();
                control.prompt(tokenizer, &task, case["audio_tokens"].as_u64().unwrap() as usize).unwrap()
            }
        };
        assert_eq!(prompt.ids, want, "{case}");
    }
}

#[test]
fn equals_mistral_common() {
    let tokenizer = reduced();
    assert_eq!((tokenizer.vocab_size(), tokenizer.num_special(), tokenizer.version()), (7400, 1000, 7));
    compare(&tokenizer, "reduced");
}

/// The whole vocabulary is too large to be committed: `tools/goldens/tekken.py --full FILE`, then `WNW_TEKKEN=FILE`.
#[test]
fn equals_mistral_common_with_the_whole_vocabulary() {
    let Some(path) = std::env::var_os("WNW_TEKKEN") else {
        eprintln!("skipped: WNW_TEKKEN does not name a whole tekken.json");
        return;
    };
    let start = Instant::now();
    let tokenizer = Tekken::from_file(Path::new(&path)).unwrap();
    let elapsed = start.elapsed();
    eprintln!("loaded in {elapsed:?}");
    assert!(elapsed < Duration::from_secs(1), "{elapsed:?}");
    assert_eq!((tokenizer.vocab_size(), tokenizer.num_special()), (131_072, 1000));
    assert!(tokenizer.token_bytes(131_071).is_some() && tokenizer.token_bytes(131_072).is_none());
    assert_eq!(tokenizer.encode("lang:nl").unwrap(), [9909, 24082, 1108]);
    assert_eq!(tokenizer.encode("lang:en").unwrap(), [9909, 1058, 1262]);
    assert_eq!(tokenizer.encode("Translate this to English.").unwrap(), [72677, 1593, 1317, 7846, 1046]);
    compare(&tokenizer, "full");
}

#[test]
fn special_tokens_go_by_name_and_text_never_yields_them() {
    let tokenizer = reduced();
    for (name, id) in [
        ("<s>", 1),
        ("</s>", 2),
        ("[INST]", 3),
        ("[AUDIO]", 24),
        ("[TRANSCRIBE]", 34),
        ("<SPECIAL_999>", 999),
    ] {
        assert_eq!(tokenizer.special(name), Some(id));
        assert_eq!(tokenizer.special_name(id), Some(name));
        assert!(tokenizer.encode(name).unwrap().iter().all(|&id| id >= 1000), "{name}");
        assert_eq!(tokenizer.token_bytes(id), None);
    }
    assert_eq!(tokenizer.special("[NONE]"), None);
    let error = tokenizer.require_special("[NONE]").unwrap_err();
    assert!(error.to_string().contains("tekken.json: no special token '[NONE]'"), "{error}");
    assert_eq!(tokenizer.token_bytes(1000), Some(&[0][..]));
    assert_eq!(tokenizer.token_bytes(u32::MAX), None);
}

#[test]
fn a_character_is_held_back_until_it_is_complete() {
    let tokenizer = reduced();
    let byte = |b: u8| 1000 + u32::from(b);
    let mut decoder = TextDecoder::new(&tokenizer);
    let bytes: Vec<u32> = "👍é".bytes().map(byte).collect();
    let parts: Vec<String> = bytes.iter().map(|&id| decoder.push(id)).collect();
    assert_eq!(parts, ["", "", "", "👍", "", "é"]);
    assert_eq!(decoder.finish(), "");

    // A broken character is replaced as soon as it is known to be broken, and the next one is kept.
    assert_eq!(decoder.push(byte(0xf0)), "");
    assert_eq!(decoder.push(byte(b'a')), "\u{fffd}a");
    assert_eq!(decoder.push(byte(0xff)), "\u{fffd}");
    assert_eq!(decoder.push(byte(0xe3)), "");
    assert_eq!(decoder.push(2), "\u{fffd}", "a special token ends it");
    assert_eq!(decoder.push(byte(0xe3)), "");
    assert_eq!(decoder.finish(), "\u{fffd}");
    assert_eq!(decoder.finish(), "");
    assert_eq!(tokenizer.decode(&[7400, 1000 + 97]), "\u{fffd}a", "beyond the vocabulary");
}

#[test]
fn a_megabyte_of_anything_takes_a_moment() {
    let tokenizer = reduced();
    // A piece as long as the text, and texts of many pieces; what is quadratic would take hours.
    let (long, n) = (1 << 20, 1 << 17);
    let mixed = "a \n".repeat(n / 3);
    for text in [
        "a".repeat(long),
        " ".repeat(n),
        "\n".repeat(n),
        "!".repeat(n),
        " a".repeat(n / 2),
        mixed,
        "é".repeat(n / 2),
        "\u{301}".repeat(n / 2),
        "Aa".repeat(n / 2),
        "1".repeat(n),
    ] {
        let start = Instant::now();
        let encoded = tokenizer.encode(&text).unwrap();
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}: {:?}", &text[..4], start.elapsed());
        assert_eq!(tokenizer.decode(&encoded), text);
    }
    // Where the pattern's engine gives up, that is said.
    let error = tokenizer.encode(&" ".repeat(long)).unwrap_err();
    assert!(matches!(error.problem, TekkenProblem::GaveUp { at: 0, .. }), "{error}");
}

/// A tokenizer of the 256 bytes and "ab", to be spoiled.
fn small() -> Value {
    use base64::Engine;
    let entry = |rank: usize, bytes: &[u8]| json!({"rank": rank, "token_bytes": base64::engine::general_purpose::STANDARD.encode(bytes), "token_str": null});
    let mut vocab: Vec<Value> = (0..256).map(|b| entry(b, &[b as u8])).collect();
    vocab.push(entry(256, b"ab"));
    vocab.push(entry(257, b"beyond the cut"));
    json!({
        "config": {"pattern": r"\p{L}+|\s+(?!\S)|\s+|[^\s\p{L}]+", "num_vocab_tokens": 258, "default_vocab_size": 260,
                   "default_num_special_tokens": 3, "version": "v7"},
        "vocab": vocab,
        "special_tokens": [{"rank": 0, "token_str": "<unk>", "is_control": true},
                           {"rank": 2, "token_str": "</s>", "is_control": true}],
        "audio": {"sampling_rate": 16000, "frame_rate": 12.5, "chunk_length_s": 30.0,
                  "audio_encoding_config": {"num_mel_bins": 128, "hop_length": 160, "window_size": 400}},
    })
}

fn read(json: &Value) -> Result<Tekken, TekkenError> {
    Tekken::from_bytes(json.to_string().as_bytes(), "some/tekken.json")
}

fn spoiled(spoil: impl FnOnce(&mut Value)) -> TekkenProblem {
    let mut json = small();
    spoil(&mut json);
    let error = read(&json).unwrap_err();
    assert!(error.to_string().starts_with("some/tekken.json: "), "{error}");
    error.problem
}

#[test]
fn a_small_tokenizer() {
    let tokenizer = read(&small()).unwrap();
    assert_eq!(tokenizer.vocab_size(), 260);
    assert_eq!(tokenizer.encode("abba").unwrap(), [259, 3 + 98, 3 + 97]);
    assert_eq!(tokenizer.special("<SPECIAL_1>"), Some(1), "an id without a name gets one");
    assert_eq!(tokenizer.token_bytes(260), None, "an entry beyond the vocabulary does not exist");
}

#[test]
fn text_that_the_pattern_leaves_out_is_kept() {
    let mut json = small();
    json["config"]["pattern"] = json!("[a-z]+");
    let tokenizer = read(&json).unwrap();
    assert_eq!(tokenizer.decode(&tokenizer.encode("1 ab, 2").unwrap()), "1 ab, 2");
    json["config"]["pattern"] = json!("(?=x)|");
    let tokenizer = read(&json).unwrap();
    assert_eq!(tokenizer.decode(&tokenizer.encode("axb é").unwrap()), "axb é");
}

#[test]
fn a_pattern_that_backtracks_without_bound_is_an_error_and_not_other_ids() {
    let mut json = small();
    json["config"]["pattern"] = json!(r"1|(a|a(?=a)|aa)+(?!\S)$");
    let tokenizer = read(&json).unwrap();
    let text = format!("1{}b", "a".repeat(200));
    let start = Instant::now();
    let error = tokenizer.encode(&text).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(matches!(error.problem, TekkenProblem::GaveUp { at: 1, .. }), "{error}");
    assert!(error.to_string().starts_with("some/tekken.json: the pattern gives up"), "{error}");
}

#[test]
fn each_broken_property_is_named() {
    use TekkenProblem as P;
    assert!(
        matches!(spoiled(|j| { j.as_object_mut().unwrap().remove("special_tokens"); }), P::NoSpecialTokens(v) if v == "v7")
    );
    assert!(matches!(
        spoiled(|j| {
            j.as_object_mut().unwrap().remove("vocab");
        }),
        P::Json(_)
    ));
    assert!(matches!(spoiled(|j| j["config"]["version"] = json!("v3")), P::VersionTooOld(v) if v == "v3"));
    assert!(matches!(spoiled(|j| j["config"]["version"] = json!("seven")), P::Version(_)));
    assert!(matches!(spoiled(|j| j["config"]["version"] = Value::Null), P::Version(_)));
    assert!(matches!(spoiled(|j| j["config"]["pattern"] = json!("(")), P::Pattern(_)));
    assert!(matches!(spoiled(|j| j["config"]["default_vocab_size"] = json!(u64::MAX)), P::Sizes { .. }));
    assert!(matches!(spoiled(|j| j["config"]["default_vocab_size"] = json!(-1)), P::Json(_)));
    assert!(matches!(spoiled(|j| j["config"]["default_num_special_tokens"] = json!(100)), P::Sizes { .. }));
    assert!(matches!(
        spoiled(|j| j["config"]["default_num_special_tokens"] = json!(u64::MAX)),
        P::Sizes { .. }
    ));
    assert!(matches!(
        spoiled(|j| j["config"]["default_vocab_size"] = json!(300)),
        P::TooFewEntries { listed: 258, needed: 297 }
    ));
    assert!(matches!(spoiled(|j| j["vocab"] = json!([])), P::TooFewEntries { .. }));
    assert!(matches!(spoiled(|j| j["vocab"][7]["rank"] = json!(8)), P::RankOrder { index: 7, rank: 8 }));
    assert!(matches!(
        spoiled(|j| {
            j["vocab"].as_array_mut().unwrap().remove(9);
        }),
        P::RankOrder { index: 9, rank: 10 }
    ));
    assert!(matches!(spoiled(|j| j["vocab"][256]["token_bytes"] = json!("$$")), P::Base64 { rank: 256, .. }));
    assert!(matches!(spoiled(|j| j["vocab"][256]["token_bytes"] = json!("")), P::EmptyToken(256)));
    assert!(matches!(spoiled(|j| j["vocab"][5]["token_bytes"] = json!("AA==")), P::ByteToken(5)));
    assert!(matches!(
        spoiled(|j| j["vocab"][256]["token_bytes"] = json!("BQ==")),
        P::DuplicateToken { first: 5, second: 256 }
    ));
    assert!(matches!(spoiled(|j| j["special_tokens"][1]["rank"] = json!(3)), P::SpecialRank { rank: 3, .. }));
    assert!(matches!(
        spoiled(|j| j["special_tokens"][1]["rank"] = json!(0)),
        P::SpecialRankTwice { rank: 0, .. }
    ));
    assert!(matches!(
        spoiled(|j| j["special_tokens"][1]["token_str"] = json!("<unk>")),
        P::SpecialNameTwice(_)
    ));
    assert!(matches!(spoiled(|j| j["audio"]["frame_rate"] = json!(0)), P::Audio("frame_rate")));
    assert!(matches!(spoiled(|j| j["audio"]["transcription_format"] = json!("morse")), P::Json(_)));

    let raw = |bytes: &[u8]| Tekken::from_bytes(bytes, "t").unwrap_err().problem;
    assert!(matches!(raw(b""), P::Empty));
    assert!(matches!(raw(b" \n"), P::Empty));
    assert!(matches!(raw(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), P::LfsPointer));
    assert!(matches!(raw(b"[1, 2"), P::Json(_)));
    assert!(matches!(raw(&[0xff, 0xfe, 0]), P::Json(_)));
    assert!(matches!(raw("[".repeat(100_000).as_bytes()), P::Json(_)));
    let whole = small().to_string();
    assert!(matches!(raw(&whole.as_bytes()[..whole.len() / 2]), P::Json(_)));
    let absent = Tekken::from_file(Path::new("no/such/tekken.json")).unwrap_err();
    assert!(matches!(absent.problem, P::Unreadable(_)), "{absent}");
    assert!(absent.to_string().starts_with("no/such/tekken.json: "));
}

#[test]
fn other_kinds_of_model_are_recognised() {
    let kind = |spoil: &dyn Fn(&mut Value)| {
        let mut json = small();
        spoil(&mut json);
        read(&json).unwrap().audio_use()
    };
    assert_eq!(kind(&|_| ()), AudioUse::Instruct);
    assert_eq!(AudioUse::Instruct.refusal(), None);
    let realtime = kind(&|j| {
        j["audio"]["transcription_format"] = json!("streaming");
        j["audio"]["chunk_length_s"] = Value::Null;
        j["audio"]["transcription_delay_ms"] = json!(480);
        j["audio"]["streaming_look_ahead_ms"] = json!(2.5);
    });
    assert_eq!(realtime, AudioUse::Realtime);
    assert!(realtime.refusal().unwrap().contains("Realtime"));
    let speech = kind(&|j| j["audio"]["voice_num_audio_tokens"] = json!({"amy": 120}));
    assert_eq!(speech, AudioUse::Speech);
    let text = kind(&|j| {
        j.as_object_mut().unwrap().remove("audio");
    });
    assert_eq!(text, AudioUse::None);
    assert_eq!(reduced().audio().unwrap().audio_encoding_config.num_mel_bins, 128);
}
