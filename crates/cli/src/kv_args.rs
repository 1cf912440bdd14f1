//! Flags for how keys and values are kept.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use wnw_engine::{KvOptions, Method, Roles};
use wnw_kv::policies::wnw::{ReleaseReading, Selection};
use wnw_kv::profile::{Normalise, Profile, WnwOptions};
use wnw_kv::{HostPlace, KvDtype, SwapMode};
use wnw_model::Voxtral;

use crate::error::CliError;
use crate::models::TINY;
use crate::size::parse_size;

/// Name of a profile that lies in a checkpoint's directory.
pub const PROFILE_FILE: &str = "wnw-profile.json";

/// How keys and values are kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "KV cache")]
pub struct KvArgs {
    /// KV method: `full` keeps everything; `wnw` keeps a part on the device and recalls the rest in time.
    #[arg(long, value_enum, default_value_t = KvMethod::Full, value_name = "METHOD")]
    pub kv: KvMethod,
    /// Share of audio KV to keep on the device, with --kv wnw [default: 0.2, or what --kv-budget allows].
    #[arg(long, value_name = "SHARE")]
    pub r_gpu: Option<f64>,
    /// Most bytes of KV on the device, such as 2GiB or 500MB; an error if less does not work.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub kv_budget: Option<u64>,
    /// Where recallable KV lies: `ram`, or `file:DIR` for a temporary file in DIR.
    #[arg(long, value_name = "PLACE", default_value = "ram", value_parser = parse_place)]
    pub host_tier: HostPlace,
    /// When recalled KV is copied: `overlap` (beside the computation) or `sync`.
    #[arg(long, value_name = "MODE", default_value_t)]
    pub swap: SwapMode,
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
    /// Scale from a head's importance to its retention [default: from --r-gpu].
    #[arg(long, value_name = "X")]
    pub lambda: Option<f64>,
    /// How importance is normalised.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = NormaliseName::Max)]
    pub normalise: NormaliseName,
    /// Segment length (the stride of chunks) in seconds.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub segment: f64,
    /// Chunk length in seconds, a multiple of --segment.
    #[arg(long, value_name = "S", default_value_t = 4.0)]
    pub chunk: f64,
    /// Chunks selected in each step, or `all`.
    #[arg(long, value_name = "K", default_value = "3", value_parser = parse_count)]
    pub top_chunks: u32,
    /// Steps without selection after which a segment is released, or `all` for never.
    #[arg(long, value_name = "DELTA", default_value = "3", value_parser = parse_count)]
    pub release_after: u32,
    /// What rows compete at prefill: those of a `segment`, or all of a head (`global`).
    #[arg(long, value_enum, value_name = "HOW", default_value_t = SelectionName::Segment)]
    pub selection: SelectionName,
    /// What a release takes: the recalled rows (`complement`), or also those kept at prefill (`whole`).
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = ReleaseName::Complement)]
    pub release: ReleaseName,
    /// Recall nothing before the first step.
    #[arg(long)]
    pub no_warm_start: bool,
}

/// KV methods by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvMethod {
    /// Keep everything.
    Full,
    /// Waxing and waning: anchor, tidal and fixed heads.
    Wnw,
}

/// Roles without a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvRoles {
    /// All heads alike.
    Uniform,
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
        KvOptions { dtype, budget: self.kv_budget, host: self.host_tier.clone(), swap: self.swap }
    }

    /// WnW's options, as far as flags decide them.
    pub fn wnw_options(&self) -> WnwOptions {
        WnwOptions {
            r_gpu: self.r_gpu.unwrap_or(WnwOptions::default().r_gpu),
            n_voice: self.n_voice,
            n_anchor: self.n_anchor,
            lambda: self.lambda,
            normalise: match self.normalise {
                NormaliseName::Max => Normalise::Max,
                NormaliseName::Rank => Normalise::Rank,
                NormaliseName::Minmax => Normalise::MinMax,
            },
            segment_seconds: self.segment,
            chunk_seconds: self.chunk,
            top_chunks: if self.top_chunks == u32::MAX { usize::MAX } else { self.top_chunks as usize },
            release_after: self.release_after,
            selection: match self.selection {
                SelectionName::Segment => Selection::PerSegment,
                SelectionName::Global => Selection::Global,
            },
            release: match self.release {
                ReleaseName::Complement => ReleaseReading::Complement,
                ReleaseName::Whole => ReleaseReading::Whole,
            },
            warm_start: !self.no_warm_start,
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
        if self.kv == KvMethod::Full {
            let unused = [
                ("--r-gpu", self.r_gpu.is_some()),
                ("--kv-roles", self.kv_roles.is_some()),
                ("--n-voice", self.n_voice.is_some()),
                ("--n-anchor", self.n_anchor.is_some()),
                ("--lambda", self.lambda.is_some()),
                ("--no-warm-start", self.no_warm_start),
            ];
            if let Some((flag, _)) = unused.iter().find(|(_, given)| *given) {
                return usage(format!("{flag} needs --kv wnw: the full cache keeps everything"));
            }
        }
        Ok(())
    }

    /// The method, with the head roles of `model` if it needs any.
    pub fn method(&self, name: &str, model: &Voxtral) -> Result<Method, CliError> {
        if self.kv == KvMethod::Full {
            return Ok(Method::Full);
        }
        let roles = match self.kv_roles {
            Some(KvRoles::Uniform) => Roles::Uniform { tokens_per_second: model.audio_tokens_per_second() },
            None => Roles::Profile(self.profile(name, model)?.ok_or_else(|| CliError::Usage(format!(
                "--kv wnw: there is no profile with the head roles of {name}; make one with `wnw calibrate --model {name} --self FILE…` and give it with --kv-profile, or insist with --kv-roles uniform"
            )))?),
        };
        let method = Method::Wnw { roles, options: self.wnw_options(), fixed_r_gpu: self.r_gpu.is_some() };
        Ok(method)
    }

    /// The profile given, that of the embedded model, or that beside the checkpoint; checked against the model.
    pub fn profile(&self, name: &str, model: &Voxtral) -> Result<Option<Arc<Profile>>, CliError> {
        let beside = Path::new(name).join(PROFILE_FILE);
        let (bytes, path) = match &self.kv_profile {
            Some(path) => (read(path)?, path.clone()),
            None if name == TINY => (wnw_tiny::PROFILE.to_vec(), PathBuf::from("tiny/profile.json")),
            None if beside.is_file() => (read(&beside)?, beside),
            None => return Ok(None),
        };
        let usage = |reason: String| CliError::Usage(format!("{}: {reason}", path.display()));
        let profile: Profile = serde_json::from_slice(&bytes)
            .map_err(|e| usage(format!("not a profile of `wnw calibrate`: {e}")))?;
        profile.check(model.fingerprint(), model.decoder().kv_shape()).map_err(|e| usage(e.to_string()))?;
        Ok(Some(Arc::new(profile)))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let failed = |e: std::io::Error| CliError::Usage(format!("--kv-profile {}: {e}", path.display()));
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(std::io::Error::other("not a regular file")));
    }
    std::fs::read(path).map_err(failed)
}

fn parse_place(text: &str) -> Result<HostPlace, String> {
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
