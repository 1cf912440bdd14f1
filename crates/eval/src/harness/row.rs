//! The result of one recording with one arm, as it is written down.

use serde::{Deserialize, Serialize};
use wnw_calibrate::journal::Entry;
use wnw_engine::{FinishReason, Transcript};

/// One recording with one arm. Everything but `timing` is the same for the same inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the data set.
    pub dataset: String,
    /// The recording's id in it.
    pub recording: String,
    /// Method with type and options, without the target.
    pub method: String,
    /// Share of audio rows to keep; none for the full cache.
    #[serde(default)]
    pub target: Option<f64>,
    /// Language to translate to; none for a transcription.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translate_to: Option<String>,
    /// What is said, or its translation.
    pub reference: String,
    /// What came of it.
    #[serde(flatten)]
    pub result: RowResult,
}

/// What came of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum RowResult {
    /// A transcript, perhaps one that did not end.
    Done(Box<Ran>),
    /// None.
    Failed {
        /// Why.
        error: String,
    },
}

/// A transcript and what it took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ran {
    /// The transcript.
    pub text: String,
    /// Why decoding ended.
    pub finish_reason: FinishReason,
    /// Warnings, as people see them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Seconds of audio.
    pub duration: f64,
    /// Tokens generated.
    pub new_tokens: usize,
    /// Share of audio KV rows on the device, mean over decode steps.
    pub r_gpu: f64,
    /// Share on the device or recallable, mean over decode steps.
    pub r_gpu_cpu: f64,
    /// Share that attention read, mean over decode steps.
    pub r_read: f64,
    /// The most KV bytes on the device after the prefill, text included: a longer answer holds more.
    pub kv_bytes: u64,
    /// The same with the prefill.
    pub kv_peak_bytes: u64,
    /// The most KV bytes on the host.
    pub host_bytes: u64,
    /// Bytes recalled, mean over decode steps.
    pub recalled_bytes_per_step: f64,
    /// Bytes on the device at some steps, `(step, bytes)`, for the recordings of which they are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kv_curve: Vec<(usize, u64)>,
    /// How long it took.
    pub timing: Timing,
}

/// How long a recording took; differs from run to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Seconds in all. The encoder runs once per recording, for the first arm that needs it.
    pub total: f64,
    /// Seconds of the prefill.
    pub prefill: f64,
    /// Seconds of decoding.
    pub decode: f64,
    /// Median of a decode step, in milliseconds.
    pub step_ms: f64,
    /// Milliseconds of a step that were spent waiting for recalled rows, mean.
    pub wait_ms: f64,
}

impl Entry for Row {
    const FORMAT: &'static str = "wnw-eval-results";
}

/// What a row is of: no two rows of a run have the same.
pub type Key<'a> = (&'a str, &'a str, &'a str, Option<u64>);

impl Row {
    /// What it is of.
    pub fn key(&self) -> Key<'_> {
        (&self.dataset, &self.recording, &self.method, self.target.map(f64::to_bits))
    }

    /// The transcript, if there is one.
    pub fn ran(&self) -> Option<&Ran> {
        match &self.result {
            RowResult::Done(ran) => Some(ran),
            RowResult::Failed { .. } => None,
        }
    }

    /// The same without what differs from run to run.
    pub fn timeless(&self) -> Self {
        let mut row = self.clone();
        if let RowResult::Done(ran) = &mut row.result {
            ran.timing = Timing::default();
        }
        row
    }
}

impl Ran {
    /// What is kept of a transcript.
    pub fn new(transcript: Transcript, kv_curve: Vec<(usize, u64)>) -> Self {
        let (kv, timing) = (&transcript.statistics.kv, transcript.timing);
        Self {
            finish_reason: transcript.finish_reason,
            warnings: transcript.warnings.iter().map(ToString::to_string).collect(),
            duration: transcript.duration,
            new_tokens: transcript.statistics.new_tokens,
            r_gpu: kv.r_gpu,
            r_gpu_cpu: kv.r_gpu_cpu,
            r_read: kv.r_read,
            kv_bytes: kv.kv_bytes,
            kv_peak_bytes: kv.kv_peak_bytes,
            host_bytes: kv.host_bytes,
            recalled_bytes_per_step: kv.recalled_bytes_per_step,
            kv_curve,
            timing: Timing {
                total: timing.total,
                prefill: timing.prefill,
                decode: timing.decode,
                step_ms: timing.median_step_ms,
                wait_ms: timing.recall_wait_ms,
            },
            text: transcript.text,
        }
    }
}
