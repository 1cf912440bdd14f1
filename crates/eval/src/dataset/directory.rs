//! A directory of recordings: `talk.flac` with `talk.txt` beside it, in any depth.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use wnw_audio::SUFFIXES;

use super::{Audio, DatasetError, Format, Recording, Task, text};

/// What a person may have put beside the data.
const NO_TEXTS: [&str; 4] = ["readme", "license", "licence", "copying"];

pub(super) fn read(path: &Path) -> Result<Vec<Recording>, DatasetError> {
    read_as(path, &Task::Transcribe, None)
}

/// The same, for a set whose task and language are known. Ids are paths below the directory, without the suffix.
pub(super) fn read_as(
    root: &Path,
    task: &Task,
    language: Option<&str>,
) -> Result<Vec<Recording>, DatasetError> {
    let mut audio: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut texts: BTreeMap<String, PathBuf> = BTreeMap::new();
    for (name, path) in files(root, Format::Directory.layout())? {
        let Some((stem, suffix)) = name.rsplit_once('.') else { continue };
        let suffix = suffix.to_ascii_lowercase();
        if suffix == "txt" {
            let base = stem.rsplit('/').next().unwrap_or(stem).to_ascii_lowercase();
            if !NO_TEXTS.iter().any(|name| base.starts_with(name)) {
                texts.insert(stem.to_owned(), path);
            }
        } else if SUFFIXES.contains(&suffix.as_str())
            && let Some(first) = audio.insert(stem.to_owned(), path.clone())
        {
            return Err(DatasetError::DuplicateId {
                id: stem.to_owned(),
                first: first.display().to_string(),
                second: path.display().to_string(),
            });
        }
    }
    pair_up(&audio, &texts, root)?;
    let mut out = Vec::new();
    for (id, path) in &audio {
        let words = path.with_extension("words.json");
        out.push(Recording {
            id: id.clone(),
            audio: Audio::file(path)?,
            reference: text::flatten(&text::read(&texts[id])?),
            task: task.clone(),
            language: language.map(str::to_owned),
            seconds: None,
            words: words.is_file().then_some(words),
        });
    }
    Ok(out)
}

/// Every recording must have its text and the other way round.
pub(super) fn pair_up<A, T>(
    audio: &BTreeMap<String, A>,
    texts: &BTreeMap<String, T>,
    root: &Path,
) -> Result<(), DatasetError> {
    let place = root.display().to_string();
    let silent: Vec<_> = texts.keys().filter(|id| !audio.contains_key(*id)).collect();
    if let Some(id) = silent.first() {
        let (id, missing, total) = (id.to_string(), silent.len(), texts.len());
        return Err(DatasetError::MissingAudio { place, id, missing, total });
    }
    let mute: Vec<_> = audio.keys().filter(|id| !texts.contains_key(*id)).collect();
    if let Some(id) = mute.first() {
        let (id, missing, total) = (id.to_string(), mute.len(), audio.len());
        return Err(DatasetError::MissingText { place, id, missing, total });
    }
    Ok(())
}

/// All files below a directory by their path in it, written with `/`. Links are followed, except in a circle.
pub(super) fn files(root: &Path, expected: &str) -> Result<Vec<(String, PathBuf)>, DatasetError> {
    if !root.exists() {
        return Err(DatasetError::NotFound { path: root.to_owned(), expected: expected.to_owned() });
    }
    if !root.is_dir() {
        return Err(DatasetError::malformed(root, "is not a directory"));
    }
    let mut out = Vec::new();
    for entry in walkdir::WalkDir::new(root).follow_links(true).sort_by_file_name() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if error.loop_ancestor().is_some() => continue,
            Err(error) => {
                let path = error.path().unwrap_or(root).to_owned();
                return Err(DatasetError::Io { path, source: error.into() });
            }
        };
        // Hidden files, and the halves of files that some systems put into archives (`._name`), are no data.
        if !entry.file_type().is_file() || entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        let below = entry.path().strip_prefix(root).unwrap_or(entry.path());
        let parts: Vec<_> = below.iter().map(|part| part.to_str()).collect();
        let Some(parts) = parts.into_iter().collect::<Option<Vec<_>>>() else {
            return Err(DatasetError::malformed(entry.path(), "its name is not UTF-8; rename it"));
        };
        out.push((parts.join("/"), entry.path().to_owned()));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        dir
    }

    #[test]
    fn recordings_of_any_depth_with_their_texts() {
        let dir = directory(&[
            ("b.FLAC", b"x"),
            ("b.txt", b"\xef\xbb\xbfOne\r\ntwo\r\n"),
            ("b.words.json", b"{}"),
            ("sub/a.v2.wav", b"x"),
            ("sub/a.v2.txt", b""),
            ("README.txt", b"about"),
            ("notes.md", b"about"),
            ("._b.flac", b"x"),
        ]);
        let found = read(dir.path()).unwrap();
        let rows: Vec<_> =
            found.iter().map(|r| (r.id.as_str(), r.reference.as_str(), r.words.is_some())).collect();
        assert_eq!(rows, [("b", "One two", true), ("sub/a.v2", "", false)]);
        assert!(matches!(&found[0].audio, Audio::File(path) if path.ends_with("b.FLAC")));
    }

    #[test]
    fn what_is_missing_is_named_and_counted() {
        let dir = directory(&[("a.wav", b"x"), ("b.wav", b"x"), ("b.txt", b"y"), ("c.wav", b"x")]);
        let error = read(dir.path()).unwrap_err();
        assert!(
            matches!(&error, DatasetError::MissingText { id, missing: 2, total: 3, .. } if id == "a"),
            "{error}"
        );
        let dir = directory(&[("b.wav", b"x"), ("b.txt", b"y"), ("c.txt", b"z")]);
        let error = read(dir.path()).unwrap_err();
        assert!(
            matches!(&error, DatasetError::MissingAudio { id, missing: 1, total: 2, .. } if id == "c"),
            "{error}"
        );
        let dir = directory(&[("b.wav", b"x"), ("b.mp3", b"x"), ("b.txt", b"y")]);
        assert!(matches!(read(dir.path()), Err(DatasetError::DuplicateId { .. })));
        let dir = directory(&[("b.wav", b""), ("b.txt", b"y")]);
        assert!(matches!(read(dir.path()), Err(DatasetError::EmptyFile { .. })));
        let dir = directory(&[("b.wav", b"x"), ("b.txt", b"caf\xe9")]);
        assert!(matches!(read(dir.path()), Err(DatasetError::NotUtf8 { at: 3, .. })));
        assert!(matches!(read(&dir.path().join("gone")), Err(DatasetError::NotFound { .. })));
        assert!(matches!(read(&dir.path().join("b.wav")), Err(DatasetError::Malformed { .. })));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_but_not_in_circles() {
        use std::os::unix::fs::symlink;
        let real = directory(&[("a.wav", b"x"), ("a.txt", b"y")]);
        let dir = directory(&[]);
        symlink(real.path(), dir.path().join("set")).unwrap();
        symlink(dir.path(), dir.path().join("again")).unwrap();
        assert_eq!(read(dir.path()).unwrap().iter().map(|r| r.id.as_str()).collect::<Vec<_>>(), ["set/a"]);
        symlink("/nowhere/at/all.wav", dir.path().join("b.wav")).unwrap();
        let error = read(dir.path()).unwrap_err();
        assert!(error.to_string().contains("b.wav"), "{error}");
    }
}
