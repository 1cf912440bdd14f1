//! `wnw calibrate`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::Args;
use wnw_audio::{AudioStream, DecodeOptions};
use wnw_calibrate::CalibrateError;
use wnw_calibrate::alignment::{self, AlignedWord, Choice};
use wnw_calibrate::calibration;
use wnw_calibrate::journal::{Journal, Run, SampleScores, sample_id};
use wnw_calibrate::sample::{Sample, SampleOptions, SamplePhase, measure};
use wnw_calibrate::scores::HeadScores;
use wnw_calibrate::self_label::{self, Recording, SelfLabel, Step};
use wnw_engine::{Engine, EngineError, Request};
use wnw_kv::profile::{Calibration, Profile};
use wnw_model::prompt::Task;
use wnw_model::{LoadOptions, ModelFiles, WeightDtype};

use crate::error::CliError;
use crate::inputs::{Input, expand};
use crate::outputs::{prepare_directory, print, write_whole};
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
    /// K of the voice score: audio positions that a word is about [default: the model's, 4 at 12.5 audio tokens a second].
    #[arg(long, value_name = "K")]
    pub top_positions: Option<usize>,
    /// Least confidence of a word time that counts: the aligner's, by default 0.85; with --self the share of attention that lies near the word, by default 0.3.
    #[arg(long, value_name = "P")]
    pub min_confidence: Option<f32>,
    /// Anchor heads.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub n_anchor: usize,
    /// Voice heads (anchor and tidal) that runs with this profile have [default: by their target, in the paper's proportions].
    #[arg(long, value_name = "N")]
    pub n_voice: Option<usize>,
    /// Targets of r_GPU for which λ is fitted by runs over the first --fit-recordings recordings, such as 0.8,0.6,0.4,0.2,0.1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub fit_lambda: Vec<f64>,
    /// Recordings that λ is fitted on.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub fit_recordings: usize,
    /// Name of the TextGrid tier that holds words.
    #[arg(long, value_name = "NAME", default_value = "words", conflicts_with = "self_labelled")]
    pub tier: String,
    /// No progress; only warnings and errors on standard error.
    #[arg(short, long)]
    pub quiet: bool,
}

/// A word may start this much after the recording's end, in seconds: alignments are rounded.
const LATE_SECONDS: f64 = 0.5;

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
    let defaults = SampleOptions::default();
    let least = if args.self_labelled { self_label::MIN_CONFIDENCE } else { defaults.min_confidence };
    let bar = Bar::new(args.quiet);
    let files = models::open("--model", &args.model, args.quiet)?;
    let options = SampleOptions {
        top_k: args.top_positions.unwrap_or(files.family.tokens_of_a_word()),
        min_confidence: args.min_confidence.unwrap_or(least),
    };
    let heads = files.decoder.n_layers * files.decoder.n_kv_heads;
    if args.n_anchor > heads {
        let message = format!("--n-anchor {}: {} has {heads} KV heads", args.n_anchor, args.model);
        return Err(CliError::Usage(message));
    }
    if let Some(n_voice) = args.n_voice.filter(|n| *n < args.n_anchor || *n > heads) {
        return Err(CliError::Usage(format!(
            "--n-voice {n_voice}: must be at least --n-anchor ({}) and at most the {heads} KV heads of {}",
            args.n_anchor, args.model
        )));
    }
    // Before the weights: a missing reference should not take minutes to find.
    let mut items = read_all(args, files.max_audio_seconds(), &bar)?;
    // Scores are those of the checkpoint itself, not of its 8-bit rounding.
    let load = |files: ModelFiles, dtype| {
        bar.restart();
        files.load(&LoadOptions { dtype: Some(dtype) }, |done, total| bar.loading(done, total))
    };
    let engine = Engine::new(load(models::open("--model", &args.model, args.quiet)?, WeightDtype::F32)?);
    bar.restart();
    let scoring = Scoring { args, engine: &engine, files: &files, task: &task, options, bar: &bar };
    let scores =
        if args.self_labelled { scoring.self_labelled(&mut items)? } else { scoring.labelled(&items)? };
    bar.clear();
    let seconds =
        items.iter().map(|i| i.samples.len() as f64).sum::<f64>() / f64::from(wnw_audio::SAMPLE_RATE);
    let about = Calibration {
        source: source(args),
        label_free: args.self_labelled,
        recordings: items.len(),
        seconds,
        tokens: scores.tokens as usize,
        top_positions: options.top_k,
        min_confidence: f64::from(options.min_confidence),
    };
    let mut profile = calibration::profile(engine.model(), scores, args.n_anchor, about);
    profile.options.n_voice = args.n_voice;
    profile.check(engine.model().fingerprint(), profile.shape).map_err(|e| CliError::Usage(e.to_string()))?;
    drop(engine);
    if !args.fit_lambda.is_empty() {
        // λ is for runs as they will be.
        let engine = Engine::new(load(files, WeightDtype::Q8_0)?);
        bar.restart();
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
    if args.top_positions == Some(0) || args.n_anchor == 0 {
        return usage("--top-positions and --n-anchor must be at least 1".into());
    }
    if let Some(bad) = args.min_confidence.filter(|p| !(0.0..=1.0).contains(p)) {
        return usage(format!("--min-confidence {bad}: must be between 0 and 1"));
    }
    if let Some(bad) = args.fit_lambda.iter().find(|t| !(**t > 0.0 && **t < 1.0)) {
        return usage(format!("--fit-lambda {bad}: targets must be above 0 and below 1"));
    }
    if !args.fit_lambda.is_empty() && args.fit_recordings == 0 {
        return usage("--fit-recordings must be at least 1".into());
    }
    if args.output.is_dir() {
        return usage(format!("--output {}: is a directory", args.output.display()));
    }
    if args.journal.as_ref() == Some(&args.output) {
        return usage("--journal and --output are the same file".into());
    }
    let language = args.language.as_deref().map(str::to_lowercase);
    Task::transcribe(language.as_deref()).map_err(|e| CliError::Usage(format!("--language: {e}")))
}

