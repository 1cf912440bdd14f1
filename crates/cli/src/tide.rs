//! `wnw analyze tide`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use wnw_audio::{AudioStream, DecodeOptions};
use wnw_engine::{Engine, EngineError, Event, GuardConfig, Request, StepRecord, Transcript};
use wnw_kv::profile::Profile;
use wnw_kv::{HeadId, KvShape};
use wnw_plot::{Groups, TideChart, TideStep};

use crate::analyze_command::{check_head, engine_error, load, parse_head, task};
use crate::args::{ModelChoice, parse_duration};
use crate::error::CliError;
use crate::inputs::{Input, expand};
use crate::kv_args::KvArgs;
use crate::progress::Bar;
use crate::system::{bytes, clock};
use crate::{charts, signals};

/// For `--help`.
pub const EXAMPLES: &str = "\
Examples:
  wnw analyze tide --language en --kv wnw --r-gpu 0.2 -o tide.svg talk.mp3
  wnw analyze tide --kv full --watch 2.0 --watch 4.1 -o tide.png talk.mp3

From top to bottom: KV bytes over the steps, beside those of a full cache; where the watched heads (wnw: the anchors) attend to, with the \
selected chunks; and what one head that recalls has on the device. With the full cache nothing is selected or recalled.";

/// `wnw analyze tide`.
#[derive(Debug, Args)]
pub struct TideArgs {
    /// The recording, or `-` for standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub model: ModelChoice,
    /// Language spoken: en, fr, …; without it the model decides.
    #[arg(long, value_name = "CODE")]
    pub language: Option<String>,
    /// Where to draw, .svg or .png; may be given twice [default: NAME.tide.svg and NAME.tide.png in the working directory].
    #[arg(short, long, value_name = "FILE")]
    pub output: Vec<PathBuf>,
    /// Which window of a long recording, from 0.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub window_index: usize,
    /// The KV head whose residency is shown, as LAYER.HEAD [default: the first that recalls].
    #[arg(long, value_name = "LAYER.HEAD", value_parser = parse_head)]
    pub head: Option<HeadId>,
    /// A KV head to watch, with methods other than wnw; may be given several times [default: the profile's anchors].
    #[arg(long, value_name = "LAYER.HEAD", value_parser = parse_head)]
    pub watch: Vec<HeadId>,
    /// Longest stretch that the model takes in one pass, such as 10m [default: what the model is made for].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub window: Option<Duration>,
    /// Cap of generated tokens [default: from the window's length].
    #[arg(long, value_name = "N")]
    pub max_new_tokens: Option<usize>,
    /// Let a model that repeats itself run on.
    #[arg(long)]
    pub no_repetition_guard: bool,
    /// No progress, no summary; only warnings and errors on standard error.
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub kv: KvArgs,
}

/// Runs the command.
pub fn run(args: &TideArgs) -> Result<(), CliError> {
    args.kv.check()?;
    charts::check("--output", &args.output)?;
    let usage = |message: &str| Err(CliError::Usage(message.into()));
    if args.kv.kv.is_wnw() && !args.watch.is_empty() {
        return usage("--watch is for methods other than wnw, which watches its anchors");
    }
    if args.window.is_some_and(|w| w.as_secs_f64() < 1.0) {
        return usage("--window must be at least 1s");
    }
    if args.max_new_tokens == Some(0) {
        return usage("--max-new-tokens must be at least 1");
    }
    let task = task(args.language.as_deref())?;
    let inputs = expand(std::slice::from_ref(&args.file), false)?;
    let [input] = &inputs[..] else { return usage("a tide chart is of one recording") };
    let audio =
        AudioStream::open(input.source.clone(), &DecodeOptions::default()).map_err(EngineError::from)?;

    let bar = Bar::new(args.quiet);
    let engine = load(&args.model, args.quiet, &bar)?;
    let name = &args.model.model;
    let shape = engine.model().decoder().kv_shape();
    args.head.map_or(Ok(()), |head| check_head("--head", head, shape))?;
    // Heads that are named, or spread evenly, need no profile.
    let unneeded = args.kv.kv_roles.is_some() || !args.watch.is_empty();
    let profile = if unneeded { None } else { args.kv.profile(name, engine.model())? };
    let method = args.kv.method(name, engine.model(), profile.as_ref())?;
    let request = Request {
        task,
        method,
        kv: args.kv.options(args.model.kv_dtype),
        max_new_tokens: args.max_new_tokens,
        window_seconds: args.window.map(|w| w.as_secs_f64()),
        guard: (!args.no_repetition_guard).then(GuardConfig::default),
        watch: watch(args, profile.as_deref(), shape)?,
        record_steps: true,
        record_head: args.head,
        only_window: Some(args.window_index),
        ..Request::default()
    };
    let (recorded, transcript) = record(&engine, audio, &request, input, &bar)?;
    bar.clear();
    let chart = chart(args, &engine, &request, input, recorded, &transcript)?;
    let stem = input.stem.file_name().map_or("recording".into(), |s| s.to_string_lossy().into_owned());
    let paths = charts::targets(&args.output, Path::new(&format!("{stem}.tide")));
    charts::draw(&chart, &paths)?;
    if !args.quiet {
        bar.line(&format!("{}: {} steps drawn to {}", input.name, chart.steps.len(), charts::names(&paths)));
    }
    Ok(())
}

