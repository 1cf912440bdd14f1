//! The command line of `wnw bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum};
use wnw_bench::sweep::SweepKind;
use wnw_kv::{HostPlace, KvDtype, SwapMode};
use wnw_model::WeightDtype;
use wnw_model::shapes::SHAPES;

use crate::args::{parse_duration, parse_share};
use crate::kv_args::parse_place;
use crate::size::parse_size;

/// `wnw bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The machine alone: memory bandwidth by threads, and the most operations in a second.
    #[command(after_help = "Example: wnw bench limit --json")]
    Limit(LimitArgs),
    /// Decoding steps: time and bytes by part, and the share of the machine's bandwidth.
    #[command(after_help = DECODE_EXAMPLES)]
    Decode(Box<DecodeArgs>),
    /// Whether a token late in a long recording costs more than an early one.
    #[command(after_help = "Example: wnw bench growth --shape voxtral-mini-3b --audio 60m --r-gpu 0.2")]
    Growth(GrowthArgs),
    /// Prefill with the full cache: real-time factor, operations in a second, share of the peak.
    #[command(
        after_help = "Example: wnw bench prefill --shape voxtral-mini-3b --dtype bf16 --audio 30s --layers 4"
    )]
    Prefill(PrefillArgs),
    /// Encoder and projector on chunks of 30 s: the same figures.
    #[command(after_help = "Example: wnw bench encoder --shape voxtral-mini-3b --layers 4")]
    Encoder(EncoderArgs),
    /// Log-mel on one thread: real-time factor.
    #[command(after_help = "Example: wnw bench mel --audio 10m")]
    Mel(MelArgs),
    /// Decoding recordings and their log-mel on one thread: real-time factors.
    #[command(after_help = "Example: wnw bench decode-audio samples/prompts-en.flac")]
    DecodeAudio(DecodeAudioArgs),
    /// From the start of the program to a recording's first token.
    #[command(after_help = "Example: wnw bench first-token samples/prompts-en.flac")]
    FirstToken(FirstTokenArgs),
}

const DECODE_EXAMPLES: &str = "\
Examples:
  wnw bench decode --shape voxtral-mini-3b --audio 30m --kv full,wnw --r-gpu 0.2
  wnw bench decode --shape voxtral-mini-3b --audio 10m --kv full,wnw --batch 1,8 --json
  wnw bench decode --shape tiny --audio 4m --kv wnw --sweep worst --swap sync

Weights, keys and values are random; docs/bench.md says what each figure means.";

/// The model's sizes and types.
#[derive(Debug, Args)]
pub struct ShapeArgs {
    /// Sizes of this model, with random weights.
    #[arg(long, value_name = "SHAPE", value_parser = PossibleValuesParser::new(SHAPES))]
    pub shape: String,
    /// Type of the decoder's weights: f32, bf16, f16, q8_0 or q6k.
    #[arg(long, value_name = "TYPE", default_value = "q8_0")]
    pub dtype: WeightDtype,
    /// Type of keys and values: bf16, f16, f32, int8 or int4.
    #[arg(long, value_name = "TYPE", default_value_t)]
    pub kv_dtype: KvDtype,
    /// Only the first layers of the model (and its whole output layer).
    #[arg(long, value_name = "N", value_parser = positive)]
    pub layers: Option<usize>,
    /// Seed of weights, keys, values and scripts.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Memory to stay below, such as 8GiB [default: what the system says is available].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
}

/// How figures are told.
#[derive(Debug, Args)]
pub struct TellArgs {
    /// As JSON.
    #[arg(long)]
    pub json: bool,
    /// No progress; only warnings and errors on standard error.
    #[arg(short, long)]
    pub quiet: bool,
}

/// `wnw bench limit`.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Memory that is read in a pass; the default is many times the largest caches.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1GiB")]
    pub size: u64,
    /// Seconds for each figure.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    pub seconds: f64,
    #[command(flatten)]
    pub tell: TellArgs,
}

/// KV methods that `wnw bench decode` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchKv {
    /// Keep everything.
    Full,
    /// Keep a part and recall the rest.
    Wnw,
}