/// Reads every recording with its reference and alignment. One that cannot be read ends the command: a profile from
/// fewer recordings than were named would be another one.
fn read_all(args: &CalibrateArgs, limit: f64, bar: &Bar) -> Result<Vec<Item>, CliError> {
    let inputs = expand(&args.files, args.recursive)?;
    let mut items: Vec<Item> = Vec::with_capacity(inputs.len());
    let mut places: Vec<PathBuf> = Vec::with_capacity(inputs.len());
    for input in &inputs {
        let audio =
            AudioStream::open(input.source.clone(), &DecodeOptions::default()).map_err(EngineError::from)?;
        let audio = audio.read_all().map_err(EngineError::from)?;
        let most = (limit * f64::from(wnw_audio::SAMPLE_RATE)) as usize;
        if audio.samples.len() > most {
            return Err(CliError::Usage(format!(
                "{}: longer than the {limit} s that {} takes in one pass; cut it{}",
                input.name,
                args.model,
                if args.self_labelled { "" } else { ", with its alignment" }
            )));
        }
        let place = std::fs::canonicalize(&input.name).unwrap_or_else(|_| input.name.clone().into());
        if places.contains(&place) {
            return Err(CliError::Usage(format!("'{}' is given twice", input.name)));
        }
        places.push(place);
        let label = if args.self_labelled { None } else { Some(label(args, input)?) };
        let seconds = audio.samples.len() as f64 / f64::from(wnw_audio::SAMPLE_RATE);
        let late = |w: &&AlignedWord| w.start.is_some_and(|start| start > seconds + LATE_SECONDS);
        if let Some(word) = label.as_ref().and_then(|(_, words)| words.iter().find(late)) {
            return Err(CliError::Usage(format!(
                "{}: its alignment has the word '{}' at {:.1} s, after the recording's end at {seconds:.1} s: it is of another recording",
                input.name,
                word.text,
                word.start.unwrap_or_default()
            )));
        }
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
    if words.iter().all(|w| w.start.is_none()) {
        return Err(missing(format!("no word in {} has a time", found.display())));
    }
    Ok((reference, words))
}

/// What heads are scored with.
struct Scoring<'a> {
    args: &'a CalibrateArgs,
    engine: &'a Engine,
    files: &'a ModelFiles,
    task: &'a Task,
    options: SampleOptions,
    bar: &'a Bar,
}

