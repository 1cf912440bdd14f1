//! Calibration without labels: the model's own transcripts stand in for references, and its own attention for word times.
//!
//! 1. Every recording is transcribed with the full cache, greedily. Its tokens are the answer. A recording whose
//!    transcript did not end by itself, or is empty, is left out.
//! 2. With the answer behind the prompt, one pass takes every head's monotone score ([`crate::monotone`]), and a backward
//!    pass the head sensitivity, which depends on no times.
//! 3. The heads with the highest monotone scores, mean over answer tokens, say when each word was said: their attention
//!    is added up and read as `wnw_engine::times` reads that of anchor heads. From these times comes a voice score.
//! 4. Once more, with the heads that VS×HS puts first (the anchors that the profile will name) in place of those. Where
//!    they are the same heads, so are the times, and nothing is computed again.
//!
//! A word whose tokens have no attention near the path has no time and does not count, nor does one whose confidence,
//! the share of its tokens' attention near the path, is too low.
//!
//! All of it is kept recording by recording as [`Entry`]s of a journal. Memory is that of one pass over one recording.

mod entry;
mod time;

use std::ops::ControlFlow;

use wnw_engine::times::AttentionTrace;
use wnw_engine::{Engine, Event, FinishReason, Phase, Request, Transcript};
use wnw_kv::profile::ranking;
use wnw_model::ModelFiles;
use wnw_model::prompt::Task;

use crate::CalibrateError;
use crate::calibration::stream;
use crate::journal::{Journal, SampleScores, sample_id};
use crate::monotone::{MonotoneProbe, reach};
use crate::sample::{Lesson, SampleOptions, SamplePhase};
use crate::scores::HeadScores;
use crate::voice::add_hits;

pub use entry::{Counted, Entry, Heard};
use time::TimeProbe;
pub use time::attention_times;

/// Least confidence of a word time that was read off attention. It is a share of attention, not a probability: half of
/// it near the path is a clear place.
pub const MIN_CONFIDENCE: f32 = 0.3;
/// A best head with a lower monotone score does not follow the recordings; random attention has up to about half of it.
pub const LEAST_MONOTONE: f64 = 0.1;
/// Heads whose score is below this share of the best one's are not asked for times, even if fewer than wanted are left:
/// they would add places that have nothing to do with the word.
const LEAST_OF_BEST: f64 = 0.25;

/// Parts of the whole work, for progress: step 2 with its backward pass, and each of the two passes for times.
const HEAR_SHARE: f64 = 0.8;
const ROUND_SHARE: f64 = 0.1;

/// A recording of the calibration set.
#[derive(Clone, Copy, Debug)]
pub struct Recording<'a> {
    /// Its name.
    pub name: &'a str,
    /// 16 kHz mono; no longer than the model takes in one pass.
    pub samples: &'a [f32],
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Transcripts, monotone scores and head sensitivity.
    Hear,
    /// Times and the voice score, in the first round or the second.
    Time {
        /// 1 or 2.
        round: usize,
    },
}

/// What came of all recordings.
#[derive(Clone, Debug, PartialEq)]
pub struct SelfLabelled {
    /// VS and HS.
    pub scores: HeadScores,
    /// Monotone score of every KV head, `(n_layers, n_kv_heads)`, 0 to 1; mean over answer tokens.
    pub monotone: Vec<f64>,
    /// The heads that the times of the first round and of the last are from, layer-major indices, ascending.
    pub time_heads: [Vec<usize>; 2],
    /// By recording: why it was left out, or none.
    pub left_out: Vec<Option<String>>,
}

type Tell<'a> = &'a mut dyn FnMut(Step, f64) -> ControlFlow<()>;

/// A calibration without labels.
pub struct SelfLabel<'a> {
    /// The model, in the precision whose scores are wanted.
    pub engine: &'a Engine,
    /// The files that it was loaded from.
    pub files: &'a ModelFiles,
    /// What the model is asked.
    pub task: &'a Task,
    /// K, and the least confidence of a time.
    pub options: SampleOptions,
    /// Heads that times are taken from, at the most.
    pub n_anchor: usize,
}

