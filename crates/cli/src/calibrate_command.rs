//! `wnw calibrate`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::Args;
use wnw_audio::{AudioStream, DecodeOptions};
use wnw_calibrate::CalibrateError;
use wnw_calibrate::alignment::{self, AlignedWord, Choice};
use wnw_calibrate::calibration;
use wnw_calibrate::journal::{Journal, Run};
use wnw_calibrate::sample::{Sample, SampleOptions, SamplePhase, measure};
use wnw_calibrate::scores::HeadScores;
use wnw_engine::{Engine, EngineError, Request};
use wnw_kv::profile::{Calibration, Profile};
use wnw_model::prompt::Task;
use wnw_model::{LoadOptions, ModelFiles, WeightDtype};

use crate::error::CliError;
use crate::inputs::{Input, expand};
use crate::outputs::{print, write_whole};
use crate::progress::Bar;
use crate::{charts, head_map, models, signals};

/// `wnw calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Recordings, or directories of them (with --recursive). Beside NAME.flac lie NAME.txt with the reference and the word alignment: NAME.words.json, NAME.json (WhisperX), NAME.ctm or NAME.TextGrid.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Model to calibrate: `tiny`, a checkpoint directory, or a hub name.
    #[arg(short, long, default_value = "tiny", value_name = "MODEL")]
    pub model: String,
    /// Take all recordings below a directory.
    #[arg(short, long)]
    pub recursive: bool,
    /// No references and no alignments: the model's own transcript is the answer, and its most monotone heads say when each word was said.
    #[arg(long = "self")]
    pub self_labelled: bool,
    /// Language spoken: en, fr, …; without it the model decides.
    #[arg(long, value_name = "CODE")]
    pub language: Option<String>,
    /// The profile to write.
    #[arg(short, long, value_name = "FILE", default_value = "wnw-profile.json")]
    pub output: PathBuf,
    /// Where results of single recordings are kept, so that an interrupted run goes on [default: OUTPUT with .journal.jsonl].
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Where to draw the head map, .svg or .png [default: OUTPUT with .svg and .png].
    #[arg(long, value_name = "FILE")]
    pub map: Vec<PathBuf>,
    /// K of the voice score: audio positions that a word is about.
    #[arg(long, value_name = "K", default_value_t = 4)]
    pub top_positions: usize,
    /// Least alignment confidence of a word that counts.
    #[arg(long, value_name = "P", default_value_t = 0.85)]
    pub min_confidence: f32,
    /// Anchor heads.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub n_anchor: usize,
    /// Targets of r_GPU for which λ is fitted by runs over the first --fit-recordings recordings, such as 0.8,0.6,0.4,0.2,0.1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub fit_lambda: Vec<f64>,
    /// Recordings that λ is fitted on.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub fit_recordings: usize,
    /// Name of the TextGrid tier that holds words.
    #[arg(long, value_name = "NAME", default_value = "words")]
    pub tier: String,
    /// No progress; only warnings and errors on standard error.
    #[arg(short, long)]
    pub quiet: bool,
}

/// A recording of the calibration set, and what is known of it.
struct Item {
    name: String,
    samples: Vec<f32>,
    label: Option<(String, Vec<AlignedWord>)>,
}

/// Runs the command.
pub fn run(args: &CalibrateArgs) -> Result<(), CliError> {
    let task = check(args)?;
    charts::check("--map", &args.map)?;
    let options = SampleOptions { top_k: args.top_positions, min_confidence: args.min_confidence };
    let bar = Bar::new(args.quiet);
    let files = models::open("--model", &args.model, args.quiet)?;
    // Scores are those of the checkpoint itself, not of its 8-bit rounding.
    let load = |files: ModelFiles, dtype| {
        files.load(&LoadOptions { dtype: Some(dtype) }, |done, total| bar.loading(done, total))
    };
    let engine = Engine::new(load(models::open("--model", &args.model, args.quiet)?, WeightDtype::F32)?);
    let limit = engine.model().max_audio_seconds();
    let items = read_all(args, limit, &bar)?;
    let seconds =
        items.iter().map(|i| i.samples.len() as f64).sum::<f64>() / f64::from(wnw_audio::SAMPLE_RATE);

    let scores = if args.self_labelled {
        unreachable!()
    } else {
        let mut scorer = Scorer::new(args, &engine, &files, &options, "labelled", items.len())?;
        for item in &items {
            if scorer.has(&item.name) {
                continue;
            }
            let Some((reference, words)) = &item.label else { continue };
            let tokenizer = engine.model().tokenizer();
            let sample = Sample::labelled(&item.name, &item.samples, &task, tokenizer, reference, words)?;
            scorer.add(&sample, &bar)?;
        }
        scorer.mean()?
    };
    bar.clear();
    let about = Calibration {
        source: source(args),
        label_free: args.self_labelled,
        recordings: items.len(),
        seconds,
        tokens: scores.tokens as usize,
        top_positions: args.top_positions,
        min_confidence: f64::from(args.min_confidence),
    };
    let mut profile = calibration::profile(engine.model(), scores, args.n_anchor, about);
    profile.check(engine.model().fingerprint(), profile.shape).map_err(|e| CliError::Usage(e.to_string()))?;
    drop(engine);
    if !args.fit_lambda.is_empty() {
        // λ is for runs as they will be.
        let engine = Engine::new(load(files, WeightDtype::Q8_0)?);
        fit_all(args, &engine, &mut profile, &items, &task, &bar)?;
    }
    bar.clear();
    write_whole(&args.output, &format!("{}\n", serde_json::to_string_pretty(&profile)?))?;
    let maps = head_map::draw(&profile, &args.map, &args.output)?;
    summary(args, &profile)?;
    print(&format!("  head map: {}\n", charts::names(&maps)))
}

