//! From any recording to 16 kHz mono samples, and from samples to the log-mel frames a model wants.

mod aac;
mod adpcm;
mod adts;
mod aiff;
mod caf;
mod codec;
mod demux;
mod error;
mod frames;
mod input;
mod mel;
mod mp4;
mod mpeg;
mod ogg;
mod ogg_audio;
mod opus;
mod pcm;
mod probe;
mod raw;
mod reader;
mod resample;
mod stream;
mod wav;

pub use error::{AudioError, AudioWarning, Position};
pub use input::Source;
pub use mel::{LogMel, Mel, MelError, MelParameters, Padding};
pub use pcm::{PcmFormat, PcmFormatError, SampleFormat};
pub use reader::{AudioInfo, DecodeOptions};
pub use stream::{AudioStream, Decoded};

/// Sampling rate of everything that leaves this crate, in Hz.
pub const SAMPLE_RATE: u32 = 16_000;