impl SelfLabel<'_> {
    /// Scores the heads over `recordings`. What is in `journal` already is not computed again.
    ///
    /// `progress` is told the step and the share of all work that is done, 0 to 1; when it breaks,
    /// [`CalibrateError::Cancelled`].
    pub fn run(
        &self,
        recordings: &[Recording<'_>],
        journal: &mut Journal<Entry>,
        progress: Tell<'_>,
    ) -> Result<SelfLabelled, CalibrateError> {
        let ids: Vec<String> = recordings.iter().map(|r| sample_id(r.name, r.samples, "")).collect();
        let part = Parts::new(recordings);
        let mut left_out = vec![None; recordings.len()];
        let mut heard: Vec<(usize, Heard)> = Vec::new();
        for (i, (recording, id)) in recordings.iter().zip(&ids).enumerate() {
            let found = journal.entries().iter().find(|e| e.is_of(id)).cloned();
            let entry = match found {
                Some(entry) => entry,
                None => {
                    let mut tell = |share| progress(Step::Hear, HEAR_SHARE * part.done(i, share));
                    let entry = self.hear(recording, id, &mut tell).map_err(|e| e.about(recording.name))?;
                    journal.append(&entry)?;
                    entry
                }
            };
            match entry {
                Entry::LeftOut { reason, .. } => left_out[i] = Some(reason),
                Entry::Heard(entry) => heard.push((i, self.checked(entry)?)),
                Entry::Counted(_) => {}
            }
        }
        if heard.is_empty() {
            let reasons =
                recordings.iter().zip(&left_out).filter_map(|(r, why)| Some((r.name, why.as_ref()?)));
            let reason = reasons.map(|(name, why)| format!("{name}: {why}")).next().unwrap_or_default();
            return Err(CalibrateError::NothingHeard(recordings.len(), reason));
        }
        let monotone = mean_monotone(&heard);
        let best = monotone.iter().fold(0.0, |m: f64, s| m.max(*s));
        if best < LEAST_MONOTONE {
            return Err(CalibrateError::NoFollower(best));
        }

        let mut round = |number: usize, heads: &[usize]| {
            let mut samples = Vec::with_capacity(heard.len());
            for (i, heard) in &heard {
                let recording = &recordings[*i];
                let known = journal.entries().iter().find_map(|entry| match entry {
                    Entry::Counted(c) if self.matches(c, &heard.id, heads) => Some(c.clone()),
                    _ => None,
                });
                let counted = match known {
                    Some(counted) => counted,
                    None => {
                        let before = HEAR_SHARE + ROUND_SHARE * (number - 1) as f64;
                        let step = Step::Time { round: number };
                        let mut tell = |share| progress(step, before + ROUND_SHARE * part.done(*i, share));
                        let counted = self.count(recording, heard, heads, &mut tell);
                        let counted = counted.map_err(|e| e.about(recording.name))?;
                        journal.append(&Entry::Counted(counted.clone()))?;
                        counted
                    }
                };
                samples.push(sample_scores(heard, counted));
            }
            let shape = self.engine.model().decoder().kv_shape();
            HeadScores::mean(&samples, shape, self.options.top_k)
        };
        let first = best_heads(&monotone, self.n_anchor);
        let scores = round(1, &first)?;
        let importance: Vec<f64> = scores.voice.iter().zip(&scores.sensitivity).map(|(v, h)| v * h).collect();
        let last = best_heads(&importance, self.n_anchor);
        let scores = if first == last { scores } else { round(2, &last)? };
        Ok(SelfLabelled { scores, monotone, time_heads: [first, last], left_out })
    }

    /// Transcribes a recording and takes what depends on the transcript alone.
    fn hear(
        &self,
        recording: &Recording<'_>,
        id: &str,
        progress: &mut dyn FnMut(f64) -> ControlFlow<()>,
    ) -> Result<Entry, CalibrateError> {
        let model = self.engine.model();
        // Decoding token by token takes about as long as the gradients.
        let transcript = match self.transcribe(recording, &mut |share| progress(0.4 * share))? {
            Ok(transcript) => transcript,
            Err(reason) => return Ok(Entry::LeftOut { id: id.to_owned(), reason }),
        };
        let mut tell = |phase, share: f64| {
            let part = match phase {
                SamplePhase::Encode => 0.05 * share,
                SamplePhase::Listen => 0.05 + 0.15 * share,
                SamplePhase::Differentiate => 0.2 + 0.8 * share,
            };
            progress(0.4 + 0.6 * part)
        };
        let lesson = Lesson::new(model, self.task, recording.samples, &transcript.tokens, &mut tell)?;
        let rate = model.audio_tokens_per_second();
        let spoken = (seconds(recording.samples) * rate).ceil() as usize;
        let positions = lesson.forced.queries().take(transcript.tokens.len()).collect();
        let mut probe = MonotoneProbe::new(model.decoder().kv_shape(), positions, spoken, reach(rate));
        lesson.listen(model, &mut probe, &mut tell)?;
        let gradients = lesson.differentiate(self.files, &mut tell)?;
        Ok(Entry::Heard(Heard {
            id: id.to_owned(),
            answer: transcript.tokens,
            monotone: probe.scores,
            sensitivity: gradients.per_head(),
            loss: gradients.loss,
        }))
    }

    /// The full cache's transcript, or why it cannot stand in for a reference.
    fn transcribe(
        &self,
        recording: &Recording<'_>,
        progress: &mut dyn FnMut(f64) -> ControlFlow<()>,
    ) -> Result<Result<Transcript, String>, CalibrateError> {
        let limit = self.engine.model().max_audio_seconds();
        if recording.samples.is_empty() {
            return Ok(Err("the recording is empty".into()));
        }
        if seconds(recording.samples) > limit {
            return Ok(Err(format!("it is longer than the {limit} s that the model takes in one pass")));
        }
        let request = Request { task: self.task.clone(), ..Request::default() };
        let audio = stream(recording.samples)?;
        let transcribed = self.engine.transcribe(audio, &request, &mut |event| {
            let Event::Progress(p) = event else { return ControlFlow::Continue(()) };
            progress(match p.phase {
                Phase::Read => 0.0,
                Phase::Encode => 0.1 * p.fraction,
                Phase::Prefill => 0.1 + 0.2 * p.fraction,
                Phase::Decode => 0.3 + 0.7 * p.fraction,
            })
        });
        let transcript = transcribed.map_err(CalibrateError::of_run)?;
        let reason = match transcript.finish_reason {
            FinishReason::Stop if transcript.text.chars().any(char::is_alphanumeric) => {
                return Ok(Ok(transcript));
            }
            FinishReason::Stop => "the model hears no words in it",
            FinishReason::Length => "the model did not end its transcript",
            FinishReason::Repetition => "the model repeated itself and was stopped",
        };
        Ok(Err(reason.into()))
    }

    /// Times of the transcript's tokens from the attention of `heads`, and the hits of all heads at these times.
    fn count(
        &self,
        recording: &Recording<'_>,
        heard: &Heard,
        heads: &[usize],
        progress: &mut dyn FnMut(f64) -> ControlFlow<()>,
    ) -> Result<Counted, CalibrateError> {
        let model = self.engine.model();
        let shape = model.decoder().kv_shape();
        let mut tell = |phase, share: f64| {
            progress(if phase == SamplePhase::Encode { 0.3 * share } else { 0.3 + 0.7 * share })
        };
        let lesson = Lesson::new(model, self.task, recording.samples, &heard.answer, &mut tell)?;
        let mut probe = TimeProbe {
            heads: heads.iter().map(|h| (h / shape.n_kv_heads, h % shape.n_kv_heads)).collect(),
            top_k: self.options.top_k,
            positions: lesson.forced.queries().take(heard.answer.len()).collect(),
            traces: Vec::with_capacity(heads.len()),
            top: Vec::with_capacity(shape.n_layers),
        };
        lesson.listen(model, &mut probe, &mut tell)?;
        let trace = AttentionTrace::sum(&probe.traces.iter().collect::<Vec<_>>());
        let step = 1.0 / model.audio_tokens_per_second();
        let times =
            attention_times(model.tokenizer(), &heard.answer, &trace, step, seconds(recording.samples));
        let spans = lesson.spans(model, &times, self.options.min_confidence);
        let mut hits = vec![0; shape.n_layers * shape.n_q_heads];
        for (hits, top) in hits.chunks_exact_mut(shape.n_q_heads).zip(&probe.top) {
            add_hits(top, &spans, hits);
        }
        Ok(Counted {
            id: heard.id.clone(),
            heads: heads.to_vec(),
            top_k: self.options.top_k,
            min_confidence: self.options.min_confidence,
            tokens: spans.iter().flatten().count() as u64,
            hits,
        })
    }

    fn matches(&self, counted: &Counted, id: &str, heads: &[usize]) -> bool {
        (counted.id.as_str(), &counted.heads[..]) == (id, heads)
            && (counted.top_k, counted.min_confidence) == (self.options.top_k, self.options.min_confidence)
    }

    /// An entry whose lists are as long as the model has heads.
    fn checked(&self, heard: Heard) -> Result<Heard, CalibrateError> {
        let shape = self.engine.model().decoder().kv_shape();
        let heads = shape.n_layers * shape.n_kv_heads;
        if heard.monotone.len() == heads && heard.sensitivity.len() == heads {
            return Ok(heard);
        }
        Err(CalibrateError::Input(format!(
            "the journal's entry of '{}' is of a model with other heads",
            heard.id
        )))
    }
}

