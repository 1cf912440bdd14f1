//! What the engine tells its caller while it works.

use wnw_kv::{HeadId, KvStore, SwapPlan};

use crate::transcript::{Transcript, Warning};

/// Something that happened. The caller's answer, `ControlFlow::Break`, cancels within one step.
#[derive(Clone, Debug)]
pub enum Event {
    /// Decoding of the recording has begun.
    Started {
        /// Duration in seconds, when the container says it.
        duration: Option<f64>,
    },
    /// Work went on. Sent at least once per decoded token and per block of the prefill.
    Progress(Progress),
    /// More text of the transcript. The concatenation of all deltas is the transcript's text.
    Text(String),
    /// What a decode step attended to and what was swapped after it; only if [`crate::Request::record_steps`] is set.
    Step(Box<StepRecord>),
    /// Something the user should know; it is also in the transcript.
    Warning(Warning),
    /// The recording is done. The last event.
    Finished(Box<Transcript>),
}

/// What the engine is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading and resampling.
    Read,
    /// Audio encoder.
    Encode,
    /// The prompt's pass through the decoder.
    Prefill,
    /// Token by token.
    Decode,
}

/// How far the engine has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The current phase.
    pub phase: Phase,
    /// Index of the current window, from 0.
    pub window: usize,
    /// Seconds of the recording at which the current window starts.
    pub window_start: f64,
    /// Length of the current window in seconds.
    pub window_seconds: f64,
    /// Share of the current phase that is done, 0 to 1. In the decode phase this is an estimate: the model does not say
    /// where in the recording it is, so the rate of tokens so far is used.
    pub fraction: f64,
    /// Tokens of the current window so far.
    pub tokens: usize,
}

impl Progress {
    /// Seconds of the recording up to which this phase has come (estimated in the decode phase).
    pub fn audio_position(&self) -> f64 {
        self.window_start + self.fraction * self.window_seconds
    }
}

/// One decode step, for charts.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRecord {
    /// Index of the window, from 0.
    pub window: usize,
    /// Attention to each audio row, summed over the watched heads' query heads, `(n_audio)`.
    pub attention: Vec<f32>,
    /// Query heads in that sum.
    pub watched: usize,
    /// Ordinals of each segment.
    pub segments: Vec<std::ops::Range<usize>>,
    /// Segments that the method wanted after this step, ascending.
    pub wanted: Vec<u32>,
    /// Segments recalled in some head while this step attended, ascending.
    pub recalled: Vec<u32>,
    /// The head that [`crate::Request::record_head`] names, or else the first that recalls rows; none if none does.
    pub head: Option<HeadId>,
    /// Audio rows of each segment that this head had on the device while this step attended, `(n_segments)`.
    pub resident: Vec<u32>,
    /// Bytes allocated on the device.
    pub device_bytes: u64,
    /// Bytes that a full cache would have allocated.
    pub full_bytes: u64,
    /// Share of audio rows on the device.
    pub r_gpu: f64,
}

impl StepRecord {
    /// What a step left in the store; call before its swap plan is carried out.
    pub(crate) fn new(
        window: usize,
        store: &KvStore,
        plan: &SwapPlan,
        watch: &Watch,
        full_bytes: u64,
    ) -> Self {
        let report = store.report();
        Self {
            window,
            attention: store.attention().to_vec(),
            watched: watch.query_heads,
            segments: store.segments().ranges().to_vec(),
            wanted: plan.wanted.clone(),
            recalled: store.recalled_segments(),
            head: watch.head,
            resident: watch.head.and_then(|head| store.segment_rows(head)).unwrap_or_default(),
            device_bytes: report.device_bytes,
            full_bytes,
            r_gpu: report.r_gpu,
        }
    }
}

/// What the records of a window's steps have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// Query heads whose attention is summed.
    pub query_heads: usize,
    /// The head whose residency is recorded.
    pub head: Option<HeadId>,
}

impl Watch {
    /// `asked` is the head that the caller named.
    pub fn new(store: &KvStore, watched: usize, asked: Option<HeadId>) -> Self {
        let n_kv_heads = store.shape().n_kv_heads;
        let first = || {
            let tidal = store.roles().iter().position(|role| *role == wnw_kv::Role::Tidal)?;
            Some(HeadId { layer: tidal / n_kv_heads, kv_head: tidal % n_kv_heads })
        };
        Self { query_heads: watched * store.shape().group(), head: asked.or_else(first) }
    }
}
