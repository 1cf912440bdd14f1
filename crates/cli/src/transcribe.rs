//! `wnw transcribe`.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use wnw_audio::{AudioStream, DecodeOptions};
use wnw_engine::{
    Engine, EngineError, Event, FinishReason, GuardConfig, Method, RecoveryConfig, Request, Sampling,
    Transcript,
    times::{TimeOptions, segments},
};
use wnw_model::prompt::{PromptError, Task};
use wnw_model::{LoadOptions, SpeechModel};

use crate::args::{Format, TaskName, Timestamps, TranscribeArgs};
use crate::error::{CliError, guarded};
use crate::inputs::{Input, check_distinct, expand};
use crate::kv_report::kv_report;
use crate::outputs::{
    JsonFailure, JsonTranscript, check_name, complain, prepare_directory, print, write_whole,
};
use crate::progress::Bar;
use crate::subtitles::{srt, vtt, word_cues};
use crate::{models, signals, system, together};

/// The default model would otherwise be taken for one that hears everything.
const TINY_NOTE: &str = "wnw: note: the embedded model 'tiny' knows only the prompts that it was trained on; for real recordings give --model";

/// Runs the command. Wrong flags and an unusable model are errors; a recording that fails is reported and the others
/// go on.
pub fn run(args: &TranscribeArgs) -> Result<ExitCode, CliError> {
    args.kv.check()?;
    let request = request(args)?;
    let decode = DecodeOptions {
        strict: args.strict,
        pcm: args.pcm,
        max_duration: args.max_duration,
        ..DecodeOptions::default()
    };
    let inputs = expand(&args.files, args.recursive)?;
    if let Some(dir) = &args.output_dir {
        check_distinct(&inputs)?;
        prepare_directory(dir)?;
    }
    let bar = Bar::new(args.quiet);
    let mut batch = Batch {
        args,
        request,
        decode,
        bar,
        to_stdout: args.output_dir.is_none(),
        header: None,
        headers: 0,
        array: Vec::new(),
        ok: 0,
        skipped: 0,
        failed: Vec::new(),
    };
    let subtitles = matches!(args.format, Format::Srt | Format::Vtt);
    if subtitles && inputs.len() > 1 && args.output_dir.is_none() {
        return Err(CliError::Usage(
            "subtitles of several recordings are no file that a player reads: give --output-dir".into(),
        ));
    }
    // Loaded only when there is something to do.
    let mut engine: Option<Engine> = None;
    let several = inputs.len() > 1;
    let mut pending = Vec::new();
    for input in &inputs {
        let target = args.output_dir.as_ref().map(|dir| batch.target(dir, input));
        if args.skip_existing && target.as_ref().is_some_and(|t| t.exists()) {
            batch.skipped += 1;
            if let (Some(target), false) = (&target, args.quiet) {
                batch.bar.line(&format!("{}: skipped, {} exists", input.name, target.display()));
            }
            continue;
        }
        let engine = match &engine {
            Some(engine) => engine,
            None => {
                if args.model.model == models::TINY && !args.quiet {
                    batch.bar.line(TINY_NOTE);
                }
                let loaded = load(args, &batch.request.task, &batch.bar)?;
                complete(&mut batch.request, args, loaded.model())?;
                engine.insert(loaded)
            }
        };
        if args.batch > 1 {
            pending.push((input, target));
            continue;
        }
        batch.begin(input, several);
        let result = batch.one(engine, input, target);
        batch.account(input, result, several)?;
    }
    if let (Some(engine), false) = (&engine, pending.is_empty()) {
        together::run(&mut batch, engine, &pending, several)?;
    }
    batch.bar.clear();
    batch.print_json(several)?;
    if several && !args.quiet {
        let (ok, skipped) = (batch.ok, batch.skipped);
        complain(&format!("{ok} transcribed, {skipped} skipped, {} failed", batch.failed.len()));
        batch.failed.iter().for_each(|name| complain(&format!("  failed: {name}")));
    }
    Ok(if batch.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Messages of the audio crate name their file first; ours does already.
fn strip_name<'a>(message: &'a str, name: &str) -> &'a str {
    message.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(message)
}