fn check(args: &CalibrateArgs) -> Result<Task, CliError> {
    let usage = |message: String| Err(CliError::Usage(message));
    if args.top_positions == 0 || args.n_anchor == 0 {
        return usage("--top-positions and --n-anchor must be at least 1".into());
    }
    if !(0.0..=1.0).contains(&args.min_confidence) {
        return usage(format!("--min-confidence {}: must be between 0 and 1", args.min_confidence));
    }
    if let Some(bad) = args.fit_lambda.iter().find(|t| !(**t > 0.0 && **t < 1.0)) {
        return usage(format!("--fit-lambda {bad}: targets must be above 0 and below 1"));
    }
    if !args.fit_lambda.is_empty() && args.fit_recordings == 0 {
        return usage("--fit-recordings must be at least 1".into());
    }
    let language = args.language.as_deref().map(str::to_lowercase);
    Task::transcribe(language.as_deref()).map_err(|e| CliError::Usage(format!("--language: {e}")))
}

/// Reads every recording with its reference and alignment. One that cannot be read ends the command: a profile from
/// fewer recordings than were named would be another one.
fn read_all(args: &CalibrateArgs, limit: f64, bar: &Bar) -> Result<Vec<Item>, CliError> {
    let inputs = expand(&args.files, args.recursive)?;
    let mut items = Vec::with_capacity(inputs.len());
    for input in &inputs {
        let audio =
            AudioStream::open(input.source.clone(), &DecodeOptions::default()).map_err(EngineError::from)?;
        let audio = audio.read_all().map_err(EngineError::from)?;
        let most = (limit * f64::from(wnw_audio::SAMPLE_RATE)) as usize;
        if audio.samples.len() > most {
            return Err(CliError::Usage(format!(
                "{}: longer than the {limit} s that {} takes in one pass; cut it, with its alignment",
                input.name, args.model
            )));
        }
        let label = if args.self_labelled { None } else { Some(label(args, input)?) };
        items.push(Item { name: input.name.clone(), samples: audio.samples, label });
        bar.work("reading", items.len() as f64 / inputs.len() as f64);
    }
    Ok(items)
}

/// Reference and alignment beside a recording.
fn label(args: &CalibrateArgs, input: &Input) -> Result<(String, Vec<AlignedWord>), CliError> {
    let path = Path::new(&input.name);
    let beside = |suffix: &str| path.with_extension(suffix);
    let missing = |what: String| {
        CliError::Usage(format!("{}: {what}; or calibrate without references by --self", input.name))
    };
    let text = beside("txt");
    let reference = std::fs::read_to_string(&text)
        .map_err(|e| missing(format!("no reference in {}: {e}", text.display())))?;
    let candidates = ["words.json", "json", "ctm", "TextGrid", "textgrid"].map(beside);
    let Some(found) = candidates.iter().find(|p| p.is_file()) else {
        return Err(missing(
            "no word alignment beside it (NAME.words.json, .json, .ctm or .TextGrid)".into(),
        ));
    };
    let recording = path.file_stem().map(|s| s.to_string_lossy().into_owned());
    let choice = Choice { tier: args.tier.clone(), recording };
    let words = alignment::read(found, &choice).map_err(CalibrateError::from)?;
    Ok((reference, words))
}

/// Scores recordings one by one, keeping what is done.
struct Scorer<'a> {
    engine: &'a Engine,
    files: &'a ModelFiles,
    options: &'a SampleOptions,
    journal: Journal,
    total: usize,
}

