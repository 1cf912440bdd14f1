//! LongSpeech: question rows in `LongSpeechQA`, recordings of ten minutes and their manifests in `LongSpeech_pN`.
//!
//! `asr-fr` are the rows of the ASR test whose language is French. `en2fr` are the rows of the translation test into French
//! whose recording's manifest says that English is spoken: a translation row itself names only the target.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Audio, DatasetError, Format, Recording, Task, archive, jsonl, text};

#[derive(Deserialize)]
struct Row {
    language: String,
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    audio: Option<String>,
    #[serde(default)]
    content: Content,
}

/// Some copies put the one text into a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    One(String),
    Several(Vec<String>),
}

impl Default for Content {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl Content {
    fn text(&self) -> String {
        match self {
            Self::One(text) => text::flatten(text),
            Self::Several(texts) => text::flatten(&texts.join("\n")),
        }
    }
}

#[derive(Deserialize)]
struct Info {
    id: Id,
    language: Option<String>,
    duration_sec: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Text(String),
    Number(u64),
}

/// What the manifests say of recordings, by folder (`LongSpeech_p1`) and number.
#[derive(Default)]
struct Manifests(HashMap<String, HashMap<String, Info>>);

impl Manifests {
    fn load(&mut self, root: &Path, folder: &str) -> Result<(), DatasetError> {
        if self.0.contains_key(folder) {
            return Ok(());
        }
        let path = root.join(folder).join("all_audios.jsonl");
        let mut infos = HashMap::new();
        jsonl::each(&path, "the manifest of the recordings", |_, info: Info| {
            infos.insert(info.id.key(), info);
            Ok(())
        })?;
        self.0.insert(folder.to_owned(), infos);
        Ok(())
    }

    fn find(&self, folder: &str, stem: &str) -> Option<&Info> {
        self.0.get(folder)?.get(&Id::Text(stem.to_owned()).key())
    }
}

impl Id {
    /// Manifests write `5259` or `005259`.
    fn key(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => {
                text.parse::<u64>().map_or_else(|_| text.clone(), |number| number.to_string())
            }
        }
    }
}

pub(super) fn read(root: &Path, format: Format) -> Result<Vec<Recording>, DatasetError> {
    let translates = format == Format::LongSpeechEn2Fr;
    let path: PathBuf = [
        root,
        Path::new("LongSpeechQA"),
        Path::new(if translates { "translation" } else { "ASR" }),
        Path::new("test.jsonl"),
    ]
    .iter()
    .collect();
    let mut manifests = Manifests::default();
    let mut out = Vec::new();
    let mut missing = Vec::new();
    jsonl::each(&path, format.layout(), |line, row: Row| {
        if !is_language(&row.language, &["fr", "fra", "fre", "french"]) {
            return Ok(());
        }
        let bad = |reason: &str| DatasetError::line(&path, line, reason);
        let of = |role: &str| row.messages.iter().find(|message| message.role == role);
        let audio =
            of("user").and_then(|message| message.audio.as_deref()).ok_or_else(|| bad("names no audio"))?;
        let reference = of("assistant").map(|message| message.content.text()).filter(|text| !text.is_empty());
        let reference =
            reference.ok_or_else(|| bad("has no reference: the assistant's content is missing or empty"))?;
        let name = archive::entry_name(&path, audio.as_bytes())?.ok_or_else(|| bad("names no audio"))?;
        let stem = name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem);
        let (folder, number) = (name.split('/').next().unwrap_or(""), stem.rsplit('/').next().unwrap_or(""));
        let mut seconds = None;
        if translates {
            manifests.load(root, folder)?;
            let info = manifests.find(folder, number).ok_or_else(|| {
                bad(&format!("{audio} is not in {folder}/all_audios.jsonl, which says what is spoken"))
            })?;
            let language = info.language.as_deref();
            let language = language
                .ok_or_else(|| bad(&format!("the manifest does not say what is spoken in {audio}")))?;
            if !is_language(language, &["en", "eng", "english"]) {
                return Ok(());
            }
            seconds = info.duration_sec;
        }
        let file = root.join(&name);
        if !file.is_file() {
            missing.push(file);
            return Ok(());
        }
        out.push(Recording {
            id: stem.to_owned(),
            audio: Audio::file(&file)?,
            reference,
            task: if translates { Task::Translate { to: "fr".into() } } else { Task::Transcribe },
            language: Some(if translates { "en" } else { "fr" }.into()),
            seconds,
            words: None,
        });
        Ok(())
    })?;
    if let Some(first) = missing.first() {
        return Err(DatasetError::Incomplete {
            path: root.to_owned(),
            what: "recordings that the rows name",
            example: first.strip_prefix(root).unwrap_or(first).display().to_string(),
            missing: missing.len(),
            total: missing.len() + out.len(),
        });
    }
    Ok(out)
}

