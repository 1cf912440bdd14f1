//! `wnw analyze`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, Subcommand};
use wnw_engine::{Engine, EngineError};
use wnw_kv::{HeadId, KvShape};
use wnw_model::LoadOptions;
use wnw_model::prompt::Task;

use crate::args::{ModelChoice, parse_share};
use crate::error::CliError;
use crate::kept_mass::MassArgs;
use crate::mismatch::MismatchArgs;
use crate::outputs::complain;
use crate::profile_pair::CalibrationArgs;
use crate::progress::Bar;
use crate::runtime::RuntimeArgs;
use crate::sweep::SweepArgs;
use crate::tide::TideArgs;
use crate::{charts, head_map, kept_mass, mismatch, models, profile_pair, runtime, sweep, tide};

/// `wnw analyze`.
#[derive(Debug, Args)]
pub struct AnalyzeArgs {
    #[command(subcommand)]
    pub command: AnalyzeCommand,
}

/// What to look into.
#[derive(Debug, Subcommand)]
pub enum AnalyzeCommand {
    /// Draw where the model listens in one recording, step by step, what is recalled for it, and what the KV cache takes.
    #[command(after_help = tide::EXAMPLES)]
    Tide(Box<TideArgs>),
    /// Measure how far the attention that a prefill sees differs from that of the whole answer.
    #[command(after_help = mismatch::EXAMPLES)]
    Mismatch(Box<MismatchArgs>),
    /// Measure how much of the answer's attention falls on what KV methods keep.
    #[command(after_help = kept_mass::EXAMPLES)]
    Mass(Box<MassArgs>),
    /// Draw the head map of a profile.
    #[command(after_help = "Example: wnw analyze heads wnw-profile.json -o map.svg")]
    Heads(HeadsArgs),
    /// Compare a method with itself under other options, over data sets: the paper's ablations.
    #[command(after_help = sweep::EXAMPLES)]
    Sweep(Box<SweepArgs>),
    /// Compare two calibrations of a model: scores and roles.
    #[command(after_help = profile_pair::EXAMPLES)]
    Calibration(CalibrationArgs),
    /// Measure a step's time, and what it recalls, against the number of tidal heads.
    #[command(after_help = runtime::EXAMPLES)]
    Runtime(Box<RuntimeArgs>),
}

/// `wnw analyze heads`.
#[derive(Debug, Args)]
pub struct HeadsArgs {
    /// A profile of `wnw calibrate` [default: that of the embedded model].
    #[arg(value_name = "PROFILE")]
    pub profile: Option<PathBuf>,
    /// Where to draw it, .svg or .png; may be given twice [default: NAME.svg and NAME.png in the working directory].
    #[arg(short, long, value_name = "FILE")]
    pub output: Vec<PathBuf>,
    /// Target r_GPU whose roles are shown.
    #[arg(long, value_name = "SHARE", default_value_t = head_map::R_GPU, value_parser = parse_share)]
    pub r_gpu: f64,
}

/// Runs the command.
pub fn run(args: &AnalyzeArgs) -> Result<ExitCode, CliError> {
    match &args.command {
        AnalyzeCommand::Tide(args) => tide::run(args)?,
        AnalyzeCommand::Mismatch(args) => mismatch::run(args)?,
        AnalyzeCommand::Mass(args) => kept_mass::run(args)?,
        AnalyzeCommand::Heads(args) => heads(args)?,
        AnalyzeCommand::Sweep(args) => return sweep::run(args),
        AnalyzeCommand::Calibration(args) => profile_pair::run(args)?,
        AnalyzeCommand::Runtime(args) => runtime::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn heads(args: &HeadsArgs) -> Result<(), CliError> {
    charts::check("--output", &args.output)?;
    let (profile, path) = match &args.profile {
        Some(path) => (head_map::read(path)?, path.clone()),
        None => {
            let path = PathBuf::from("tiny-heads");
            (head_map::parse(wnw_tiny::PROFILE, &path)?, path)
        }
    };
    let chart = head_map::chart(&profile, args.r_gpu)?;
    let paths = charts::targets(&args.output, Path::new(path.file_stem().unwrap_or_default()));
    charts::draw(&chart, &paths)?;
    complain(&format!("{}: drawn to {}", path.display(), charts::names(&paths)));
    Ok(())
}

/// The transcription task of a `--language`.
pub fn task(language: Option<&str>) -> Result<Task, CliError> {
    let language = language.map(str::to_lowercase);
    Task::transcribe(language.as_deref()).map_err(|e| CliError::Usage(format!("--language: {e}")))
}

/// Loads the model.
pub fn load(model: &ModelChoice, quiet: bool, bar: &Bar) -> Result<Engine, CliError> {
    let files = models::open("--model", &model.model, quiet)?;
    let options = LoadOptions { dtype: Some(model.dtype) };
    Ok(Engine::new(files.load(&options, |done, total| bar.loading(done, total))?))
}

/// The engine's error, or that the user broke off.
pub fn engine_error(error: EngineError) -> CliError {
    match error {
        EngineError::Cancelled => CliError::Interrupted,
        other => CliError::Engine(other),
    }
}

/// A KV head as flags write it, `LAYER.HEAD`, both from 0.
pub fn parse_head(text: &str) -> Result<HeadId, String> {
    let parts = text.split_once('.').map(|(l, h)| (usize::from_str(l), usize::from_str(h)));
    match parts {
        Some((Ok(layer), Ok(kv_head))) => Ok(HeadId { layer, kv_head }),
        _ => Err("write LAYER.HEAD, such as 3.1, both counted from 0".into()),
    }
}

/// Refuses a head that the model does not have.
pub fn check_head(flag: &str, head: HeadId, shape: KvShape) -> Result<(), CliError> {
    if head.layer < shape.n_layers && head.kv_head < shape.n_kv_heads {
        return Ok(());
    }
    Err(CliError::Usage(format!(
        "{flag} {}.{}: the model has {} layers of {} KV heads, counted from 0",
        head.layer, head.kv_head, shape.n_layers, shape.n_kv_heads
    )))
}
