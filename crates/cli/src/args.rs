//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use wnw_audio::PcmFormat;
use wnw_kv::KvDtype;
use wnw_model::WeightDtype;

use crate::analyze_command::AnalyzeArgs;
use crate::bench_args::BenchArgs;
use crate::calibrate_command::CalibrateArgs;
use crate::data_command::DataArgs;
use crate::eval_command::{self, EvalArgs};
use crate::kv_args::KvArgs;
use crate::size::parse_size;

/// Transcribe long recordings with speech LLMs under a memory budget.
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true, after_help = "Example: wnw transcribe talk.mp3")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Threads for computing [default: the cores that this process may use].
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write down, translate, or answer questions about recordings of any length.
    #[command(after_help = TRANSCRIBE_EXAMPLES)]
    Transcribe(Box<TranscribeArgs>),
    /// Find out which heads of a model follow the audio: the profile that `--kv wnw` and times need.
    #[command(after_help = CALIBRATE_EXAMPLES)]
    Calibrate(Box<CalibrateArgs>),
    /// Look into a run: where the model listens, which heads, and what a prefill cannot know.
    Analyze(AnalyzeArgs),
    /// Compare KV methods on data sets: scores, lengths, bytes; tables and plots.
    #[command(after_help = eval_command::EXAMPLES)]
    Eval(Box<EvalArgs>),
    /// Test sets: which there are, what a copy holds, and how to get one.
    #[command(after_help = DATA_EXAMPLES)]
    Data(DataArgs),
    /// Look into a model checkpoint.
    #[command(after_help = "Example: wnw model info ./Voxtral-Mini-3B-2507")]
    Model(ModelArgs),
    /// Say how much memory a recording will need, without loading anything.
    #[command(
        after_help = "Example: wnw plan --model mistralai/Voxtral-Mini-3B-2507 --duration 1h --memory 8GiB\n\nExit code: 1 when --memory is too little, 2 for wrong usage."
    )]
    Plan(PlanArgs),
    /// Measure what the machine can do at most, and how close decoding, prefill and encoder come to it.
    Bench(BenchArgs),
    /// Print completions for a shell.
    #[command(after_help = "Example: wnw completions bash > /etc/bash_completion.d/wnw")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

const DATA_EXAMPLES: &str = "\
Examples:
  wnw data list
  wnw data fetch tiny-fr
  wnw data show librispeech-long:/data/librispeech_long_v0_1.tar.gz#test-clean

docs/datasets.md describes the formats.";

