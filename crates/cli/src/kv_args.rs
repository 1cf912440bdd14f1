//! Flags for how keys and values are kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use wnw_engine::{KvOptions, Method, Roles};
use wnw_kv::policies::METHODS;
use wnw_kv::policies::registry::{BuildError, Entry, Keeps, find};
use wnw_kv::policies::wnw::{ReleaseReading, Selection};
use wnw_kv::profile::{Normalise, Profile, Signal, WnwOptions};
use wnw_kv::{HostPlace, KvDtype, KvShape, SwapMode};
use wnw_model::SpeechModel;

use crate::error::CliError;
use crate::models::TINY;
use crate::size::parse_size;

/// A profile of the largest models has some 100 kB.
const MOST_PROFILE_BYTES: u64 = 16 << 20;

/// Name of a profile that lies in a checkpoint's directory.
pub const PROFILE_FILE: &str = "wnw-profile.json";

/// How keys and values are kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "KV cache")]
pub struct KvArgs {
    /// KV method: `full` keeps everything; `wnw` keeps a part on the device and recalls the rest in time; the others are for comparison.
    #[arg(long, value_parser = methods(), default_value = "full", value_name = "METHOD")]
    pub kv: KvMethod,
    /// Option of a method other than full and wnw, NAME=VALUE; may be repeated (docs/methods.md).
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_option)]
    pub kv_option: Vec<(String, String)>,
    /// Share of audio KV to keep on the device [default: 0.2, or what --kv-budget allows].
    #[arg(long, value_name = "SHARE")]
    pub r_gpu: Option<f64>,
    /// Most bytes of KV on the device, such as 2GiB or 500MB; an error if less does not work.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub kv_budget: Option<u64>,
    /// Where recallable KV lies: `ram`, or `file:DIR` for a temporary file in DIR [default: ram].
    #[arg(long, value_name = "PLACE", value_parser = parse_place)]
    pub host_tier: Option<HostPlace>,
    /// When recalled KV is copied: `overlap` (beside the computation) or `sync` [default: overlap].
    #[arg(long, value_name = "MODE")]
    pub swap: Option<SwapMode>,
    /// Profile with the model's head roles, from `wnw calibrate` [default: that of the embedded model, or wnw-profile.json in the checkpoint's directory].
    #[arg(long, value_name = "FILE")]
    pub kv_profile: Option<PathBuf>,
    /// Do without a profile: `uniform` spreads the anchors evenly and makes all other heads tidal alike. Expect worse text.
    #[arg(long, value_enum, value_name = "ROLES", conflicts_with = "kv_profile")]
    pub kv_roles: Option<KvRoles>,
    /// Voice heads (anchor and tidal) [default: by --r-gpu, in the paper's proportions].
    #[arg(long, value_name = "N")]
    pub n_voice: Option<usize>,
    /// Anchor heads [default: the profile's].
    #[arg(long, value_name = "N")]
    pub n_anchor: Option<usize>,
    /// Scale from a head's importance to its retention, instead of the one that meets --r-gpu (which then decides the voice heads only).
    #[arg(long, value_name = "X")]
    pub lambda: Option<f64>,
    /// What a head's importance is [default: the profile's, usually product].
    #[arg(long, value_enum, value_name = "WHAT")]
    pub signal: Option<SignalName>,
    /// How importance is normalised [default: the profile's, usually max].
    #[arg(long, value_enum, value_name = "HOW")]
    pub normalise: Option<NormaliseName>,
    /// Segment length (the stride of chunks) in seconds [default: the profile's, usually 2].
    #[arg(long, value_name = "S")]
    pub segment: Option<f64>,
    /// Chunk length in seconds, a multiple of --segment [default: the profile's, usually 4].
    #[arg(long, value_name = "S")]
    pub chunk: Option<f64>,
    /// Chunks selected in each step, or `all` [default: the profile's, usually 3].
    #[arg(long, value_name = "K", value_parser = parse_count)]
    pub top_chunks: Option<u32>,
    /// Steps without selection after which a segment is released, or `all` for never [default: the profile's, usually 3].
    #[arg(long, value_name = "DELTA", value_parser = parse_count)]
    pub release_after: Option<u32>,
    /// What rows compete at prefill: those of a `segment`, or all of a head (`global`) [default: the profile's, usually segment].
    #[arg(long, value_enum, value_name = "HOW")]
    pub selection: Option<SelectionName>,
    /// What a release takes: the recalled rows (`complement`), or also those kept at prefill (`whole`) [default: the profile's, usually complement].
    #[arg(long, value_enum, value_name = "WHAT")]
    pub release: Option<ReleaseName>,
    /// Recall nothing before the first step.
    #[arg(long)]
    pub no_warm_start: bool,
}