impl Scoring<'_> {
    /// Where results of single recordings are kept, and the run that they are of. `options` is what they depend on.
    fn journal(&self, suffix: &str, options: &str) -> Result<(PathBuf, Run), CliError> {
        let path = self.args.journal.clone().unwrap_or_else(|| with_suffix(&self.args.output, suffix));
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        prepare_directory(parent)?;
        let language = self.args.language.as_deref().unwrap_or("auto").to_lowercase();
        let model = self.engine.model().fingerprint().to_owned();
        Ok((path, Run { model, options: format!("{options}, language {language}") }))
    }

    /// Scores with references and word alignments.
    fn labelled(&self, items: &[Item]) -> Result<HeadScores, CliError> {
        let SampleOptions { top_k, min_confidence } = self.options;
        let options = format!("labelled, K {top_k}, confidence {min_confidence}");
        let (path, run) = self.journal("journal.jsonl", &options)?;
        let mut journal = Journal::<SampleScores>::open(&path, &run).map_err(CalibrateError::from)?;
        let tokenizer = self.engine.model().tokenizer();
        let mut scores = Vec::with_capacity(items.len());
        for (done, item) in items.iter().enumerate() {
            let Some((reference, words)) = &item.label else { continue };
            let id = sample_id(&item.name, &item.samples, &format!("{reference}\n{words:?}"));
            if journal.find(&id).is_none() {
                let sample = Sample::labelled(&id, &item.samples, self.task, tokenizer, reference, words);
                let measured = sample.and_then(|sample| self.measure(&sample, done, items.len()));
                let measured = measured.map_err(|e| e.about(&item.name))?;
                journal.append(&measured).map_err(CalibrateError::from)?;
            }
            // Of what the journal holds, this set alone.
            let Some(found) = journal.find(&id) else { continue };
            if found.voice_tokens == 0 {
                self.bar.line(&format!(
                    "wnw: warning: {}: no token counts for the voice score: the alignment's words are not those of the reference, or none is confident enough (--min-confidence)",
                    item.name
                ));
            }
            scores.push(found.clone());
        }
        Ok(HeadScores::mean(&scores, self.engine.model().decoder().kv_shape(), top_k)?)
    }

    fn measure(&self, sample: &Sample<'_>, done: usize, all: usize) -> Result<SampleScores, CalibrateError> {
        signals::while_listening(|| {
            measure(self.engine.model(), self.files, sample, &self.options, &mut |phase, share| {
                // Most of the time goes into the gradients.
                let part = match phase {
                    SamplePhase::Encode => 0.05 * share,
                    SamplePhase::Listen => 0.05 + 0.1 * share,
                    SamplePhase::Differentiate => 0.15 + 0.85 * share,
                };
                self.bar.work("scoring heads", (done as f64 + part) / all as f64);
                go_on()
            })
        })
    }

    /// Scores with the model's own transcripts and times; takes the recordings out that cannot be used.
    fn self_labelled(&self, items: &mut Vec<Item>) -> Result<HeadScores, CliError> {
        let (path, run) = self.journal("self.journal.jsonl", "self")?;
        let mut journal = Journal::<self_label::Entry>::open(&path, &run).map_err(CalibrateError::from)?;
        let labeller = SelfLabel {
            engine: self.engine,
            files: self.files,
            task: self.task,
            options: self.options,
            n_anchor: self.args.n_anchor,
        };
        let recordings: Vec<Recording<'_>> =
            items.iter().map(|i| Recording { name: &i.name, samples: &i.samples }).collect();
        let found = signals::while_listening(|| {
            labeller.run(&recordings, &mut journal, &mut |step, share| {
                let what = match step {
                    Step::Hear => "transcribing and scoring heads",
                    Step::Time { .. } => "timing words",
                };
                self.bar.work(what, share);
                go_on()
            })
        })?;
        let named = items.len();
        let mut left_out = found.left_out.into_iter();
        items.retain(|item| match left_out.next().flatten() {
            Some(reason) => {
                self.bar.line(&format!("wnw: warning: {}: left out: {reason}", item.name));
                false
            }
            None => true,
        });
        if items.len() < named {
            self.bar.line(&format!("wnw: warning: calibrated on {} of {named} recordings", items.len()));
        }
        Ok(found.scores)
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
    let recordings: Vec<&[f32]> =
        items.iter().take(args.fit_recordings).map(|i| i.samples.as_slice()).collect();
    let request = Request { task: task.clone(), ..Request::default() };
    for target in &args.fit_lambda {
        let what = format!("fitting λ for r_GPU {target}");
        let fit = signals::while_listening(|| {
            calibration::fit(engine, profile, *target, &recordings, &request, &mut |runs| {
                // How many rounds it takes is not known: a handful.
                bar.work(&what, (runs / (5 * recordings.len()) as f64).min(0.99));
                go_on()
            })
        })?;
        if (fit.measured - fit.target).abs() > calibration::TOLERANCE {
            bar.line(&format!(
                "wnw: warning: r_GPU {:.3} is as close to {target} as λ comes: {} anchor heads and what recall adds leave no room for less, or there is too little audio to keep more",
                fit.measured, fit.n_anchor
            ));
        }
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
