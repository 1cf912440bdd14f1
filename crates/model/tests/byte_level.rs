//! The byte-level tokenizer and the prompts of Qwen's families against Hugging Face's tokenizers library
//! (tools/goldens/byte_level.py).

#[path = "common/qwen.rs"]
mod qwen;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use wnw_model::byte_level::ByteLevelBpe;
use wnw_model::families::{self, Language};
use wnw_model::prompt::Task;
use wnw_model::tokenizer::TextDecoder;
use wnw_model::{Tokenizer, TokenizerSource};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/qwen")
}

fn read(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(data().join(name)).unwrap()).unwrap()
}

/// The two forms of the same tokenizer: `tokenizer.json`, and `vocab.json` with `merges.txt` and control tokens.
fn forms() -> [tempfile::TempDir; 2] {
    forms_of(&read("tokenizer.json"))
}

fn forms_of(whole: &Value) -> [tempfile::TempDir; 2] {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let write = |dir: &Path, name: &str, text: String| std::fs::write(dir.join(name), text).unwrap();
    write(dirs[0].path(), "tokenizer.json", whole.to_string());
    let pair = dirs[1].path();
    let added = whole["added_tokens"].as_array().unwrap();
    let mut vocab = whole["model"]["vocab"].clone();
    added.iter().for_each(|a| drop(vocab.as_object_mut().unwrap().remove(a["content"].as_str().unwrap())));
    write(pair, "vocab.json", vocab.to_string());
    let merges = whole["model"]["merges"].as_array().unwrap().iter();
    let lines: Vec<String> = merges
        .map(|m| match m.as_array() {
            Some(pair) => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
            None => m.as_str().unwrap().to_owned(),
        })
        .collect();
    write(pair, "merges.txt", format!("#version: 0.2\n{}\n", lines.join("\n")));
    let decoder: serde_json::Map<String, Value> = added
        .iter()
        .map(|a| (a["id"].to_string(), json!({"content": a["content"], "special": a["special"]})))
        .collect();
    write(pair, "tokenizer_config.json", json!({ "added_tokens_decoder": decoder }).to_string());
    dirs
}

fn ids(value: &Value) -> Vec<u32> {
    let one = |v: &Value| match v.as_array() {
        Some(run) => vec![run[0].as_u64().unwrap() as u32; run[1].as_u64().unwrap() as usize],
        None => vec![v.as_u64().unwrap() as u32],
    };
    value.as_array().unwrap().iter().flat_map(one).collect()
}

/// The configuration of a golden, with the small tokenizer's ids.
fn config(name: &str) -> Value {
    let mut config = read(&format!("{name}.json"))["config"].clone();
    qwen::state_tokens(&mut config);
    config
}

fn dialogue(config: &Value, dir: &Path) -> Result<Language, String> {
    let config = config.to_string();
    let family = families::open(config.as_bytes(), Path::new("m/config.json")).map_err(|e| e.to_string())?;
    family.dialogue(&TokenizerSource::Dir(dir.into())).map_err(|e| e.to_string())
}

#[test]
fn both_forms_equal_the_reference() {
    let golden = read("tokenizer-golden.json");
    for dir in forms() {
        let tokenizer = ByteLevelBpe::open(dir.path()).unwrap();
        for case in golden["texts"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let got = tokenizer.encode(text).unwrap();
            assert_eq!(got, ids(&case["ids"]), "{text:?}");
            // In NFC, and otherwise the same.
            let back = (&tokenizer as &dyn Tokenizer).decode(&got);
            assert_eq!(back, text.replace("e\u{301}", "é"), "{text:?}");
        }
        for (name, id) in golden["special"].as_object().unwrap() {
            let id = id.as_u64().unwrap() as u32;
            assert_eq!(tokenizer.special(name), Some(id));
            // Text that is a token as a whole is text.
            let is_text = name == "<asr_text>";
            assert_eq!(tokenizer.special_name(id).is_none(), is_text, "{name}");
            assert_eq!(tokenizer.token_bytes(id).is_some(), is_text, "{name}");
        }
        assert!(tokenizer.require_special("<|other|>").unwrap_err().to_string().contains("<|other|>"));
        assert_eq!(TextDecoder::new(&tokenizer).push(100_000), "\u{fffd}");
    }
}

