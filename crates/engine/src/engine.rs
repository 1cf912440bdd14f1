//! One recording from samples to transcript.

use std::ops::ControlFlow;
use std::time::Instant;

use thiserror::Error;
use wnw_audio::{AudioError, AudioStream};
use wnw_kv::{Arena, ArenaError, HeadId, KvStore, StoreError, StoreOptions};
use wnw_model::prompt::Task;

use wnw_model::families::Header;
use wnw_model::{ModelError, SpeechModel};

use crate::embeddings::Embeddings;
use crate::event::{Event, Phase, Progress, StepRecord, Watch};
use crate::guard::{GuardConfig, Repetition, RepetitionGuard, RunAway};
use crate::kv_statistics::KvSums;
use crate::listening::Listening;
use crate::method::{KvOptions, Method, MethodError, WindowKv};
use crate::sampling::{Sampler, Sampling};
use crate::times::{self, TimeOptions, Word};
use crate::transcript::{FinishReason, Segment, Statistics, Timing, Transcript, Warning};
use crate::window::Windower;

const RATE: f64 = wnw_audio::SAMPLE_RATE as f64;
/// A window whose samples all stay below this (−80 dB of full scale) is taken as silence and not given to the model,
/// which would make up words for it.
const SILENCE_PEAK: f32 = 1e-4;
/// r_GPU above its target from which a run says so.
const NOTABLE_EXCESS: f64 = 0.05;
/// Tokens allowed beyond the rate, for short recordings.
const SPARE_TOKENS: usize = 64;
/// Tokens per second for which a KV budget keeps room: brisk speech. The cap on tokens is far higher, for it must never
/// cut speech off.
const EXPECTED_TOKENS_PER_SECOND: f64 = 5.0;

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

type Sink<'a> = &'a mut dyn FnMut(Event) -> ControlFlow<()>;