fn request(args: &TranscribeArgs) -> Result<Request, CliError> {
    let usage = |message: &str| Err(CliError::Usage(message.into()));
    if args.task == TaskName::Chat && args.prompt.is_none() {
        return usage("--task chat needs --prompt");
    }
    if args.task != TaskName::Chat && args.prompt.is_some() {
        return usage("--prompt needs --task chat: transcription takes no instruction");
    }
    if args.task != TaskName::Transcribe && args.language.is_some() {
        return usage(
            "--language belongs to --task transcribe; --task translate goes to the language of --to",
        );
    }
    if args.task != TaskName::Transcribe && args.context.is_some() {
        return usage("--context belongs to --task transcribe");
    }
    if args.task != TaskName::Translate && args.to.is_some() {
        return usage("--to needs --task translate");
    }
    if args.window.is_some_and(|w| w.as_secs_f64() < 1.0) {
        return usage("--window must be at least 1s");
    }
    let flag = |flag: &str| {
        let flag = flag.to_owned();
        move |e: PromptError| CliError::Usage(format!("{flag}: {e}"))
    };
    let task = match (args.task, &args.prompt) {
        (TaskName::Chat, Some(prompt)) => Task::Chat { instruction: prompt.clone() },
        (TaskName::Translate, _) => {
            let to = args.to.as_deref().unwrap_or("en").to_lowercase();
            Task::translate(&to).map_err(flag("--to"))?
        }
        _ => {
            let language = args.language.as_deref().map(str::to_lowercase);
            let context = args.context.clone().unwrap_or_default();
            Task::transcribe(language.as_deref()).map_err(flag("--language"))?.with_context(context)
        }
    };
    if args.timestamps.is_some() && args.format == Format::Text {
        return usage("--timestamps needs --format json, srt or vtt");
    }
    if args.max_new_tokens == Some(0) {
        return usage("--max-new-tokens must be at least 1");
    }
    if args.timings && args.format != Format::Json {
        return usage("--timings needs --format json: other forms have no place for them");
    }
    if args.temperature == 0.0 && (args.top_p.is_some() || args.seed.is_some()) {
        return usage("--top-p and --seed need --temperature above 0: at 0 nothing is left to chance");
    }
    let sampling = if args.temperature > 0.0 {
        let (top_p, seed) = (args.top_p.unwrap_or(0.95), args.seed.unwrap_or(0));
        Sampling::TopP { temperature: args.temperature, top_p, seed }
    } else {
        Sampling::Greedy
    };
    Ok(Request {
        task,
        method: Method::Full,
        kv: args.kv.options(args.model.kv_dtype),
        max_new_tokens: args.max_new_tokens,
        tokens_per_second: args.tokens_per_second,
        window_seconds: args.window.map(|w| w.as_secs_f64()),
        guard: (!args.no_repetition_guard).then(GuardConfig::default),
        recovery: recovery(args),
        sampling,
        times: times(args).then(TimeOptions::default),
        ..Request::default()
    })
}

/// How lost places are dealt with. An answer to an instruction may go through the recording in any order.
fn recovery(args: &TranscribeArgs) -> Option<RecoveryConfig> {
    match args.task {
        _ if args.no_recovery => None,
        TaskName::Chat => None,
        TaskName::Transcribe => Some(RecoveryConfig::default()),
        TaskName::Translate => Some(RecoveryConfig::for_translation()),
    }
}

/// Whether times are wanted.
fn times(args: &TranscribeArgs) -> bool {
    args.timestamps.is_some() || matches!(args.format, Format::Srt | Format::Vtt)
}

/// Fills in what depends on the model: the KV method with its head roles, and the heads that give times.
fn complete(request: &mut Request, args: &TranscribeArgs, model: &SpeechModel) -> Result<(), CliError> {
    let name = &args.model.model;
    let uniform = args.kv.kv_roles.is_some();
    if request.times.is_some() && uniform {
        return Err(CliError::Usage(
            "--timestamps and subtitles come from the anchor heads of a profile; --kv-roles uniform has none"
                .into(),
        ));
    }
    // Times and WnW need the profile, and who gives one means it; for the run-away guard alone a bad one is no error.
    let needed = request.times.is_some() || args.kv.kv.needs_profile() || args.kv.kv_profile.is_some();
    let found = if uniform { Ok(None) } else { args.kv.profile(name, model) };
    let profile = match found {
        Ok(profile) => profile,
        Err(error) if needed => return Err(error),
        Err(error) => {
            complain(&format!("wnw: warning: {error}; going on without it"));
            None
        }
    };
    request.method = args.kv.method(name, model, profile.as_ref())?;
    if request.times.is_some() && profile.is_none() {
        return Err(CliError::Usage(format!(
            "--timestamps and subtitles need a profile that says which heads of {name} follow the audio; make one with `wnw calibrate --model {name} --self FILE…` and give it with --kv-profile"
        )));
    }
    request.watch = profile.map(|profile| profile.anchors()).unwrap_or_default();
    Ok(())
}

