//! One recording from samples to transcript.

use std::ops::ControlFlow;
use std::time::Instant;

use thiserror::Error;
use wnw_audio::{AudioError, AudioStream};
use wnw_kv::{KvDtype, KvStore};
use wnw_model::prompt::Task;
use wnw_model::tekken::TextDecoder;
use wnw_model::{ModelError, Voxtral};

use crate::event::{Event, Phase, Progress};
use crate::guard::{GuardConfig, Repetition, RepetitionGuard};
use crate::method::Method;
use crate::sampling::{Sampler, Sampling};
use crate::transcript::{FinishReason, Segment, Statistics, Timing, Transcript, Warning};
use crate::window::Windower;

const RATE: f64 = wnw_audio::SAMPLE_RATE as f64;
/// A window whose samples all stay below this (−80 dB of full scale) is taken as silence and not given to the model,
/// which would make up words for it.
const SILENCE_PEAK: f32 = 1e-4;
/// Tokens allowed beyond the rate, for short recordings.
const SPARE_TOKENS: usize = 64;

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
        "the model's output is not finite at token {0}: the weights are damaged, or --kv-dtype f16 overflows (use bf16)"
    )]
    NotFinite(usize),
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
    /// Element type of the cache.
    pub kv_dtype: KvDtype,
    /// Cap of generated tokens per window; without one, `tokens_per_second` times the window's length decides.
    pub max_new_tokens: Option<usize>,
    /// Tokens per second of audio that the cap allows. Fast speech has 4 to 5 words, and so up to 8 tokens, a second.
    pub tokens_per_second: f64,
    /// Longest window in seconds; without one, what the model was made for.
    pub window_seconds: Option<f64>,
    /// The repetition guard; none to switch it off.
    pub guard: Option<GuardConfig>,
    /// How tokens are chosen.
    pub sampling: Sampling,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            task: Task::Transcribe { language: None },
            method: Method::default(),
            kv_dtype: KvDtype::default(),
            max_new_tokens: None,
            tokens_per_second: 12.0,
            window_seconds: None,
            guard: Some(GuardConfig::default()),
            sampling: Sampling::Greedy,
        }
    }
}

impl Request {
    /// The default cap of generated tokens for a window of `seconds`.
    pub fn token_cap(&self, seconds: f64) -> usize {
        (seconds * self.tokens_per_second) as usize + SPARE_TOKENS
    }
}

type Sink<'a> = &'a mut dyn FnMut(Event) -> ControlFlow<()>;

/// A loaded model that transcribes recordings.
pub struct Engine {
    model: Voxtral,
}

impl Engine {
    /// An engine around a model.
    pub fn new(model: Voxtral) -> Self {
        Self { model }
    }

    /// The model.
    pub fn model(&self) -> &Voxtral {
        &self.model
    }

    /// Transcribes one recording in memory bounded by one window. `sink` hears every event; when it breaks, the work
    /// ends within one step with [`EngineError::Cancelled`].
    pub fn transcribe(
        &self,
        mut audio: AudioStream,
        request: &Request,
        sink: Sink<'_>,
    ) -> Result<Transcript, EngineError> {
        let window_seconds = request.window_seconds.unwrap_or(self.model.max_audio_seconds());
        if !(window_seconds >= 1.0 && window_seconds.is_finite()) {
            return Err(EngineError::Request(format!(
                "a window of {window_seconds} s is too short; use at least 1 s"
            )));
        }
        let started = Instant::now();
        let mut run = Run::new(&self.model, request);
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
                run.window(&window, sink)?;
            }
            emit(sink, Event::Progress(run.progress(Phase::Read, 0.0, 0)))?;
        }
        // Only now are they complete: the losses of neighbouring packets are added up.
        for warning in audio.warnings() {
            run.warn(sink, Warning { kind: "audio", message: warning.to_string(), start: None, end: None })?;
        }
        let rest = windower.finish();
        if !rest.is_empty() {
            run.window(&rest, sink)?;
        }
        run.report_silence(sink)?;
        let transcript = run.finish(started.elapsed().as_secs_f64());
        emit(sink, Event::Finished(Box::new(transcript.clone())))?;
        Ok(transcript)
    }
}

fn emit(sink: Sink<'_>, event: Event) -> Result<(), EngineError> {
    match sink(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(EngineError::Cancelled),
    }
}

/// State of one recording.
struct Run<'a> {
    model: &'a Voxtral,
    request: &'a Request,
    samples_done: usize,
    window_samples: usize,
    text: String,
    segments: Vec<Segment>,
    tokens: Vec<u32>,
    finish_reason: FinishReason,
    warnings: Vec<Warning>,
    statistics: Statistics,
    timing: Timing,
    step_seconds: Vec<f32>,
    resident: f64,
    /// Start and end of the silent windows since the last one with sound, in seconds.
    silence: Option<(f64, f64)>,
    /// Bytes of the current window's text that were passed on.
    said: usize,
}

