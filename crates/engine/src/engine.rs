//! One recording from samples to transcript.

use std::ops::ControlFlow;
use std::time::Instant;

use thiserror::Error;
use wnw_audio::{AudioError, AudioStream};
use wnw_kv::HeadId;
use wnw_model::prompt::Task;
use wnw_model::{ModelError, SpeechModel};

use crate::embeddings::Embeddings;
use crate::event::{Event, Phase};
use crate::group::StepGroup;
use crate::guard::GuardConfig;
use crate::method::{KvOptions, Method, MethodError};
use crate::recovery::RecoveryConfig;
use crate::run::Run;
use crate::sampling::Sampling;
use crate::times::TimeOptions;
use crate::transcript::{Transcript, Warning};
use crate::window::Windower;

/// Tokens allowed beyond the rate, for short recordings.
pub(crate) const SPARE_TOKENS: usize = 64;

/// Why a recording has no transcript.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The recording.
    #[error(transparent)]
    Audio(#[from] AudioError),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model's output is not a number.
    #[error(
        "the model's output is not finite at token {0}: the weights are damaged, or --kv-dtype f16 or int4 overflows (use bf16)"
    )]
    NotFinite(usize),
    /// The KV method.
    #[error(transparent)]
    Method(#[from] MethodError),
    /// A parameter of the request.
    #[error("{0}")]
    Request(String),
    /// The caller broke off.
    #[error("cancelled")]
    Cancelled,
}

/// What to do with a recording.
#[derive(Clone, Debug)]
pub struct Request {
    /// Transcription, or an instruction.
    pub task: Task,
    /// KV method.
    pub method: Method,
    /// How keys and values are stored.
    pub kv: KvOptions,
    /// Cap of generated tokens per window; without one, `tokens_per_second` times the window's length decides.
    pub max_new_tokens: Option<usize>,
    /// Tokens per second of audio that the cap allows. Fast speech has 4 to 5 words, and so up to 8 tokens, a second.
    pub tokens_per_second: f64,
    /// Longest window in seconds; without one, what the model was made for.
    pub window_seconds: Option<f64>,
    /// The repetition guard; none to switch it off.
    pub guard: Option<GuardConfig>,
    /// Beginning again where the model lost its place; none to take what it writes, as an evaluation of KV methods must.
    /// Without heads in `watch`, or with `only_window` or `max_new_tokens`, nothing is begun again.
    pub recovery: Option<RecoveryConfig>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// KV heads known to follow the audio, a profile's anchors: watched if the method watches none itself. With any, the
    /// repetition guard also looks at where the watched heads listen.
    pub watch: Vec<HeadId>,
    /// How to read times off the watched heads' attention; none for no times.
    pub times: Option<TimeOptions>,
    /// Whether to tell of every step: [`Event::Step`].
    pub record_steps: bool,
    /// The KV head whose residency the records show; without one, the first that recalls rows.
    pub record_head: Option<HeadId>,
    /// Transcribe this window alone, from 0; what lies before it is read and passed over, what follows is not read.
    pub only_window: Option<usize>,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            task: Task::Transcribe { language: None, context: String::new() },
            method: Method::default(),
            kv: KvOptions::default(),
            max_new_tokens: None,
            tokens_per_second: 12.0,
            window_seconds: None,
            guard: Some(GuardConfig::default()),
            recovery: None,
            sampling: Sampling::Greedy,
            watch: Vec::new(),
            times: None,
            record_steps: false,
            record_head: None,
            only_window: None,
        }
    }
}

impl Request {
    /// The default cap of generated tokens for a window of `seconds`.
    pub fn token_cap(&self, seconds: f64) -> usize {
        (seconds * self.tokens_per_second) as usize + SPARE_TOKENS
    }
}

pub(crate) type Sink<'a> = &'a mut dyn FnMut(Event) -> ControlFlow<()>;

/// A loaded model that transcribes recordings.
pub struct Engine {
    pub(crate) model: SpeechModel,
    pub(crate) embeddings: Option<Embeddings>,
}

impl Engine {
    /// An engine around a model.
    pub fn new(model: SpeechModel) -> Self {
        Self { model, embeddings: None }
    }

    /// Keeps the audio embeddings of windows until [`Engine::forget`]: for the same recording with several KV methods,
    /// whose encoder output is the same. Costs the windows' samples and embeddings in memory.
    pub fn keeping_embeddings(mut self) -> Self {
        self.embeddings = Some(Embeddings::default());
        self
    }

    /// Drops what [`Engine::keeping_embeddings`] keeps.
    pub fn forget(&self) {
        self.embeddings.iter().for_each(Embeddings::clear);
    }

