//! Calibration: which heads of a model listen to the audio, and which of them the answer depends on.

pub mod alignment;
pub mod mapping;
pub mod roles;
pub mod voice;
