//! The file of a run's rows.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use wnw_calibrate::journal::{Journal, Run};

use super::HarnessError;
use super::row::{Key, Row};

/// Name of the rows' file in a run's directory.
pub const FILE: &str = "results.jsonl";

/// A run's rows, in a file that grows by one at a time.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    journal: Journal<Row>,
    at: HashMap<OwnedKey, usize>,
}

type OwnedKey = (String, String, String, Option<u64>);

fn owned((dataset, recording, method, target): Key<'_>) -> OwnedKey {
    (dataset.to_owned(), recording.to_owned(), method.to_owned(), target)
}

impl Results {
    /// Opens the results in a directory, or begins them. Those of another model, or made under other options, are an
    /// error.
    pub fn open(dir: &Path, run: &Run) -> Result<Self, HarnessError> {
        let path = dir.join(FILE);
        let journal = Journal::open(&path, run)?;
        let at = journal.entries().iter().enumerate().map(|(i, row): (usize, &Row)| (owned(row.key()), i));
        Ok(Self { at: at.collect(), path, journal })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last row of each key, in the order in which they came.
    pub fn rows(&self) -> Vec<Row> {
        latest(self.journal.entries().to_vec())
    }

    /// The row of a recording with a method, if there is one.
    pub fn find(&self, key: Key<'_>) -> Option<&Row> {
        self.at.get(&owned(key)).map(|i| &self.journal.entries()[*i])
    }

    /// Adds a row; it replaces one of the same key.
    pub fn append(&mut self, row: &Row) -> Result<(), HarnessError> {
        self.journal.append(row)?;
        self.at.insert(owned(row.key()), self.journal.entries().len() - 1);
        Ok(())
    }
}

/// Without rows that a later one replaced.
fn latest(rows: Vec<Row>) -> Vec<Row> {
    let last: HashMap<OwnedKey, usize> =
        rows.iter().enumerate().map(|(i, row)| (owned(row.key()), i)).collect();
    rows.into_iter()
        .enumerate()
        .filter(|(i, row)| last[&owned(row.key())] == *i)
        .map(|(_, row)| row)
        .collect()
}

/// The rows of a directory, and the run that they belong to.
pub fn read_all(dir: &Path) -> Result<(Run, Vec<Row>), HarnessError> {
    let path = dir.join(FILE);
    let (run, rows) = Journal::<Row>::read(&path)?;
    if rows.is_empty() { Err(HarnessError::Empty(path)) } else { Ok((run, latest(rows))) }
}

/// Puts the parts of a run together in `target`: rows in the order of their keys, so that the order of parts does not
/// matter. Rows that several parts have must agree in all but time.
pub fn merge(parts: &[PathBuf], target: &Path) -> Result<Results, HarnessError> {
    let mut all: Vec<(PathBuf, Row)> = Vec::new();
    let mut first: Option<Run> = None;
    for dir in parts {
        let path = dir.join(FILE);
        let (run, rows) = read_all(dir)?;
        if let Some(first) = &first
            && *first != run
        {
            return Err(wnw_calibrate::journal::JournalError::other_run(&path, &run, first).into());
        }
        first.get_or_insert(run);
        all.extend(rows.into_iter().map(|row| (path.clone(), row)));
    }
    let Some(run) = first else { return Err(HarnessError::Empty(target.to_owned())) };
    // Stable: of rows that agree, the first part's is kept.
    all.sort_by(|(_, a), (_, b)| a.key().cmp(&b.key()));
    let mut results = Results::open(target, &run)?;
    let mut last: Option<&(PathBuf, Row)> = None;
    for entry in &all {
        let (path, row) = entry;
        match last {
            Some((other, kept)) if kept.key() == row.key() => {
                if kept.timeless() != row.timeless() {
                    return Err(disagree(other, path, row));
                }
            }
            _ => {
                match results.find(row.key()) {
                    Some(there) if there.timeless() == row.timeless() => {}
                    Some(_) => return Err(disagree(&results.path, path, row)),
                    None => results.append(row)?,
                }
                last = Some(entry);
            }
        }
    }
    Ok(results)
}

fn disagree(first: &Path, second: &Path, row: &Row) -> HarnessError {
    HarnessError::Disagree {
        first: first.to_owned(),
        second: second.to_owned(),
        dataset: row.dataset.clone(),
        recording: row.recording.clone(),
        method: row.method.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::row::{Ran, RowResult};
    use proptest::prelude::*;

    fn run() -> Run {
        Run { model: "m".into(), options: "o".into() }
    }

    fn row(recording: usize, target: Option<f64>, text: &str, total: f64) -> Row {
        let ran = Ran {
            text: text.into(),
            finish_reason: wnw_engine::FinishReason::Stop,
            warnings: Vec::new(),
            duration: 1.0,
            new_tokens: 3,
            r_gpu: 0.1 + 0.2,
            r_gpu_cpu: 1.0,
            r_read: 0.25,
            kv_bytes: 9,
            kv_peak_bytes: 10,
            host_bytes: 0,
            recalled_bytes_per_step: 0.5,
            kv_curve: vec![(0, 3)],
            timing: super::super::row::Timing { total, ..Default::default() },
        };
        Row {
            dataset: "d".into(),
            recording: format!("{recording}"),
            method: "wnw".into(),
            target,
            translate_to: None,
            reference: "one two".into(),
            result: RowResult::Done(Box::new(ran)),
        }
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let rows = [row(1, Some(0.2), "a\nb", 0.1), row(1, None, "", 0.3)];
        let mut results = Results::open(dir.path(), &run()).unwrap();
        results.append(&row(1, None, "a first try", 0.2)).unwrap();
        rows.iter().for_each(|row| results.append(row).unwrap());
        assert_eq!(results.find(rows[1].key()), Some(&rows[1]));
        assert_eq!(results.rows(), rows);
        drop(results);
        let (read, back) = read_all(dir.path()).unwrap();
        assert_eq!((read, back.as_slice()), (run(), rows.as_slice()));
        let other = Run { options: "p".into(), ..run() };
        assert!(Results::open(dir.path(), &other).unwrap_err().to_string().contains("another run"));
        assert!(matches!(read_all(tempfile::tempdir().unwrap().path()), Err(HarnessError::Journal(_))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn parts_make_the_whole_in_any_order(split in proptest::collection::vec(0usize..3, 1..12), turn in 0usize..3) {
            let dir = tempfile::tempdir().unwrap();
            let part = |i: usize| dir.path().join(format!("part{}", i % 3));
            let mut parts: Vec<PathBuf> = (0..3).map(part).collect();
            parts.iter().for_each(|p| std::fs::create_dir(p).unwrap());
            for (i, to) in split.iter().enumerate() {
                // Every third row is in two parts, with other times.
                for (to, total) in [(*to, 0.5), (to + 1, 0.7)].into_iter().take(1 + usize::from(i % 3 == 0)) {
                    Results::open(&part(to), &run()).unwrap().append(&row(i, Some(0.5), "text", total)).unwrap();
                }
            }
            parts.retain(|p| p.join(FILE).exists());
            let shift = turn % parts.len();
            parts.rotate_left(shift);
            let target = dir.path().join("whole");
            std::fs::create_dir(&target).unwrap();
            let whole = merge(&parts, &target).unwrap();
            prop_assert_eq!(whole.rows().len(), split.len());
            prop_assert!(whole.rows().windows(2).all(|w| w[0].key() < w[1].key()));
        }
    }

    #[test]
    fn parts_that_disagree_are_no_run() {
        let dir = tempfile::tempdir().unwrap();
        let parts = ["a", "b"].map(|name| dir.path().join(name));
        for (part, text) in parts.iter().zip(["one", "two"]) {
            std::fs::create_dir(part).unwrap();
            Results::open(part, &run()).unwrap().append(&row(1, None, text, 0.0)).unwrap();
        }
        let target = dir.path().join("c");
        std::fs::create_dir(&target).unwrap();
        assert!(matches!(merge(&parts, &target), Err(HarnessError::Disagree { .. })));
        assert!(matches!(merge(&[], &target), Err(HarnessError::Empty(_))));
    }
}
