//! `wnw eval`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use wnw_calibrate::journal::{Run, fold_bytes};
use wnw_engine::{GuardConfig, KvOptions, RecoveryConfig, Request};
use wnw_eval::dataset::{self, DatasetSpec};
use wnw_eval::harness::{
    Happening, HarnessError, Line, MethodSpec, Plan, Results, Row, Scores, Scoring, Shard, Tally, csv, lines,
    markdown, merge, overview, read_all, sample, score,
};
use wnw_eval::{Normaliser, wer};
use wnw_kv::HostPlace;
use wnw_model::prompt::language_name;

use crate::analyze_command::load;
use crate::args::{ModelChoice, parse_duration, parse_share};
use crate::data_command::Place;
use crate::error::CliError;
use crate::eval_charts;
use crate::kv_args::{parse_place, read_profile};
use crate::outputs::{complain, prepare_directory, print, write_whole};
use crate::progress::Bar;
use crate::{signals, system};

/// For `--help`.
pub const EXAMPLES: &str = "\
Examples:
  wnw eval --dataset tiny-en --methods full,wnw,snapkv,adakv --ratios 0.8,0.4,0.2 --limit 4 --out runs/tiny
  wnw eval --model ./Voxtral-Mini-3B-2507 --dataset librispeech-long:data/librispeech-long#test-clean --methods full,wnw --ratios 0.2 --out runs/ls
  wnw eval --dataset dir:talks --methods full,full@int8,wnw:top_chunks=5 --ratios 0.2 --shard 0/8 --out runs/part0
  wnw eval merge runs/part* --out runs/whole
  wnw eval score runs/whole --normaliser whisper-en

A method is NAME[@TYPE][:OPTION=VALUE]…: TYPE is that of keys and values, options are in docs/methods.md. What is done is kept in --out; run the \
command again to go on, or with more methods and data sets to add to it.

Exit code: 0 when every recording has a transcript with every method, 1 when one failed, 2 for wrong usage, 130 after Ctrl-C, 143 after SIGTERM.";

/// `wnw eval`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct EvalArgs {
    #[command(subcommand)]
    pub command: Option<EvalCommand>,
    #[command(flatten)]
    pub run: RunArgs,
}

/// What to do with results that are there.
#[derive(Debug, Subcommand)]
pub enum EvalCommand {
    /// Score results again, without the model, and write tables and plots anew.
    #[command(after_help = "Example: wnw eval score runs/tiny --normaliser whisper-en")]
    Score {
        /// Directory of a run.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        #[command(flatten)]
        scoring: ScoringArgs,
        /// The table as JSON on standard output.
        #[arg(long)]
        json: bool,
    },
    /// Put the parts of a run (--shard) together.
    #[command(after_help = "Example: wnw eval merge runs/part0 runs/part1 --out runs/whole")]
    Merge {
        /// Directories of the parts.
        #[arg(required = true, value_name = "DIR")]
        parts: Vec<PathBuf>,
        /// Directory for the whole.
        #[arg(short, long, value_name = "DIR")]
        out: PathBuf,
        #[command(flatten)]
        scoring: ScoringArgs,
        /// The table as JSON on standard output.
        #[arg(long)]
        json: bool,
    },
}