impl<'a> Run<'a> {
    fn new(model: &'a Voxtral, request: &'a Request) -> Self {
        Self {
            model,
            request,
            samples_done: 0,
            window_samples: 0,
            text: String::new(),
            segments: Vec::new(),
            tokens: Vec::new(),
            finish_reason: FinishReason::Stop,
            warnings: Vec::new(),
            statistics: Statistics {
                kv_method: request.method.to_string(),
                kv_dtype: request.kv_dtype.to_string(),
                weight_dtype: model.dtype().to_string(),
                ..Statistics::default()
            },
            timing: Timing::default(),
            step_seconds: Vec::new(),
            resident: 0.0,
            silence: None,
            said: 0,
        }
    }

    fn warn(&mut self, sink: Sink<'_>, warning: Warning) -> Result<(), EngineError> {
        self.warnings.push(warning.clone());
        emit(sink, Event::Warning(warning))
    }

    fn progress(&self, phase: Phase, fraction: f64, tokens: usize) -> Progress {
        Progress {
            phase,
            window: self.segments.len(),
            window_start: self.samples_done as f64 / RATE,
            window_seconds: self.window_samples as f64 / RATE,
            fraction,
            tokens,
        }
    }

    fn window(&mut self, samples: &[f32], sink: Sink<'_>) -> Result<(), EngineError> {
        self.window_samples = samples.len();
        let (start, end) =
            (self.samples_done as f64 / RATE, (self.samples_done + samples.len()) as f64 / RATE);
        let peak = samples.iter().fold(0f32, |peak, x| peak.max(x.abs()));
        let text = if peak < SILENCE_PEAK {
            self.silence = Some((self.silence.map_or(start, |(first, _)| first), end));
            String::new()
        } else {
            self.report_silence(sink)?;
            self.transcribe_window(samples, sink)?
        };
        self.segments.push(Segment { start, end, text });
        self.samples_done += samples.len();
        self.window_samples = 0;
        self.statistics.windows += 1;
        Ok(())
    }

    /// One warning for all silent windows in a row.
    fn report_silence(&mut self, sink: Sink<'_>) -> Result<(), EngineError> {
        let Some((start, end)) = self.silence.take() else { return Ok(()) };
        let message = format!("silence from {start:.1} s to {end:.1} s: nothing to transcribe");
        self.warn(sink, Warning { kind: "silence", message, start: Some(start), end: Some(end) })
    }

    fn transcribe_window(&mut self, samples: &[f32], sink: Sink<'_>) -> Result<String, EngineError> {
        let (model, request) = (self.model, self.request);
        // Before the encoder's work, not after it.
        let prompt = model.prompt(&request.task, samples.len())?;
        let n = prompt.ids.len();
        let max = model.config().decoder.max_positions;
        if n >= max {
            return Err(ModelError::TooLong { positions: n + 1, max }.into());
        }
        let clock = Instant::now();
        let audio = {
            let progress = self.progress(Phase::Encode, 0.0, 0);
            model.embed_audio(samples, &mut |done, total| {
                sink(Event::Progress(Progress { fraction: done as f64 / total as f64, ..progress }))
            })
        };
        let audio = audio.map_err(cancelled)?;
        self.timing.encode += clock.elapsed().as_secs_f64();

        let clock = Instant::now();
        let decoder = model.decoder();
        let x = decoder.embed_prompt(&prompt, &audio)?;
        drop(audio);
        let mut policy = request.method.policy();
        let mut store = KvStore::new(decoder.kv_shape(), request.kv_dtype, prompt.layout.clone());
        let states = {
            let progress = self.progress(Phase::Prefill, 0.0, 0);
            decoder.prefill(x, 1, &mut store, policy.as_mut(), &mut |p| {
                sink(Event::Progress(Progress { fraction: p.done as f64 / p.total as f64, ..progress }))
            })
        };
        let states = states.map_err(cancelled)?;
        self.timing.prefill += clock.elapsed().as_secs_f64();

        let clock = Instant::now();
        let wanted = request.max_new_tokens.unwrap_or(request.token_cap(samples.len() as f64 / RATE));
        let cap = wanted.min(max - n);
        let mut sampler = Sampler::new(request.sampling);
        let mut guard = request.guard.map(RepetitionGuard::new);
        let mut decoder_text = TextDecoder::new(model.tokenizer());
        let mut buffers = decoder.step_buffers();
        let first = decoder.logits(&states)?;
        let mut logits: &[f32] = &first;
        let mut tokens: Vec<u32> = Vec::new();
        let mut text = String::new();
        self.said = 0;
        let mut outcome = Outcome::Stop;
        let mut step_clock = Instant::now();
        let expected = self.expected_tokens(samples.len());
        loop {
            let token = sampler.pick(logits).ok_or(EngineError::NotFinite(tokens.len()))?;
            if token == model.eos() {
                break;
            }
            if tokens.len() >= cap {
                outcome = if cap < wanted { Outcome::Context } else { Outcome::Length };
                break;
            }
            tokens.push(token);
            self.say(&decoder_text.push(token), &mut text, sink)?;
            if let Some(found) = guard.as_mut().and_then(|g| g.check(&tokens)) {
                outcome = Outcome::Repetition(found);
                break;
            }
            let fraction = (tokens.len() as f64 / expected).min(0.99);
            emit(sink, Event::Progress(self.progress(Phase::Decode, fraction, tokens.len())))?;
            logits = decoder.step(token, n + tokens.len() - 1, &mut store, &mut buffers)?;
            self.resident += store.retention();
            self.step_seconds.push(step_clock.elapsed().as_secs_f32());
            step_clock = Instant::now();
        }
        self.say(&decoder_text.finish(), &mut text, sink)?;
        self.timing.decode += clock.elapsed().as_secs_f64();
        text.truncate(text.trim_end().len());

        let statistics = &mut self.statistics;
        statistics.prompt_tokens += n;
        statistics.audio_tokens += prompt.layout.n_audio();
        statistics.new_tokens += tokens.len();
        statistics.kv_bytes = statistics.kv_bytes.max(store.report().bytes_allocated);
        self.report(outcome, tokens.len(), sink)?;
        self.tokens.extend(tokens);
        Ok(text)
    }