fn load(args: &TranscribeArgs, task: &Task, bar: &Bar) -> Result<Engine, CliError> {
    let files = models::open("--model", &args.model.model, args.quiet)?;
    files.family.check_task(task).map_err(|error| {
        let flag = match (&error, task) {
            (PromptError::Task { .. }, _) => "--task",
            (PromptError::Context(_), _) => "--context",
            (_, Task::Translate { .. }) => "--to",
            _ => "--language",
        };
        CliError::Usage(format!("{flag}: {error}"))
    })?;
    args.window.map_or(Ok(()), |window| files.family.check_window(window.as_secs_f64()))?;
    let options = LoadOptions { dtype: Some(args.model.dtype) };
    let model = files.load(&options, |done, total| bar.loading(done, total))?;
    Ok(Engine::new(model))
}

pub(crate) struct Batch<'a> {
    pub args: &'a TranscribeArgs,
    pub request: Request,
    pub decode: DecodeOptions,
    pub bar: Bar,
    to_stdout: bool,
    /// The line that goes before the present recording's text, until it is printed.
    header: Option<String>,
    /// Those that were printed.
    headers: usize,
    array: Vec<String>,
    ok: usize,
    skipped: usize,
    /// Names of recordings.
    failed: Vec<String>,
}

impl Batch<'_> {
    fn target(&self, dir: &std::path::Path, input: &Input) -> PathBuf {
        let mut path = dir.join(&input.stem).into_os_string();
        path.push(match self.args.format {
            Format::Text => ".txt",
            Format::Json => ".json",
            Format::Srt => ".srt",
            Format::Vtt => ".vtt",
        });
        path.into()
    }

    /// Prepares for a recording's result.
    pub fn begin(&mut self, input: &Input, several: bool) {
        if several && self.to_stdout && self.args.format == Format::Text {
            let gap = if self.headers > 0 { "\n" } else { "" };
            self.header = Some(format!("{gap}==> {} <==\n", input.name));
        }
    }

    /// Counts what became of a recording; an error only for what ends the command.
    pub fn account(
        &mut self,
        input: &Input,
        result: Result<(), CliError>,
        several: bool,
    ) -> Result<(), CliError> {
        self.headers += usize::from(self.header.take().is_none());
        match result {
            Ok(()) => self.ok += 1,
            Err(CliError::Engine(EngineError::Cancelled)) => {
                self.bar.clear();
                self.print_json(several)?;
                return Err(CliError::Interrupted);
            }
            Err(error) if error.is_broken_pipe() => return Err(error),
            Err(error) => {
                let message = format!("{}: {}", input.name, strip_name(&error.to_string(), &input.name));
                self.bar.line(&format!("wnw: error: {message}"));
                if several && self.to_stdout && self.args.format == Format::Json {
                    let failure = JsonFailure { file: &input.name, error: error.to_string() };
                    self.array.push(serde_json::to_string_pretty(&failure)?);
                }
                self.failed.push(input.name.clone());
            }
        }
        Ok(())
    }

    /// Whether text goes to standard output as it comes. With --strict nothing is shown that may turn out to be incomplete.
    fn streams_text(&self) -> bool {
        self.to_stdout && self.args.format == Format::Text && !self.args.strict
    }

    /// What a recording whose events were only collected comes to: the same output as [`Batch::one`].
    pub fn collected(
        &mut self,
        input: &Input,
        said: &str,
        result: Result<Transcript, CliError>,
        target: Option<PathBuf>,
    ) -> Result<(), CliError> {
        let in_line = self.streams_text() && !said.is_empty();
        if in_line {
            print(&format!("{}{said}\n", self.header.take().unwrap_or_default()))?;
        }
        self.conclude(input, result?, in_line, target)
    }

    fn one(&mut self, engine: &Engine, input: &Input, target: Option<PathBuf>) -> Result<(), CliError> {
        self.bar.restart();
        target.as_deref().map_or(Ok(()), check_name)?;
        let audio =
            guarded(
                || Ok(AudioStream::open(input.source.clone(), &self.decode).map_err(EngineError::from)?),
            )?;
        let duration = audio.info().duration;
        let stream_text = self.streams_text();
        let mut output_error = None;
        let mut in_line = false;
        let mut hear = |event| {
            if signals::interrupted() {
                return ControlFlow::Break(());
            }
            match event {
                Event::Progress(progress) => self.bar.show(&input.name, &progress, duration),
                Event::Warning(warning) => self.bar.line(&format!("wnw: warning: {}: {warning}", input.name)),
                Event::Text(delta) if stream_text => {
                    self.bar.give_way();
                    in_line = true;
                    if let Err(error) = print(&(self.header.take().unwrap_or_default() + &delta)) {
                        output_error = Some(error);
                        return ControlFlow::Break(());
                    }
                }
                Event::Text(_) | Event::Started { .. } | Event::Finished(_) | Event::Step(_) => {}
            }
            ControlFlow::Continue(())
        };
        let work = || guarded(|| Ok(engine.transcribe(audio, &self.request, &mut hear)?));
        let result = signals::while_listening(work);
        if let Some(error) = output_error {
            return Err(error);
        }
        if in_line {
            // Also after a failure: what follows starts on a line of its own.
            print("\n")?;
        }
        self.conclude(input, result?, in_line, target)
    }

    /// Delivers a transcript; `in_line` when its text was printed already.
    fn conclude(
        &mut self,
        input: &Input,
        mut transcript: Transcript,
        in_line: bool,
        target: Option<PathBuf>,
    ) -> Result<(), CliError> {
        if self.args.strict && transcript.finish_reason != FinishReason::Stop {
            let why = transcript.warnings.iter().find(|w| matches!(w.kind, "length" | "repetition"));
            let reason = why.map_or_else(String::new, ToString::to_string);
            return Err(EngineError::Request(format!("incomplete: {reason}")).into());
        }
        if self.to_stdout && self.args.format == Format::Text && !in_line {
            print(&format!("{}{}\n", self.header.take().unwrap_or_default(), transcript.text))?;
        }
        if self.args.timestamps != Some(Timestamps::Word) && self.args.format == Format::Json {
            transcript.words = None;
        }
        self.deliver(input, &transcript, target)?;
        if !self.args.quiet {
            self.bar.line(&summary(&input.name, &transcript));
            if !self.args.kv.kv.is_full() {
                kv_report(&transcript.statistics, &transcript.timing)
                    .iter()
                    .for_each(|line| self.bar.line(line));
            }
        }
        Ok(())
    }

    fn deliver(
        &mut self,
        input: &Input,
        transcript: &Transcript,
        target: Option<PathBuf>,
    ) -> Result<(), CliError> {
        let json = || {
            let timing = self.args.timings.then_some(transcript.timing);
            serde_json::to_string_pretty(&JsonTranscript { file: &input.name, transcript, timing })
        };
        let subtitles = || {
            let cues = match (&transcript.words, self.args.timestamps) {
                (Some(words), Some(Timestamps::Word)) => word_cues(words),
                (words, _) => segments(words.as_deref().unwrap_or_default()),
            };
            let duration = transcript.duration;
            if self.args.format == Format::Srt { srt(&cues, duration) } else { vtt(&cues, duration) }
        };
        match (target, self.args.format) {
            (Some(path), Format::Text) => write_whole(&path, &format!("{}\n", transcript.text)),
            (Some(path), Format::Json) => write_whole(&path, &format!("{}\n", json()?)),
            (Some(path), Format::Srt | Format::Vtt) => write_whole(&path, &subtitles()),
            (None, Format::Srt | Format::Vtt) => print(&subtitles()),
            (None, Format::Json) => {
                self.array.push(json()?);
                Ok(())
            }
            (None, Format::Text) => Ok(()),
        }
    }

    /// One object for one recording, an array for several.
    fn print_json(&self, several: bool) -> Result<(), CliError> {
        match (&self.array[..], several) {
            ([], _) => Ok(()),
            ([one], false) => print(&format!("{one}\n")),
            (all, _) => print(&format!("[\n{}\n]\n", all.join(",\n"))),
        }
    }
}

/// What a transcription took, for people.
fn summary(name: &str, t: &Transcript) -> String {
    let peak =
        system::peak_memory().map_or_else(String::new, |p| format!(", peak memory {}", system::bytes(p)));
    format!(
        "{name}: {} in {:.1} s ({:.3}× real time), {} tokens, {:.1} ms each; KV {} {} {}{peak}",
        system::clock(t.duration),
        t.timing.total,
        t.timing.real_time_factor,
        t.statistics.new_tokens,
        t.timing.median_step_ms,
        t.statistics.kv_method,
        t.statistics.kv_dtype,
        system::bytes(t.statistics.kv.kv_bytes),
    )
}
