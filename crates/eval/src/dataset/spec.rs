//! Naming a data set on a command line: `FORMAT[:PATH][#PART]`, or a path alone.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{DEFAULT_SPLIT, DatasetError};

/// Layouts that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The embedded model's held-out English recordings.
    TinyEn,
    /// The embedded model's held-out French recordings.
    TinyFr,
    /// The embedded model's held-out recordings for English to French.
    TinyEn2Fr,
    /// LibriSpeech-Long: tree or archive.
    LibriSpeechLong,
    /// LibriSpeech: tree or archive.
    LibriSpeech,
    /// LongSpeech, recognition of French.
    LongSpeechAsrFr,
    /// LongSpeech, translation of English into French.
    LongSpeechEn2Fr,
    /// PriMock57, both channels mixed.
    PriMock57,
    /// A directory of recordings with a text file beside each.
    Directory,
    /// One JSON object a line: NeMo, or lhotse cuts or recordings.
    Manifest,
    /// Parquet files as the Hugging Face hub exports audio data sets.
    Parquet,
}

impl Format {
    /// All of them, in the order of listings.
    pub const ALL: [Self; 11] = [
        Self::TinyEn,
        Self::TinyFr,
        Self::TinyEn2Fr,
        Self::LibriSpeechLong,
        Self::LibriSpeech,
        Self::LongSpeechAsrFr,
        Self::LongSpeechEn2Fr,
        Self::PriMock57,
        Self::Directory,
        Self::Manifest,
        Self::Parquet,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::TinyEn => "tiny-en",
            Self::TinyFr => "tiny-fr",
            Self::TinyEn2Fr => "tiny-en2fr",
            Self::LibriSpeechLong => "librispeech-long",
            Self::LibriSpeech => "librispeech",
            Self::LongSpeechAsrFr => "longspeech-asr-fr",
            Self::LongSpeechEn2Fr => "longspeech-en2fr",
            Self::PriMock57 => "primock57",
            Self::Directory => "dir",
            Self::Manifest => "manifest",
            Self::Parquet => "parquet",
        }
    }

    /// Whether it is one data set, with a place of its own in a data directory, and not a layout for anyone's data.
    pub fn is_named_set(self) -> bool {
        !matches!(self, Self::Directory | Self::Manifest | Self::Parquet)
    }

    /// Its folder in a data directory.
    pub fn folder(self) -> &'static str {
        match self {
            Self::LongSpeechAsrFr | Self::LongSpeechEn2Fr => "longspeech",
            other => other.name(),
        }
    }

    /// What a copy holds, for messages.
    pub fn layout(self) -> &'static str {
        match self {
            Self::TinyEn | Self::TinyFr | Self::TinyEn2Fr | Self::Directory => {
                "recordings with a .txt of the same name beside each"
            }
            Self::LibriSpeechLong => "SPLIT/SPEAKER/CHAPTER/CHAPTER_SEGMENT.flac, each with its .txt",
            Self::LibriSpeech => "SPLIT/SPEAKER/CHAPTER/*.flac with SPEAKER-CHAPTER.trans.txt",
            Self::LongSpeechAsrFr => "LongSpeechQA/ASR/test.jsonl with rows of language fr",
            Self::LongSpeechEn2Fr => {
                "LongSpeechQA/translation/test.jsonl with rows into French whose recordings are English"
            }
            Self::PriMock57 => "audio/dayD_consultationNN_{doctor,patient}.wav and transcripts/*.TextGrid",
            Self::Manifest => "one JSON object a line",
            Self::Parquet => "rows with an audio and a text column",
        }
    }

    fn has_parts(self) -> bool {
        matches!(self, Self::LibriSpeechLong | Self::LibriSpeech | Self::Parquet)
    }
}

/// Which data set, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetSpec {
    /// Its layout.
    pub format: Format,
    /// Its place; a named set without one is looked for in a data directory ([`DatasetSpec::or_in`]).
    pub path: Option<PathBuf>,
    /// The split, of formats that have several.
    pub part: Option<String>,
}

/// A specification that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{spec}' names no data set: {reason}")]
pub struct SpecError {
    /// What was given.
    pub spec: String,
    /// What is wrong with it, and what would be right.
    pub reason: String,
}

impl DatasetSpec {
    /// The same, with the place of a named set in `data_dir` where none was given.
    pub fn or_in(mut self, data_dir: &Path) -> Self {
        if self.path.is_none() && self.format.is_named_set() {
            self.path = Some(data_dir.join(self.format.folder()));
        }
        self
    }

    /// Format and split, without the path: `librispeech-long#test-clean`; of a set of no published layout, the name of its
    /// directory or file. For results, which should not depend on where a copy lies.
    pub fn name(&self) -> String {
        let own = match self.format {
            Format::Directory | Format::Manifest | Format::Parquet => {
                self.path.as_deref().and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned())
            }
            _ => None,
        };
        let name = own.as_deref().unwrap_or(self.format.name());
        match &self.part {
            Some(part) => format!("{name}#{part}"),
            None if self.format == Format::LibriSpeechLong => format!("{name}#{DEFAULT_SPLIT}"),
            None => name.to_owned(),
        }
    }

    /// Its path.
    ///
    /// # Errors
    /// [`DatasetError::Spec`] where none was given or filled in.
    pub fn location(&self) -> Result<&Path, DatasetError> {
        self.path.as_deref().ok_or_else(|| {
            let reason =
                format!("give its place as {}:PATH, or a data directory to look in", self.format.name());
            DatasetError::Spec(SpecError { spec: self.to_string(), reason })
        })
    }
}

