//! The windows of one recording, one after the other, and what comes of them.

use std::time::Instant;

use wnw_kv::{Arena, ArenaError, KvStore, StoreError, StoreOptions};
use wnw_model::families::Header;
use wnw_model::{ModelError, SpeechModel};

use crate::embeddings::Embeddings;
use crate::engine::{Engine, EngineError, Request, SPARE_TOKENS, Sink, emit};
use crate::event::{Event, Phase, Progress, StepRecord, Watch};
use crate::group::{Seat, StepGroup};
use crate::guard::RepetitionGuard;
use crate::kv_statistics::KvSums;
use crate::listening::Listening;
use crate::method::{Method, WindowKv};
use crate::outcome::Outcome;
use crate::recovery::{Recovery, Rest, Restart, Tries};
use crate::sampling::Sampler;
use crate::times::{self, Word};
use crate::transcript::{FinishReason, Segment, Statistics, Timing, Transcript, Warning};
use crate::window::Windower;

const RATE: f64 = wnw_audio::SAMPLE_RATE as f64;
/// A window whose samples all stay below this (−80 dB of full scale) is taken as silence and not given to the model,
/// which would make up words for it.
const SILENCE_PEAK: f32 = 1e-4;
/// r_GPU above its target from which a run says so.
const NOTABLE_EXCESS: f64 = 0.05;
/// Share of the audio KV on the device below which a budget is reported: the least that the paper has figures for.
const LEAST_R_GPU: f64 = 0.1;
/// Tokens per second for which a KV budget keeps room: brisk speech. The cap on tokens is far higher, for it must never
/// cut speech off.
const EXPECTED_TOKENS_PER_SECOND: f64 = 5.0;

/// State of one recording.
pub(crate) struct Run<'a> {
    model: &'a SpeechModel,
    group: Option<&'a StepGroup<'a>>,
    embeddings: Option<&'a Embeddings>,
    request: &'a Request,
    samples_done: usize,
    window_samples: usize,
    text: String,
    pub segments: Vec<Segment>,
    words: Vec<Word>,
    tokens: Vec<u32>,
    finish_reason: FinishReason,
    warnings: Vec<Warning>,
    statistics: Statistics,
    pub timing: Timing,
    step_seconds: Vec<f32>,
    kv: KvSums,
    /// Start and end of the silent windows since the last one with sound, in seconds.
    silence: Option<(f64, f64)>,
    /// Bytes of the current window's text that were passed on.
    said: usize,
    tries: Tries,
    /// The language that the model says it heard.
    heard: Option<String>,
}

/// What came of a window.
struct Heard {
    text: String,
    /// Samples that were dealt with; the others are to be given to the model again.
    samples: usize,
}

impl<'a> Run<'a> {
    pub fn new(engine: &'a Engine, request: &'a Request, group: Option<&'a StepGroup<'a>>) -> Self {
        let model = &engine.model;
        Self {
            model,
            group,
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
            tries: Tries::default(),
            heard: None,
        }
    }

    pub fn warn(&mut self, sink: Sink<'_>, warning: Warning) -> Result<(), EngineError> {
        self.warnings.push(warning.clone());
        emit(sink, Event::Warning(warning))
    }