/// A loaded model that transcribes recordings.
pub struct Engine {
    model: SpeechModel,
    embeddings: Option<Embeddings>,
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
        let mut run = Run::new(self, request);
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
        let rest = windower.finish();
        if !rest.is_empty() && !run.is_past_wanted() {
            run.window(&rest, sink)?;
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

fn emit(sink: Sink<'_>, event: Event) -> Result<(), EngineError> {
    match sink(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(EngineError::Cancelled),
    }
}

/// State of one recording.
struct Run<'a> {
    model: &'a SpeechModel,
    embeddings: Option<&'a Embeddings>,
    request: &'a Request,
    samples_done: usize,
    window_samples: usize,
    text: String,
    segments: Vec<Segment>,
    words: Vec<Word>,
    tokens: Vec<u32>,
    finish_reason: FinishReason,
    warnings: Vec<Warning>,
    statistics: Statistics,
    timing: Timing,
    step_seconds: Vec<f32>,
    kv: KvSums,
    /// Start and end of the silent windows since the last one with sound, in seconds.
    silence: Option<(f64, f64)>,
    /// Bytes of the current window's text that were passed on.
    said: usize,
    /// The language that the model says it heard.
    heard: Option<String>,
}

impl<'a> Run<'a> {
    fn new(engine: &'a Engine, request: &'a Request) -> Self {
        let model = &engine.model;
        Self {
            model,
            embeddings: engine.embeddings.as_ref(),
            request,
            samples_done: 0,
            window_samples: 0,
            text: String::new(),
            segments: Vec::new(),
            words: Vec::new(),
            tokens: Vec::new(),
            finish_reason: FinishReason::Stop,
            warnings: Vec::new(),
            statistics: Statistics {
                kv_method: request.method.to_string(),
                kv_dtype: request.kv.dtype.to_string(),
                weight_dtype: model.dtype().to_string(),
                ..Statistics::default()
            },
            timing: Timing::default(),
            step_seconds: Vec::new(),
            kv: KvSums::default(),
            silence: None,
            said: 0,
            heard: None,
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

    /// Whether only one window was asked for, and it is done.
    fn is_past_wanted(&self) -> bool {
        self.request.only_window.is_some_and(|wanted| self.segments.len() > wanted)
    }

    fn window(&mut self, samples: &[f32], sink: Sink<'_>) -> Result<(), EngineError> {
        self.window_samples = samples.len();
        let (start, end) =
            (self.samples_done as f64 / RATE, (self.samples_done + samples.len()) as f64 / RATE);
        let peak = samples.iter().fold(0f32, |peak, x| peak.max(x.abs()));
        let passed_over = self.request.only_window.is_some_and(|wanted| self.segments.len() != wanted);
        let text = if passed_over {
            String::new()
        } else if peak < SILENCE_PEAK {
            self.silence = Some((self.silence.map_or(start, |(first, _)| first), end));
            String::new()
        } else {
            self.report_silence(sink)?;
            self.transcribe_window(samples, sink)?
        };
        self.segments.push(Segment { start, end, text, confidence: None });
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
        // What cannot work is found before the encoder's work, not after it.
        let decoder = model.decoder();
        let prompt = model.prompt(&request.task, samples.len())?;
        let n = prompt.ids.len();
        let max = model.decoder().config().max_positions;
        if n >= max {
            return Err(ModelError::TooLong { positions: n + 1, max }.into());
        }
        let wanted = request.max_new_tokens.unwrap_or(request.token_cap(samples.len() as f64 / RATE));
        let cap = wanted.min(max - n);
        let answer =
            cap.min((samples.len() as f64 / RATE * EXPECTED_TOKENS_PER_SECOND) as usize + SPARE_TOKENS);
        let window = WindowKv { shape: decoder.kv_shape(), layout: &prompt.layout, answer, kv: &request.kv };
        let mut policy = request.method.policy(&window)?;
        if self.statistics.kv_parameters.is_empty() {
            self.statistics.kv_parameters = policy.parameters().into_iter().collect();
        }

        let clock = Instant::now();
        let progress = self.progress(Phase::Encode, 0.0, 0);
        let mut encode = || {
            let mut tell = |done: usize, total: usize| {
                sink(Event::Progress(Progress { fraction: done as f64 / total as f64, ..progress }))
            };
            model.embed_audio(samples, &mut tell).map_err(cancelled)
        };
        let audio = match self.embeddings {
            Some(kept) => kept.of(samples, encode)?,
            None => encode()?,
        };
        self.timing.encode += clock.elapsed().as_secs_f64();

        let clock = Instant::now();
        let x = decoder.embed_prompt(&prompt, &audio)?;
        drop(audio);
        let mut store = KvStore::new(
            decoder.kv_shape(),
            prompt.layout.clone(),
            &StoreOptions {
                dtype: request.kv.dtype,
                segment_rows: policy.segment_rows(),
                device: Arena::new(request.kv.budget),
                host: Arena::new(None),
                host_place: request.kv.host.clone(),
                swap: request.kv.swap,
            },
        );
        let states = {
            let progress = self.progress(Phase::Prefill, 0.0, 0);
            decoder.prefill(x, 1, &mut store, policy.as_mut(), &mut |p| {
                sink(Event::Progress(Progress { fraction: p.done as f64 / p.total as f64, ..progress }))
            })
        };
        let states = states.map_err(cancelled)?;
        self.timing.prefill += clock.elapsed().as_secs_f64();

        let clock = Instant::now();
        let watched = policy.watches();
        let watched = if watched.is_empty() { request.watch.clone() } else { watched };
        let second = 1.0 / model.audio_tokens_per_second();
        // Where heads of a profile listen means something; where others do, nothing that a run should end for.
        let guarded = request.guard.is_some() && !request.watch.is_empty();
        let mut listening = (!watched.is_empty()).then(|| Listening::new(second, guarded));
        let n_watched = watched.len();
        store.watch(watched).map_err(ModelError::from)?;
        let watch = Watch::new(&store, n_watched, request.record_head);
        store.set_pager(policy.pager()).map_err(ModelError::from)?;
        store.swap(&policy.before_decode()).map_err(ModelError::from)?;
        self.kv.begin(&store, policy.roles());
        let mut sampler = Sampler::new(request.sampling);
        let mut guard = request.guard.map(RepetitionGuard::new);
        let mut answer_text = model.answer_reader(&request.task);
        let mut buffers = decoder.step_buffers();
        let first = decoder.logits(&states);
        let mut logits: &[f32] = &first;
        let mut tokens: Vec<u32> = Vec::new();
        let mut text = String::new();
        self.said = 0;
        let mut outcome = Outcome::Stop;
        let mut step_clock = Instant::now();
        let expected = self.expected_tokens(samples.len());
        loop {
            let token = sampler.pick(logits).ok_or(EngineError::NotFinite(tokens.len()))?;
            if model.ends(token) {
                break;
            }
            if tokens.len() >= cap {
                outcome = if cap < wanted { Outcome::Context } else { Outcome::Length };
                break;
            }
            tokens.push(token);
            self.say(&answer_text.push(token), &mut text, sink)?;
            if let Some(found) = guard.as_mut().and_then(|g| g.check(&tokens)) {
                outcome = Outcome::Repetition(found);
                break;
            }
            if let Some(found) = listening.as_mut().and_then(|l| l.heard(&tokens, &store)) {
                outcome = Outcome::RunAway(found);
                break;
            }
            let fraction = (tokens.len() as f64 / expected).min(0.99);
            emit(sink, Event::Progress(self.progress(Phase::Decode, fraction, tokens.len())))?;
            logits = match decoder.step(token, n + tokens.len() - 1, &mut store, &mut buffers) {
                Ok(logits) => logits,
                Err(ModelError::Store(StoreError::Device(ArenaError::Full { .. }))) => {
                    outcome = Outcome::Budget;
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            self.kv.step(&store);
            let plan = policy.after_step(store.attention());
            if request.record_steps {
                let full = WindowKv { answer: tokens.len(), ..window }.full_bytes();
                let record = StepRecord::new(self.segments.len(), &store, &plan, &watch, full);
                emit(sink, Event::Step(Box::new(record)))?;
            }
            store.swap(&plan).map_err(ModelError::from)?;
            self.step_seconds.push(step_clock.elapsed().as_secs_f32());
            step_clock = Instant::now();
        }
        self.say(&answer_text.finish(), &mut text, sink)?;
        self.note_header(answer_text.header(), samples.len(), sink)?;
        self.timing.decode += clock.elapsed().as_secs_f64();
        text.truncate(text.trim_end().len());
        if let (Some(options), Some(listening)) = (&request.times, &listening) {
            let start = self.samples_done as f64 / RATE;
            let end = start + samples.len() as f64 / RATE;
            // What a header says has no place in the recording.
            let header = answer_text.header_tokens();
            self.words.extend(times::words(
                &listening.trace.since(header),
                &tokens[header..],
                model.tokenizer(),
                options,
                second,
                start,
                end,
            ));
        }

        let statistics = &mut self.statistics;
        statistics.prompt_tokens += n;
        statistics.audio_tokens += prompt.layout.n_audio();
        statistics.new_tokens += tokens.len();
        self.kv.end(&store);
        let swaps = store.report().swaps;
        let denied = swaps.denied + swaps.evicted;
        if denied > 0 {
            let (start, end) =
                (self.samples_done as f64 / RATE, (self.samples_done + samples.len()) as f64 / RATE);
            let message = format!(
                "between {start:.1} s and {end:.1} s the KV budget had no room for {denied} recalls: the text may be worse there; raise --kv-budget or keep less (a smaller --r-gpu)"
            );
            self.warn(sink, Warning { kind: "kv-budget", message, start: Some(start), end: Some(end) })?;
        }
        self.report(outcome, tokens.len(), sink)?;
        self.tokens.extend(tokens);
        Ok(text)
    }

    /// Keeps the language that the model heard, the first one, and says so when it heard no speech.
    fn note_header(&mut self, header: &Header, samples: usize, sink: Sink<'_>) -> Result<(), EngineError> {
        if self.heard.is_none() {
            self.heard = header.language.clone();
        }
        if !header.no_speech {
            return Ok(());
        }
        let start = self.samples_done as f64 / RATE;
        let end = start + samples as f64 / RATE;
        let message = format!("the model heard no speech from {start:.1} s to {end:.1} s");
        self.warn(sink, Warning { kind: "silence", message, start: Some(start), end: Some(end) })
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
            Outcome::RunAway(found) => {
                let what = match found {
                    RunAway::JumpBack { from, to, tokens } => format!(
                        "went back from {:.1} s to {:.1} s and repeated itself for {tokens} tokens",
                        start + from,
                        start + to
                    ),
                    RunAway::StandStill { at, tokens } => {
                        format!("stood still at {:.1} s for {tokens} tokens, repeating itself", start + at)
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
            Outcome::Budget => (
                "length",
                FinishReason::Length,
                format!(
                    "between {start:.1} s and {end:.1} s the KV budget was full after {n_tokens} tokens, before the model ended: text is missing; raise --kv-budget or use a shorter --window"
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

    /// Says so when more was kept than asked for.
    fn note_retention(&mut self, sink: Sink<'_>) -> Result<(), EngineError> {
        let Method::Wnw { options, fixed_r_gpu: true, .. } = &self.request.method else { return Ok(()) };
        let (target, measured) = (options.r_gpu, self.kv.statistics().r_gpu);
        if options.lambda.is_some() || self.statistics.new_tokens == 0 || measured <= target + NOTABLE_EXCESS
        {
            return Ok(());
        }
        let message = format!(
            "{:.1} % of the audio KV was on the device where --r-gpu asked for {:.1} %: recall adds more than expected when a recording is short or the profile has no λ fitted for this target",
            100.0 * measured,
            100.0 * target
        );
        self.warn(sink, Warning { kind: "r-gpu", message, start: None, end: None })
    }

    fn finish(mut self, total: f64) -> Transcript {
        let duration = self.samples_done as f64 / RATE;
        let steps = self.step_seconds.len();
        self.statistics.kv = self.kv.statistics();
        self.timing.recall_wait_ms = self.kv.wait_ms();
        self.step_seconds.sort_unstable_by(f32::total_cmp);
        self.timing.median_step_ms = self.step_seconds.get(steps / 2).map_or(0.0, |s| f64::from(*s) * 1e3);
        self.timing.total = total;
        self.timing.real_time_factor = if duration > 0.0 { total / duration } else { 0.0 };
        let words = self.request.times.map(|_| std::mem::take(&mut self.words));
        if let Some(words) = &words {
            let segment = |cue: times::Cue| Segment {
                start: cue.start,
                end: cue.end,
                text: cue.text,
                confidence: Some(cue.confidence),
            };
            self.segments = times::segments(words).into_iter().map(segment).collect();
        }
        let language = self.request.task.language().map(str::to_owned).or(self.heard);
        Transcript {
            text: self.text,
            language,
            duration,
            segments: self.segments,
            words,
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
    /// The KV budget.
    Budget,
    Repetition(Repetition),
    /// Where the model listens says that it runs away.
    RunAway(RunAway),
}

fn cancelled(error: ModelError) -> EngineError {
    match error {
        ModelError::Cancelled => EngineError::Cancelled,
        other => other.into(),
    }
}
