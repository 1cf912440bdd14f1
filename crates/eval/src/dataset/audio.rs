//! Where a recording's sound lies, and the way from there to samples.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wnw_audio::{AudioStream, DecodeOptions, SAMPLE_RATE, Source};

use super::DatasetError;
use super::archive::Compressed;
use super::parquet::AudioRow;

/// The sound of a recording. Cheap to hold and to clone: nothing is read before [`Audio::source`] or [`Audio::open`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Audio {
    /// A file.
    File(PathBuf),
    /// Bytes of a file: an entry of an uncompressed archive.
    Part {
        /// The archive.
        file: PathBuf,
        /// The entry's name in it.
        name: String,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// An entry of a compressed archive.
    Compressed {
        /// The archive, shared by its entries: reading them in its order goes through it once.
        archive: Arc<Compressed>,
        /// The entry's name in it.
        name: String,
        /// First byte, once decompressed.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// A row of a Parquet file.
    Row(AudioRow),
    /// Seconds `start` to `start + length` of another.
    Span {
        /// The whole.
        whole: Box<Audio>,
        /// Start in seconds.
        start: f64,
        /// Length in seconds.
        length: f64,
    },
    /// The mean of several, the shorter ones followed by silence.
    Mix(Vec<Audio>),
}

impl Audio {
    /// A file that is looked at only as far as it takes to tell that it is one.
    pub(super) fn file(path: &Path) -> Result<Self, DatasetError> {
        let meta = std::fs::metadata(path).map_err(DatasetError::io(path))?;
        if meta.len() == 0 {
            return Err(DatasetError::EmptyFile { place: path.display().to_string() });
        }
        // Real recordings are longer than such a pointer.
        if meta.len() < 512 {
            let mut start = Vec::new();
            let file = File::open(path).map_err(DatasetError::io(path))?;
            file.take(64).read_to_end(&mut start).map_err(DatasetError::io(path))?;
            if start.starts_with(b"version https://git-lfs.github.com/spec/") {
                return Err(DatasetError::LfsPointer { path: path.to_owned() });
            }
        }
        Ok(Self::File(path.to_owned()))
    }

    /// Where it lies, for messages.
    pub fn describe(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Part { file, name, .. } => format!("{}: {name}", file.display()),
            Self::Compressed { archive, name, .. } => format!("{}: {name}", archive.path().display()),
            Self::Row(row) => row.describe(),
            Self::Span { whole, start, length } => {
                format!("{} ({start:.3} s to {:.3} s)", whole.describe(), start + length)
            }
            Self::Mix(parts) => parts.iter().map(Self::describe).collect::<Vec<_>>().join(" + "),
        }
    }

    /// What the decoder takes. Files stay where they are; everything else is read into memory: an archive's entry as it is, a
    /// span or a mix as decoded samples.
    ///
    /// # Errors
    /// [`DatasetError`]: reading, and for spans and mixes decoding.
    pub fn source(&self) -> Result<Source, DatasetError> {
        Ok(match self {
            Self::File(path) => Source::Path(path.clone()),
            Self::Part { file, offset, length, .. } => {
                let bytes = read_part(file, *offset, *length)?;
                Source::Bytes(bytes.into())
            }
            Self::Compressed { archive, offset, length, .. } => {
                Source::Bytes(archive.read(*offset, *length)?.into())
            }
            Self::Row(row) => Source::Bytes(row.read()?.into()),
            Self::Span { .. } | Self::Mix(_) => Source::Bytes(wav(&self.samples()?).into()),
        })
    }

    /// Opens it for decoding to 16 kHz mono.
    ///
    /// # Errors
    /// As [`source`](Self::source), and whatever the decoder finds in the headers.
    pub fn open(&self, options: &DecodeOptions) -> Result<AudioStream, DatasetError> {
        AudioStream::open(self.source()?, options).map_err(|source| self.broken(source))
    }

    /// All samples, mono at 16 kHz.
    ///
    /// # Errors
    /// As [`open`](Self::open), and damage inside: a measurement must not be made on part of a recording.
    pub fn samples(&self) -> Result<Vec<f32>, DatasetError> {
        match self {
            Self::Mix(parts) => {
                let parts = parts.iter().map(Self::samples).collect::<Result<Vec<_>, _>>()?;
                Ok(mean(&parts))
            }
            Self::Span { whole, start, length } => {
                let samples = whole.samples()?;
                let at = |seconds: f64| (seconds * f64::from(SAMPLE_RATE)).round() as usize;
                let (from, to) = (at(*start), at(start + length));
                // Durations in manifests are rounded; half a second more than there is, is another file.
                if from >= samples.len() || to > samples.len() + SAMPLE_RATE as usize / 2 {
                    let there = samples.len() as f64 / f64::from(SAMPLE_RATE);
                    return Err(DatasetError::Truncated {
                        path: PathBuf::from(whole.describe()),
                        detail: format!(
                            "its manifest has {start} s to {:.3} s, the recording {there:.3} s",
                            start + length
                        ),
                    });
                }
                Ok(samples[from..to.min(samples.len())].to_vec())
            }
            _ => {
                let options = DecodeOptions { strict: true, ..DecodeOptions::default() };
                let decoded = self.open(&options)?.read_all().map_err(|source| self.broken(source))?;
                Ok(decoded.samples)
            }
        }
    }

    fn broken(&self, source: wnw_audio::AudioError) -> DatasetError {
        DatasetError::Audio { place: self.describe(), source }
    }
}

