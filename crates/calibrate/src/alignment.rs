//! Word times from forced alignment: WhisperX JSON, CTM, Praat TextGrid, or our own JSON, told apart by content.
//!
//! All of them become one list of [`AlignedWord`]s. A word whose time is absent or makes no sense (not a number, end
//! before start) stays in the list without one: the mapping of tokens needs its text all the same.

mod ctm;
mod error;
mod json;
mod text;
mod textgrid;

use std::path::Path;

pub use error::{AlignmentError, AlignmentProblem};

/// One spoken word of an alignment.
#[derive(Clone, Debug, PartialEq)]
pub struct AlignedWord {
    /// The word as the file spells it, without surrounding space; never empty.
    pub text: String,
    /// Start in seconds from the recording's start; finite and at most `end`. Given exactly when `end` is.
    pub start: Option<f64>,
    /// End in seconds.
    pub end: Option<f64>,
    /// How sure the aligner is, 0 to 1. None where the format does not say, which counts as sure. In a WhisperX file
    /// that scores its words, one without a score has 0: its time is interpolated.
    pub confidence: Option<f32>,
}

impl AlignedWord {
    fn new(text: &str, start: Option<f64>, end: Option<f64>, confidence: Option<f64>) -> Option<Self> {
        let text = text.trim();
        let times = start.zip(end).filter(|(a, b)| *a >= 0.0 && b.is_finite() && a <= b);
        (!text.is_empty()).then(|| Self {
            text: text.to_owned(),
            start: times.map(|t| t.0),
            end: times.map(|t| t.1),
            confidence: confidence.filter(|c| c.is_finite()).map(|c| c as f32),
        })
    }
}

/// What to take from a file that holds more than one list of words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the TextGrid tier that holds words, compared without case.
    pub tier: String,
    /// First column of the CTM lines to take; needed when the file covers several recordings.
    pub recording: Option<String>,
}

impl Default for Choice {
    fn default() -> Self {
        Self { tier: "words".to_owned(), recording: None }
    }
}

/// Largest file that is read; an hour of words takes about 2 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Reads the words of an alignment file.
pub fn read(path: &Path, choice: &Choice) -> Result<Vec<AlignedWord>, AlignmentError> {
    let file = path.display().to_string();
    let wrap = |problem| AlignmentError { file: file.clone(), line: None, problem };
    let unreadable = |e| wrap(AlignmentProblem::Unreadable(e));
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(unreadable(std::io::Error::other("not a regular file")));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(wrap(AlignmentProblem::TooLarge { bytes: metadata.len(), limit: MAX_FILE_BYTES }));
    }
    parse(&std::fs::read(path).map_err(unreadable)?, &file, choice)
}

/// Reads the words from a file's contents; `name` stands in errors.
pub fn parse(bytes: &[u8], name: &str, choice: &Choice) -> Result<Vec<AlignedWord>, AlignmentError> {
    parse_located(bytes, choice).map_err(|(line, problem)| AlignmentError {
        file: name.to_owned(),
        line,
        problem,
    })
}

/// A problem with the line it is on, counted from 1, where there is one.
type Located = (Option<usize>, AlignmentProblem);

fn parse_located(bytes: &[u8], choice: &Choice) -> Result<Vec<AlignedWord>, Located> {
    if bytes.starts_with(b"ooBinaryFile") {
        return Err((None, AlignmentProblem::BinaryTextGrid));
    }
    let text = text::decode(bytes)?;
    let head = text.trim_start();
    if head.is_empty() {
        return Err((None, AlignmentProblem::Empty));
    }
    if head.starts_with(['{', '[']) {
        json::parse(&text)
    } else if textgrid::recognise(head) {
        textgrid::parse(&text, &choice.tier)
    } else {
        ctm::parse(&text, choice.recording.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEEDS: [&str; 5] = [
        r#"{"segments":[{"start":0,"end":1.5,"text":"a b","words":[{"word":"a","start":0.1,"end":NaN,"score":0.9}]}]}"#,
        r#"{"words":[{"word":"a","start":0.1,"end":0.2,"confidence":1}]}"#,
        ";; c\nrec A 0.1 0.2 word 0.9\nrec A * * <ALT_BEGIN>\n",
        "File type = \"ooTextFile\"\nObject class = \"TextGrid\"\n\nxmin = 0\nxmax = 2\ntiers? <exists>\nsize = 1\nitem []:\n    item [1]:\n        class = \"IntervalTier\"\n        name = \"words\"\n        xmin = 0\n        xmax = 2\n        intervals: size = 1\n        intervals [1]:\n            xmin = 0\n            xmax = 2\n            text = \"a \"\"b\"\"\"\n",
        "\"ooTextFile\"\n\"TextGrid\"\n0\n2\n<exists>\n1\n\"IntervalTier\"\n\"words\"\n0\n2\n1\n0\n2\n\"a\"\n",
    ];

    fn sound(bytes: &[u8]) {
        if let Ok(words) = parse(bytes, "x", &Choice::default()) {
            for word in words {
                assert!(!word.text.trim().is_empty());
                assert_eq!(word.start.is_some(), word.end.is_some());
                if let (Some(a), Some(b)) = (word.start, word.end) {
                    assert!(a.is_finite() && b.is_finite() && a <= b);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn any_bytes_give_words_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            sound(&bytes);
        }

        /// A good file with some bytes changed, taken out, or the end cut off.
        #[test]
        fn damaged_files_give_words_or_an_error(
            seed in 0..SEEDS.len(),
            edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>(), any::<bool>()), 0..8),
            cut in any::<proptest::sample::Index>(),
            wide in any::<bool>(),
        ) {
            let mut bytes = SEEDS[seed].as_bytes().to_vec();
            if wide {
                bytes = [0xFF, 0xFE].into_iter()
                    .chain(SEEDS[seed].encode_utf16().flat_map(u16::to_le_bytes)).collect();
            }
            for (at, byte, remove) in edits {
                let at = at.index(bytes.len());
                if remove { bytes.remove(at); } else { bytes[at] = byte; }
                if bytes.is_empty() { return Ok(()); }
            }
            sound(&bytes);
            bytes.truncate(cut.index(bytes.len()));
            sound(&bytes);
        }
    }

    #[test]
    fn every_seed_is_read() {
        for seed in SEEDS {
            assert_eq!(parse(seed.as_bytes(), "x", &Choice::default()).unwrap().len(), 1, "{seed}");
        }
    }

    #[test]
    fn errors_name_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words.ctm");
        std::fs::write(&path, "rec 1 0.0 0.5 hello\nrec 1 0.5 x world\n").unwrap();
        let message = read(&path, &Choice::default()).unwrap_err().to_string();
        assert_eq!(message, format!("{}:2: 'x' is no duration in seconds", path.display()));
        let message = read(&dir.path().join("gone"), &Choice::default()).unwrap_err().to_string();
        assert!(message.contains("gone: "), "{message}");
        assert!(read(dir.path(), &Choice::default()).unwrap_err().to_string().contains("not a regular file"));
        let message = parse(b" \n", "e", &Choice::default()).unwrap_err().to_string();
        assert_eq!(message, "e: the file is empty");
    }
}
