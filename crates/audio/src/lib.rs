//! From any recording to 16 kHz mono samples, and from samples to the log-mel frames a model wants.
//!
//! [`AudioStream`] decodes a file, standard input or bytes in memory: the content is sniffed, decoded, averaged over
//! its channels and resampled, block by block, in memory that does not depend on the recording's length.
//! [`LogMel`] turns samples into the features of Voxtral or Qwen2.5-Omni.
//!
//! ```no_run
//! use wnw_audio::{AudioStream, DecodeOptions, LogMel};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let stream = AudioStream::open(std::path::Path::new("talk.mp3"), &DecodeOptions::default())?;
//! let decoded = stream.read_all()?;
//! let mel = LogMel::voxtral().compute(&decoded.samples)?;
//! assert_eq!(mel.data.len(), mel.n_mels * mel.n_frames);
//! # Ok(())
//! # }
//! ```
//!
//! # What is read
//!
//! | container | codecs |
//! |---|---|
//! | WAV (RIFF, RIFX, RF64, BW64) | 8 to 32-bit integers, 32 and 64-bit floats, A-law, µ-law, Microsoft and IMA ADPCM, MP3 |
//! | AIFF, AIFF-C, CAF | integers, floats, A-law, µ-law; in CAF also ALAC and AAC |
//! | FLAC; MP1, MP2, MP3; AAC (ADTS) | |
//! | MP4, M4A, MOV | AAC-LC, ALAC, Opus, FLAC, MP3, PCM |
//! | Ogg | Vorbis, Opus, FLAC |
//! | Matroska, WebM | Opus, Vorbis, FLAC, AAC-LC, MP3, PCM |
//! | raw samples | with [`DecodeOptions::pcm`] |
//!
//! All of them also come through a pipe; only MP4 and compressed CAF are then copied to an anonymous temporary file
//! first, for their index may stand at the end. Of HE-AAC the AAC-LC core is decoded, with a warning. Whatever else is
//! recognised but not decoded (AC-3, AAC with more than two channels, Speex, Windows Media, …) is an error that names
//! it.
//!
//! # What happens at the edges
//!
//! | input | result |
//! |---|---|
//! | no bytes; a header without samples | [`AudioError::Empty`] |
//! | one sample, 10 ms | decoded (one that rounds to no sample at 16 kHz is empty) |
//! | silence, noise | decoded like anything else |
//! | video without sound | [`AudioError::NoAudioTrack`] |
//! | text, pictures, archives | [`AudioError::UnknownFormat`] |
//! | damage | silence of the same length, and one [`AudioWarning::Corrupt`] a stretch; with [`DecodeOptions::strict`] an [`AudioError::Corrupt`] |
//! | a file that was cut off | what is there, and [`AudioWarning::Truncated`] or [`AudioWarning::Duration`] |
//! | a decoder that panics | [`AudioError::DecoderPanic`] of that recording (the process's panic hook still runs) |
//! | a forged header | [`AudioError::Limit`]; sizes in headers never decide how much memory is taken |
//!
//! Why not symphonia's own probe and its readers for WAV, MP3, ADTS and Ogg: they trust sizes that pipes cannot know,
//! scan a megabyte of any file for something like a header, and do not tell how much damage took. The readers here
//! find frames and pages themselves and use symphonia's decoders.

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

/// Suffixes that recordings usually have, in lower case, for finding them in directories. How a file is read does not
/// depend on its name.
pub const SUFFIXES: [&str; 24] = [
    "3gp", "aac", "aif", "aifc", "aiff", "caf", "flac", "m4a", "m4b", "m4v", "mka", "mkv", "mov", "mp1",
    "mp2", "mp3", "mp4", "oga", "ogg", "ogv", "opus", "wav", "wave", "webm",
];
