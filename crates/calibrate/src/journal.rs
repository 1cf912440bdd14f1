//! Results in a file, one at a time, so that an interrupted run goes on where it stopped.
//!
//! JSON lines: a header that says which run this is, then one line per entry, written whole and flushed to the disk
//! before the next one is begun. A last line that was cut off is dropped; anything else that is wrong is an error. A
//! file of another run (other model, other options) is never continued. One process at a time: the file is locked.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

const VERSION: u32 = 1;

/// What a journal is made of.
pub trait Entry: Serialize + DeserializeOwned {
    /// What the header calls the file.
    const FORMAT: &'static str;
}

impl Entry for SampleScores {
    const FORMAT: &'static str = "wnw-calibration-samples";
}

/// What all lines of a journal have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Fingerprint of the model.
    pub model: String,
    /// Everything else that changes an entry (of a calibration: K, confidence threshold, weight type), in one line.
    pub options: String,
}

/// The scores of one sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleScores {
    /// The sample's name, unique in its run.
    pub id: String,
    /// Answer tokens.
    pub answer_tokens: u64,
    /// Answer tokens that the voice score counts: with a time, and confident.
    pub voice_tokens: u64,
    /// Hits over these, `(n_layers, n_q_heads)`; see [`crate::voice::VoiceCount`].
    pub hits: Vec<u64>,
    /// Head sensitivity, `(n_layers, n_kv_heads)`.
    pub sensitivity: Vec<f64>,
    /// Mean cross-entropy of the answer in nats.
    pub loss: f64,
}

/// Why a journal cannot be used.
#[derive(Debug, Error)]
pub enum JournalError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Another process writes it.
    #[error("{0}: in use by another run")]
    Locked(PathBuf),
    /// Not a journal, or a damaged one.
    #[error("{path}:{line}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// Results of another run.
    #[error("{path}: results of another run ({theirs}; this one is {ours}); remove the file to start again")]
    OtherRun {
        /// The file.
        path: PathBuf,
        /// The run in the file.
        theirs: String,
        /// The run asked for.
        ours: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    #[serde(flatten)]
    run: Run,
}

/// The name of a sample in a journal: the recording's name with a hash of its samples and of whatever else its scores
/// depend on, so that a recording or a reference that was changed between two runs is measured again.
pub fn sample_id(name: &str, samples: &[f32], rest: &str) -> String {
    let bytes = samples.iter().flat_map(|x| x.to_le_bytes()).chain(rest.bytes());
    format!("{name} {:016x}", fold_bytes(bytes))
}

/// FNV-1a, 64 bits (Fowler, Noll and Vo): tells things apart against mistakes, not against malice.
pub fn fold_bytes(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// An open journal of entries, by default the scores of samples.
#[derive(Debug)]
pub struct Journal<E = SampleScores> {
    path: PathBuf,
    file: File,
    entries: Vec<E>,
}

impl Journal {
    /// The scores of the sample of this name, if it is done.
    pub fn find(&self, id: &str) -> Option<&SampleScores> {
        self.entries.iter().find(|s| s.id == id)
    }
}

/// Bytes up to the end of the last whole line: what follows was cut off while it was written.
fn whole_lines(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1)
}

fn malformed(path: &Path, line: usize, reason: String) -> JournalError {
    JournalError::Malformed { path: path.to_owned(), line, reason }
}

