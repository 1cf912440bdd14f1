//! Data sets: recordings with their references, each format read where it lies.
//!
//! [`open`] reads only manifests and texts; audio is read when a recording's [`Audio`] is asked for. A copy that is not
//! whole (a recording without text, an archive that was cut off, a Git LFS pointer in place of a file) is an error that
//! names what is missing: a score over part of a test set is not a score on that set.

mod archive;
mod audio;
mod directory;
mod error;
mod jsonl;
mod lhotse;
mod librispeech;
mod longspeech;
mod manifest;
mod parquet;
mod primock57;
mod spec;
mod text;
mod textgrid;
pub mod tiny;

use std::path::PathBuf;

pub use archive::{Compressed, unpack};
pub use audio::Audio;
pub use error::DatasetError;
pub use parquet::AudioRow;
pub use primock57::files as primock57_files;
pub use spec::{DatasetSpec, Format, SpecError};

/// Of LibriSpeech-Long, the split that is reported.
const DEFAULT_SPLIT: &str = "test-clean";

/// What a model is to do with a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Write down what is said.
    Transcribe,
    /// Translate what is said.
    Translate {
        /// Language code of the reference, such as `fr`.
        to: String,
    },
}

/// One recording and what a perfect model would write.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Unique in its data set, and the same whichever layout it is read from. May contain `/`, never `..`.
    pub id: String,
    /// Where the sound is.
    pub audio: Audio,
    /// The text as the set gives it, on one line.
    pub reference: String,
    /// What is asked for.
    pub task: Task,
    /// Code of the language spoken, where the set says it.
    pub language: Option<String>,
    /// Length in seconds, where a manifest says it; the sound itself was not looked at.
    pub seconds: Option<f64>,
    /// A file of word times (`{"words": [{"word", "start", "end"}]}` or the same under `"prompts"`), where the set has one.
    pub words: Option<PathBuf>,
}

/// Recordings in order of their ids.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// The specification's canonical name, without a path.
    pub name: String,
    /// Sorted by id, which is unique.
    pub recordings: Vec<Recording>,
}

impl Dataset {
    fn new(spec: &DatasetSpec, mut recordings: Vec<Recording>) -> Result<Self, DatasetError> {
        if recordings.is_empty() {
            return Err(DatasetError::NoRecordings {
                path: spec.location()?.to_owned(),
                expected: spec.format.layout(),
            });
        }
        recordings.sort_by(|a, b| a.id.cmp(&b.id));
        if let Some(pair) = recordings.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(DatasetError::DuplicateId {
                id: pair[0].id.clone(),
                first: pair[0].audio.describe(),
                second: pair[1].audio.describe(),
            });
        }
        Ok(Self { name: spec.name(), recordings })
    }

    /// Length of all recordings in seconds, where every one's is known.
    pub fn seconds(&self) -> Option<f64> {
        self.recordings.iter().map(|recording| recording.seconds).sum()
    }
}

/// Reads a data set's manifests and texts; no sound.
///
/// # Errors
/// Any [`DatasetError`]: above all, whatever is missing from the copy.
pub fn open(spec: &DatasetSpec) -> Result<Dataset, DatasetError> {
    let path = spec.location()?;
    let part = spec.part.as_deref();
    let recordings = match spec.format {
        Format::TinyEn => directory::read_as(path, &Task::Transcribe, Some("en"))?,
        Format::TinyFr => directory::read_as(path, &Task::Transcribe, Some("fr"))?,
        Format::TinyEn2Fr => directory::read_as(path, &Task::Translate { to: "fr".into() }, Some("en"))?,
        Format::LibriSpeechLong | Format::LibriSpeech => {
            librispeech::read(path, part.unwrap_or(DEFAULT_SPLIT), spec.format)?
        }
        Format::LongSpeechAsrFr | Format::LongSpeechEn2Fr => longspeech::read(path, spec.format)?,
        Format::PriMock57 => primock57::read(path, spec.format.layout())?,
        Format::Directory => directory::read(path)?,
        Format::Manifest => manifest::read(path)?,
        Format::Parquet => parquet::read(path, part)?,
    };
    Dataset::new(spec, recordings)
}
