//! lhotse's manifests: cuts with their recording and supervisions inside, or recordings and supervisions in two files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::manifest::{LONGEST, Row, rows, sound, span};
use super::{Audio, DatasetError, Recording, Task, text};

#[derive(Deserialize)]
struct Cut {
    id: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    start: f64,
    duration: f64,
    channel: Option<Value>,
    #[serde(default)]
    supervisions: Vec<Supervision>,
    recording: Option<Recorded>,
}

#[derive(Deserialize)]
struct Recorded {
    id: String,
    sources: Vec<SourceFile>,
    duration: f64,
    transforms: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct SourceFile {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    channels: Vec<u64>,
    source: String,
}

#[derive(Deserialize)]
struct Supervision {
    #[serde(default)]
    recording_id: String,
    #[serde(default)]
    start: f64,
    text: Option<String>,
    language: Option<String>,
}

/// One cut.
pub(super) fn cut(path: &Path, row: &Row) -> Result<Recording, DatasetError> {
    let cut: Cut = row.parse(path)?;
    let bad = |reason: &str| DatasetError::line(path, row.line, format!("cut '{}' {reason}", cut.id));
    if cut.kind.as_deref().is_some_and(|kind| kind != "MonoCut" && kind != "MultiCut") {
        return Err(bad(
            "is not of one recording (its type is neither MonoCut nor MultiCut); save the cuts before mixing",
        ));
    }
    let recorded =
        cut.recording.as_ref().ok_or_else(|| bad("has no recording; only features of it cannot be used"))?;
    let channel = cut.channel.as_ref().and_then(Value::as_u64);
    let whole = recorded.audio(path, row.line, channel)?;
    let (id, language, reference) = (cut.id.clone(), language(&cut.supervisions), join(&cut.supervisions));
    let reference = reference.ok_or_else(|| bad("has no supervision with a text"))?;
    // Durations are rounded to whole samples of the recording's rate.
    let is_whole = cut.start == 0.0 && (cut.duration - recorded.duration).abs() < 1e-3;
    let audio = if is_whole { whole } else { span(whole, cut.start, cut.duration).map_err(bad)? };
    Ok(Recording {
        id,
        audio,
        reference,
        task: Task::Transcribe,
        language,
        seconds: Some(cut.duration),
        words: None,
    })
}

/// Recordings and supervisions in two files whose names differ in just that word. Each recording is transcribed whole.
pub(super) fn pair(path: &Path, own: &[Row], is_recordings: bool) -> Result<Vec<Recording>, DatasetError> {
    let other_path = companion(path, is_recordings)?;
    let other = rows(&other_path)?;
    let (recordings, supervisions) = if is_recordings {
        ((path, own), (&*other_path, &*other))
    } else {
        ((&*other_path, &*other), (path, own))
    };
    let mut said: BTreeMap<String, Vec<Supervision>> = BTreeMap::new();
    for row in supervisions.1 {
        let supervision: Supervision = row.parse(supervisions.0)?;
        if supervision.text.is_none() {
            return Err(DatasetError::line(supervisions.0, row.line, "has no text"));
        }
        said.entry(supervision.recording_id.clone()).or_default().push(supervision);
    }
    let texts = said.len();
    let mut out = Vec::new();
    let mut mute = Vec::new();
    for row in recordings.1 {
        let recorded: Recorded = row.parse(recordings.0)?;
        let Some(supervisions) = said.remove(&recorded.id) else {
            mute.push(recorded.id);
            continue;
        };
        out.push(Recording {
            audio: recorded.audio(recordings.0, row.line, None)?,
            reference: join(&supervisions).unwrap_or_default(),
            task: Task::Transcribe,
            language: language(&supervisions),
            seconds: Some(recorded.duration),
            words: None,
            id: recorded.id,
        });
    }
    let shown = |path: &Path| path.display().to_string();
    if let Some(id) = said.keys().next() {
        let (missing, place) = (said.len(), shown(recordings.0));
        return Err(DatasetError::MissingAudio { place, id: id.clone(), missing, total: texts });
    }
    if let Some(id) = mute.first() {
        let (missing, place) = (mute.len(), shown(supervisions.0));
        return Err(DatasetError::MissingText { place, id: id.clone(), missing, total: recordings.1.len() });
    }
    Ok(out)
}

fn companion(path: &Path, is_recordings: bool) -> Result<PathBuf, DatasetError> {
    let (own, other) =
        if is_recordings { ("recordings", "supervisions") } else { ("supervisions", "recordings") };
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if !name.contains(own) {
        let reason = format!(
            "holds lhotse {own}; name it such that '{own}' becomes '{other}' in the name of the file with the {other}"
        );
        return Err(DatasetError::malformed(path, reason));
    }
    let path = path.with_file_name(name.replace(own, other));
    if !path.is_file() {
        return Err(DatasetError::NotFound { path, expected: format!("lhotse {other} that go with {name}") });
    }
    Ok(path)
}

impl Recorded {
    fn audio(&self, path: &Path, line: usize, channel: Option<u64>) -> Result<Audio, DatasetError> {
        let bad = |reason: &str| DatasetError::line(path, line, format!("recording '{}' {reason}", self.id));
        if !(self.duration > 0.0 && self.duration < LONGEST) {
            return Err(bad("needs a duration above 0 seconds and less than a week"));
        }
        if self.transforms.as_ref().is_some_and(|transforms| !transforms.is_empty()) {
            return Err(bad("has transforms; save the transformed audio first"));
        }
        if let Some(source) = self.sources.iter().find(|source| source.kind != "file") {
            return Err(bad(&format!("has a source of type '{}'; only files can be read", source.kind)));
        }
        let channels: usize = self.sources.iter().map(|source| source.channels.len().max(1)).sum();
        let wanted: Vec<_> = match channel {
            Some(channel) if channels > 1 => {
                let own: Vec<_> = self.sources.iter().filter(|source| source.channels == [channel]).collect();
                if own.is_empty() {
                    return Err(bad(&format!(
                        "has channel {channel} in a file with others; split the file by channels"
                    )));
                }
                own
            }
            _ => self.sources.iter().collect(),
        };
        let mut files =
            wanted.iter().map(|source| sound(path, line, &source.source)).collect::<Result<Vec<_>, _>>()?;
        match files.len() {
            0 => Err(bad("has no source")),
            1 => Ok(files.remove(0)),
            _ => Ok(Audio::Mix(files)),
        }
    }
}

/// All that is said, in order of time; none where a supervision lacks its text or there is none.
fn join(supervisions: &[Supervision]) -> Option<String> {
    let mut ordered: Vec<_> = supervisions.iter().collect();
    ordered.sort_by(|a, b| a.start.total_cmp(&b.start));
    let texts = ordered.into_iter().map(|supervision| supervision.text.as_deref().map(text::flatten));
    let texts = texts.collect::<Option<Vec<_>>>()?;
    let texts: Vec<_> =
        if texts.is_empty() { return None } else { texts.into_iter().filter(|t| !t.is_empty()).collect() };
    Some(texts.join(" "))
}

/// The language, where all that name one agree.
fn language(supervisions: &[Supervision]) -> Option<String> {
    let mut named = supervisions.iter().filter_map(|supervision| supervision.language.as_ref());
    let first = named.next()?;
    named.all(|other| other == first).then(|| first.clone())
}

#[cfg(test)]
mod tests {
    use super::super::manifest::read;
    use super::*;
    use std::fs;
    use std::io::Write;