/// The heads with the highest scores, at most `n`, none far below the best; ascending.
fn best_heads(scores: &[f64], n: usize) -> Vec<usize> {
    let order = ranking(scores);
    let least = order.first().map_or(0.0, |h| scores[*h] * LEAST_OF_BEST);
    let mut heads: Vec<usize> = order.into_iter().take(n.max(1)).filter(|h| scores[*h] >= least).collect();
    heads.sort_unstable();
    heads
}

/// Mean over all answer tokens.
fn mean_monotone(heard: &[(usize, Heard)]) -> Vec<f64> {
    let tokens: usize = heard.iter().map(|(_, h)| h.answer.len()).sum();
    let mut mean = vec![0.0; heard.first().map_or(0, |(_, h)| h.monotone.len())];
    for (_, heard) in heard {
        let weight = heard.answer.len() as f64 / tokens.max(1) as f64;
        mean.iter_mut().zip(&heard.monotone).for_each(|(m, s)| *m += weight * s);
    }
    mean
}

fn sample_scores(heard: &Heard, counted: Counted) -> SampleScores {
    SampleScores {
        id: heard.id.clone(),
        answer_tokens: heard.answer.len() as u64,
        voice_tokens: counted.tokens,
        hits: counted.hits,
        sensitivity: heard.sensitivity.clone(),
        loss: heard.loss,
    }
}