    /// The model.
    pub fn model(&self) -> &SpeechModel {
        &self.model
    }

    /// Transcribes one recording in memory bounded by one window. `sink` hears every event; when it breaks, the work
    /// ends within one step with [`EngineError::Cancelled`].
    pub fn transcribe(
        &self,
        audio: AudioStream,
        request: &Request,
        sink: Sink<'_>,
    ) -> Result<Transcript, EngineError> {
        self.transcribe_with(None, audio, request, sink)
    }

    /// A group for [`Engine::transcribe_in`].
    pub fn step_group(&self) -> StepGroup<'_> {
        StepGroup::new(self.model.decoder())
    }

    /// As [`Engine::transcribe`], with the same transcript; decoding steps run together with those of the recordings that
    /// other threads transcribe in the same group. Encoder and prefill run one recording at a time.
    ///
    /// The threads must not be those of the global rayon pool, since they wait for each other.
    pub fn transcribe_in<'a>(
        &'a self,
        group: &'a StepGroup<'a>,
        audio: AudioStream,
        request: &Request,
        sink: Sink<'_>,
    ) -> Result<Transcript, EngineError> {
        if rayon::current_thread_index().is_some() {
            return Err(EngineError::Request(
                "recordings of a batch cannot be transcribed on the threads that compute".into(),
            ));
        }
        self.transcribe_with(Some(group), audio, request, sink)
    }

    fn transcribe_with<'a>(
        &'a self,
        group: Option<&'a StepGroup<'a>>,
        mut audio: AudioStream,
        request: &'a Request,
        sink: Sink<'_>,
    ) -> Result<Transcript, EngineError> {
        let window_seconds = request.window_seconds.unwrap_or(self.model.max_audio_seconds());
        if !(window_seconds >= 1.0 && window_seconds.is_finite()) {
            return Err(EngineError::Request(format!(
                "a window of {window_seconds} s is too short; use at least 1 s"
            )));
        }
        self.model.family().check_window(window_seconds)?;
        let shape = self.model.decoder().kv_shape();
        if let Some(HeadId { layer, kv_head }) = request.record_head
            && (layer >= shape.n_layers || kv_head >= shape.n_kv_heads)
        {
            return Err(EngineError::Request(format!(
                "there is no KV head {layer}.{kv_head}: {} has layers 0 to {} with KV heads 0 to {}",
                self.model.name(),
                shape.n_layers - 1,
                shape.n_kv_heads - 1
            )));
        }
        let started = Instant::now();
        let mut run = Run::new(self, request, group);
        emit(sink, Event::Started { duration: audio.info().duration })?;
        if request.window_seconds.is_some_and(|w| w > self.model.max_audio_seconds()) {
            let limit = self.model.max_audio_seconds();
            let message = format!(
                "windows of {window_seconds} s are longer than the {limit} s that {} is made for",
                self.model.name()
            );
            run.warn(sink, Warning { kind: "windows", message, start: None, end: None })?;
        }
        let mut windower = Windower::new(window_seconds);
        loop {
            let reading = Instant::now();
            let block = audio.next_block()?;
            run.timing.read += reading.elapsed().as_secs_f64();
            let Some(block) = block else { break };
            windower.push(&block);
            while let Some(window) = windower.next_full() {
                run.window(window, &mut windower, sink)?;
                if run.is_past_wanted() {
                    break;
                }
            }
            if run.is_past_wanted() {
                break;
            }
            emit(sink, Event::Progress(run.progress(Phase::Read, 0.0, 0)))?;
        }
        // Only now are they complete: the losses of neighbouring packets are added up.
        for warning in audio.warnings() {
            run.warn(sink, Warning { kind: "audio", message: warning.to_string(), start: None, end: None })?;
        }
        while !run.is_past_wanted()
            && let Some(window) = windower.next_at_end()
        {
            run.window(window, &mut windower, sink)?;
        }
        run.report_silence(sink)?;
        if let (Some(wanted), false) = (request.only_window, run.is_past_wanted()) {
            return Err(EngineError::Request(format!(
                "there is no window {wanted}: the recording has {}, counted from 0",
                run.segments.len()
            )));
        }
        run.note_retention(sink)?;
        let transcript = run.finish(started.elapsed().as_secs_f64());
        emit(sink, Event::Finished(Box::new(transcript.clone())))?;
        Ok(transcript)
    }
}

pub(crate) fn emit(sink: Sink<'_>, event: Event) -> Result<(), EngineError> {
    match sink(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(EngineError::Cancelled),
    }
}
