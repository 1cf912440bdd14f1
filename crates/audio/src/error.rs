//! What can go wrong with one recording, in words a person can act on.

use std::time::Duration;

use thiserror::Error;

/// Why a recording could not be read. Every variant names the recording and says what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AudioError {
    /// The path does not exist.
    #[error("{name}: no such file; check the path")]
    NotFound {
        /// The recording.
        name: String,
    },
    /// The path is a directory.
    #[error("{name}: is a directory; name the files in it")]
    Directory {
        /// The recording.
        name: String,
    },
    /// There is a file but no audio sample in it: it has no bytes, or only headers.
    #[error("{name}: {detail}; nothing was recorded, or the copy broke off at once")]
    Empty {
        /// The recording.
        name: String,
        /// "the file is empty" or "holds no audio samples (…)".
        detail: String,
    },
    /// A container (video, pictures, subtitles) without any audio track.
    #[error("{name}: this {container} has no audio track; give a recording that has one")]
    NoAudioTrack {
        /// The recording.
        name: String,
        /// The container's name.
        container: String,
    },
    /// The bytes are no audio container that is known here.
    #[error(
        "{name}: not a recognised audio or video file ({detail}); for raw samples state their format, as in --pcm s16le:16000:1"
    )]
    UnknownFormat {
        /// The recording.
        name: String,
        /// What the bytes look like.
        detail: String,
    },
    /// The container or codec is recognised, by name, but cannot be decoded here.
    #[error(
        "{name}: {what} cannot be decoded; convert it first, for example with: ffmpeg -i INPUT -ac 1 -ar 16000 out.flac"
    )]
    Unsupported {
        /// The recording.
        name: String,
        /// The container or codec and, where it matters, its profile.
        what: String,
    },
    /// The data is damaged beyond use, or damaged at all and `strict` is set.
    #[error("{name}: damaged {at}: {reason}")]
    Corrupt {
        /// The recording.
        name: String,
        /// Where.
        at: Position,
        /// What is wrong.
        reason: String,
    },
    /// More audio than [`DecodeOptions::max_duration`](crate::DecodeOptions::max_duration) allows.
    #[error("{name}: longer than the limit of {:.0} s; raise --max-duration or cut the recording", limit.as_secs_f64())]
    TooLong {
        /// The recording.
        name: String,
        /// The limit.
        limit: Duration,
    },
    /// A header asks for more than a limit allows (sampling rate, channels). Often the header is forged or damaged.
    #[error("{name}: the header asks for {what} {value}, the limit is {limit}")]
    Limit {
        /// The recording.
        name: String,
        /// "a sampling rate of", "a number of channels of".
        what: &'static str,
        /// The value found.
        value: u64,
        /// The value allowed.
        limit: u64,
    },
    /// Reading failed.
    #[error("{name}: cannot be read: {error}")]
    Io {
        /// The recording.
        name: String,
        /// The system's reason.
        #[source]
        error: std::io::Error,
    },
    /// The decoder itself broke on this recording. The process and other recordings are not affected.
    #[error("{name}: the decoder failed {at} ({message}); please report this file, and convert it meanwhile")]
    DecoderPanic {
        /// The recording.
        name: String,
        /// Where.
        at: Position,
        /// The decoder's own words.
        message: String,
    },
}

/// A place in a recording; displays as "at 1:02.5" or "in its header".
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Position {
    /// Before the first sample.
    Header,
    /// At this many seconds.
    Seconds(f64),
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header => f.write_str("in its header"),
            Self::Seconds(s) => write!(f, "at {}", clock(*s)),
        }
    }
}

/// Seconds as `m:ss.s` or `h:mm:ss.s`.
pub(crate) fn clock(seconds: f64) -> String {
    let tenths = (seconds.max(0.0) * 10.0).round() as u64;
    let (h, m, s, t) = (tenths / 36_000, tenths / 600 % 60, tenths / 10 % 60, tenths % 10);
    if h > 0 { format!("{h}:{m:02}:{s:02}.{t}") } else { format!("{m}:{s:02}.{t}") }
}