/// A KV method by its name.
#[derive(Clone, Copy, Debug)]
pub struct KvMethod(&'static Entry);

impl KvMethod {
    /// Whether it keeps everything.
    pub fn is_full(self) -> bool {
        self.0.name == "full"
    }

    /// Whether it is WnW, which has flags of its own.
    pub fn is_wnw(self) -> bool {
        self.0.name == "wnw"
    }

    /// Whether it has rows on the host that come back.
    pub fn recalls(self) -> bool {
        matches!(self.0.keeps, Keeps::AtMost | Keeps::Pages)
    }

    /// Whether it needs a profile of the model's heads.
    pub fn needs_profile(self) -> bool {
        self.0.needs_profile
    }
}

fn methods() -> impl TypedValueParser<Value = KvMethod> {
    let names = METHODS.iter().map(|method| PossibleValue::new(method.name).help(method.about));
    PossibleValuesParser::new(names).try_map(|name| find(&name).map(KvMethod))
}

fn parse_option(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("use NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Roles without a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvRoles {
    /// All heads alike.
    Uniform,
}

/// See [`Signal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SignalName {
    /// Voice score times head sensitivity.
    Product,
    /// Voice score alone.
    Voice,
    /// Head sensitivity alone.
    Sensitivity,
}

/// See [`Normalise`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NormaliseName {
    /// By the largest.
    Max,
    /// By the place in the ranking.
    Rank,
    /// From the least to the largest.
    Minmax,
}

/// See [`Selection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SelectionName {
    /// Per segment.
    Segment,
    /// Over the whole head.
    Global,
}

/// See [`ReleaseReading`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReleaseName {
    /// Recalled rows only.
    Complement,
    /// The whole segment.
    Whole,
}

impl KvArgs {
    /// How KV is stored.
    pub fn options(&self, dtype: KvDtype) -> KvOptions {
        KvOptions {
            dtype,
            budget: self.kv_budget,
            host: self.host_tier.clone().unwrap_or_default(),
            swap: self.swap.unwrap_or_default(),
        }
    }

    /// WnW's options: what flags say, and `else_` for the rest.
    pub fn wnw_options(&self, else_: &WnwOptions) -> WnwOptions {
        let chunks = |n: u32| if n == u32::MAX { usize::MAX } else { n as usize };
        WnwOptions {
            r_gpu: self.r_gpu.unwrap_or(else_.r_gpu),
            n_voice: self.n_voice.or(else_.n_voice),
            n_anchor: self.n_anchor.or(else_.n_anchor),
            lambda: self.lambda.or(else_.lambda),
            signal: self.signal.map_or(else_.signal, |what| match what {
                SignalName::Product => Signal::Product,
                SignalName::Voice => Signal::Voice,
                SignalName::Sensitivity => Signal::Sensitivity,
            }),
            normalise: self.normalise.map_or(else_.normalise, |how| match how {
                NormaliseName::Max => Normalise::Max,
                NormaliseName::Rank => Normalise::Rank,
                NormaliseName::Minmax => Normalise::MinMax,
            }),
            segment_seconds: self.segment.unwrap_or(else_.segment_seconds),
            chunk_seconds: self.chunk.unwrap_or(else_.chunk_seconds),
            top_chunks: self.top_chunks.map_or(else_.top_chunks, chunks),
            release_after: self.release_after.unwrap_or(else_.release_after),
            selection: self.selection.map_or(else_.selection, |how| match how {
                SelectionName::Segment => Selection::PerSegment,
                SelectionName::Global => Selection::Global,
            }),
            release: self.release.map_or(else_.release, |what| match what {
                ReleaseName::Complement => ReleaseReading::Complement,
                ReleaseName::Whole => ReleaseReading::Whole,
            }),
            warm_start: else_.warm_start && !self.no_warm_start,
        }
    }