impl<'a> Scorer<'a> {
    fn new(
        args: &CalibrateArgs,
        engine: &'a Engine,
        files: &'a ModelFiles,
        options: &'a SampleOptions,
        kind: &str,
        total: usize,
    ) -> Result<Self, CliError> {
        let path = args.journal.clone().unwrap_or_else(|| {
            let mut name = args.output.as_os_str().to_owned();
            name.push(".journal.jsonl");
            name.into()
        });
        let run = Run {
            model: engine.model().fingerprint().to_owned(),
            options: format!(
                "{kind}, K {}, confidence {}, language {}",
                options.top_k,
                options.min_confidence,
                args.language.as_deref().unwrap_or("auto")
            ),
        };
        let path = if kind == "labelled" { path } else { with_suffix(&path, kind) };
        let journal = Journal::open(&path, &run).map_err(CalibrateError::from)?;
        Ok(Self { engine, files, options, journal, total })
    }

    fn has(&self, name: &str) -> bool {
        self.journal.contains(name)
    }

    fn add(&mut self, sample: &Sample<'_>, bar: &Bar) -> Result<(), CliError> {
        let before = self.journal.samples().len();
        let measured = signals::while_listening(|| {
            measure(self.engine.model(), self.files, sample, self.options, &mut |phase, share| {
                // Most of the time goes into the gradients.
                let part = match phase {
                    SamplePhase::Encode => 0.05 * share,
                    SamplePhase::Listen => 0.05 + 0.1 * share,
                    SamplePhase::Differentiate => 0.15 + 0.85 * share,
                };
                bar.work("scoring heads", (before as f64 + part) / self.total as f64);
                go_on()
            })
        })?;
        self.journal.append(&measured).map_err(CalibrateError::from)?;
        Ok(())
    }

    fn mean(&self) -> Result<HeadScores, CliError> {
        let shape = self.engine.model().decoder().kv_shape();
        Ok(HeadScores::mean(self.journal.samples(), shape, self.options.top_k)?)
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

fn go_on() -> ControlFlow<()> {
    if signals::interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Fits λ for every target asked for.
fn fit_all(
    args: &CalibrateArgs,
    engine: &Engine,
    profile: &mut Profile,
    items: &[Item],
    task: &Task,
    bar: &Bar,
) -> Result<(), CliError> {
    let recordings: Vec<Vec<f32>> =
        items.iter().take(args.fit_recordings).map(|i| i.samples.clone()).collect();
    let request = Request { task: task.clone(), ..Request::default() };
    for target in &args.fit_lambda {
        let mut runs = 0;
        let what = format!("fitting λ for r_GPU {target}");
        let fit = signals::while_listening(|| {
            calibration::fit(engine, profile, *target, &recordings, &request, &mut || {
                runs += 1;
                // How many rounds it takes is not known: a handful.
                bar.work(&what, (runs as f64 / (5 * recordings.len()) as f64).min(0.99));
                go_on()
            })
        })?;
        profile.lambda.push(fit);
    }
    Ok(())
}

/// What the profile was made from, for people.
fn source(args: &CalibrateArgs) -> String {
    let names: Vec<String> = args
        .files
        .iter()
        .map(|f| f.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned()))
        .collect();
    match &names[..] {
        [first, .., last] => format!("{first} … {last}"),
        _ => names.concat(),
    }
}

/// The profile in a few lines.
fn summary(args: &CalibrateArgs, profile: &Profile) -> Result<(), CliError> {
    let importance = profile.importance();
    let mut text = format!(
        "{}: {} recordings, {} tokens; heads by voice score × head sensitivity:\n",
        args.output.display(),
        profile.calibration.recordings,
        profile.calibration.tokens
    );
    for (place, head) in profile.ranking().into_iter().take(12).enumerate() {
        text += &format!(
            "  {:>2}. layer {:>2}, KV head {:>2}: voice score {:.3}, sensitivity {:.3e}, product {:.3e}{}\n",
            place + 1,
            head / profile.shape.n_kv_heads,
            head % profile.shape.n_kv_heads,
            profile.voice_score[head],
            profile.head_sensitivity[head],
            importance[head],
            if place < profile.n_anchor { ", anchor" } else { "" }
        );
    }
    for fit in &profile.lambda {
        text += &format!(
            "  r_GPU {:.3} for target {}: λ {:.4}, {} anchor of {} voice heads, {:.3} kept at prefill\n",
            fit.measured, fit.target, fit.lambda, fit.n_anchor, fit.n_voice, fit.static_retention
        );
    }
    print(&text)
}