/// An [`AudioError`] that does not know yet which recording it belongs to.
#[derive(Debug)]
pub(crate) enum Fault {
    Empty(String),
    NoAudioTrack(String),
    Unknown(String),
    Unsupported(String),
    Corrupt(String),
    Limit { what: &'static str, value: u64, limit: u64 },
    Io(std::io::Error),
}

impl Fault {
    /// Adds the recording's name and the place where reading stood.
    pub fn named(self, name: &str, at: Position) -> AudioError {
        let name = name.to_owned();
        match self {
            Self::Empty(detail) => AudioError::Empty { name, detail },
            Self::NoAudioTrack(container) => AudioError::NoAudioTrack { name, container },
            Self::Unknown(detail) => AudioError::UnknownFormat { name, detail },
            Self::Unsupported(what) => AudioError::Unsupported { name, what },
            Self::Corrupt(reason) => AudioError::Corrupt { name, at, reason },
            Self::Limit { what, value, limit } => AudioError::Limit { name, what, value, limit },
            Self::Io(error) => AudioError::Io { name, error },
        }
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// Something in a recording that a person should know of, though it was decoded. Displays as one line.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum AudioWarning {
    /// Part of the recording could not be decoded; silence of the same length stands in its place.
    Corrupt {
        /// Where the damage starts, in seconds.
        at: f64,
        /// Seconds replaced by silence, all stretches of this entry together.
        lost: f64,
        /// Number of separate stretches this entry stands for.
        stretches: usize,
        /// The decoder's reason for the first.
        reason: String,
    },
    /// The container's time stamps leave a hole (a paused recording); silence fills it.
    Gap {
        /// Where it starts, in seconds.
        at: f64,
        /// Its length in seconds.
        length: f64,
    },
    /// The decoded duration differs by more than one per cent from what the container says.
    Duration {
        /// Seconds decoded.
        decoded: f64,
        /// Seconds the container states.
        declared: f64,
    },
    /// The data breaks off before its end.
    Truncated {
        /// Where, in seconds.
        at: f64,
    },
    /// Bytes that are no audio follow the last decodable frame.
    TrailingJunk {
        /// Number of bytes.
        bytes: u64,
    },
    /// Samples that are not numbers (NaN or infinite) were taken as zero.
    NotFinite {
        /// Number of samples.
        samples: u64,
    },
    /// Several audio tracks; one was taken.
    SeveralTracks {
        /// Number of audio tracks.
        tracks: usize,
        /// Which one was decoded, counted from 1.
        taken: usize,
    },
    /// High-Efficiency AAC: only its AAC-LC core was decoded, so the highest frequencies may be missing.
    CoreOnly {
        /// The profile's name.
        profile: String,
        /// Sampling rate of the core in Hz.
        core_rate: u32,
    },
}

impl std::fmt::Display for AudioWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Corrupt { at, lost, stretches: 1, reason } => {
                write!(f, "damaged at {}: {lost:.2} s lost and replaced by silence ({reason})", clock(*at))
            }
            Self::Corrupt { at, lost, stretches, reason } => write!(
                f,
                "damaged from {} on: {lost:.2} s lost in {stretches} places and replaced by silence (first: {reason})",
                clock(*at)
            ),
            Self::Gap { at, length } => {
                write!(f, "the recording pauses at {}: {length:.2} s of silence put in", clock(*at))
            }
            Self::Duration { decoded, declared } => {
                write!(f, "{} decoded, but the file says it lasts {}", clock(*decoded), clock(*declared))
            }
            Self::Truncated { at } => write!(f, "the file breaks off at {}", clock(*at)),
            Self::TrailingJunk { bytes } => {
                write!(f, "{bytes} bytes after the last audio frame are no audio and were left out")
            }
            Self::NotFinite { samples } => {
                write!(f, "{samples} samples are not numbers (NaN or infinite) and were taken as zero")
            }
            Self::SeveralTracks { tracks, taken } => {
                write!(f, "{tracks} audio tracks; number {taken} was taken")
            }
            Self::CoreOnly { profile, core_rate } => {
                write!(f, "{profile}: only its AAC-LC core at {core_rate} Hz is decoded")
            }
        }
    }
}