/// Header and entries of whole lines.
fn parse<E: Entry>(path: &Path, lines: &[u8]) -> Result<(Run, Vec<E>), JournalError> {
    let mut lines = lines.split(|b| *b == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    let header: Option<Header> = lines.next().and_then(|(_, line)| serde_json::from_slice(line).ok());
    let header = header
        .filter(|h| h.format == E::FORMAT)
        .ok_or_else(|| malformed(path, 1, format!("not a {} file", E::FORMAT)))?;
    if header.version != VERSION {
        let reason =
            format!("version {} of the format; this program writes version {VERSION}", header.version);
        return Err(malformed(path, 1, reason));
    }
    let entry = |(i, line): (usize, &[u8])| {
        serde_json::from_slice(line).map_err(|e| malformed(path, i + 1, e.to_string()))
    };
    Ok((header.run, lines.map(entry).collect::<Result<_, _>>()?))
}

impl JournalError {
    /// The results in `path` are of `theirs`, not of `ours`.
    pub fn other_run(path: &Path, theirs: &Run, ours: &Run) -> Self {
        let name = |run: &Run| format!("model {}, {}", run.model, run.options);
        Self::OtherRun { path: path.to_owned(), theirs: name(theirs), ours: name(ours) }
    }
}

impl<E: Entry> Journal<E> {
    /// Header and entries of a journal that nobody needs to write.
    pub fn read(path: &Path) -> Result<(Run, Vec<E>), JournalError> {
        let bytes =
            std::fs::read(path).map_err(|source| JournalError::Io { path: path.to_owned(), source })?;
        parse(path, &bytes[..whole_lines(&bytes)])
    }

    /// Opens the journal of `run` at `path`, or begins one.
    pub fn open(path: &Path, run: &Run) -> Result<Self, JournalError> {
        let io = |source| JournalError::Io { path: path.to_owned(), source };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(io(std::io::Error::other("not a regular file")));
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::Locked(path.to_owned())),
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        let header = Header { format: E::FORMAT.into(), version: VERSION, run: run.clone() };
        let start = serde_json::to_string(&header).map_err(|e| malformed(path, 1, e.to_string()))?;
        let whole = whole_lines(&bytes);
        if whole == 0 && !start.as_bytes().starts_with(&bytes) {
            return Err(malformed(path, 1, format!("not a {} file", E::FORMAT)));
        }
        let mut entries = Vec::new();
        if whole > 0 {
            let (theirs, found) = parse(path, &bytes[..whole])?;
            if theirs != *run {
                return Err(JournalError::other_run(path, &theirs, run));
            }
            entries = found;
        }
        file.set_len(whole as u64).and_then(|()| file.seek(SeekFrom::End(0))).map_err(io)?;
        let mut journal = Self { path: path.to_owned(), file, entries };
        if whole == 0 {
            journal.write_line(&header)?;
        }
        Ok(journal)
    }

    /// What is done, in the order it was.
    pub fn entries(&self) -> &[E] {
        &self.entries
    }

    /// Writes an entry down. It is kept as the file says it, so that a resumed run has the same bits.
    pub fn append(&mut self, entry: &E) -> Result<(), JournalError> {
        let line = self.write_line(entry)?;
        let entry = serde_json::from_str(&line).map_err(|e| malformed(&self.path, 0, e.to_string()))?;
        self.entries.push(entry);
        Ok(())
    }

    fn write_line(&mut self, value: &impl Serialize) -> Result<String, JournalError> {
        let io = |source| JournalError::Io { path: self.path.clone(), source };
        let mut line = serde_json::to_string(value).map_err(|e| io(e.into()))?;
        line.push('\n');
        self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data()).map_err(io)?;
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Run {
        Run { model: "abc".into(), options: "K 4, confidence 0.85".into() }
    }

    fn sample(id: &str) -> SampleScores {
        SampleScores {
            id: id.into(),
            answer_tokens: 9,
            voice_tokens: 7,
            hits: vec![1, 2, u64::MAX],
            sensitivity: vec![0.1 + 0.2, 1e-300, f64::MIN_POSITIVE / 3.0],
            loss: 1.0 / 3.0,
        }
    }

    #[test]
    fn a_run_goes_on_after_any_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samples.jsonl");
        let mut journal = Journal::<SampleScores>::open(&path, &run()).unwrap();
        for id in ["a", "b"] {
            journal.append(&sample(id)).unwrap();
        }
        let kept = journal.entries().to_vec();
        assert!(journal.find("b").is_some() && journal.find("c").is_none());
        assert!(matches!(Journal::<SampleScores>::open(&path, &run()), Err(JournalError::Locked(_))));
        drop(journal);
        let bytes = std::fs::read(&path).unwrap();
        let ends: Vec<usize> = (0..bytes.len()).filter(|i| bytes[*i] == b'\n').collect();
        for cut in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let mut journal = Journal::<SampleScores>::open(&path, &run()).unwrap();
            let whole = ends[1..].iter().filter(|e| **e < cut).count();
            assert_eq!(journal.entries(), &kept[..whole], "cut at {cut}");
            for id in ["a", "b"] {
                if journal.find(id).is_none() {
                    journal.append(&sample(id)).unwrap();
                }
            }
            drop(journal);
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "cut at {cut}");
        }
    }

    #[test]
    fn a_changed_recording_or_reference_is_another_sample() {
        let id = sample_id("a.wav", &[0.1, 0.2], "one two");
        assert_eq!(id, sample_id("a.wav", &[0.1, 0.2], "one two"));
        assert!(id.starts_with("a.wav "));
        for other in [("b.wav", 0.2, "one two"), ("a.wav", 0.3, "one two"), ("a.wav", 0.2, "one too")] {
            assert_ne!(id, sample_id(other.0, &[0.1, other.1], other.2));
        }
    }

    #[test]
    fn other_runs_and_other_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samples.jsonl");
        drop(Journal::<SampleScores>::open(&path, &run()).unwrap());
        let other = Run { options: "K 8".into(), ..run() };
        let message = Journal::<SampleScores>::open(&path, &other).unwrap_err().to_string();
        assert!(message.contains("K 4") && message.contains("K 8"), "{message}");
        for (text, line) in [("notes", 1), ("notes\n", 1), ("{\"format\":\"x\",\"version\":1}\n", 1)] {
            std::fs::write(&path, text).unwrap();
            let error = Journal::<SampleScores>::open(&path, &run()).unwrap_err();
            assert!(matches!(error, JournalError::Malformed { line: l, .. } if l == line), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        std::fs::remove_file(&path).unwrap();
        drop(Journal::<SampleScores>::open(&path, &run()).unwrap());
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("{\"id\":\n");
        std::fs::write(&path, text).unwrap();
        let error = Journal::<SampleScores>::open(&path, &run()).unwrap_err();
        assert!(matches!(error, JournalError::Malformed { line: 2, .. }), "{error}");
    }
}