fn seconds(samples: &[f32]) -> f64 {
    samples.len() as f64 / f64::from(wnw_audio::SAMPLE_RATE)
}

/// Where recordings lie in the work of a step, in proportion to their lengths.
struct Parts {
    /// Share before each recording, and 1 at the end.
    starts: Vec<f64>,
}

impl Parts {
    fn new(recordings: &[Recording<'_>]) -> Self {
        let all: usize = recordings.iter().map(|r| r.samples.len()).sum();
        let mut before = 0;
        let starts = recordings.iter().map(|r| {
            let start = before as f64 / all.max(1) as f64;
            before += r.samples.len();
            start
        });
        let mut starts: Vec<f64> = starts.collect();
        starts.push(1.0);
        Self { starts }
    }

    /// The share done when `share` of recording `i` is.
    fn done(&self, i: usize, share: f64) -> f64 {
        self.starts[i] + (self.starts[i + 1] - self.starts[i]) * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_heads_are_few_and_near_the_best() {
        assert_eq!(best_heads(&[0.1, 0.8, 0.3, 0.9, 0.2], 3), [1, 2, 3]);
        assert_eq!(best_heads(&[0.1, 0.8, 0.3, 0.9, 0.2], 5), [1, 2, 3]);
        assert_eq!(best_heads(&[0.5, 0.5, 0.5], 2), [0, 1]);
        assert_eq!(best_heads(&[0.5, 0.6], 0), [1]);
        assert_eq!(best_heads(&[], 3), [0usize; 0]);
    }

    #[test]
    fn long_answers_weigh_more() {
        let heard = |tokens: usize, monotone: [f64; 2]| Heard {
            id: "x".into(),
            answer: vec![7; tokens],
            monotone: monotone.to_vec(),
            sensitivity: vec![1.0; 2],
            loss: 0.0,
        };
        let mean = mean_monotone(&[(0, heard(1, [1.0, 0.0])), (3, heard(3, [0.0, 0.4]))]);
        assert!((mean[0] - 0.25).abs() < 1e-12 && (mean[1] - 0.3).abs() < 1e-12, "{mean:?}");
    }

    #[test]
    fn shares_go_by_length() {
        let samples = [0.0; 30];
        let recording = |n: usize| Recording { name: "x", samples: &samples[..n] };
        let parts = Parts::new(&[recording(10), recording(0), recording(30)]);
        let done =
            [(0, 0.0), (0, 1.0), (1, 0.5), (2, 0.0), (2, 0.5), (2, 1.0)].map(|(i, s)| parts.done(i, s));
        assert_eq!(done, [0.0, 0.25, 0.25, 0.25, 0.625, 1.0]);
    }
}