fn is_language(found: &str, names: &[&str]) -> bool {
    let found = found.trim().to_ascii_lowercase();
    names.contains(&found.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn row(language: &str, audio: &str, content: &str, answer: &str) -> String {
        format!(
            "{{\"language\":\"{language}\",\"task\":\"ASR\",\"messages\":[{{\"role\":\"user\",\"audio\":\"{audio}\",\"content\":{content}}},\
             {{\"role\":\"assistant\",\"content\":\"{answer}\"}}]}}\r\n"
        )
    }

    fn copy() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for name in [
            "LongSpeech_p3/wavs/part_00/005259.wav",
            "LongSpeech_p1/wavs/000001.wav",
            "LongSpeech_p1/wavs/000002.wav",
        ] {
            write(name, "x".into());
        }
        let asr =
            row("fr", "LongSpeech_p3/wavs/part_00/005259.wav", "\"Detect: <|en|>\"", "Bonjour\\n à tous")
                + "\n"
                + &row("en", "LongSpeech_p1/wavs/000009.wav", "[\"Detect\"]", "Hello");
        write("LongSpeechQA/ASR/test.jsonl", format!("\u{feff}{asr}"));
        let translation = row("fr", "LongSpeech_p1/wavs/000001.wav", "[\"Translate\"]", "Bonjour")
            + &row("fr", "LongSpeech_p1/wavs/000002.wav", "\"Translate\"", "Salut")
            + &row("de", "LongSpeech_p1/wavs/000002.wav", "\"Translate\"", "Hallo");
        write("LongSpeechQA/translation/test.jsonl", translation);
        write(
            "LongSpeech_p1/all_audios.jsonl",
            "{\"id\":\"000001\",\"language\":\"en\",\"duration_sec\":600.5,\"components\":[]}\n{\"id\":2,\"language\":\"zh\"}\n".into(),
        );
        dir
    }

    #[test]
    fn rows_by_language_joined_with_their_manifest() {
        let dir = copy();
        let asr = read(dir.path(), Format::LongSpeechAsrFr).unwrap();
        assert_eq!(asr.len(), 1);
        assert_eq!(
            (asr[0].id.as_str(), asr[0].reference.as_str()),
            ("LongSpeech_p3/wavs/part_00/005259", "Bonjour à tous")
        );
        assert_eq!((asr[0].language.as_deref(), &asr[0].task), (Some("fr"), &Task::Transcribe));
        let en2fr = read(dir.path(), Format::LongSpeechEn2Fr).unwrap();
        assert_eq!(en2fr.len(), 1);
        assert_eq!((en2fr[0].id.as_str(), en2fr[0].seconds), ("LongSpeech_p1/wavs/000001", Some(600.5)));
        assert_eq!(
            (en2fr[0].language.as_deref(), &en2fr[0].task),
            (Some("en"), &Task::Translate { to: "fr".into() })
        );
    }

    #[test]
    fn every_gap_has_its_error() {
        let dir = copy();
        let at = |name: &str| dir.path().join(name);
        let (asr, en2fr) = (Format::LongSpeechAsrFr, Format::LongSpeechEn2Fr);
        fs::remove_file(at("LongSpeech_p3/wavs/part_00/005259.wav")).unwrap();
        let error = read(dir.path(), asr).unwrap_err();
        assert!(matches!(&error, DatasetError::Incomplete { missing: 1, total: 1, .. }), "{error}");
        assert!(error.to_string().contains("005259.wav"), "{error}");
        fs::write(at("LongSpeech_p1/all_audios.jsonl"), "{\"id\":\"000002\"}\n").unwrap();
        assert!(
            read(dir.path(), en2fr)
                .unwrap_err()
                .to_string()
                .contains("line 1: LongSpeech_p1/wavs/000001.wav is not in")
        );
        fs::write(at("LongSpeech_p1/all_audios.jsonl"), "{\"id\":\"000001\"}\n").unwrap();
        assert!(read(dir.path(), en2fr).unwrap_err().to_string().contains("does not say what is spoken"));
        fs::remove_file(at("LongSpeech_p1/all_audios.jsonl")).unwrap();
        assert!(matches!(read(dir.path(), en2fr), Err(DatasetError::NotFound { .. })));
        let set = |text: &str| fs::write(at("LongSpeechQA/ASR/test.jsonl"), text).unwrap();
        for (text, expected) in [
            (row("fr", "../x.wav", "\"\"", "a"), "leads out of"),
            (row("fr", "/etc/x.wav", "\"\"", "a"), "leads out of"),
            (row("fr", "LongSpeech_p1/wavs/000001.wav", "\"\"", ""), "no reference"),
            (row("fr", "a.wav", "\"\"", "a").replace("\"audio\"", "\"sound\""), "names no audio"),
            (row("fr", "a.wav", "\"\"", "a")[..60].to_owned(), "cut off"),
            ("{\"language\":\"fr\"}\n".to_owned(), "missing field `messages`"),
            (String::new(), "is empty"),
        ] {
            set(&text);
            let error = read(dir.path(), asr).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        fs::write(at("LongSpeechQA/ASR/test.jsonl"), b"{\"language\":\"f\xff\"}").unwrap();
        assert!(read(dir.path(), asr).unwrap_err().to_string().contains("line 1: is not UTF-8"));
        fs::remove_dir_all(at("LongSpeechQA")).unwrap();
        assert!(matches!(read(dir.path(), asr), Err(DatasetError::NotFound { .. })));
    }
}
