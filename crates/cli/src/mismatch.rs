//! `wnw analyze mismatch`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use wnw_calibrate::mismatch::{LOW_OVERLAP, Mismatch, Top, measure};
use wnw_engine::{Engine, EngineError, FinishReason, KvOptions, Request};
use wnw_plot::MismatchChart;

use crate::analyze_command::{load, task};
use crate::answers::{Answer, each_answer, go_on};
use crate::args::{ModelChoice, parse_duration};
use crate::error::CliError;
use crate::inputs::expand;
use crate::outputs::print;
use crate::progress::Bar;
use crate::{charts, signals};

/// For `--help`.
pub const EXAMPLES: &str = "\
Examples:
  wnw analyze mismatch --language en --top 100,500,10% -o mismatch.svg talk.mp3
  wnw analyze mismatch --model ./Voxtral-Mini-3B-2507 --recursive --json recordings/ > mismatch.json

Each window is transcribed with the full cache; then one pass over prompt and transcript measures the attention of every layer and head. 'Prefill' is \
the attention of the first answer token, 'decode' the mean over all. Weights are those of a softmax over all keys, text included; over audio \
positions (those of padding too), after the mean over layers and heads, they are scaled to a sum of 1. Recordings weigh the same.";

/// `wnw analyze mismatch`.
#[derive(Debug, Args)]
pub struct MismatchArgs {
    /// Recordings: files, patterns, or directories (with --recursive).
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub model: ModelChoice,
    /// Language spoken: en, fr, …; without it the model decides.
    #[arg(long, value_name = "CODE")]
    pub language: Option<String>,
    /// Take all recordings below a directory.
    #[arg(short, long)]
    pub recursive: bool,
    /// Sizes K of the top sets: positions, or shares of the positions such as 10%. More positions than there are count as all. Single heads are shown for the first.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "100,500")]
    pub top: Vec<Top>,
    /// Longest stretch that the model takes in one pass, such as 10m [default: what the model is made for]. Each window counts as a recording.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub window: Option<Duration>,
    /// Cap of generated tokens per window [default: from the window's length].
    #[arg(long, value_name = "N")]
    pub max_new_tokens: Option<usize>,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
    /// Draw Figure 1 too, .svg or .png; may be given twice.
    #[arg(short, long, value_name = "FILE")]
    pub output: Vec<PathBuf>,
    /// No progress; only warnings and errors on standard error.
    #[arg(short, long)]
    pub quiet: bool,
}

/// One window of a recording.
#[derive(Serialize)]
struct Measured {
    file: String,
    /// Seconds from the start of the recording.
    start: f64,
    end: f64,
    finish_reason: FinishReason,
    #[serde(flatten)]
    mismatch: Mismatch,
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    weight_dtype: String,
    kv_method: &'static str,
    kv_dtype: String,
    /// What distributions are scaled to.
    normalisation: &'static str,
    mean: &'a Mismatch,
    recordings: &'a [Measured],
}

