//! `wnw analyze mass`.

use std::path::PathBuf;

use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use wnw_calibrate::CalibrateError;
use wnw_calibrate::kept_mass::{KeptMass, measure};
use wnw_engine::{KvOptions, Request, WindowKv};
use wnw_eval::harness::{Arm, HarnessError, MethodSpec};
use wnw_kv::PromptLayout;
use wnw_kv::policies::registry::Keeps;

use crate::analyze_command::{load, task};
use crate::answers::{each_answer, go_on};
use crate::args::{ModelChoice, parse_share};
use crate::error::CliError;
use crate::inputs::expand;
use crate::kv_args::read_profile;
use crate::outputs::print;
use crate::progress::Bar;
use crate::signals;

/// For `--help`.
pub const EXAMPLES: &str = "\
Example: wnw analyze mass --language en --methods wnw,snapkv,adakv --ratios 0.4,0.2 talk.mp3

Each window is transcribed with the full cache; then one pass over prompt and transcript measures the attention that each answer token pays to audio. \
'Kept' is the share of it that falls on rows a method keeps at prefill: of the first answer token's, which prefill sees, and of all answer tokens'. \
'Reachable' counts rows too that the method can recall. What is lost cannot be had back: this is why a method fails, or does not.";

/// `wnw analyze mass`.
#[derive(Debug, Args)]
pub struct MassArgs {
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
    /// KV methods, NAME[:OPTION=VALUE]….
    #[arg(long, value_delimiter = ',', required = true, value_name = "LIST")]
    pub methods: Vec<MethodSpec>,
    /// Shares of audio KV to keep on the device.
    #[arg(long, value_delimiter = ',', default_value = "0.8,0.6,0.4,0.2", value_parser = parse_share, value_name = "LIST")]
    pub ratios: Vec<f64>,
    /// Profile with the model's head roles [default: as for `wnw transcribe`].
    #[arg(long, value_name = "FILE")]
    pub kv_profile: Option<PathBuf>,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
    /// No progress; only warnings and errors on standard error.
    #[arg(short, long)]
    pub quiet: bool,
}

/// One method at one target.
#[derive(Serialize)]
struct Row {
    method: String,
    target: Option<f64>,
    #[serde(flatten)]
    mass: KeptMass,
}

/// Runs the command. A recording that cannot be used ends it: the mean of fewer would be another figure.
pub fn run(args: &MassArgs) -> Result<(), CliError> {
    let kv_dtype = args.model.kv_dtype;
    let mut arms: Vec<Arm> = Vec::new();
    for method in &args.methods {
        arms.extend(method.arms(&args.ratios, kv_dtype).map_err(|e| CliError::Usage(e.to_string()))?);
    }
    if let Some(arm) = arms.iter().find(|arm| arm.entry.keeps == Keeps::Merged) {
        let name = arm.entry.name;
        return Err(CliError::Usage(format!(
            "--methods {name}: it merges rows, so what it keeps are not rows of the full cache whose attention could be added up"
        )));
    }
    let request = Request {
        task: task(args.language.as_deref())?,
        kv: KvOptions { dtype: kv_dtype, ..KvOptions::default() },
        ..Request::default()
    };
    let inputs = expand(&args.files, args.recursive)?;
    let bar = Bar::new(args.quiet);
    let engine = load(&args.model, args.quiet, &bar)?;
    let model = engine.model();
    let profile = match arms.iter().any(|arm| arm.entry.needs_profile) || args.kv_profile.is_some() {
        true => read_profile(args.kv_profile.as_deref(), &args.model.model, model)?,
        false => None,
    };
    let shape = model.decoder().kv_shape();
    arms.iter()
        .try_for_each(|arm| arm.check(shape, profile.as_ref()))
        .map_err(|e: HarnessError| CliError::from(e))?;
    let policies = |layout: &PromptLayout| {
        let window = WindowKv { shape, layout, answer: 0, kv: &request.kv };
        let policy = |arm: &Arm| {
            arm.method(profile.as_ref())
                .policy(&window)
                .map_err(|e| CalibrateError::Input(format!("{}: {e}", arm.series(kv_dtype))))
        };
        arms.iter().map(policy).collect::<Result<Vec<_>, _>>()
    };
    // (windows, arms)
    let mut measured: Vec<Vec<KeptMass>> = Vec::new();
    for input in &inputs {
        each_answer(&engine, &request, input, &bar, &mut |answer| {
            let mass = signals::while_listening(|| {
                measure(
                    model,
                    answer.samples,
                    &request.task,
                    &answer.transcript.tokens,
                    &policies,
                    &mut |share| {
                        bar.work("measuring attention", share);
                        go_on()
                    },
                )
            })?;
            measured.push(mass);
            Ok(())
        })?;
    }
    bar.clear();
    if measured.is_empty() {
        return Err(CliError::Data("no recording has an answer: there is nothing to measure".into()));
    }
    let rows: Vec<Row> = arms
        .iter()
        .enumerate()
        .map(|(i, arm)| Row {
            method: arm.series(kv_dtype),
            target: arm.target,
            mass: KeptMass::mean(&measured.iter().map(|window| window[i]).collect::<Vec<_>>()),
        })
        .collect();
    match args.json {
        true => print(&format!("{}\n", serde_json::to_string_pretty(&rows)?)),
        false => print(&text(&rows)),
    }
}

fn text(rows: &[Row]) -> String {
    let percent = |share: f64| format!("{:.1}", 100.0 * share);
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header([
        "method",
        "target",
        "rows kept %",
        "first token: kept %",
        "all tokens: kept %",
        "all tokens: reachable %",
    ]);
    for row in rows {
        table.add_row([
            row.method.clone(),
            row.target.map_or_else(|| "–".into(), |t| t.to_string()),
            percent(row.mass.rows),
            percent(row.mass.prefill),
            percent(row.mass.decode),
            percent(row.mass.reachable),
        ]);
    }
    format!("{table}\n")
}
