//! PriMock57: 57 mock primary-care consultations, doctor and patient on a channel each.
//!
//! As the set's own scripts have it: the sound is the mean of the two channels (`sox -m` of `mix_audio.sh`); the reference is
//! all utterances of both, in order of their starts, the doctor's first where two start together, with the four tags
//! taken out (what stands between `<UNSURE>` and `</UNSURE>` stays) and without the speakers' names.

use std::path::Path;

use super::{Audio, DatasetError, Recording, Task, textgrid};

/// Consultations of each day.
const DAYS: [usize; 5] = [15, 10, 10, 10, 12];
const SPEAKERS: [&str; 2] = ["doctor", "patient"];
const TAGS: [&str; 4] = ["<UNSURE>", "</UNSURE>", "<UNIN/>", "<INAUDIBLE_SPEECH/>"];

/// Names of all consultations, such as `day1_consultation01`.
fn consultations() -> impl Iterator<Item = String> {
    let day = |(day, count): (usize, usize)| {
        (1..=count).map(move |number| format!("day{}_consultation{number:02}", day + 1))
    };
    DAYS.into_iter().enumerate().flat_map(day)
}

/// All files of the set by their path in its repository: channels, of which a checkout may have only Git LFS pointers, and
/// transcripts.
pub fn files() -> (Vec<String>, Vec<String>) {
    let all = |folder: &str, suffix: &str| {
        let names = consultations()
            .flat_map(|id| SPEAKERS.map(|speaker| format!("{folder}/{id}_{speaker}.{suffix}")));
        names.collect()
    };
    (all("audio", "wav"), all("transcripts", "TextGrid"))
}

pub(super) fn read(root: &Path, expected: &str) -> Result<Vec<Recording>, DatasetError> {
    if !root.is_dir() {
        return Err(DatasetError::NotFound {
            path: root.to_owned(),
            expected: format!("a directory with {expected}"),
        });
    }
    let sound = |id: &str, speaker| root.join("audio").join(format!("{id}_{speaker}.wav"));
    let text = |id: &str, speaker| root.join("transcripts").join(format!("{id}_{speaker}.TextGrid"));
    let sounds: Vec<_> = consultations().flat_map(|id| SPEAKERS.map(|speaker| sound(&id, speaker))).collect();
    let texts: Vec<_> = consultations().flat_map(|id| SPEAKERS.map(|speaker| text(&id, speaker))).collect();
    for (what, all) in [("channels (audio/*.wav)", sounds), ("transcripts (transcripts/*.TextGrid)", texts)] {
        let missing: Vec<_> = all.iter().filter(|path| !path.is_file()).collect();
        if let Some(first) = missing.first() {
            let below = first.strip_prefix(root).unwrap_or(first);
            return Err(DatasetError::Incomplete {
                path: root.to_owned(),
                what,
                example: below.display().to_string(),
                missing: missing.len(),
                total: all.len(),
            });
        }
    }
    consultations()
        .map(|id| {
            let channels = SPEAKERS.map(|speaker| Audio::file(&sound(&id, speaker)));
            let channels = channels.into_iter().collect::<Result<_, _>>()?;
            let mut utterances = Vec::new();
            for speaker in SPEAKERS {
                let path = text(&id, speaker);
                let bytes = std::fs::read(&path).map_err(DatasetError::io(&path))?;
                utterances.extend(textgrid::parse(&path, &bytes)?);
            }
            Ok(Recording {
                id,
                audio: Audio::Mix(channels),
                reference: reference(utterances),
                task: Task::Transcribe,
                language: Some("en".into()),
                seconds: None,
                words: None,
            })
        })
        .collect()
}

fn reference(mut utterances: Vec<textgrid::Interval>) -> String {
    // Stable, as Python's.
    utterances.sort_by(|a, b| a.start.total_cmp(&b.start));
    let plain = utterances.iter().flat_map(|utterance| {
        let text = TAGS.iter().fold(utterance.text.clone(), |text, tag| text.replace(tag, ""));
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    });
    plain.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    fn grid(rows: &[(f64, f64, &str)]) -> String {
        let mut out = format!(
            "File type = \"ooTextFile\"\r\nObject class = \"TextGrid\"\r\n\r\nxmin = 0\r\nxmax = 9\r\ntiers? <exists>\r\nsize = 1\r\n\
             item []:\r\n    item [1]:\r\n        class = \"IntervalTier\"\r\n        name = \"Speaker\"\r\n        xmin = 0\r\n\
             \x20       xmax = 9\r\n        intervals: size = {}\r\n",
            rows.len()
        );
        for (i, (start, end, text)) in rows.iter().enumerate() {
            out += &format!(
                "        intervals [{}]:\r\n            xmin = {start}\r\n            xmax = {end}\r\n            text = \"{text}\"\r\n",
                i + 1
            );
        }
        out
    }

    fn copy() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("audio")).unwrap();
        fs::create_dir(dir.path().join("transcripts")).unwrap();
        for id in consultations() {
            for (speaker, rows) in [
                (
                    "doctor",
                    [
                        (0.0, 1.0, "Hello  there."),
                        (1.0, 2.5, ""),
                        (2.5, 9.0, "<UNSURE>Right</UNSURE>,<UNIN/> ok?"),
                    ],
                ),
                (
                    "patient",
                    [(0.0, 1.0, "Hi."), (1.0, 3.0, "My <INAUDIBLE_SPEECH/> knee."), (3.0, 9.0, "<UNIN/>")],
                ),
            ] {
                fs::write(dir.path().join(format!("audio/{id}_{speaker}.wav")), b"x").unwrap();
                fs::write(dir.path().join(format!("transcripts/{id}_{speaker}.TextGrid")), grid(&rows))
                    .unwrap();
            }
        }
        let root = dir.path().to_owned();
        (dir, root)
    }

    #[test]
    fn utterances_of_both_in_order_without_tags() {
        let (_dir, root) = copy();
        let recordings = read(&root, "").unwrap();
        assert_eq!(recordings.len(), 57);
        assert_eq!(
            (recordings[0].id.as_str(), recordings[56].id.as_str()),
            ("day1_consultation01", "day5_consultation12")
        );
        assert_eq!(recordings[0].reference, "Hello there. Hi. My knee. Right, ok?");
        assert!(matches!(&recordings[0].audio, Audio::Mix(channels) if channels.len() == 2));
    }

    #[test]
    fn whatever_is_missing_is_named() {
        let (_dir, root) = copy();
        let wav = root.join("audio/day5_consultation12_patient.wav");
        fs::write(&wav, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n").unwrap();
        let error = read(&root, "").unwrap_err().to_string();
        assert!(
            error.contains("day5_consultation12_patient.wav") && error.contains("git lfs pull"),
            "{error}"
        );
        fs::remove_file(&wav).unwrap();
        let error = read(&root, "").unwrap_err();
        assert!(matches!(error, DatasetError::Incomplete { missing: 1, total: 114, .. }), "{error}");
        fs::write(&wav, b"x").unwrap();
        fs::write(
            root.join("transcripts/day2_consultation03_doctor.TextGrid"),
            &grid(&[(0.0, 1.0, "a")])[..200],
        )
        .unwrap();
        assert!(matches!(read(&root, ""), Err(DatasetError::Truncated { .. })));
        fs::remove_dir_all(root.join("transcripts")).unwrap();
        let error = read(&root, "").unwrap_err();
        assert!(matches!(error, DatasetError::Incomplete { missing: 114, .. }), "{error}");
        assert!(matches!(read(&root.join("gone"), ""), Err(DatasetError::NotFound { .. })));
    }
}