/// A run.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Data set: a name of `wnw data list`, such as tiny-en; NAME:PATH, such as librispeech-long:DIR#test-clean; or a directory or manifest. May be repeated.
    #[arg(long = "dataset", required = true, value_name = "SET")]
    pub datasets: Vec<String>,
    #[command(flatten)]
    pub place: Place,
    /// KV methods, NAME[@TYPE][:OPTION=VALUE]….
    #[arg(long, value_delimiter = ',', default_value = "full,wnw", value_name = "LIST")]
    pub methods: Vec<MethodSpec>,
    /// Shares of audio KV to keep on the device.
    #[arg(long, value_delimiter = ',', default_value = "0.8,0.6,0.4,0.2", value_parser = parse_share, allow_negative_numbers = true, value_name = "LIST")]
    pub ratios: Vec<f64>,
    /// Most recordings of each data set, drawn with --seed.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Language spoken, en, fr, …, in data sets that do not say it; without it the model decides.
    #[arg(long, value_name = "CODE", value_parser = parse_language)]
    pub language: Option<String>,
    /// Seed of the draw.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// Run part INDEX of COUNT, counted from 0.
    #[arg(long, value_name = "INDEX/COUNT", default_value = "0/1")]
    pub shard: Shard,
    /// Directory for results, tables and plots.
    #[arg(short, long, required = true, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub model: ModelChoice,
    /// Profile with the model's head roles [default: as for `wnw transcribe`].
    #[arg(long, value_name = "FILE")]
    pub kv_profile: Option<PathBuf>,
    /// Where recallable KV lies: `ram`, or `file:DIR`.
    #[arg(long, value_name = "PLACE", value_parser = parse_place, default_value = "ram")]
    pub host_tier: HostPlace,
    /// Longest stretch that the model takes in one pass, such as 10m [default: what the model is made for].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub window: Option<Duration>,
    /// Cap of generated tokens per window [default: from the window's length].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_new_tokens: Option<u64>,
    /// Let a model that repeats itself run on to the cap.
    #[arg(long)]
    pub no_repetition_guard: bool,
    /// Begin again where a model lost its place, as `wnw transcribe` does: scores are then those of the program, not of the KV method alone.
    #[arg(long, conflicts_with = "max_new_tokens")]
    pub recovery: bool,
    #[command(flatten)]
    pub scoring: ScoringArgs,
    /// The table as JSON on standard output.
    #[arg(long)]
    pub json: bool,
    /// No progress; only warnings and errors on standard error.
    #[arg(short, long)]
    pub quiet: bool,
}

/// How texts are scored.
#[derive(Debug, Args)]
#[command(next_help_heading = "Scoring")]
pub struct ScoringArgs {
    /// What is done to words before they are compared: none, paper (lower case, and no punctuation but apostrophes and full stops), whisper-en or whisper-basic.
    #[arg(long, default_value = "paper", value_name = "NAME")]
    pub normaliser: Normaliser,
    /// A hypothesis is cut at so many times the words of its reference.
    #[arg(long, default_value_t = wer::PAPER_RATIO, value_parser = parse_truncate, value_name = "X")]
    pub truncate: f64,
    /// Resamples for the confidence intervals.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "N")]
    pub resamples: u32,
}

impl ScoringArgs {
    fn scoring(&self) -> Scoring {
        Scoring {
            normaliser: self.normaliser,
            truncate: self.truncate,
            resamples: self.resamples as usize,
            ..Scoring::default()
        }
    }
}

fn parse_language(text: &str) -> Result<String, String> {
    language_name(text).map(|_| text.to_owned()).map_err(|e| e.to_string())
}

fn parse_truncate(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|x: &f64| *x >= 1.0 && *x <= 1e6).ok_or_else(|| "must be 1 or more".into())
}