    /// Flags that make no sense together, found before anything is loaded.
    pub fn check(&self) -> Result<(), CliError> {
        let usage = |message: String| Err(CliError::Usage(message));
        if let Some(r_gpu) = self.r_gpu
            && !(r_gpu > 0.0 && r_gpu <= 1.0)
        {
            return usage(format!("--r-gpu {r_gpu}: must be above 0 and at most 1"));
        }
        if self.kv.is_full() && self.r_gpu.is_some() {
            return usage("--r-gpu needs --kv wnw or another method: the full cache keeps everything".into());
        }
        if !self.kv_option.is_empty() && (self.kv.is_full() || self.kv.is_wnw()) {
            return usage("--kv-option is for methods other than full and wnw".into());
        }
        if !self.kv.is_wnw() {
            let unused = [
                ("--kv-roles", self.kv_roles.is_some()),
                ("--n-voice", self.n_voice.is_some()),
                ("--n-anchor", self.n_anchor.is_some()),
                ("--lambda", self.lambda.is_some()),
                ("--host-tier", self.host_tier.is_some() && !self.kv.recalls()),
                ("--swap", self.swap.is_some() && !self.kv.recalls()),
                ("--signal", self.signal.is_some()),
                ("--normalise", self.normalise.is_some()),
                ("--segment", self.segment.is_some()),
                ("--chunk", self.chunk.is_some()),
                ("--top-chunks", self.top_chunks.is_some()),
                ("--release-after", self.release_after.is_some()),
                ("--selection", self.selection.is_some()),
                ("--release", self.release.is_some()),
                ("--no-warm-start", self.no_warm_start),
            ];
            if let Some((flag, _)) = unused.iter().find(|(_, given)| *given) {
                return usage(format!("{flag} needs --kv wnw"));
            }
        }
        let KvMethod(entry) = self.kv;
        if !self.kv.is_full() && !self.kv.is_wnw() {
            // Names and values that no model could make right; heads and scores are looked at when the model is there.
            let any = KvShape { n_layers: 1, n_q_heads: 1, n_kv_heads: 1, head_dim: 1 };
            match entry.check(any, self.share(), None, &self.options_by_name()) {
                Ok(()) | Err(BuildError::NeedsProfile(_)) => {}
                Err(error) => return usage(format!("--kv {}: {error}", entry.name)),
            }
        }
        let positive = |x: &Option<f64>| x.is_none_or(|x| x > 0.0 && x.is_finite());
        if self.lambda.is_some_and(|x| !(x >= 0.0 && x.is_finite())) {
            return usage("--lambda must be a number of 0 or more".into());
        }
        for (flag, seconds) in [("--segment", &self.segment), ("--chunk", &self.chunk)] {
            if !positive(seconds) {
                return usage(format!("{flag} must be a number of seconds above 0"));
            }
        }
        if self.n_anchor == Some(0) || self.n_voice == Some(0) {
            return usage(
                "--n-anchor and --n-voice must be at least 1: without an anchor nothing says what to recall"
                    .into(),
            );
        }
        if let (Some(n_anchor), Some(n_voice)) = (self.n_anchor, self.n_voice)
            && n_anchor > n_voice
        {
            return usage(format!(
                "--n-anchor {n_anchor} is more than --n-voice {n_voice}: anchors are voice heads"
            ));
        }
        if self.lambda.is_some() && self.kv_budget.is_some() && self.r_gpu.is_none() {
            return usage("--lambda and --kv-budget both decide how much is kept: give one of them".into());
        }
        Ok(())
    }

    fn options_by_name(&self) -> BTreeMap<String, String> {
        self.kv_option.iter().cloned().collect()
    }

    /// The share that options are checked with.
    fn share(&self) -> f64 {
        self.r_gpu.unwrap_or(WnwOptions::default().r_gpu)
    }