#[test]
fn prompts_are_those_of_the_chat_templates() {
    let golden = read("tokenizer-golden.json");
    let dirs = forms();
    for case in golden["prompts"].as_array().unwrap() {
        let language = case["language"].as_str();
        let task = match case["task"].as_str().unwrap() {
            "transcribe" => Task::transcribe(language)
                .unwrap()
                .with_context(case["context"].as_str().unwrap_or_default().to_owned()),
            "translate" => Task::translate(language.unwrap()).unwrap(),
            _ => Task::Chat { instruction: case["instruction"].as_str().unwrap().to_owned() },
        };
        let config = config(&format!("{}-release", case["family"].as_str().unwrap()));
        let (tokenizer, dialogue) = dialogue(&config, dirs[0].path()).unwrap();
        let prompt = dialogue.prompt(tokenizer.as_ref(), &task, 7).unwrap();
        assert_eq!(prompt.ids, ids(&case["ids"]), "{case}");
        assert_eq!((prompt.layout.len(), prompt.layout.n_audio()), (prompt.ids.len(), 7));
        let stops = [golden["special"]["<|im_end|>"].clone(), golden["special"]["<|endoftext|>"].clone()];
        assert_eq!(dialogue.stops(), ids(&json!(stops)));
    }
}

#[test]
fn broken_tokenizers_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let open = || ByteLevelBpe::open(dir.path()).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(open().contains("vocab.json with merges.txt"), "{}", open());
    let whole = read("tokenizer.json");
    let path = dir.path().join("tokenizer.json");
    let with = |change: &dyn Fn(&mut Value)| {
        let mut json = whole.clone();
        change(&mut json);
        std::fs::write(&path, json.to_string()).unwrap();
        let error = ByteLevelBpe::open(dir.path()).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.is_empty() || error.contains("tokenizer.json"), "{error}");
        error
    };
    assert_eq!(with(&|_| {}), "");
    assert!(with(&|j| j["model"]["type"] = "Unigram".into()).contains("Unigram"));
    assert!(with(&|j| j["normalizer"] = json!({"type": "NFKC"})).contains("NFKC"));
    assert!(with(&|j| j["pre_tokenizer"] = json!({"type": "Metaspace"})).contains("pattern"));
    assert!(
        with(&|j| j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(".into())
            .contains("regular")
    );
    assert!(with(&|j| j["model"]["vocab"]["x y"] = 9999.into()).contains("alphabet"));
    assert!(with(&|j| j["model"]["vocab"]["zz"] = 99_999_999.into()).contains("id 99999999"));
    assert!(with(&|j| j["model"]["merges"][3] = "q z".into()).contains("entry 4: 'qz' of 'q z' is not"));
    assert!(with(&|j| j["model"]["vocab"]["!"] = 7.into()).contains("tokens '!' and '(' both have id 7"));
    assert!(
        with(&|j| j["added_tokens"][4]["id"] = 301.into()).contains("'<|im_start|>' and '<|audio_bos|>'")
    );
    assert!(with(&|j| j["added_tokens"][4]["id"] = 5.into()).contains("both have id 5"));
    assert!(with(&|j| j["model"]["vocab"]["<|im_end|>"] = 302.into()).is_empty());
    assert!(with(&|j| j["model"]["vocab"]["<|im_end|>"] = 310.into()).contains("the ids 310 and 302"));
    let again = |j: &mut Value| {
        let first = j["added_tokens"][2].clone();
        j["added_tokens"].as_array_mut().unwrap().push(first);
    };
    assert_eq!(with(&again), "");
    assert!(with(&|j| j["added_tokens"][3]["content"] = "<|im_end|>".into()).contains("the ids 302 and 303"));
    assert!(with(&|j| drop(j["model"]["vocab"].as_object_mut().unwrap().remove("!"))).contains("byte 0x21"));
    assert!(with(&|j| j["model"]["merges"] = 3.into()).contains("not a tokenizer"));
    std::fs::write(&path, b"{").unwrap();
    assert!(open().contains("not a tokenizer"));
    // A tokenizer of the other family has not the tokens that the prompt needs.
    let mut json = whole.clone();
    json["added_tokens"].as_array_mut().unwrap().retain(|a| a["content"] != "<|audio_pad|>");
    std::fs::write(&path, json.to_string()).unwrap();
    let error = dialogue(&config("asr-release"), dir.path()).err().unwrap();
    assert!(error.contains("<|audio_pad|>"), "{error}");
}

/// Changes the list of merges, and gives what is said of it in either form.
fn with_merges(change: &dyn Fn(&mut Vec<Value>)) -> [String; 2] {
    let mut json = read("tokenizer.json");
    change(json["model"]["merges"].as_array_mut().unwrap());
    forms_of(&json).map(|dir| {
        let error = ByteLevelBpe::open(dir.path()).err().map(|e| e.to_string()).unwrap_or_default();
        error.rsplit_once('/').map(|(_, end)| end.to_owned()).unwrap_or(error)
    })
}

/// Cut, mixed up or empty, a list gives other tokens for the same text.
#[test]
fn merges_that_do_not_belong_to_the_vocabulary_are_refused() {
    let last = "no merge makes token";
    for (change, says) in [
        (&(|m: &mut Vec<Value>| m.clear()) as &dyn Fn(&mut Vec<Value>), last),
        (&|m| drop(m.pop()), last),
        (&|m| drop(m.remove(20)), "which no earlier merge makes"),
        (&|m| m.reverse(), "which no earlier merge makes"),
        (&|m| m.swap(0, 1), "is out of order"),
        (&|m| m.insert(5, m[4].clone()), "was merged before"),
        (&|m| m.insert(5, "garbage".into()), "'garbage' is not a pair of tokens"),
        (&|m| m.insert(5, "a b c".into()), "'a b c' is not a pair of tokens"),
        (&|m| m.insert(5, "q z".into()), "'qz' of 'q z' is not in the vocabulary"),
    ] {
        let [whole, lines] = with_merges(change);
        assert!(whole.starts_with("tokenizer.json: ") && whole.contains(says), "{whole}");
        assert!(lines.starts_with("merges.txt: ") && lines.contains(says), "{lines}");
        assert!(whole.contains("fetch") && lines.contains("fetch"), "{whole} {lines}");
    }
    // Line 1 is the version's.
    let [whole, lines] = with_merges(&|m| m[9] = "q z".into());
    assert!(whole.contains("model.merges, entry 10: "), "{whole}");
    assert!(lines.contains("merges.txt: line 11: "), "{lines}");
}

#[test]
fn a_vocabulary_with_gaps_is_refused() {
    let mut json = read("tokenizer.json");
    // The upper half is gone, and with it its merges; the control tokens stay where they were.
    json["model"]["vocab"].as_object_mut().unwrap().retain(|_, id| id.as_u64().unwrap() < 280);
    json["model"]["merges"].as_array_mut().unwrap().truncate(280 - 256);
    for (dir, file) in forms_of(&json).iter().zip(["tokenizer.json", "vocab.json"]) {
        let error = ByteLevelBpe::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("{file}: no token has id 280")), "{error}");
    }
    // Between control tokens a place may be free.
    let mut json = read("tokenizer.json");
    json["added_tokens"][9]["id"] = 315.into();
    assert!(forms_of(&json).iter().all(|dir| ByteLevelBpe::open(dir.path()).is_ok()));
}

