//! The files of the embedded model. See README.md in this folder for what it can and cannot do.

/// `config.json`.
pub const CONFIG: &[u8] = include_bytes!("../config.json");
/// `tekken.json`.
pub const TEKKEN: &[u8] = include_bytes!("../tekken.json");
/// `profile.json`: head roles, made by `wnw calibrate`.
pub const PROFILE: &[u8] = include_bytes!("../profile.json");
/// `model.safetensors`.
pub static WEIGHTS: &[u8] = &ALIGNED.0;

/// Weights are used where they lie, so they must start where any of their types may.
#[repr(align(64))]
struct Aligned<const N: usize>([u8; N]);

static ALIGNED: Aligned<{ include_bytes!("../model.safetensors").len() }> =
    Aligned(*include_bytes!("../model.safetensors"));