/// Runs the command. A recording that cannot be used ends it: the mean of fewer would be another figure.
pub fn run(args: &MismatchArgs) -> Result<(), CliError> {
    charts::check("--output", &args.output)?;
    let usage = |message: &str| Err(CliError::Usage(message.into()));
    if args.window.is_some_and(|w| w.as_secs_f64() < 1.0) {
        return usage("--window must be at least 1s");
    }
    if args.max_new_tokens == Some(0) {
        return usage("--max-new-tokens must be at least 1");
    }
    let request = Request {
        task: task(args.language.as_deref())?,
        kv: KvOptions { dtype: args.model.kv_dtype, ..KvOptions::default() },
        max_new_tokens: args.max_new_tokens,
        window_seconds: args.window.map(|w| w.as_secs_f64()),
        ..Request::default()
    };
    let inputs = expand(&args.files, args.recursive)?;
    let bar = Bar::new(args.quiet);
    let engine = load(&args.model, args.quiet, &bar)?;
    let mut measured: Vec<Measured> = Vec::new();
    for input in &inputs {
        each_answer(&engine, &request, input, &bar, &mut |answer| {
            let tokens = &answer.transcript.tokens;
            let mismatch = signals::while_listening(|| {
                measure(engine.model(), answer.samples, &request.task, tokens, &args.top, &mut |share| {
                    bar.work("measuring attention", share);
                    go_on()
                })
            })?;
            let Answer { start, end, .. } = answer;
            let finish_reason = answer.transcript.finish_reason;
            measured.push(Measured { file: input.name.clone(), start, end, finish_reason, mismatch });
            Ok(())
        })?;
    }
    bar.clear();
    let all: Vec<Mismatch> = measured.iter().map(|m| m.mismatch.clone()).collect();
    let Some(mean) = Mismatch::mean(&all) else {
        let message = "no recording has an answer: there is nothing to measure".into();
        return Err(EngineError::Request(message).into());
    };
    if !args.output.is_empty() {
        charts::draw(&chart(&engine, &measured, &mean), &args.output)?;
    }
    if !args.json {
        return print(&text(&engine, &measured, &mean));
    }
    let report = Report {
        model: engine.model().name(),
        weight_dtype: engine.model().dtype().to_string(),
        kv_method: "full",
        kv_dtype: args.model.kv_dtype.to_string(),
        normalisation: "softmax over all visible keys, mean over layers and query heads, audio positions scaled to sum 1",
        mean: &mean,
        recordings: &measured,
    };
    print(&format!("{}\n", serde_json::to_string_pretty(&report)?))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn recordings(measured: &[Measured], mean: &Mismatch) -> String {
    format!(
        "{} recording{}, {} audio positions, {} answer tokens",
        measured.len(),
        if measured.len() == 1 { "" } else { "s" },
        mean.audio_positions,
        mean.answer_tokens
    )
}

/// The table for people.
fn text(engine: &Engine, measured: &[Measured], mean: &Mismatch) -> String {
    let model = engine.model();
    let mut out =
        format!("{} ({}), full cache: {}\n", model.name(), model.dtype(), recordings(measured, mean));
    let table = |header: &[&str]| {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(header);
        table
    };
    let (p, d) = (&mean.prefill, &mean.decode);
    let mut masses = table(&["attention mass on audio", "prefill (first token)", "decode (all tokens)"]);
    for (name, p, d) in [
        ("first 10 % of positions", p.first_tenth, d.first_tenth),
        ("first 50 %", p.first_half, d.first_half),
        ("last 50 %", p.second_half, d.second_half),
        ("audio's share of all attention", p.audio_share, d.audio_share),
    ] {
        masses.add_row([name.to_owned(), percent(p), percent(d)]);
    }
    let low = format!("heads under {LOW_OVERLAP}");
    let header = ["top sets", "K", "Jaccard", "random", "K/T", "per KV head", &low];
    let mut overlaps = table(&header);
    for o in &mean.overlap {
        overlaps.add_row([
            o.top.to_string(),
            format!("{}", o.k.round()),
            format!("{:.3}", o.jaccard),
            format!("{:.3}", o.random),
            format!("{:.3}", o.random_share),
            format!("{:.3} … {:.3}", o.head_min, o.head_max),
            format!("{} of {}", percent(o.heads_low), o.heads.len()),
        ]);
    }
    out += &format!("{masses}\n{overlaps}\n");
    out +=
        "Masses: softmax over all keys, mean over layers and heads, scaled to sum 1 over audio positions.\n";
    out += "random: Jaccard of two random sets, about K/(2T−K) for T positions; K/T is how much of one the other covers.\n";
    for o in mean.overlap.iter().filter(|o| matches!(o.top, Top::Count(k) if o.k < k as f64)) {
        let (top, k) = (o.top, o.k.round());
        out += &format!(
            "K = {top} is more than some recording has positions: {k} were used (mean); try --top 10%.\n"
        );
    }
    out
}

fn chart(engine: &Engine, measured: &[Measured], mean: &Mismatch) -> MismatchChart {
    let names = match measured {
        [one] => charts::title(&one.file),
        more => format!("{} recordings", more.len()),
    };
    let first = mean.overlap.first();
    MismatchChart {
        title: format!("{}: prefill against decode attention, {names}", charts::short(engine.model().name())),
        subtitle: format!(
            "full cache, {}; on the first 10 % of positions: prefill {}, decode {}",
            recordings(measured, mean),
            percent(mean.prefill.first_tenth),
            percent(mean.decode.first_tenth)
        ),
        prefill: mean.prefill.grid.clone(),
        decode: mean.decode.grid.clone(),
        heads: first.map(|o| o.heads.clone()).unwrap_or_default(),
        top: first.map_or_else(String::new, |o| format!("K = {}", o.top)),
        random: first.map_or(0.0, |o| o.random),
    }
}