/// `wnw bench decode`.
#[derive(Debug, Args)]
pub struct DecodeArgs {
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Lengths of audio, such as 30s,4m,10m,30m.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4m", value_parser = parse_duration)]
    pub audio: Vec<Duration>,
    /// KV methods.
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_value = "full,wnw")]
    pub kv: Vec<BenchKv>,
    /// Shares of audio KV on the device, with wnw [default: 0.2].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_share)]
    pub r_gpu: Vec<f64>,
    /// Numbers of sessions that step together.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = batch)]
    pub batch: Vec<usize>,
    /// Steps measured for each figure.
    #[arg(long, value_name = "N", default_value_t = 28, value_parser = positive)]
    pub steps: usize,
    /// How the anchors' attention moves: `speech`, `worst` (elsewhere in every step) or `still`.
    #[arg(long, value_name = "HOW", default_value_t)]
    pub sweep: SweepKind,
    /// When recalled KV is copied: `overlap` (beside the computation) or `sync`.
    #[arg(long, value_name = "MODE", default_value_t)]
    pub swap: SwapMode,
    /// Where recallable KV lies: `ram`, or `file:DIR` for a temporary file in DIR [default: ram].
    #[arg(long, value_name = "PLACE", value_parser = parse_place)]
    pub host_tier: Option<HostPlace>,
    /// Measure steps without recall in turns with the others, and what recall adds to them.
    #[arg(long)]
    pub recall_cost: bool,
    #[command(flatten)]
    pub tell: TellArgs,
}

/// `wnw bench growth`.
#[derive(Debug, Args)]
pub struct GrowthArgs {
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Length of the recording.
    #[arg(long, value_name = "TIME", default_value = "60m", value_parser = parse_duration)]
    pub audio: Duration,
    /// The early moment.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = parse_duration)]
    pub early: Duration,
    /// Share of audio KV on the device; 1 is the full cache.
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, value_parser = parse_share)]
    pub r_gpu: f64,
    /// Steps measured at each moment.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = positive)]
    pub steps: usize,
    /// When recalled KV is copied: `overlap` or `sync`.
    #[arg(long, value_name = "MODE", default_value_t)]
    pub swap: SwapMode,
    /// Where recallable KV lies: `ram`, or `file:DIR` [default: ram].
    #[arg(long, value_name = "PLACE", value_parser = parse_place)]
    pub host_tier: Option<HostPlace>,
    #[command(flatten)]
    pub tell: TellArgs,
}

/// `wnw bench prefill`.
#[derive(Debug, Args)]
pub struct PrefillArgs {
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Lengths of audio.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "30s", value_parser = parse_duration)]
    pub audio: Vec<Duration>,
    #[command(flatten)]
    pub tell: TellArgs,
}

/// `wnw bench encoder`.
#[derive(Debug, Args)]
pub struct EncoderArgs {
    /// Sizes of this model's encoder, with random weights.
    #[arg(long, value_name = "SHAPE", value_parser = PossibleValuesParser::new(SHAPES))]
    pub shape: String,
    /// Type of the weights.
    #[arg(long, value_name = "TYPE", default_value = "bf16")]
    pub dtype: WeightDtype,
    /// Chunks of 30 s.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub chunks: usize,
    /// Only the first layers.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub layers: Option<usize>,
    #[command(flatten)]
    pub tell: TellArgs,
}

/// `wnw bench mel`.
#[derive(Debug, Args)]
pub struct MelArgs {
    /// Length of audio.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_duration)]
    pub audio: Duration,
    #[command(flatten)]
    pub tell: TellArgs,
}

/// `wnw bench decode-audio`.
#[derive(Debug, Args)]
pub struct DecodeAudioArgs {
    /// Recordings.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub tell: TellArgs,
}

/// `wnw bench first-token`.
#[derive(Debug, Args)]
pub struct FirstTokenArgs {
    /// The recording.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// `tiny`, a checkpoint directory, or a hub name.
    #[arg(short, long, default_value = "tiny", value_name = "MODEL")]
    pub model: String,
    /// Type of the decoder's weights in memory.
    #[arg(long, value_name = "TYPE", default_value = "q8_0")]
    pub dtype: WeightDtype,
    #[command(flatten)]
    pub tell: TellArgs,
}

fn positive(text: &str) -> Result<usize, String> {
    within(text, 1_000_000)
}

/// More sessions than any machine steps together.
fn batch(text: &str) -> Result<usize, String> {
    within(text, 1024)
}

fn within(text: &str, most: usize) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=most).contains(n)).ok_or(format!("must be 1 to {most}"))
}

fn seconds(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|x| (0.0..=600.0).contains(x)).ok_or("must be 0 to 600 seconds".into())
}