    /// The method, with the head roles of `profile` if it needs any; `name` is the model's.
    pub fn method(
        &self,
        name: &str,
        model: &SpeechModel,
        profile: Option<&Arc<Profile>>,
    ) -> Result<Method, CliError> {
        if self.kv.is_full() {
            return Ok(Method::Full);
        }
        let KvMethod(entry) = self.kv;
        if !self.kv.is_wnw() && (profile.is_some() || !entry.needs_profile) {
            let options = self.options_by_name();
            let shape = model.decoder().kv_shape();
            entry
                .check(shape, self.share(), profile.map(Arc::as_ref), &options)
                .map_err(|e| CliError::Usage(format!("--kv {}: {e}", entry.name)))?;
            return Ok(Method::Named { entry, r_gpu: self.r_gpu, profile: profile.cloned(), options });
        }
        let (roles, options) = match (self.kv_roles, profile) {
            (Some(KvRoles::Uniform), _) => {
                let tokens_per_second = model.audio_tokens_per_second();
                (Roles::Uniform { tokens_per_second }, self.wnw_options(&WnwOptions::default()))
            }
            (None, Some(profile)) => {
                (Roles::Profile(Arc::clone(profile)), self.wnw_options(&profile.options))
            }
            (None, None) => {
                return Err(CliError::Usage(format!(
                    "--kv {}: there is no profile with the head roles of {name}; make one with `wnw calibrate --model {name} --self FILE…` and give it with --kv-profile, or insist with --kv wnw --kv-roles uniform",
                    entry.name
                )));
            }
        };
        let fixed_r_gpu = self.r_gpu.is_some() || self.lambda.is_some();
        if let (Roles::Profile(profile), true) = (&roles, fixed_r_gpu || self.kv_budget.is_none()) {
            profile.params(&options).map_err(|e| CliError::Usage(format!("--kv wnw: {e}")))?;
        }
        Ok(Method::Wnw { roles, options, fixed_r_gpu })
    }

    /// The profile given, that of the embedded model, or that beside the checkpoint; checked against the model.
    pub fn profile(&self, name: &str, model: &SpeechModel) -> Result<Option<Arc<Profile>>, CliError> {
        read_profile(self.kv_profile.as_deref(), name, model)
    }
}

/// The profile given by `--kv-profile`, that of the embedded model, or that beside the checkpoint `name`; checked against
/// the model.
pub fn read_profile(
    given: Option<&Path>,
    name: &str,
    model: &SpeechModel,
) -> Result<Option<Arc<Profile>>, CliError> {
    let beside = Path::new(name).join(PROFILE_FILE);
    let (bytes, path) = match given {
        Some(path) => (read(path)?, path.to_owned()),
        None if name == TINY => (wnw_tiny::PROFILE.to_vec(), PathBuf::from("tiny/profile.json")),
        None if beside.is_file() => (read(&beside)?, beside),
        None => return Ok(None),
    };
    let usage = |reason: String| CliError::Usage(format!("{}: {reason}", path.display()));
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let profile: Profile =
        serde_json::from_slice(bytes).map_err(|e| usage(format!("not a profile of `wnw calibrate`: {e}")))?;
    profile.check(model.fingerprint(), model.decoder().kv_shape()).map_err(|e| usage(e.to_string()))?;
    Ok(Some(Arc::new(profile)))
}

fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let failed = |e: std::io::Error| CliError::Usage(format!("--kv-profile {}: {e}", path.display()));
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(std::io::Error::other("not a regular file")));
    }
    if metadata.len() > MOST_PROFILE_BYTES {
        return Err(failed(std::io::Error::other(format!(
            "{} bytes: too large for a profile",
            metadata.len()
        ))));
    }
    std::fs::read(path).map_err(failed)
}

/// `ram` or `file:DIR`.
pub fn parse_place(text: &str) -> Result<HostPlace, String> {
    match text.split_once(':') {
        None if text == "ram" => Ok(HostPlace::Ram),
        Some(("file", dir)) if Path::new(dir).is_dir() => Ok(HostPlace::File(dir.into())),
        Some(("file", dir)) => Err(format!("{dir} is not a directory")),
        _ => Err("use ram or file:DIR".into()),
    }
}

fn parse_count(text: &str) -> Result<u32, String> {
    if text == "all" {
        return Ok(u32::MAX);
    }
    u32::from_str(text)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| "must be a whole number of at least 1, or all".into())
}
