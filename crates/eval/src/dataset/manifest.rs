//! Manifests of one JSON object a line: NeMo's, and lhotse's cuts, recordings and supervisions. The first row tells which.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Audio, DatasetError, Recording, Task, jsonl, lhotse, text};

const EXPECTED: &str = "a NeMo manifest, or lhotse cuts, recordings or supervisions, one JSON object a line";

/// Seconds of a week: no recording is longer, and a duration that says so is in other units or broken.
pub(super) const LONGEST: f64 = 7.0 * 86_400.0;

/// A row as it stands, with its line.
pub(super) struct Row {
    pub line: usize,
    pub fields: Map<String, Value>,
}

pub(super) fn rows(path: &Path) -> Result<Vec<Row>, DatasetError> {
    let mut rows = Vec::new();
    jsonl::each(path, EXPECTED, |line, fields: Map<String, Value>| {
        rows.push(Row { line, fields });
        Ok(())
    })?;
    Ok(rows)
}

impl Row {
    /// The row as a type of the format.
    pub fn parse<T: for<'de> Deserialize<'de>>(&self, path: &Path) -> Result<T, DatasetError> {
        let parsed = T::deserialize(&Value::Object(self.fields.clone()));
        parsed.map_err(|error| DatasetError::line(path, self.line, error.to_string()))
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<Recording>, DatasetError> {
    let rows = rows(path)?;
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let has = |key: &str| first.fields.contains_key(key);
    if has("audio_filepath") {
        return rows.iter().map(|row| nemo(path, row)).collect();
    }
    if has("sources") || has("recording_id") {
        return lhotse::pair(path, &rows, has("sources"));
    }
    if has("recording") || has("supervisions") || has("tracks") {
        return rows.iter().map(|row| lhotse::cut(path, row)).collect();
    }
    let keys: Vec<_> = first.fields.keys().map(String::as_str).collect();
    let reason = format!("has the fields {}; expected {EXPECTED}", keys.join(", "));
    Err(DatasetError::line(path, first.line, reason))
}

/// The fields of NeMo's manifests; those of its multi-task models say language and task.
#[derive(Deserialize)]
struct Nemo {
    audio_filepath: String,
    text: Option<String>,
    duration: Option<f64>,
    offset: Option<f64>,
    id: Option<String>,
    lang: Option<String>,
    source_lang: Option<String>,
    target_lang: Option<String>,
    shard_id: Option<Value>,
}

fn nemo(path: &Path, row: &Row) -> Result<Recording, DatasetError> {
    let nemo: Nemo = row.parse(path)?;
    let bad = |reason: String| DatasetError::line(path, row.line, reason);
    if nemo.shard_id.is_some() {
        return Err(bad(
            "is of a tarred data set (it has a shard_id); unpack the shards and give a manifest of files"
                .into(),
        ));
    }
    let reference = nemo.text.ok_or_else(|| bad("has no text".into()))?;
    let whole = sound(path, row.line, &nemo.audio_filepath)?;
    let mut id = nemo.id.unwrap_or_else(|| stem(&nemo.audio_filepath));
    if nemo.duration.is_some_and(|seconds| !(seconds > 0.0 && seconds < LONGEST)) {
        return Err(bad(format!("its duration must be above 0 and below {LONGEST} seconds")));
    }
    let audio = match (nemo.offset, nemo.duration) {
        (None, _) => whole,
        (Some(start), Some(length)) => {
            // Part of the name, so that segments of one file differ.
            id = format!("{id}@{start}");
            span(whole, start, length).map_err(|reason| bad(reason.into()))?
        }
        (Some(_), None) => return Err(bad("has an offset but no duration".into())),
    };
    let spoken = nemo.source_lang.or(nemo.lang);
    let task = match nemo.target_lang {
        Some(to) if spoken.as_ref() != Some(&to) => Task::Translate { to },
        _ => Task::Transcribe,
    };
    Ok(Recording {
        id,
        audio,
        reference: text::flatten(&reference),
        task,
        language: spoken,
        seconds: nemo.duration,
        words: None,
    })
}

/// A recording that a row names; relative paths start where the manifest lies.
pub(super) fn sound(manifest: &Path, line: usize, name: &str) -> Result<Audio, DatasetError> {
    if name.is_empty() {
        return Err(DatasetError::line(manifest, line, "names no recording"));
    }
    let path: PathBuf = manifest.parent().unwrap_or(Path::new("")).join(name);
    if !path.is_file() {
        let reason =
            format!("the recording {} does not exist; relative paths start at the manifest", path.display());
        return Err(DatasetError::line(manifest, line, reason));
    }
    Audio::file(&path)
}

pub(super) fn span(whole: Audio, start: f64, length: f64) -> Result<Audio, &'static str> {
    match (0.0..LONGEST).contains(&start) && length > 0.0 && length < LONGEST {
        true => Ok(Audio::Span { whole: Box::new(whole), start, length }),
        false => {
            Err("its start must be 0 or more and its duration above 0 seconds, and both less than a week")
        }
    }
}

/// The path without its suffix and without what only this computer knows: of an absolute path the last part.
fn stem(name: &str) -> String {
    let name = name.replace('\\', "/");
    let relative =
        match name.starts_with('/') || name.split('/').any(|part| part == ".." || part.ends_with(':')) {
            true => name.rsplit('/').next().unwrap_or(&name).to_owned(),
            false => name.trim_start_matches("./").to_owned(),
        };
    let dot = relative.rfind('.').filter(|dot| !relative[*dot..].contains('/') && *dot > 0);
    dot.map_or(relative.clone(), |dot| relative[..dot].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn manifest(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("clips")).unwrap();
        fs::write(dir.path().join("clips/a.b.wav"), b"x").unwrap();
        let path = dir.path().join("test.jsonl");
        fs::write(&path, text.replace("DIR", dir.path().to_str().unwrap())).unwrap();
        (dir, path)
    }

    #[test]
    fn nemo_rows() {
        let (_dir, path) = manifest(
            "\u{feff}{\"audio_filepath\": \"clips/a.b.wav\", \"duration\": 2.5, \"text\": \"one\\ntwo\"}\r\n\r\n\
             {\"audio_filepath\": \"DIR/clips/a.b.wav\", \"offset\": 1.5, \"duration\": 1.0, \"text\": \"\", \"lang\": \"en\"}\n\
             {\"id\": \"x\", \"audio_filepath\": \"./clips/a.b.wav\", \"text\": \"deux\", \"source_lang\": \"en\", \"target_lang\": \"fr\"}\n\
             {\"id\": \"y\", \"audio_filepath\": \"clips/a.b.wav\", \"text\": \"one\", \"source_lang\": \"en\", \"target_lang\": \"en\"}",
        );
        let rows = read(&path).unwrap();
        assert_eq!(
            rows.iter().map(|r| r.id.as_str()).collect::<Vec<_>>(),
            ["clips/a.b", "a.b@1.5", "x", "y"]
        );
        assert_eq!((rows[0].reference.as_str(), rows[0].seconds), ("one two", Some(2.5)));
        assert!(
            matches!(&rows[1].audio, Audio::Span { start, length, .. } if (*start, *length) == (1.5, 1.0))
        );
        assert_eq!((rows[1].language.as_deref(), &rows[1].task), (Some("en"), &Task::Transcribe));
        assert_eq!(
            (rows[2].language.as_deref(), &rows[2].task),
            (Some("en"), &Task::Translate { to: "fr".into() })
        );
        assert_eq!(rows[3].task, Task::Transcribe);
    }

    #[test]
    fn rows_that_cannot_be_used_are_named() {
        let good = "{\"audio_filepath\": \"clips/a.b.wav\", \"duration\": 2, \"text\": \"a\"}\n";
        for (row, expected) in [
            ("{\"audio_filepath\": \"clips/gone.wav\", \"text\": \"a\"}", "clips/gone.wav does not exist"),
            (
                "{\"audio_filepath\": \"/nowhere/x.wav\", \"text\": \"a\"}",
                "the recording /nowhere/x.wav does not exist",
            ),
            ("{\"audio_filepath\": \"clips\", \"text\": \"a\"}", "does not exist"),
            ("{\"audio_filepath\": \"\", \"text\": \"a\"}", "names no recording"),
            ("{\"audio_filepath\": \"clips/a.b.wav\", \"duration\": 2}", "has no text"),
            ("{\"audio_filepath\": \"clips/a.b.wav\", \"text\": 7}", "invalid type"),
            ("{\"text\": \"a\"}", "missing field `audio_filepath`"),
            ("{\"audio_filepath\": \"clips/a.b.wav\", \"offset\": 1, \"text\": \"a\"}", "no duration"),
            (
                "{\"audio_filepath\": \"clips/a.b.wav\", \"offset\": -1, \"duration\": 1, \"text\": \"a\"}",
                "0 or more",
            ),
            ("{\"audio_filepath\": \"clips/a.b.wav\", \"shard_id\": 0, \"text\": \"a\"}", "tarred"),
            ("[1]", "invalid type"),
            ("{\"audio_filepath\": \"clips/a.b", "cut off"),
        ] {
            let (_dir, path) = manifest(&format!("{good}{row}\n"));
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("test.jsonl, line 2: ") && error.contains(expected), "{row}: {error}");
        }
        let (_dir, path) = manifest("{\"file\": \"a.wav\", \"sentence\": \"a\"}\n");
        assert!(read(&path).unwrap_err().to_string().contains("has the fields file, sentence"));
        let (_dir, path) = manifest("\n\n");
        assert!(read(&path).unwrap().is_empty());
        let (_dir, path) = manifest("");
        assert!(matches!(read(&path), Err(DatasetError::EmptyFile { .. })));
        assert!(matches!(read(Path::new("/nowhere/x.jsonl")), Err(DatasetError::NotFound { .. })));
    }

    #[test]
    fn names_do_not_depend_on_the_computer() {
        for (name, expected) in [
            ("a/b.c.flac", "a/b.c"),
            ("./a.wav", "a"),
            ("/data/x/a.wav", "a"),
            ("../x/a.wav", "a"),
            ("C:\\x\\a.wav", "a"),
            ("a.d/b", "a.d/b"),
            (".wav", ".wav"),
        ] {
            assert_eq!(stem(name), expected, "{name}");
        }
    }
}