fn read_part(file: &Path, offset: u64, length: u64) -> Result<Vec<u8>, DatasetError> {
    let io = || DatasetError::io(file);
    let mut opened = File::open(file).map_err(io())?;
    opened.seek(SeekFrom::Start(offset)).map_err(io())?;
    let mut bytes = Vec::new();
    opened.take(length).read_to_end(&mut bytes).map_err(io())?;
    if (bytes.len() as u64) < length {
        let detail = format!("{length} bytes expected at {offset}, {} there", bytes.len());
        return Err(DatasetError::Truncated { path: file.to_owned(), detail });
    }
    Ok(bytes)
}

/// `sox -m`: every input at 1/n, added; the sum as long as the longest.
fn mean(parts: &[Vec<f32>]) -> Vec<f32> {
    let length = parts.iter().map(Vec::len).max().unwrap_or(0);
    let scale = 1.0 / parts.len().max(1) as f32;
    let mut out = vec![0.0; length];
    for part in parts {
        out.iter_mut().zip(part).for_each(|(sum, x)| *sum += x * scale);
    }
    out
}

/// Mono f32 samples at 16 kHz as a WAV file.
fn wav(samples: &[f32]) -> Vec<u8> {
    const FLOAT: u16 = 3;
    let data = u32::try_from(samples.len() * 4).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(44 + samples.len() * 4);
    out.extend_from_slice(b"RIFF");
    out.extend_from_slice(&data.saturating_add(36).to_le_bytes());
    out.extend_from_slice(b"WAVEfmt ");
    out.extend_from_slice(&16_u32.to_le_bytes());
    out.extend_from_slice(&FLOAT.to_le_bytes());
    out.extend_from_slice(&1_u16.to_le_bytes());
    out.extend_from_slice(&SAMPLE_RATE.to_le_bytes());
    out.extend_from_slice(&(SAMPLE_RATE * 4).to_le_bytes());
    out.extend_from_slice(&4_u16.to_le_bytes());
    out.extend_from_slice(&32_u16.to_le_bytes());
    out.extend_from_slice(b"data");
    out.extend_from_slice(&data.to_le_bytes());
    samples.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &Path, name: &str, samples: &[f32]) -> Audio {
        let path = dir.join(name);
        std::fs::write(&path, wav(samples)).unwrap();
        Audio::file(&path).unwrap()
    }

    #[test]
    fn a_mix_is_the_mean_and_as_long_as_the_longest() {
        let dir = tempfile::tempdir().unwrap();
        let mix =
            Audio::Mix(vec![file(dir.path(), "a", &[0.5, 0.25, -1.0]), file(dir.path(), "b", &[0.5, -0.25])]);
        assert_eq!(mix.samples().unwrap(), [0.5, 0.0, -0.5]);
        let stream = mix.open(&DecodeOptions::default()).unwrap();
        assert_eq!(stream.read_all().unwrap().samples, [0.5, 0.0, -0.5]);
    }

    #[test]
    fn a_span_is_cut_in_time_and_must_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let ramp: Vec<f32> = (0..16_000).map(|i| i as f32 / 16_000.0).collect();
        let whole = Box::new(file(dir.path(), "a", &ramp));
        let span = |start, length| Audio::Span { whole: whole.clone(), start, length }.samples();
        assert_eq!(span(0.25, 0.5).unwrap(), ramp[4_000..12_000]);
        assert_eq!(span(0.75, 0.3).unwrap(), ramp[12_000..]);
        assert!(matches!(span(0.75, 1.0), Err(DatasetError::Truncated { .. })));
        assert!(matches!(span(1.0, 0.1), Err(DatasetError::Truncated { .. })));
    }

    #[test]
    fn files_that_are_none_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.wav");
        std::fs::write(&path, b"").unwrap();
        assert!(matches!(Audio::file(&path), Err(DatasetError::EmptyFile { .. })));
        std::fs::write(&path, b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
            .unwrap();
        assert!(matches!(Audio::file(&path), Err(DatasetError::LfsPointer { .. })));
        std::fs::write(&path, b"no sound at all").unwrap();
        let error = Audio::file(&path).unwrap().samples().unwrap_err();
        assert!(error.to_string().contains("a.wav"), "{error}");
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Audio::file(&path), Err(DatasetError::Io { .. })));
        let part = Audio::Part { file: path, name: "x".into(), offset: 0, length: 3 };
        assert!(matches!(part.samples(), Err(DatasetError::Io { .. })));
    }
}