    /// Tokens that the window will probably give, from the rate so far; for progress only.
    fn expected_tokens(&self, samples: usize) -> f64 {
        let rate = if self.samples_done > 0 && !self.tokens.is_empty() {
            self.tokens.len() as f64 / self.samples_done as f64
        } else {
            3.5 / RATE
        };
        (samples as f64 * rate).max(1.0)
    }

    /// Passes text on, less the white space around a window's text, and joins windows by one space. White space is
    /// held back until something follows it, so that what was passed on is the transcript's text to the letter.
    fn say(&mut self, delta: &str, window_text: &mut String, sink: Sink<'_>) -> Result<(), EngineError> {
        window_text.push_str(delta);
        let start = window_text.len() - window_text.trim_start().len();
        window_text.drain(..start);
        let end = window_text.trim_end().len();
        let mut news = window_text[self.said.min(end)..end].to_owned();
        if news.is_empty() {
            return Ok(());
        }
        if self.said == 0 && !self.text.is_empty() {
            news.insert(0, ' ');
        }
        self.said = end;
        self.text.push_str(&news);
        emit(sink, Event::Text(news))
    }

    fn report(&mut self, outcome: Outcome, n_tokens: usize, sink: Sink<'_>) -> Result<(), EngineError> {
        let (start, end) =
            (self.samples_done as f64 / RATE, (self.samples_done + self.window_samples) as f64 / RATE);
        let (kind, reason, message) = match outcome {
            Outcome::Stop => return Ok(()),
            Outcome::Length => (
                "length",
                FinishReason::Length,
                format!(
                    "between {start:.1} s and {end:.1} s the cap of {n_tokens} tokens was reached before the model ended: text is missing; raise --max-new-tokens"
                ),
            ),
            Outcome::Context => (
                "length",
                FinishReason::Length,
                format!(
                    "between {start:.1} s and {end:.1} s the model's context was full after {n_tokens} tokens, before the model ended: text is missing; use a shorter --window"
                ),
            ),
            Outcome::Repetition(found) => {
                let what = match found {
                    Repetition::Cycle { period, repeats } => {
                        format!("repeated {period} tokens {repeats} times")
                    }
                    Repetition::FewTokens { window, distinct } => {
                        format!("used only {distinct} different tokens in {window}")
                    }
                };
                (
                    "repetition",
                    FinishReason::Repetition,
                    format!(
                        "between {start:.1} s and {end:.1} s the model {what} and was stopped: text is missing or wrong there; --no-repetition-guard lets it run"
                    ),
                )
            }
        };
        if self.finish_reason == FinishReason::Stop {
            self.finish_reason = reason;
        }
        self.warn(sink, Warning { kind, message, start: Some(start), end: Some(end) })
    }

    fn finish(mut self, total: f64) -> Transcript {
        let duration = self.samples_done as f64 / RATE;
        let steps = self.step_seconds.len();
        self.statistics.r_gpu = if steps == 0 { 1.0 } else { self.resident / steps as f64 };
        self.step_seconds.sort_unstable_by(f32::total_cmp);
        self.timing.median_step_ms = self.step_seconds.get(steps / 2).map_or(0.0, |s| f64::from(*s) * 1e3);
        self.timing.total = total;
        self.timing.real_time_factor = if duration > 0.0 { total / duration } else { 0.0 };
        let language = match &self.request.task {
            Task::Transcribe { language } => language.clone(),
            Task::Chat { .. } => None,
        };
        Transcript {
            text: self.text,
            language,
            duration,
            segments: self.segments,
            tokens: self.tokens,
            finish_reason: self.finish_reason,
            warnings: self.warnings,
            statistics: self.statistics,
            timing: self.timing,
        }
    }
}

/// How a window's decoding ended.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Stop,
    /// The cap of tokens.
    Length,
    /// The positions that the model supports.
    Context,
    Repetition(Repetition),
}

fn cancelled(error: ModelError) -> EngineError {
    match error {
        ModelError::Cancelled => EngineError::Cancelled,
        other => other.into(),
    }
}