#[test]
fn the_three_files_are_named_and_read_as_editors_leave_them() {
    let [_, dir] = forms();
    let at = |name: &str| dir.path().join(name);
    let open = || ByteLevelBpe::open(dir.path()).err().map(|e| e.to_string()).unwrap_or_default();
    let merges = std::fs::read_to_string(at("merges.txt")).unwrap();
    let bare = merges.split_once('\n').unwrap().1;
    for text in [
        merges.replace('\n', "\r\n"),
        format!("\u{feff}{merges}"),
        bare.to_owned(),
        merges.replace('\n', " \n\n"),
        merges.trim_end().to_owned(),
    ] {
        std::fs::write(at("merges.txt"), &text).unwrap();
        assert_eq!(open(), "", "{:?}", &text[..40]);
    }
    let broken = bare.replacen('\n', "\n\n# comment\n", 1);
    std::fs::write(at("merges.txt"), broken).unwrap();
    assert!(open().contains("merges.txt: line 3: 'comment' of '# comment' is not"), "{}", open());
    std::fs::write(at("merges.txt"), [bare.as_bytes(), b"\xff\xfe a\n"].concat()).unwrap();
    assert!(open().contains("merges.txt: line 45 is not UTF-8"), "{}", open());
    std::fs::write(at("merges.txt"), &merges).unwrap();

    let config = std::fs::read_to_string(at("tokenizer_config.json")).unwrap();
    for (text, says) in [
        ("{}", "no control tokens"),
        ("{", "not a tokenizer"),
        (
            &config.replacen("<|im_start|>", "<|im_end|>", 1),
            "'<|im_end|>' is listed with the ids 301 and 302",
        ),
        (&config.replacen("\"301\"", "\"5\"", 1), "both have id 5"),
    ] {
        std::fs::write(at("tokenizer_config.json"), text).unwrap();
        assert!(open().contains("tokenizer_config.json: ") && open().contains(says), "{}", open());
    }
    std::fs::write(at("tokenizer_config.json"), config.replace("<|im_end|>", "<|other|>")).unwrap();
    let error = ByteLevelBpe::open(dir.path()).unwrap().require_special("<|im_end|>").unwrap_err();
    assert!(error.to_string().contains("tokenizer_config.json: no token '<|im_end|>'"), "{error}");
    for name in ["tokenizer_config.json", "merges.txt"] {
        std::fs::remove_file(at(name)).unwrap();
        let want = format!("{name}: no such file: without tokenizer.json");
        assert!(open().contains(&want) && open().contains("put all three"), "{}", open());
    }
}

