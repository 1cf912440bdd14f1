//! `wnw analyze runtime`: the time of a step, and what it moves, against the number of tidal heads (Table 4).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use wnw_audio::{AudioStream, DecodeOptions};
use wnw_engine::{Engine, EngineError, Event, KvOptions, Method, Request, Transcript};
use wnw_kv::policies::registry::find;
use wnw_plot::{LineChart, Point, Series};

use crate::analyze_command::{engine_error, load, task};
use crate::args::{ModelChoice, parse_share};
use crate::error::CliError;
use crate::inputs::{Input, expand};
use crate::kv_args::read_profile;
use crate::outputs::print;
use crate::progress::Bar;
use crate::{charts, signals};

/// For `--help`.
pub const EXAMPLES: &str = "\
Example: wnw analyze runtime --language en --tidal 2,8,16,24 --r-gpu 0.2 -o runtime.svg talk.mp3

The recording is transcribed with the full cache and with each number of tidal heads, in turns, --repeat times; a row has the median over the turns. \
Retention at prefill meets --r-gpu each time, so that what differs is what is recalled.";

/// `wnw analyze runtime`.
#[derive(Debug, Args)]
pub struct RuntimeArgs {
    /// The recording.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub model: ModelChoice,
    /// Language spoken: en, fr, …; without it the model decides.
    #[arg(long, value_name = "CODE")]
    pub language: Option<String>,
    /// Numbers of tidal heads [default: six, evenly from few to all heads but the anchors].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub tidal: Vec<usize>,
    /// Target r_GPU.
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, value_parser = parse_share)]
    pub r_gpu: f64,
    /// Turns.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Profile with the model's head roles [default: as for `wnw transcribe`].
    #[arg(long, value_name = "FILE")]
    pub kv_profile: Option<PathBuf>,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
    /// Draw it, .svg or .png; may be given twice.
    #[arg(short, long, value_name = "FILE")]
    pub output: Vec<PathBuf>,
    /// No progress; only warnings and errors on standard error.
    #[arg(short, long)]
    pub quiet: bool,
}

/// One number of tidal heads.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// None for the full cache.
    tidal: Option<usize>,
    /// Medians over the turns: milliseconds of a decode step (itself a median),
    ms_per_token: f64,
    /// and milliseconds of a step spent waiting for recalled rows (a mean).
    wait_ms: f64,
    /// MB recalled, mean over steps.
    mb_per_step: f64,
    /// Share of audio KV on the device, mean over steps.
    r_gpu: f64,
    /// Tokens generated.
    tokens: usize,
}

/// Runs the command.
pub fn run(args: &RuntimeArgs) -> Result<(), CliError> {
    charts::check("--output", &args.output)?;
    let usage = |message: String| CliError::Usage(message);
    let task = task(args.language.as_deref())?;
    let inputs = expand(std::slice::from_ref(&args.file), false)?;
    let [input] = &inputs[..] else { return Err(usage("runtime is measured on one recording".into())) };
    let bar = Bar::new(args.quiet);
    let engine = load(&args.model, args.quiet, &bar)?.keeping_embeddings();
    let name = &args.model.model;
    let profile = read_profile(args.kv_profile.as_deref(), name, engine.model())?.ok_or_else(|| {
        usage(format!(
            "there is no profile with the head roles of {name}; make one with `wnw calibrate --model {name} --self FILE…` and give it with --kv-profile"
        ))
    })?;
    let heads = profile.voice_score.len();
    let n_anchor = profile.anchors_for(args.r_gpu);
    let most = heads - n_anchor;
    let tidal = match args.tidal.is_empty() {
        // As the paper's six, 35 to 235 of 240.
        true => (1..=6).map(|i| (most * i).div_ceil(6)).collect(),
        false => args.tidal.clone(),
    };
    if let Some(bad) = tidal.iter().find(|n| **n > most) {
        return Err(usage(format!(
            "--tidal {bad}: the model has {heads} KV heads, of which {n_anchor} are anchors"
        )));
    }
    if let Some(twice) = tidal.iter().enumerate().find_map(|(i, n)| tidal[..i].contains(n).then_some(n)) {
        return Err(usage(format!("--tidal: {twice} is given twice")));
    }
    let entry = find("wnw").map_err(|e| usage(e.to_string()))?;
    let arms: Vec<(Option<usize>, Method)> = std::iter::once((None, Method::Full))
        .chain(tidal.iter().map(|n| {
            let options = BTreeMap::from([
                ("n_voice".to_owned(), (n_anchor + n).to_string()),
                ("n_anchor".to_owned(), n_anchor.to_string()),
            ]);
            let profile = Some(profile.clone());
            (Some(*n), Method::Named { entry, r_gpu: Some(args.r_gpu), profile, options })
        }))
        .collect();
    let mut turns: Vec<Vec<Transcript>> = vec![Vec::new(); arms.len()];
    bar.restart();
    for turn in 0..args.repeat as usize {
        for (i, (_, method)) in arms.iter().enumerate() {
            let done = (turn * arms.len() + i) as f64 / (args.repeat as usize * arms.len()) as f64;
            bar.work(&format!("turn {} of {}", turn + 1, args.repeat), done);
            let request = Request {
                task: task.clone(),
                method: method.clone(),
                kv: KvOptions { dtype: args.model.kv_dtype, ..KvOptions::default() },
                ..Request::default()
            };
            turns[i].push(transcribe(&engine, input, &request)?);
        }
    }
    bar.clear();
    if turns[0].iter().all(|transcript| transcript.statistics.new_tokens == 0) {
        return Err(CliError::Data(format!(
            "{}: the model says nothing to it: no step can be timed",
            input.name
        )));
    }
    let rows: Vec<Row> = arms.iter().zip(&turns).map(|((tidal, _), runs)| row(*tidal, runs)).collect();
    if !args.output.is_empty() {
        charts::draw(&chart(args, &engine, input, &rows), &args.output)?;
    }
    match args.json {
        true => print(&format!("{}\n", serde_json::to_string_pretty(&rows)?)),
        false => print(&text(&rows)),
    }
}