    const RECORDING: &str = r#"{"id":"r1","sources":[{"type":"file","channels":[0],"source":"a.wav"}],"sampling_rate":16000,"num_samples":48000,"duration":3.0}"#;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files.iter().chain([&("a.wav", "x"), &("b.wav", "x")]) {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn cut_row(changes: &[(&str, &str)]) -> String {
        let row = r#"{"id":"c1","start":0.0,"duration":3.0,"channel":0,"supervisions":[{"id":"s2","recording_id":"r1","start":2.0,"duration":1.0,"channel":0,"text":"there","language":"en"},{"id":"s1","recording_id":"r1","start":0.0,"duration":1.0,"channel":0,"text":"hello\n","language":"en"}],"recording":RECORDING,"type":"MonoCut"}"#;
        let row = row.replace("RECORDING", RECORDING);
        changes.iter().fold(row, |row, (from, to)| {
            assert!(row.contains(from), "{from}");
            row.replace(from, to)
        })
    }

    #[test]
    fn cuts_whole_and_in_part() {
        let part = cut_row(&[(
            r#""id":"c1","start":0.0,"duration":3.0"#,
            r#""id":"c2","start":1.0,"duration":1.5"#,
        )]);
        let dir = directory(&[("cuts.jsonl", &format!("{}\n{part}\n", cut_row(&[])))]);
        let found = read(&dir.path().join("cuts.jsonl")).unwrap();
        assert_eq!((found[0].id.as_str(), found[0].reference.as_str()), ("c1", "hello there"));
        assert_eq!((found[0].language.as_deref(), found[0].seconds), (Some("en"), Some(3.0)));
        assert!(matches!(&found[0].audio, Audio::File(path) if path.ends_with("a.wav")));
        assert!(
            matches!(&found[1].audio, Audio::Span { start, length, .. } if (*start, *length) == (1.0, 1.5))
        );
    }