/// Runs the command.
pub fn run(args: &EvalArgs) -> Result<ExitCode, CliError> {
    match &args.command {
        None => evaluate(&args.run, &args.run.methods).map(|(_, code)| code),
        Some(EvalCommand::Score { dir, scoring, json }) => {
            let (_, rows) = read_all(dir)?;
            report(dir, &rows, &scoring.scoring(), *json)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(EvalCommand::Merge { parts, out, scoring, json }) => {
            prepare_directory(out)?;
            let rows = merge(parts, out)?.rows();
            let manifests: Vec<serde_json::Value> =
                parts.iter().filter_map(|part| manifest_of(part)).collect();
            let manifest = serde_json::to_string_pretty(&serde_json::json!({ "parts": manifests }))?;
            write_whole(&out.join("manifest.json"), &format!("{manifest}\n"))?;
            gaps(&manifests, &rows).iter().for_each(|gap| complain(&format!("wnw: warning: {gap}")));
            report(out, &rows, &scoring.scoring(), *json)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The manifest in a part's directory, if there is one that can be read; rows do not need it.
fn manifest_of(part: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(part.join("manifest.json")).ok()?).ok()
}

/// The manifest of a call, with those of earlier calls that asked for something else and whose rows lie in the same directory
/// under `earlier`.
fn with_earlier(mut now: serde_json::Value, before: Option<serde_json::Value>) -> serde_json::Value {
    if let Some(mut before) = before
        && let Some(whole) = before.as_object_mut()
    {
        let mut earlier = match whole.remove("earlier") {
            Some(serde_json::Value::Array(earlier)) => earlier,
            _ => Vec::new(),
        };
        earlier.push(before);
        earlier.retain(|call| *call != now);
        now["earlier"] = earlier.into();
    }
    now
}

/// What is missing from the parts of a run: shards, and recordings that only some methods have.
fn gaps(manifests: &[serde_json::Value], rows: &[Row]) -> Vec<String> {
    let shards: BTreeSet<&str> = manifests.iter().filter_map(|m| m["shard"].as_str()).collect();
    let count = shards.iter().filter_map(|s| s.split_once('/')?.1.parse::<usize>().ok()).max().unwrap_or(0);
    // A thousand missing parts are told as well by the first few.
    let missing = (0..count).map(|i| format!("{i}/{count}")).filter(|s| !shards.contains(s.as_str()));
    let missing: Vec<String> = missing.take(5).collect();
    let mut gaps = Vec::new();
    if !missing.is_empty() {
        gaps.push(format!("no part is shard {}: the scores are of fewer recordings", missing.join(", ")));
    }
    let mut recordings: BTreeMap<&str, BTreeMap<(&str, Option<u64>), usize>> = BTreeMap::new();
    for row in rows {
        let arm = (row.method.as_str(), row.target.map(f64::to_bits));
        *recordings.entry(&row.dataset).or_default().entry(arm).or_default() += 1;
    }
    for (dataset, arms) in recordings {
        let (least, most) = (arms.values().min(), arms.values().max());
        if let (Some(least), Some(most)) = (least, most)
            && least != most
        {
            gaps.push(format!(
                "{dataset}: methods and targets have between {least} and {most} recordings: their scores are not of the same ones"
            ));
        }
    }
    gaps
}

/// What a run was, beside its results.
#[derive(Serialize)]
struct Manifest<'a> {
    wnw: &'static str,
    model: &'a str,
    fingerprint: &'a str,
    weight_dtype: String,
    kv_dtype: String,
    options: &'a str,
    methods: Vec<String>,
    ratios: &'a [f64],
    datasets: Vec<ManifestSet<'a>>,
    limit: Option<u64>,
    seed: u64,
    shard: String,
    processor: String,
    threads: usize,
    system: String,
}

#[derive(Serialize)]
struct ManifestSet<'a> {
    name: &'a str,
    asked: &'a str,
    recordings: usize,
}

/// Runs methods over data sets, and writes and prints what came of it.
pub fn evaluate(args: &RunArgs, methods: &[MethodSpec]) -> Result<(Vec<Line>, ExitCode), CliError> {
    let usage = |message: String| CliError::Usage(message);
    // clap asks for it wherever no subcommand is given.
    let out = args.out.as_deref().ok_or_else(|| usage("--out is missing".into()))?;
    if args.window.is_some_and(|w| w.as_secs_f64() < 1.0) {
        return Err(usage("--window must be at least 1s".into()));
    }
    let dir = args.place.directory()?;
    let mut datasets = Vec::new();
    for asked in &args.datasets {
        let spec: DatasetSpec = asked.parse().map_err(|e| usage(format!("--dataset: {e}")))?;
        let spec = spec.or_in(&dir);
        let mut dataset = dataset::open(&spec).map_err(|e| usage(format!("--dataset {asked}: {e}")))?;
        if datasets.iter().any(|d: &dataset::Dataset| d.name == dataset.name) {
            return Err(usage(format!(
                "--dataset {asked}: two data sets are called {}; evaluate them apart, or rename one",
                dataset.name
            )));
        }
        if let Some(limit) = args.limit {
            sample(&mut dataset, usize::try_from(limit).unwrap_or(usize::MAX), args.seed);
        }
        let (mut silent, mut unsaid) = (0, 0);
        for recording in &mut dataset.recordings {
            silent += usize::from(recording.reference.trim().is_empty());
            if recording.language.is_none() {
                recording.language.clone_from(&args.language);
                unsaid += usize::from(args.language.is_none());
            }
        }
        if unsaid > 0 && !args.quiet {
            complain(&format!(
                "--dataset {asked}: {unsaid} of {} recordings do not say their language: the model decides, which scores otherwise than --language",
                dataset.recordings.len()
            ));
        }
        if silent > 0 {
            complain(&format!(
                "wnw: warning: --dataset {asked}: {silent} of {} references are empty: whatever is transcribed there adds nothing to the truncated rate",
                dataset.recordings.len()
            ));
        }
        datasets.push(dataset);
    }
    let mut arms = Vec::new();
    for method in methods {
        arms.extend(method.arms(&args.ratios, args.model.kv_dtype).map_err(|e| usage(e.to_string()))?);
    }
    prepare_directory(out)?;
    let bar = Bar::new(args.quiet);
    let engine = load(&args.model, args.quiet, &bar)?.keeping_embeddings();
    let needs_profile = arms.iter().any(|arm| arm.entry.needs_profile);
    // Also read where no method needs it: what makes a run must not depend on the methods, since others may be added.
    let profile = match read_profile(args.kv_profile.as_deref(), &args.model.model, engine.model()) {
        Err(_) if !needs_profile && args.kv_profile.is_none() => None,
        found => found?,
    };
    let watch = match (&profile, args.recovery) {
        (_, false) => Vec::new(),
        (Some(profile), true) => profile.anchors(),
        (None, true) => {
            return Err(usage(format!(
                "--recovery needs a profile with the anchor heads of {}; give it with --kv-profile",
                args.model.model
            )));
        }
    };
    let request = Request {
        kv: KvOptions { dtype: args.model.kv_dtype, host: args.host_tier.clone(), ..KvOptions::default() },
        max_new_tokens: args.max_new_tokens.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
        window_seconds: args.window.map(|w| w.as_secs_f64()),
        guard: (!args.no_repetition_guard).then(GuardConfig::default),
        recovery: args.recovery.then(RecoveryConfig::default),
        watch,
        ..Request::default()
    };
    let model = engine.model();
    let options = format!(
        "weights {}, KV {}, window {}, cap {}, repetition guard {}, {}{}profile {}",
        model.dtype(),
        args.model.kv_dtype,
        args.window.map_or_else(|| "model's".into(), |w| format!("{} s", w.as_secs_f64())),
        args.max_new_tokens.map_or_else(|| "by length".into(), |n| n.to_string()),
        if args.no_repetition_guard { "off" } else { "on" },
        if args.recovery { "recovery on, " } else { "" },
        args.language.as_ref().map_or_else(String::new, |code| format!("language {code}, ")),
        match &profile {
            Some(profile) => format!("{:016x}", fold_bytes(serde_json::to_string(profile.as_ref())?.bytes())),
            None => "none".into(),
        },
    );
    let run = Run { model: model.fingerprint().to_owned(), options: options.clone() };
    let manifest = Manifest {
        wnw: env!("CARGO_PKG_VERSION"),
        model: model.name(),
        fingerprint: model.fingerprint(),
        weight_dtype: model.dtype().to_string(),
        kv_dtype: args.model.kv_dtype.to_string(),
        options: &options,
        methods: arms.iter().map(|arm| arm.series(args.model.kv_dtype)).collect(),
        ratios: &args.ratios,
        datasets: datasets
            .iter()
            .zip(&args.datasets)
            .map(|(d, asked)| ManifestSet { name: &d.name, asked, recordings: d.recordings.len() })
            .collect(),
        limit: args.limit,
        seed: args.seed,
        shard: format!("{}/{}", args.shard.index, args.shard.count),
        processor: system::processor(),
        threads: rayon::current_num_threads(),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
    };
    let manifest = with_earlier(serde_json::to_value(&manifest)?, manifest_of(out));
    let manifest = format!("{}\n", serde_json::to_string_pretty(&manifest)?);
    let kv_dtype = args.model.kv_dtype;
    let plan = Plan { datasets, arms, request, kv_dtype, profile, shard: args.shard };
    plan.check(&engine)?;
    let mut results = Results::open(out, &run)?;
    write_whole(&out.join("manifest.json"), &manifest)?;
    bar.restart();
    let tally = follow(&plan, &engine, &mut results, &bar)?;
    bar.clear();
    let rows = results.rows();
    gaps(&[], &rows).iter().for_each(|gap| complain(&format!("wnw: warning: {gap}")));
    let lines = report(out, &rows, &args.scoring.scoring(), args.json)?;
    if !args.quiet {
        let Tally { made, kept, failed } = tally;
        complain(&format!("{}: {made} made, {kept} were there, {failed} failed", out.display()));
    }
    Ok((lines, if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

/// Runs the plan, with progress.
fn follow(
    plan: &Plan,
    engine: &wnw_engine::Engine,
    results: &mut Results,
    bar: &Bar,
) -> Result<Tally, CliError> {
    let mut hear = |happening: Happening<'_>| {
        if signals::interrupted() {
            return ControlFlow::Break(());
        }
        match happening {
            Happening::Begins { row, done, total } => {
                let what = format!("{} of {total}: {} {}", done + 1, row.dataset, name(row));
                bar.work(&what, done as f64 / total.max(1) as f64);
            }
            Happening::Row(row) => {
                if let wnw_eval::harness::RowResult::Failed { error } = &row.result {
                    bar.line(&format!("wnw: error: {} {}: {error}", row.dataset, name(row)));
                }
            }
            Happening::Progress(_) => {}
        }
        ControlFlow::Continue(())
    };
    signals::while_listening(|| plan.run(engine, results, &mut hear)).map_err(CliError::from)
}

fn name(row: &Row) -> String {
    let target = row.target.map_or_else(String::new, |t| format!(" {t}"));
    format!("{} {}{target}", row.recording, row.method)
}

/// Recordings of a line below which resampling them tells next to nothing.
const FEW: usize = 10;

/// One recording's scores, as `scores.jsonl` has them.
#[derive(Serialize)]
struct RecordingScores<'a> {
    dataset: &'a str,
    recording: &'a str,
    method: &'a str,
    target: Option<f64>,
    #[serde(flatten)]
    scores: Scores,
}

/// Scores rows and writes tables and plots; the table goes to standard output too.
fn report(dir: &Path, rows: &[Row], scoring: &Scoring, json: bool) -> Result<Vec<Line>, CliError> {
    let mut scores = String::new();
    for row in rows {
        if let Some(found) = score(row, scoring).map_err(HarnessError::from)? {
            let one = RecordingScores {
                dataset: &row.dataset,
                recording: &row.recording,
                method: &row.method,
                target: row.target,
                scores: found,
            };
            scores += &serde_json::to_string(&one)?;
            scores.push('\n');
        }
    }
    let lines = lines(rows, scoring)?;
    let (overview, table) = (overview(&lines), markdown(&lines));
    let mut about = format!(
        "Words as the normaliser {:?} makes them; hypotheses cut at {} times the reference; intervals from {} resamples of recordings.\n",
        scoring.normaliser.name(),
        scoring.truncate,
        scoring.resamples
    );
    if lines.iter().any(|line| line.recordings < FEW) {
        about += &format!("Intervals of fewer than {FEW} recordings say little.\n");
    }
    write_whole(&dir.join("scores.jsonl"), &scores)?;
    write_whole(&dir.join("table.md"), &format!("{overview}{table}\n{about}"))?;
    write_whole(&dir.join("table.csv"), &csv(&lines))?;
    eval_charts::draw(dir, rows, &lines, scoring)?;
    match json {
        true => print(&format!("{}\n", serde_json::to_string_pretty::<[Line]>(&lines)?)),
        false => print(&format!("{overview}{table}\n{about}")),
    }?;
    Ok(lines)
}