fn transcribe(engine: &Engine, input: &Input, request: &Request) -> Result<Transcript, CliError> {
    let audio =
        AudioStream::open(input.source.clone(), &DecodeOptions::default()).map_err(EngineError::from)?;
    let mut hear = |_: Event| match signals::interrupted() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    signals::while_listening(|| engine.transcribe(audio, request, &mut hear)).map_err(engine_error)
}

fn row(tidal: Option<usize>, runs: &[Transcript]) -> Row {
    let median = |value: &dyn Fn(&Transcript) -> f64| {
        let mut all: Vec<f64> = runs.iter().map(value).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    Row {
        tidal,
        ms_per_token: median(&|t| t.timing.median_step_ms),
        wait_ms: median(&|t| t.timing.recall_wait_ms),
        mb_per_step: median(&|t| t.statistics.kv.recalled_bytes_per_step / 1e6),
        r_gpu: median(&|t| t.statistics.kv.r_gpu),
        tokens: runs[0].statistics.new_tokens,
    }
}

fn text(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header([
        "tidal heads",
        "ms/token (median)",
        "wait ms (mean)",
        "MB/step",
        "r_GPU %",
        "tokens",
    ]);
    for row in rows {
        table.add_row([
            row.tidal.map_or_else(|| "full cache".into(), |n| n.to_string()),
            format!("{:.2}", row.ms_per_token),
            format!("{:.3}", row.wait_ms),
            format!("{:.3}", row.mb_per_step),
            format!("{:.1}", 100.0 * row.r_gpu),
            row.tokens.to_string(),
        ]);
    }
    format!("{table}\n")
}

fn chart(args: &RuntimeArgs, engine: &Engine, input: &Input, rows: &[Row]) -> LineChart {
    let with = |value: &dyn Fn(&Row) -> f64| -> Vec<Point> {
        rows.iter().filter_map(|r| Some(Point::exact(r.tidal? as f64, value(r)))).collect()
    };
    let full = rows.iter().find(|r| r.tidal.is_none()).map_or(0.0, |r| r.ms_per_token);
    LineChart {
        title: format!("{}: a step's time against the tidal heads", charts::short(engine.model().name())),
        subtitle: format!(
            "{}, r_GPU {}, median of {} turn(s)",
            charts::title(&input.name),
            args.r_gpu,
            args.repeat
        ),
        x_label: "tidal heads".into(),
        y_label: "ms per token".into(),
        series: vec![
            Series { name: "wnw".into(), points: with(&|r| r.ms_per_token), joined: true },
            Series { name: "full cache".into(), points: with(&|_| full), joined: true },
            Series { name: "waiting for recalled rows".into(), points: with(&|r| r.wait_ms), joined: true },
        ],
        ..LineChart::default()
    }
}
