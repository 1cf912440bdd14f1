//! The head map of a profile.

use std::path::{Path, PathBuf};

use wnw_kv::Role;
use wnw_kv::profile::{Profile, WnwOptions};
use wnw_plot::{HeadMapChart, HeadRole};

use crate::charts;
use crate::error::CliError;

/// The target whose roles the map shows: the paper's.
pub const R_GPU: f64 = 0.2;

/// The map: scores, and the roles at a target r_GPU.
pub fn chart(profile: &Profile, r_gpu: f64) -> Result<HeadMapChart, CliError> {
    // Roles do not depend on λ, and a λ given cannot be out of reach.
    let options = WnwOptions { r_gpu, lambda: Some(0.0), ..WnwOptions::default() };
    let params = profile.params(&options).map_err(|e| CliError::Usage(e.to_string()))?;
    let role = |role: &Role| match role {
        Role::Anchor | Role::Whole => HeadRole::Anchor,
        Role::Tidal => HeadRole::Tidal,
        Role::Fixed => HeadRole::Fixed,
    };
    let about = &profile.calibration;
    let labels = if about.label_free { ", its own transcripts" } else { "" };
    Ok(HeadMapChart {
        title: format!("{}: heads that follow the audio", charts::short(&profile.model)),
        subtitle: format!(
            "{} ({} recordings, {:.0} s, {} answer tokens{labels}); roles at r_GPU {r_gpu}",
            charts::short(&about.source),
            about.recordings,
            about.seconds,
            about.tokens
        ),
        n_kv_heads: profile.shape.n_kv_heads,
        voice: profile.voice_score.clone(),
        sensitivity: profile.head_sensitivity.clone(),
        product: profile.importance(),
        roles: params.roles.iter().map(role).collect(),
    })
}

/// Draws the map of a profile that lies at `output`, into `given` or beside it.
pub fn draw(profile: &Profile, given: &[PathBuf], output: &Path) -> Result<Vec<PathBuf>, CliError> {
    let paths = charts::targets(given, &output.with_extension(""));
    charts::draw(&chart(profile, R_GPU)?, &paths)?;
    Ok(paths)
}

/// Reads a profile as it is, without the model that it was made with.
pub fn read(path: &Path) -> Result<Profile, CliError> {
    let bytes = std::fs::read(path).map_err(|e| CliError::Usage(format!("{}: {e}", path.display())))?;
    parse(&bytes, path)
}

/// The same of a profile's bytes; `path` is for messages.
pub fn parse(bytes: &[u8], path: &Path) -> Result<Profile, CliError> {
    let usage = |reason: String| CliError::Usage(format!("{}: {reason}", path.display()));
    let profile: Profile =
        serde_json::from_slice(bytes).map_err(|e| usage(format!("not a profile of `wnw calibrate`: {e}")))?;
    // The check multiplies them.
    if profile.shape.n_layers.checked_mul(profile.shape.n_kv_heads).is_none() {
        return Err(usage("the profile is damaged: its head counts are absurd".into()));
    }
    profile.check(&profile.fingerprint, profile.shape).map_err(|e| usage(e.to_string()))?;
    Ok(profile)
}