    #[test]
    fn channels_in_files_of_their_own() {
        let two = (
            r#"{"type":"file","channels":[0],"source":"a.wav"}"#,
            r#"{"type":"file","channels":[0],"source":"a.wav"},{"type":"file","channels":[1],"source":"b.wav"}"#,
        );
        let text = [
            cut_row(&[two, (r#""duration":3.0,"channel":0"#, r#""duration":3.0,"channel":1"#)]),
            cut_row(&[
                two,
                (r#""duration":3.0,"channel":0"#, r#""duration":3.0,"channel":[0,1]"#),
                ("MonoCut", "MultiCut"),
                ("\"c1\"", "\"c2\""),
            ]),
        ];
        let dir = directory(&[("cuts.jsonl", &text.join("\n"))]);
        let found = read(&dir.path().join("cuts.jsonl")).unwrap();
        assert!(matches!(&found[0].audio, Audio::File(path) if path.ends_with("b.wav")));
        assert!(matches!(&found[1].audio, Audio::Mix(files) if files.len() == 2));
    }

    #[test]
    fn cuts_that_cannot_be_used_are_named() {
        for (changes, expected) in [
            (vec![("MonoCut", "MixedCut")], "not of one recording"),
            (vec![(r#""type":"file""#, r#""type":"url""#)], "type 'url'"),
            (vec![(r#""channels":[0]"#, r#""channels":[0,1]"#)], "split the file"),
            (vec![("a.wav", "gone.wav")], "gone.wav does not exist"),
            (vec![(r#""text":"there","#, "")], "no supervision with a text"),
            (vec![(r#""recording":{"#, r#""features":{"#)], "has no recording"),
            (
                vec![(r#""sampling_rate""#, r#""transforms":[{"name":"Speed"}],"sampling_rate""#)],
                "transforms",
            ),
            (vec![(r#""id":"c1","start":0.0"#, r#""id":"c1","start":-1.0"#)], "0 or more"),
            (vec![(r#""id":"c1","start":0.0"#, r#""id":"c1","start":"x""#)], "invalid type"),
        ] {
            let dir = directory(&[("cuts.jsonl", &cut_row(&changes))]);
            let error = read(&dir.path().join("cuts.jsonl")).unwrap_err().to_string();
            assert!(
                error.contains("cuts.jsonl, line 1: ") && error.contains(expected),
                "{expected}: {error}"
            );
        }
    }

    #[test]
    fn recordings_and_supervisions_from_either_also_compressed() {
        let said = r#"{"id":"s1","recording_id":"r1","start":0.0,"duration":1.0,"channel":0,"text":"hello","language":"en"}"#;
        let dir = directory(&[("recordings_test.jsonl", RECORDING), ("supervisions_test.jsonl", said)]);
        for name in ["recordings_test.jsonl", "supervisions_test.jsonl"] {
            let found = read(&dir.path().join(name)).unwrap();
            assert_eq!((found.len(), found[0].id.as_str(), found[0].reference.as_str()), (1, "r1", "hello"));
        }
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(said.as_bytes()).unwrap();
        let packed = packed.finish().unwrap();
        fs::write(dir.path().join("supervisions_z.jsonl.gz"), &packed).unwrap();
        fs::write(dir.path().join("recordings_z.jsonl.gz"), RECORDING).unwrap();
        assert_eq!(read(&dir.path().join("supervisions_z.jsonl.gz")).unwrap().len(), 1);
        fs::write(dir.path().join("supervisions_z.jsonl.gz"), &packed[..packed.len() - 9]).unwrap();
        assert!(matches!(
            read(&dir.path().join("supervisions_z.jsonl.gz")),
            Err(DatasetError::Truncated { .. })
        ));
    }

    #[test]
    fn recordings_and_supervisions_must_match() {
        let said = |id: &str| format!("{{\"id\":\"s\",\"recording_id\":\"{id}\",\"text\":\"a\"}}\n");
        let both = said("r1") + &said("r2");
        let dir = directory(&[("recordings.jsonl", RECORDING), ("supervisions.jsonl", &both)]);
        let path = dir.path().join("recordings.jsonl");
        assert!(matches!(read(&path), Err(DatasetError::MissingAudio { missing: 1, total: 2, .. })));
        fs::write(dir.path().join("supervisions.jsonl"), said("r1")).unwrap();
        fs::write(&path, format!("{RECORDING}\n{}", RECORDING.replace("r1", "r2"))).unwrap();
        assert!(matches!(read(&path), Err(DatasetError::MissingText { missing: 1, total: 2, .. })));
        fs::write(dir.path().join("supervisions.jsonl"), said("r1").replace("\"text\":\"a\"", "\"x\":1"))
            .unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("line 1: has no text"));
        fs::remove_file(dir.path().join("supervisions.jsonl")).unwrap();
        assert!(matches!(read(&path), Err(DatasetError::NotFound { .. })));
        fs::rename(&path, dir.path().join("x.jsonl")).unwrap();
        assert!(matches!(read(&dir.path().join("x.jsonl")), Err(DatasetError::Malformed { .. })));
    }
}