/// A model finds its audio by the ids of its configuration; a tokenizer with others belongs to another model.
#[test]
fn ids_of_tokens_are_those_of_the_configuration() {
    let dirs = forms();
    for (name, field, token, id) in [
        ("omni-release", "audio_token_index", "<|AUDIO|>", 303),
        ("omni-release", "audio_start_token_id", "<|audio_bos|>", 304),
        ("omni-release", "audio_end_token_id", "<|audio_eos|>", 305),
        ("omni-thinker", "audio_token_id", "<|AUDIO|>", 303),
        ("asr-release", "audio_start_token_id", "<|audio_start|>", 306),
        ("asr-release", "audio_token_id", "<|audio_pad|>", 307),
        ("asr-tied", "audio_end_token_id", "<|audio_end|>", 308),
    ] {
        let stating = |value: Value| {
            let mut config = config(name);
            let nested = config["thinker_config"].is_object();
            let part = if nested { &mut config["thinker_config"] } else { &mut config };
            part[field] = value;
            let field = if nested { format!("thinker_config.{field}") } else { field.to_owned() };
            (dialogue(&config, dirs[0].path()).err(), dialogue(&config, dirs[1].path()).err(), field)
        };
        let (whole, three, _) = stating(id.into());
        assert_eq!((whole, three), (None, None), "{name} {field}");
        let (whole, three, field) = stating(300.into());
        let says = format!(": token '{token}' has id {id}, but m/config.json says 300 ({field}): ");
        for (error, file) in [(whole, "tokenizer.json"), (three, "tokenizer_config.json")] {
            let error = error.unwrap();
            assert!(error.contains(&format!("{file}{says}")), "{error}");
        }
        let (error, _, field) = stating((-1).into());
        let error = error.unwrap();
        assert!(
            error.contains(&format!("m/config.json: {field} is -1; it must be the id of {token}")),
            "{error}"
        );
    }
}

#[test]
fn a_configuration_without_its_thinker_or_with_another_models_part_is_refused() {
    let dirs = forms();
    let with = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut config = config(name);
        change(&mut config);
        dialogue(&config, dirs[0].path()).err().unwrap_or_default()
    };
    for name in ["omni-release", "asr-release"] {
        let gone = with(name, &|c| drop(c.as_object_mut().unwrap().remove("thinker_config")));
        assert!(gone.contains("field 'thinker_config' is missing"), "{gone}");
        assert!(with(name, &|c| c["thinker_config"] = Value::Null).contains("'thinker_config' is missing"));
        let gone = with(name, &|c| c["thinker_config"]["audio_config"] = Value::Null);
        assert!(gone.contains("field 'thinker_config.audio_config' is missing"), "{gone}");
        let other = with(name, &|c| c["thinker_config"]["model_type"] = "qwen2_5_omni_talker".into());
        assert!(other.contains("the talker of Qwen2.5-Omni") && other.contains("thinker_config"), "{other}");
        let other = with(name, &|c| c["thinker_config"]["model_type"] = "bert".into());
        assert!(other.contains("this is 'bert' (by thinker_config.model_type)"), "{other}");
        assert_eq!(
            with(name, &|c| drop(c["thinker_config"].as_object_mut().unwrap().remove("model_type"))),
            ""
        );
    }
    let gone = with("omni-thinker", &|c| c["audio_config"] = Value::Null);
    assert!(gone.contains("field 'audio_config' is missing"), "{gone}");
}
