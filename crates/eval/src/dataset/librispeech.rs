//! LibriSpeech and LibriSpeech-Long, as a tree or straight from the archive.
//!
//! Both are `…/SPLIT/SPEAKER/CHAPTER/NAME.flac`. LibriSpeech-Long has a text of the same name beside each recording,
//! LibriSpeech one file `SPEAKER-CHAPTER.trans.txt` a chapter with lines `NAME TEXT`; copies that mix the two are read
//! too. The path may be that of the archive, of any directory above the splits, or of a split itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::archive::Files;
use super::directory::pair_up;
use super::{Audio, DatasetError, Format, Recording, Task, text};

/// A file's place in the set.
struct Position<'a> {
    split: &'a str,
    speaker: &'a str,
    file: &'a str,
}

impl<'a> Position<'a> {
    /// Takes `[…/SPLIT/]SPEAKER/CHAPTER/FILE` apart; `root` is the split where the path does not have it.
    fn of(name: &'a str, root: &'a str) -> Option<Self> {
        let mut parts = name.rsplit('/');
        let (file, chapter, speaker) = (parts.next()?, parts.next()?, parts.next()?);
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !is_number(chapter) || !is_number(speaker) {
            return None;
        }
        Some(Self { split: parts.next().unwrap_or(root), speaker, file })
    }

    /// `SPEAKER-STEM`; LibriSpeech's stems begin with the speaker already.
    fn id(&self, stem: &str) -> String {
        match stem.strip_prefix(self.speaker) {
            Some(rest) if rest.starts_with('-') => stem.to_owned(),
            _ => format!("{}-{stem}", self.speaker),
        }
    }
}

pub(super) fn read(root: &Path, split: &str, format: Format) -> Result<Vec<Recording>, DatasetError> {
    let files = Files::open(root, format.layout())?;
    let own_name = root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut splits = BTreeSet::new();
    let mut audio: BTreeMap<String, Audio> = BTreeMap::new();
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for name in files.names() {
        let Some(position) = Position::of(name, &own_name) else { continue };
        splits.insert(position.split.to_owned());
        if position.split != split {
            continue;
        }
        let Some((stem, suffix)) = position.file.rsplit_once('.') else { continue };
        if stem.ends_with(".trans") && suffix == "txt" {
            let place = format!("{}: {name}", root.display());
            for (i, line) in files.text(name)?.lines().enumerate().filter(|(_, line)| !line.trim().is_empty())
            {
                let (stem, said) = line.trim().split_once(char::is_whitespace).ok_or_else(|| {
                    DatasetError::line(Path::new(&place), i + 1, format!("'{}' has no text", line.trim()))
                })?;
                add(&mut texts, position.id(stem), text::flatten(said), &place)?;
            }
        } else if suffix == "txt" {
            let said = text::flatten(&files.text(name)?);
            let place = format!("{}: {name}", root.display());
            if said.is_empty() {
                return Err(DatasetError::EmptyFile { place });
            }
            add(&mut texts, position.id(stem), said, &place)?;
        } else if wnw_audio::SUFFIXES.contains(&suffix.to_ascii_lowercase().as_str()) {
            let id = position.id(stem);
            let new = files.audio(name)?;
            if let Some(old) = audio.get(&id) {
                return Err(DatasetError::DuplicateId { id, first: old.describe(), second: new.describe() });
            }
            audio.insert(id, new);
        }
    }
    if splits.is_empty() {
        return Err(DatasetError::NoRecordings { path: root.to_owned(), expected: format.layout() });
    }
    if !splits.contains(split) {
        let (path, found) = (root.to_owned(), splits.into_iter().collect());
        return Err(DatasetError::NoSplit { path, split: split.to_owned(), found });
    }
    pair_up(&audio, &texts, root)?;
    let recordings = audio.into_iter().map(|(id, audio)| Recording {
        reference: texts.remove(&id).unwrap_or_default(),
        id,
        audio,
        task: Task::Transcribe,
        language: Some("en".into()),
        seconds: None,
        words: None,
    });
    Ok(recordings.collect())
}

fn add(
    texts: &mut BTreeMap<String, String>,
    id: String,
    said: String,
    place: &str,
) -> Result<(), DatasetError> {
    match texts.get(&id) {
        // Some copies have a text beside each recording and the chapter's file as well.
        Some(old) if *old != said => {
            let reason = format!("gives '{id}' another text than a file before it; remove one of them");
            Err(DatasetError::malformed(Path::new(place), reason))
        }
        _ => {
            texts.insert(id, said);
            Ok(())
        }
    }
}