impl fmt::Display for DatasetSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.format.name())?;
        if let Some(path) = &self.path {
            write!(f, ":{}", path.display())?;
        }
        self.part.as_ref().map_or(Ok(()), |part| write!(f, "#{part}"))
    }
}

impl FromStr for DatasetSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let error = |reason: String| SpecError { spec: text.to_owned(), reason };
        let (head, place) = match text.split_once(':') {
            Some((head, place)) => (head, Some(place)),
            None => (text, None),
        };
        let (name, part_of_name) = match head.split_once('#') {
            Some((name, part)) if place.is_none() => (name, Some(part)),
            _ => (head, None),
        };
        let Some(format) = Format::ALL.into_iter().find(|format| format.name() == name) else {
            return bare_path(text).ok_or_else(|| {
                let names: Vec<_> = Format::ALL.iter().map(|format| format.name()).collect();
                error(format!("it is neither a path that exists nor one of {}", names.join(", ")))
            });
        };
        let (path, part) = match place {
            Some(place) if format.has_parts() => match place.rsplit_once('#') {
                // A file whose own name has a '#' is meant whole.
                Some((path, part)) if !Path::new(place).exists() => (Some(path), Some(part)),
                _ => (Some(place), None),
            },
            place => (place, part_of_name),
        };
        if path == Some("") || part == Some("") {
            return Err(error(format!(
                "write {}:PATH{}",
                name,
                if format.has_parts() { "[#SPLIT]" } else { "" }
            )));
        }
        if path.is_none() && !format.is_named_set() {
            return Err(error(format!("write {name}:PATH")));
        }
        if part.is_some() && !format.has_parts() {
            return Err(error(format!("{name} has no splits")));
        }
        if part.is_none() && format == Format::LibriSpeech {
            return Err(error("say which split, such as librispeech:PATH#test-clean".into()));
        }
        Ok(Self { format, path: path.map(PathBuf::from), part: part.map(str::to_owned) })
    }
}

/// A directory, a `.jsonl` or a `.parquet` that exists.
fn bare_path(text: &str) -> Option<DatasetSpec> {
    let path = Path::new(text);
    let name = text.to_ascii_lowercase();
    let format = if path.is_dir() {
        Format::Directory
    } else if !path.is_file() {
        return None;
    } else if [".jsonl", ".jsonl.gz", ".json"].iter().any(|suffix| name.ends_with(suffix)) {
        Format::Manifest
    } else if name.ends_with(".parquet") {
        Format::Parquet
    } else {
        return None;
    };
    Some(DatasetSpec { format, path: Some(path.to_owned()), part: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<DatasetSpec, String> {
        text.parse().map_err(|error: SpecError| error.to_string())
    }

    #[test]
    fn names_places_and_splits() {
        let spec = parse("librispeech-long:/data/ll.tar#dev-other").unwrap();
        assert_eq!(spec.format, Format::LibriSpeechLong);
        assert_eq!(spec.path.as_deref(), Some(Path::new("/data/ll.tar")));
        assert_eq!(
            (spec.part.as_deref(), spec.name().as_str()),
            (Some("dev-other"), "librispeech-long#dev-other")
        );
        assert_eq!(spec.to_string(), "librispeech-long:/data/ll.tar#dev-other");
        assert_eq!(parse("librispeech-long").unwrap().name(), "librispeech-long#test-clean");
        assert_eq!(parse("librispeech#dev-clean").unwrap().part.as_deref(), Some("dev-clean"));
        assert_eq!(parse("dir:a#b").unwrap().path.as_deref(), Some(Path::new("a#b")));
        assert_eq!(
            parse("tiny-en").unwrap().or_in(Path::new("d")).path.as_deref(),
            Some(Path::new("d/tiny-en"))
        );
        assert_eq!(
            parse("longspeech-en2fr").unwrap().or_in(Path::new("d")).path.as_deref(),
            Some(Path::new("d/longspeech"))
        );
        assert_eq!(parse("tiny-en:x").unwrap().or_in(Path::new("d")).path.as_deref(), Some(Path::new("x")));
        assert!(parse("tiny-en").unwrap().location().unwrap_err().to_string().contains("tiny-en:PATH"));
    }

    #[test]
    fn bare_paths_are_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().to_str().unwrap();
        assert_eq!(parse(text).unwrap().format, Format::Directory);
        for (name, format) in
            [("a.JSONL", Format::Manifest), ("a.jsonl.gz", Format::Manifest), ("a.parquet", Format::Parquet)]
        {
            std::fs::write(dir.path().join(name), b"").unwrap();
            assert_eq!(parse(&format!("{text}/{name}")).unwrap().format, format);
        }
        std::fs::write(dir.path().join("a.csv"), b"").unwrap();
        assert!(parse(&format!("{text}/a.csv")).is_err());
    }

    #[test]
    fn errors_say_what_would_be_right() {
        for (text, expected) in [
            ("", "one of tiny-en"),
            ("nowhere/at/all", "neither a path"),
            ("librispech:x", "librispeech,"),
            ("librispeech:x", "#test-clean"),
            ("librispeech-long:", "librispeech-long:PATH[#SPLIT]"),
            ("librispeech-long:x#", "librispeech-long:PATH[#SPLIT]"),
            ("dir", "write dir:PATH"),
            ("manifest:", "write manifest:PATH"),
            ("tiny-en#x", "no splits"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
