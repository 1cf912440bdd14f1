//! The result of one recording.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::kv_statistics::KvStatistics;
use crate::times::Word;

/// Why decoding ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its answer, in every window.
    Stop,
    /// A window reached its cap of tokens: text is missing.
    Length,
    /// The repetition guard stopped a run-away in some window: text is missing or wrong there.
    Repetition,
}

/// Something the user should know about a transcript.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Warning {
    /// A stable word for scripts: `audio`, `kv-budget`, `length`, `repetition`, `restart`, `silence`, `windows`.
    pub kind: &'static str,
    /// One line for people.
    pub message: String,
    /// Seconds of the recording that it concerns, when known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<f64>,
    /// End of that stretch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<f64>,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A stretch of the recording and its text: one per sentence or so if times were asked for, otherwise one per window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Segment {
    /// Seconds from the start of the recording.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// What is said in it.
    pub text: String,
    /// Confidence of the times, 0 to 1, if they were read off the model's attention.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
}

/// Counts; the same for the same input and flags.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Statistics {
    /// Windows given to the model; one that was begun again counts again.
    pub windows: usize,
    /// Prompt positions over all windows.
    pub prompt_tokens: usize,
    /// Of these, audio.
    pub audio_tokens: usize,
    /// Tokens of the transcript.
    pub new_tokens: usize,
    /// KV method.
    pub kv_method: String,
    /// Its parameters in the first window, by name.
    pub kv_parameters: BTreeMap<&'static str, String>,
    /// Element type of the cache.
    pub kv_dtype: String,
    /// Element type of the decoder's weights.
    pub weight_dtype: String,
    /// What the KV cache held and moved.
    #[serde(flatten)]
    pub kv: KvStatistics,
}

/// Where the time went, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timing {
    /// Reading, decoding and resampling of the file.
    pub read: f64,
    /// Features and audio encoder.
    pub encode: f64,
    /// Prefill.
    pub prefill: f64,
    /// Decoding of tokens.
    pub decode: f64,
    /// From the first sample to the last token.
    pub total: f64,
    /// `total` / duration: below 1 is faster than the recording plays.
    pub real_time_factor: f64,
    /// Median of a decode step in milliseconds.
    pub median_step_ms: f64,
    /// Milliseconds of a decode step spent waiting for recalled KV rows, mean.
    pub recall_wait_ms: f64,
}

/// The transcript of one recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transcript {
    /// The whole text; windows are joined by a space.
    pub text: String,
    /// The language asked for, or the first that the model says it heard; not every model says so.
    pub language: Option<String>,
    /// Seconds decoded.
    pub duration: f64,
    /// The text in stretches.
    pub segments: Vec<Segment>,
    /// Words with their times, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words: Option<Vec<Word>>,
    /// Generated token ids of all windows, without the end token.
    pub tokens: Vec<u32>,
    /// Why decoding ended.
    pub finish_reason: FinishReason,
    /// What the user should know.
    pub warnings: Vec<Warning>,
    /// Counts.
    pub statistics: Statistics,
    /// Times; not part of the JSON by default, since they differ between runs.
    #[serde(skip)]
    pub timing: Timing,
}