    pub fn progress(&self, phase: Phase, fraction: f64, tokens: usize) -> Progress {
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
    pub fn is_past_wanted(&self) -> bool {
        self.request.only_window.is_some_and(|wanted| self.segments.len() > wanted)
    }

    pub fn window(
        &mut self,
        samples: Vec<f32>,
        windower: &mut Windower,
        sink: Sink<'_>,
    ) -> Result<(), EngineError> {
        self.window_samples = samples.len();
        let (start, end) = self.span();
        let peak = samples.iter().fold(0f32, |peak, x| peak.max(x.abs()));
        let passed_over = self.request.only_window.is_some_and(|wanted| self.segments.len() != wanted);
        let all = |text| Heard { text, samples: samples.len() };
        let heard = if passed_over {
            all(String::new())
        } else if peak < SILENCE_PEAK {
            self.silence = Some((self.silence.map_or(start, |(first, _)| first), end));
            all(String::new())
        } else {
            self.report_silence(sink)?;
            self.transcribe_window(&samples, sink)?
        };
        if heard.samples < samples.len() {
            let seconds = self.request.recovery.and_then(|config| self.tries.next_window(&config));
            windower.put_back(&samples[heard.samples..], seconds);
        } else {
            self.tries.done();
        }
        self.samples_done += heard.samples;
        let end = self.samples_done as f64 / RATE;
        // What is tried again from its very beginning is no stretch of its own.
        if heard.samples > 0 || !heard.text.is_empty() {
            self.segments.push(Segment { start, end, text: heard.text, confidence: None });
        }
        self.window_samples = 0;
        self.statistics.windows += 1;
        Ok(())
    }

    /// Start and end of the present window, in seconds of the recording.
    fn span(&self) -> (f64, f64) {
        (self.samples_done as f64 / RATE, (self.samples_done + self.window_samples) as f64 / RATE)
    }

    /// What watches the present window for lost places, if that is wanted and can be done.
    fn recovery(&mut self, samples: &[f32], second: f64) -> Option<Recovery> {
        let request = self.request;
        let config = request.recovery?;
        let off =
            request.watch.is_empty() || request.only_window.is_some() || request.max_new_tokens.is_some();
        let (start, end) = self.span();
        self.tries.begin(start, end);
        let on = !off && self.tries.affordable(&config);
        on.then(|| Recovery::new(config, samples, second, self.tries.mends()))
    }

    /// One warning for all silent windows in a row.
    pub fn report_silence(&mut self, sink: Sink<'_>) -> Result<(), EngineError> {
        let Some((start, end)) = self.silence.take() else { return Ok(()) };
        let message = format!("silence from {start:.1} s to {end:.1} s: nothing to transcribe");
        self.warn(sink, Warning { kind: "silence", message, start: Some(start), end: Some(end) })
    }

    fn transcribe_window(&mut self, samples: &[f32], sink: Sink<'_>) -> Result<Heard, EngineError> {
        let (model, request) = (self.model, self.request);
        // What cannot work is found before the encoder's work, not after it.
        let decoder = model.decoder();
        let prompt = model.prompt(&request.task, samples.len())?;
        let n = prompt.ids.len();
        let max = model.decoder().config().max_positions;
        if n >= max {
            return Err(ModelError::prompt_too_long(&prompt, &request.task, max).into());
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

        let turn = self.group.map(StepGroup::turn);
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
        drop(turn);
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
        let mut seat = Seat::new(decoder, self.group);
        let first = decoder.logits(&states);
        let mut logits: &[f32] = &first;
        let mut tokens: Vec<u32> = Vec::new();
        let mut text = String::new();
        self.said = 0;
        let recovery = self.recovery(samples, second);
        let mut recovery = listening.as_ref().and(recovery);
        let mut pieces: Vec<String> = Vec::new();
        // Tokens of which the text was passed on.
        let mut passed = 0;
        let mut restart: Option<Restart> = None;
        let mut outcome = Outcome::Stop;
        let mut step_clock = Instant::now();
        let expected = self.expected_tokens(samples.len());
        loop {
            let token = sampler.pick(logits).ok_or(EngineError::NotFinite(tokens.len()))?;
            if model.ends(token) {
                let lost = recovery.as_ref().zip(listening.as_ref());
                restart = lost.and_then(|(r, l)| r.look(&l.trace, passed, true));
                break;
            }
            if tokens.len() >= cap {
                outcome = if cap < wanted { Outcome::Context } else { Outcome::Length };
                break;
            }
            tokens.push(token);
            pieces.push(answer_text.push(token));
            let free = recovery.as_mut().map_or(tokens.len(), |r| r.push(&tokens, &pieces[tokens.len() - 1]));
            for piece in &pieces[passed..free.max(passed)] {
                self.say(piece, &mut text, sink)?;
            }
            passed = passed.max(free);
            if let Some(found) = guard.as_mut().and_then(|g| g.check(&tokens)) {
                outcome = Outcome::Repetition(found);
                break;
            }
            if let Some(found) = listening.as_mut().and_then(|l| l.heard(&tokens, &store)) {
                outcome = Outcome::RunAway(found);
                break;
            }
            let lost = recovery.as_ref().zip(listening.as_ref());
            restart = lost.and_then(|(r, l)| r.look(&l.trace, passed, false));
            if restart.is_some() {
                break;
            }
            let fraction = (tokens.len() as f64 / expected).min(0.99);
            emit(sink, Event::Progress(self.progress(Phase::Decode, fraction, tokens.len())))?;
            logits = match seat.step(token, n + tokens.len() - 1, &mut store) {
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
        drop(seat);
        if let (Some(recovery), Some(listening), true) = (&recovery, &listening, outcome.ran_away()) {
            restart = recovery.run_away(&listening.trace, passed);
        }
        let mut heard = samples.len();
        let mut rest = Rest::Quiet;
        if let (Some(restart), Some(recovery)) = (&restart, &recovery) {
            (heard, rest) = self.begin_again(restart, recovery, samples.len());
            if restart.cut.tokens < tokens.len() {
                pieces.truncate(restart.cut.tokens);
                tokens.truncate(restart.cut.tokens);
            }
            outcome = Outcome::Stop;
        }
        pieces.push(if restart.is_none() { answer_text.finish() } else { String::new() });
        for piece in &pieces[passed..] {
            self.say(piece, &mut text, sink)?;
        }
        self.timing.decode += clock.elapsed().as_secs_f64();
        self.note_header(answer_text.header(), samples.len(), sink)?;
        text.truncate(text.trim_end().len());
        if let (Some(options), Some(listening)) = (&request.times, &mut listening) {
            let start = self.samples_done as f64 / RATE;
            let end = start + heard as f64 / RATE;
            listening.trace.truncate(tokens.len());
            // What a header says has no place in the recording.
            let header = answer_text.header_tokens().min(tokens.len());
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
        if let Some(restart) = &restart {
            if matches!(rest, Rest::GivenUp(_)) {
                self.end_with(FinishReason::Repetition);
            }
            let (start, end) = self.span();
            self.warn(sink, restart.warning(start, end, rest))?;
        }
        self.tokens.extend(tokens);
        Ok(Heard { text, samples: heard })
    }

    /// Samples of the present window that are dealt with, and what becomes of the others.
    fn begin_again(&mut self, restart: &Restart, recovery: &Recovery, samples: usize) -> (usize, Rest) {
        let (config, at) = (&recovery.config, restart.cut.at);
        let index = |seconds: f64| ((seconds * RATE) as usize).min(samples);
        if recovery.loudness.between(at, recovery.loudness.seconds()) < config.token_seconds {
            return (samples, Rest::Quiet);
        }
        if !self.tries.restart(at, config) {
            return (index(at), Rest::Again);
        }
        let beyond = at + config.give_up_seconds;
        let beyond = recovery.loudness.first_pause(beyond, beyond + config.give_up_seconds);
        (index(beyond).max(1), Rest::GivenUp(beyond))
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

    /// Tells how the window ended, unless the model ended it.
    fn report(&mut self, outcome: Outcome, n_tokens: usize, sink: Sink<'_>) -> Result<(), EngineError> {
        let (start, end) = self.span();
        let Some((reason, warning)) = outcome.warning(start, end, n_tokens) else { return Ok(()) };
        self.end_with(reason);
        self.warn(sink, warning)
    }

    /// Takes a reason, unless there is another one already.
    fn end_with(&mut self, reason: FinishReason) {
        if self.finish_reason == FinishReason::Stop {
            self.finish_reason = reason;
        }
    }

    /// Says so when more was kept than asked for, or when a budget left hardly anything.
    pub fn note_retention(&mut self, sink: Sink<'_>) -> Result<(), EngineError> {
        let left = self.kv.statistics().r_gpu;
        if self.request.kv.budget.is_some() && self.statistics.new_tokens > 0 && left < LEAST_R_GPU {
            let message = format!(
                "the KV budget left {:.1} % of the audio KV on the device: expect a worse text; raise --kv-budget or use a shorter --window",
                100.0 * left
            );
            self.warn(sink, Warning { kind: "kv-budget", message, start: None, end: None })?;
        }
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

    pub fn finish(mut self, total: f64) -> Transcript {
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

fn cancelled(error: ModelError) -> EngineError {
    match error {
        ModelError::Cancelled => EngineError::Cancelled,
        other => other.into(),
    }
}
