//! Every recording through every arm.

use std::ops::ControlFlow;
use std::str::FromStr;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use wnw_audio::DecodeOptions;
use wnw_engine::{Engine, EngineError, Event, Progress, RecoveryConfig, Request};
use wnw_kv::KvDtype;
use wnw_kv::profile::Profile;
use wnw_model::prompt::Task as Prompt;

use super::row::{Ran, Row, RowResult};
use super::{Arm, HarnessError, Results};
use crate::dataset::{Dataset, Recording, Task};

/// Most points of a curve that is kept.
const MOST_POINTS: usize = 240;

/// A part of a run: recordings `index`, `index + count`, ….
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which part, from 0.
    pub index: usize,
    /// Parts in all.
    pub count: usize,
}

impl Shard {
    /// The whole.
    pub const WHOLE: Self = Self { index: 0, count: 1 };
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').map(|(i, n)| (i.parse::<usize>(), n.parse::<usize>()));
        match parts {
            Some((Ok(index), Ok(count))) if index < count => Ok(Self { index, count }),
            _ => Err("write INDEX/COUNT, such as 0/4 to 3/4".into()),
        }
    }
}

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Data sets, each with the recordings that are wanted.
    pub datasets: Vec<Dataset>,
    /// Methods with targets.
    pub arms: Vec<Arm>,
    /// How recordings are transcribed; task, method and type of keys and values come from the data set and the arm.
    pub request: Request,
    /// The type of keys and values that goes without saying.
    pub kv_dtype: KvDtype,
    /// The model's head scores.
    pub profile: Option<Arc<Profile>>,
    /// The part that is run here.
    pub shard: Shard,
}

/// What a run says while it goes on.
#[derive(Debug)]
pub enum Happening<'a> {
    /// A recording begins with an arm.
    Begins {
        /// What it is of; its result is not there yet.
        row: &'a Row,
        /// Rows that are there, of this run.
        done: usize,
        /// Rows that there will be.
        total: usize,
    },
    /// How far the recording is.
    Progress(Progress),
    /// A row is there.
    Row(&'a Row),
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Rows that were made.
    pub made: usize,
    /// Rows that were there.
    pub kept: usize,
    /// Recordings, counted once for each arm, that have no transcript.
    pub failed: usize,
}

/// Keeps `limit` recordings of a data set, drawn with a seed, in their order.
pub fn sample(dataset: &mut Dataset, limit: usize, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let n = dataset.recordings.len();
    let mut order: Vec<usize> = (0..n).collect();
    // The first `limit` steps of a Fisher-Yates shuffle.
    for i in 0..limit.min(n) {
        let rest = (n - i) as u128;
        order.swap(i, i + ((u128::from(rng.next_u64()) * rest) >> 64) as usize);
    }
    let mut chosen = vec![false; n];
    order.iter().take(limit).for_each(|i| chosen[*i] = true);
    let mut chosen = chosen.into_iter();
    dataset.recordings.retain(|_| chosen.next().unwrap_or(false));
}

impl Plan {
    /// Finds wrong options, and a profile that is missing, before anything runs.
    pub fn check(&self, engine: &Engine) -> Result<(), HarnessError> {
        let shape = engine.model().decoder().kv_shape();
        self.arms.iter().try_for_each(|arm| arm.check(shape, self.profile.as_ref()))
    }