/// The heads to watch; a method that watches some itself does so whatever is said here.
fn watch(args: &TideArgs, profile: Option<&Profile>, shape: KvShape) -> Result<Vec<HeadId>, CliError> {
    if args.kv.kv.is_wnw() {
        return Ok(Vec::new());
    }
    if !args.watch.is_empty() {
        let mut heads = args.watch.clone();
        heads.sort_unstable();
        heads.dedup();
        heads.iter().try_for_each(|head| check_head("--watch", *head, shape))?;
        return Ok(heads);
    }
    let name = &args.model.model;
    let profile = profile.ok_or_else(|| {
        CliError::Usage(format!(
            "there is no profile that says which heads of {name} follow the audio: name heads with --watch, or make a profile with `wnw calibrate --model {name} --self FILE…` and give it with --kv-profile"
        ))
    })?;
    Ok(profile.anchors())
}

/// What is kept of a run: steps in the chart's rows, for a step's attention itself may be long.
#[derive(Default)]
struct Recorded {
    steps: Vec<TideStep>,
    segments: Vec<std::ops::Range<usize>>,
    n_audio: usize,
    head: Option<HeadId>,
}

impl Recorded {
    fn push(&mut self, step: StepRecord) {
        self.n_audio = step.attention.len();
        let heads = step.watched.max(1) as f32;
        let rows = Groups::new(self.n_audio, TideChart::MOST_ROWS).sums(&step.attention);
        let share =
            |(rows, segment): (&u32, &std::ops::Range<usize>)| *rows as f32 / segment.len().max(1) as f32;
        self.steps.push(TideStep {
            attention: rows.into_iter().map(|sum| sum / heads).collect(),
            wanted: step.wanted,
            resident: step.resident.iter().zip(&step.segments).map(share).collect(),
            device_bytes: step.device_bytes,
            full_bytes: step.full_bytes,
        });
        (self.segments, self.head) = (step.segments, step.head);
    }
}

fn record(
    engine: &Engine,
    audio: AudioStream,
    request: &Request,
    input: &Input,
    bar: &Bar,
) -> Result<(Recorded, Transcript), CliError> {
    bar.restart();
    let duration = audio.info().duration;
    let mut recorded = Recorded::default();
    let mut hear = |event| {
        match event {
            Event::Progress(progress) => bar.show(&input.name, &progress, duration),
            Event::Warning(warning) => bar.line(&format!("wnw: warning: {}: {warning}", input.name)),
            Event::Step(step) => recorded.push(*step),
            Event::Started { .. } | Event::Text(_) | Event::Finished(_) => {}
        }
        if signals::interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let result = signals::while_listening(|| engine.transcribe(audio, request, &mut hear));
    Ok((recorded, result.map_err(engine_error)?))
}

fn chart(
    args: &TideArgs,
    engine: &Engine,
    request: &Request,
    input: &Input,
    recorded: Recorded,
    transcript: &Transcript,
) -> Result<TideChart, CliError> {
    let (start, end) = transcript.segments.get(args.window_index).map_or((0.0, 0.0), |s| (s.start, s.end));
    let stretch = format!("window {}, {} to {}", args.window_index, clock(start), clock(end));
    if recorded.steps.is_empty() {
        let message = format!("{}: {stretch}: the model said nothing: there is nothing to draw", input.name);
        return Err(EngineError::Request(message).into());
    }
    let model = engine.model();
    let second = 1.0 / model.audio_tokens_per_second();
    let time = |row: usize| row as f64 * second;
    let statistics = &transcript.statistics;
    let mut about = format!(
        "{} ({}): r_GPU {:.3}, mean over {} steps",
        if args.kv.kv.is_full() { "full cache" } else { statistics.kv_method.as_str() },
        statistics.kv_dtype,
        statistics.kv.r_gpu,
        recorded.steps.len()
    );
    if args.kv.kv.is_full() {
        let names: Vec<_> = request.watch.iter().map(|h| format!("{}.{}", h.layer, h.kv_head)).collect();
        about += &format!("; watched heads {}", charts::short(&names.join(" ")));
    } else {
        let count = |name| statistics.kv_parameters.get(name).map_or("0", String::as_str);
        about += &format!(
            "; {} anchor, {} tidal, {} fixed heads; {} recalled a step",
            count("anchor_heads"),
            count("tidal_heads"),
            count("fixed_heads"),
            bytes(statistics.kv.recalled_bytes_per_step.round() as u64)
        );
    }
    let rows = Groups::new(recorded.n_audio, TideChart::MOST_ROWS);
    Ok(TideChart {
        title: format!("{}: {}, {stretch}", charts::short(model.name()), charts::title(&input.name)),
        subtitle: about,
        start,
        seconds: time(recorded.n_audio),
        row_seconds: time(rows.size()),
        segments: recorded.segments.iter().map(|s| time(s.start)..time(s.end)).collect(),
        head: recorded.head.map(|h| format!("KV head {}.{}", h.layer, h.kv_head)),
        steps: recorded.steps,
    })
}