const CALIBRATE_EXAMPLES: &str = "\
Examples:
  wnw calibrate --recursive --language en --fit-lambda 0.8,0.6,0.4,0.2,0.1 -o tiny.json calibration/
  wnw calibrate --self --model ./Voxtral-Mini-3B-2507 talks/*.flac

A file that cannot be read ends the command; with --self, a recording whose transcript does not end is left out. What is done is kept beside the profile; run the command again to go on.";

const TRANSCRIBE_EXAMPLES: &str = "\
Examples:
  wnw transcribe talk.mp3
  wnw transcribe --model ./Voxtral-Mini-3B-2507 --language en --format json talk.m4a > talk.json
  wnw transcribe --recursive lectures/ --output-dir transcripts/ --skip-existing
  ffmpeg -i film.mkv -f wav - | wnw transcribe -
  wnw transcribe --format srt talk.mp3 > talk.srt
  wnw transcribe --kv wnw --r-gpu 0.2 talk.mp3
  wnw transcribe --batch 8 --recursive lectures/ --output-dir transcripts/
  wnw transcribe --task translate --to fr talk.wav
  wnw transcribe --task chat --prompt 'Which topics come up?' talk.wav

Exit code: 0 when every recording was transcribed, 1 when one failed, 2 for wrong usage, 130 after Ctrl-C, 143 after SIGTERM.";

/// Which model, in which types.
#[derive(Debug, Args)]
pub struct ModelChoice {
    /// `tiny` (embedded; knows only its training prompts), a checkpoint directory, or a name on the Hugging Face hub such as mistralai/Voxtral-Mini-3B-2507.
    #[arg(short, long, default_value = "tiny", value_name = "MODEL")]
    pub model: String,
    /// Type of the decoder's weights in memory: f32, bf16, f16, q8_0 or q6k.
    #[arg(long, value_name = "TYPE", default_value = "q8_0")]
    pub dtype: WeightDtype,
    /// Type of keys and values, in memory and on the host tier: bf16, f16, f32, int8 (about half of bf16) or int4 (about a third).
    #[arg(long, value_name = "TYPE", default_value_t)]
    pub kv_dtype: KvDtype,
}

/// `wnw transcribe`.
#[derive(Debug, Args)]
pub struct TranscribeArgs {
    /// Recordings: files, patterns, directories (with --recursive), or `-` for standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub model: ModelChoice,

    /// What the model is to do.
    #[arg(long, value_enum, default_value_t = TaskName::Transcribe, help_heading = "Task")]
    pub task: TaskName,
    /// Language spoken: en, fr, de, es, it, pt, nl, hi, ar, or another that the model knows; without it the model decides.
    #[arg(long, value_name = "CODE", help_heading = "Task")]
    pub language: Option<String>,
    /// Words that may come up, such as names; for models that have a place for them (Qwen3-ASR).
    #[arg(long, value_name = "TEXT", help_heading = "Task")]
    pub context: Option<String>,
    /// Language to translate to, with --task translate: a code as for --language [default: en].
    #[arg(long, value_name = "CODE", help_heading = "Task")]
    pub to: Option<String>,
    /// The instruction, with --task chat.
    #[arg(long, value_name = "TEXT", help_heading = "Task")]
    pub prompt: Option<String>,

    /// Take all recordings below a directory.
    #[arg(short, long, help_heading = "Input")]
    pub recursive: bool,
    /// Inputs are raw samples: FORMAT:RATE:CHANNELS, such as s16le:16000:1.
    #[arg(long, value_name = "FORMAT", help_heading = "Input")]
    pub pcm: Option<PcmFormat>,
    /// Fail on corrupt stretches and cut-off answers instead of warning.
    #[arg(long, help_heading = "Input")]
    pub strict: bool,
    /// Refuse recordings longer than this, such as 3h or 90m.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Input")]
    pub max_duration: Option<Duration>,

    /// Form of the result.
    #[arg(short, long, value_enum, default_value_t = Format::Text, help_heading = "Output")]
    pub format: Format,
    /// Times from the model's attention: of `segment`s, or of each `word` too (with --format json, srt or vtt; subtitles have those of segments by default).
    #[arg(long, value_enum, value_name = "WHAT", help_heading = "Output")]
    pub timestamps: Option<Timestamps>,
    /// Write one file per recording into this directory: a file's result is named after it, that of a file from a directory or pattern after its path there.
    #[arg(short, long, value_name = "DIR", help_heading = "Output")]
    pub output_dir: Option<PathBuf>,
    /// Leave out recordings whose result, named after the recording, is already in --output-dir.
    #[arg(long, requires = "output_dir", help_heading = "Output")]
    pub skip_existing: bool,
    /// Add the times that the work took to the JSON, which then differs between runs.
    #[arg(long, help_heading = "Output")]
    pub timings: bool,
    /// No progress, no summary; only warnings and errors on standard error.
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    #[command(flatten)]
    pub kv: KvArgs,

    /// Recordings that are transcribed together, their steps side by side: the same results, sooner, for more memory.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256), help_heading = "Decoding")]
    pub batch: u16,
    /// Longest stretch that the model takes in one pass, such as 10m [default: what the model is made for].
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Decoding")]
    pub window: Option<Duration>,
    /// Cap of generated tokens per window [default: from the window's length].
    #[arg(long, value_name = "N", help_heading = "Decoding")]
    pub max_new_tokens: Option<usize>,
    /// Tokens per second of audio that the default cap allows.
    #[arg(long, value_name = "RATE", default_value_t = 12.0, value_parser = parse_rate, help_heading = "Decoding")]
    pub tokens_per_second: f64,
    /// Let a model that repeats itself run on.
    #[arg(long, help_heading = "Decoding")]
    pub no_repetition_guard: bool,
    /// Take what the model writes even where it skips speech or repeats itself; otherwise, with a profile's anchor heads
    /// to see it by, it begins again there (not with --task chat or --max-new-tokens).
    #[arg(long, help_heading = "Decoding")]
    pub no_recovery: bool,
    /// Sample instead of taking the most likely token; 0 is greedy.
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = parse_temperature, help_heading = "Decoding")]
    pub temperature: f64,
    /// Sample from the smallest set of tokens with this probability; needs --temperature [default: 0.95].
    #[arg(long, value_name = "P", value_parser = parse_share, help_heading = "Decoding")]
    pub top_p: Option<f64>,
    /// Seed for sampling; needs --temperature [default: 0].
    #[arg(long, value_name = "N", help_heading = "Decoding")]
    pub seed: Option<u64>,
}

/// Tasks by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TaskName {
    /// Write down what is said.
    Transcribe,
    /// Translate what is said, to the language of --to.
    Translate,
    /// Follow the instruction of --prompt.
    Chat,
}

/// Forms of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Plain text.
    Text,
    /// One JSON object, or an array of them for several recordings.
    Json,
    /// SubRip subtitles.
    Srt,
    /// WebVTT subtitles.
    Vtt,
}

/// How fine times are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Timestamps {
    /// Sentences, or parts of long ones.
    Segment,
    /// Words.
    Word,
}

/// `wnw model`.
#[derive(Debug, Args)]
pub struct ModelArgs {
    #[command(subcommand)]
    pub command: ModelCommand,
}

/// What to do with a model.
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Architecture, tensors, types, and memory by part.
    #[command(after_help = "Example: wnw model info tiny")]
    Info {
        /// `tiny`, a checkpoint directory, or a hub name.
        model: String,
        /// List every tensor.
        #[arg(long)]
        tensors: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

/// `wnw plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub model: ModelChoice,
    /// Length of the recording, such as 1h, 45m or 1h30m.
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Duration,
    /// Longest window [default: what the model is made for].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub window: Option<Duration>,
    /// Share of audio KV that stays on the device with `--kv wnw`; without it, the full cache.
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub r_gpu: Option<f64>,
    /// Memory there is, such as 8GiB or 24GB: say whether it suffices, and what would fit if not.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// Seconds, or a time with units as humantime reads it.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())?,
        Err(_) => humantime::parse_duration(text).map_err(|e| format!("{e}; write 90s, 45m or 1h30m"))?,
    };
    if duration.is_zero() || duration > Duration::from_secs(366 * 86_400) {
        return Err("must be above 0 and below a year".into());
    }
    Ok(duration)
}

fn parse_number(text: &str, inside: impl Fn(f64) -> bool, range: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("is not a number; must be {range}"))?;
    if inside(number) { Ok(number) } else { Err(format!("must be {range}")) }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    parse_number(text, |x| x > 0.0 && x <= 1000.0, "above 0 and at most 1000")
}

fn parse_temperature(text: &str) -> Result<f64, String> {
    parse_number(text, |x| (0.0..=5.0).contains(&x), "between 0 and 5")
}

/// A share above 0, at most 1.
pub fn parse_share(text: &str) -> Result<f64, String> {
    parse_number(text, |x| x > 0.0 && x <= 1.0, "above 0 and at most 1")
}

impl Command {
    /// Whether the main thread drives the work itself. If not, it waits for threads that do, and must not be one of those
    /// that compute.
    pub fn is_driven_by_main(&self) -> bool {
        !matches!(self, Self::Transcribe(args) if args.batch > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_units_or_are_seconds() {
        assert_eq!(parse_duration("90").unwrap(), Duration::from_secs(90));
        assert_eq!(parse_duration("1h30m").unwrap(), Duration::from_secs(5400));
        for bad in ["", "0", "-3", "nan", "inf", "x", "1e300", "99999999h"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