    /// Runs what is not in `results` yet, and retries what failed. `sink` hears of it, and when it breaks, the run ends
    /// with [`EngineError::Cancelled`]; the rows so far are kept.
    pub fn run(
        &self,
        engine: &Engine,
        results: &mut Results,
        sink: &mut dyn FnMut(Happening<'_>) -> ControlFlow<()>,
    ) -> Result<Tally, HarnessError> {
        self.check(engine)?;
        let part = |n: usize| n.saturating_sub(self.shard.index).div_ceil(self.shard.count);
        let recordings: usize = self.datasets.iter().map(|d| part(d.recordings.len())).sum();
        let total = recordings * self.arms.len();
        let mut tally = Tally::default();
        for dataset in &self.datasets {
            let mine = dataset.recordings.iter().enumerate().skip(self.shard.index).step_by(self.shard.count);
            for (i, recording) in mine {
                for arm in &self.arms {
                    let mut row = self.row(dataset, recording, arm);
                    let there = results.find(row.key());
                    if let Some(there) = there {
                        if there.reference != row.reference || there.translate_to != row.translate_to {
                            return Err(HarnessError::OtherData {
                                path: results.path().to_owned(),
                                dataset: row.dataset,
                                recording: row.recording,
                            });
                        }
                        if there.ran().is_some() {
                            tally.kept += 1;
                            continue;
                        }
                    }
                    let failure = there.cloned();
                    let done = tally.made + tally.kept + tally.failed;
                    if sink(Happening::Begins { row: &row, done, total }).is_break() {
                        return Err(EngineError::Cancelled.into());
                    }
                    row.result = self.result(engine, dataset, recording, arm, i == 0, sink)?;
                    match row.ran() {
                        Some(_) => tally.made += 1,
                        None => tally.failed += 1,
                    }
                    // A failure that repeats itself is there already.
                    if failure.as_ref() != Some(&row) {
                        results.append(&row)?;
                    }
                    if sink(Happening::Row(&row)).is_break() {
                        return Err(EngineError::Cancelled.into());
                    }
                }
                engine.forget();
            }
        }
        Ok(tally)
    }

    fn row(&self, dataset: &Dataset, recording: &Recording, arm: &Arm) -> Row {
        Row {
            dataset: dataset.name.clone(),
            recording: recording.id.clone(),
            method: arm.series(self.kv_dtype),
            target: arm.target,
            translate_to: match &recording.task {
                Task::Transcribe => None,
                Task::Translate { to } => Some(to.clone()),
            },
            reference: recording.reference.clone(),
            result: RowResult::Failed { error: String::new() },
        }
    }

    fn result(
        &self,
        engine: &Engine,
        dataset: &Dataset,
        recording: &Recording,
        arm: &Arm,
        with_curve: bool,
        sink: &mut dyn FnMut(Happening<'_>) -> ControlFlow<()>,
    ) -> Result<RowResult, HarnessError> {
        let task = match &recording.task {
            Task::Transcribe => Prompt::transcribe(recording.language.as_deref()),
            Task::Translate { to } => Prompt::translate(to),
        };
        let task = task.map_err(|error| HarnessError::Language { dataset: dataset.name.clone(), error })?;
        let mut request = Request {
            task,
            method: arm.method(self.profile.as_ref()),
            record_steps: with_curve,
            ..self.request.clone()
        };
        request.kv.dtype = arm.kv_dtype;
        if request.recovery.is_some() && recording.task != Task::Transcribe {
            request.recovery = Some(RecoveryConfig::for_translation());
        }
        let failed = |error: String| Ok(RowResult::Failed { error });
        let audio = match recording.audio.open(&DecodeOptions::default()) {
            Ok(audio) => audio,
            Err(error) => return failed(error.to_string()),
        };
        let mut curve = Vec::new();
        let mut hear = |event| match event {
            Event::Progress(progress) => sink(Happening::Progress(progress)),
            Event::Step(step) => {
                curve.push((curve.len(), step.device_bytes));
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Continue(()),
        };
        match engine.transcribe(audio, &request, &mut hear) {
            Ok(transcript) => Ok(RowResult::Done(Box::new(Ran::new(transcript, thinned(curve))))),
            Err(EngineError::Cancelled) => Err(EngineError::Cancelled.into()),
            Err(error) => failed(error.to_string()),
        }
    }
}

/// At most [`MOST_POINTS`] of the points, evenly, with the first and the last.
fn thinned(points: Vec<(usize, u64)>) -> Vec<(usize, u64)> {
    let n = points.len();
    if n <= MOST_POINTS {
        return points;
    }
    (0..MOST_POINTS).map(|i| points[i * (n - 1) / (MOST_POINTS - 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Audio;

    fn dataset(n: usize) -> Dataset {
        let recording = |i| Recording {
            id: format!("{i:03}"),
            audio: Audio::File("none.wav".into()),
            reference: String::new(),
            task: Task::Transcribe,
            language: None,
            seconds: None,
            words: None,
        };
        Dataset { name: "d".into(), recordings: (0..n).map(recording).collect() }
    }

    #[test]
    fn a_sample_is_the_same_for_the_same_seed_and_in_order() {
        let ids = |limit, seed| {
            let mut d = dataset(50);
            sample(&mut d, limit, seed);
            d.recordings.into_iter().map(|r| r.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(10, 1), ids(10, 1));
        assert_ne!(ids(10, 1), ids(10, 2));
        assert_eq!(ids(10, 1).len(), 10);
        assert!(ids(10, 1).is_sorted());
        assert_eq!(ids(99, 1).len(), 50);
        assert!(ids(0, 1).is_empty());
    }

    #[test]
    fn shards_are_index_and_count() {
        assert_eq!("1/3".parse(), Ok(Shard { index: 1, count: 3 }));
        for bad in ["", "3", "3/3", "0/0", "-1/2", "a/b"] {
            assert!(bad.parse::<Shard>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_thinned_curve_keeps_its_ends() {
        let points: Vec<_> = (0..1000).map(|i| (i, i as u64)).collect();
        let thin = thinned(points.clone());
        assert_eq!((thin.len(), thin[0], thin[MOST_POINTS - 1]), (MOST_POINTS, points[0], points[999]));
        assert!(thin.windows(2).all(|w| w[0].0 < w[1].0));
        assert_eq!(thinned(points[..7].to_vec()), points[..7]);
    }
}
