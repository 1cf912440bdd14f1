//! Uncompressed samples: their formats, and the way from bytes to mono `f32`.

use std::fmt;
use std::str::FromStr;

/// How one sample is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the format names users type.
pub enum SampleFormat {
    S8,
    U8,
    S16Le,
    S16Be,
    S24Le,
    S24Be,
    S32Le,
    S32Be,
    F32Le,
    F32Be,
    F64Le,
    F64Be,
    Alaw,
    Mulaw,
}

use SampleFormat::*;

const NAMES: [(SampleFormat, &str); 14] = [
    (S8, "s8"),
    (U8, "u8"),
    (S16Le, "s16le"),
    (S16Be, "s16be"),
    (S24Le, "s24le"),
    (S24Be, "s24be"),
    (S32Le, "s32le"),
    (S32Be, "s32be"),
    (F32Le, "f32le"),
    (F32Be, "f32be"),
    (F64Le, "f64le"),
    (F64Be, "f64be"),
    (Alaw, "alaw"),
    (Mulaw, "mulaw"),
];

impl SampleFormat {
    /// Bytes of one sample.
    pub fn bytes(self) -> usize {
        match self {
            S8 | U8 | Alaw | Mulaw => 1,
            S16Le | S16Be => 2,
            S24Le | S24Be => 3,
            S32Le | S32Be | F32Le | F32Be => 4,
            F64Le | F64Be => 8,
        }
    }

    /// The name users type, as `s16le`.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(f, _)| *f == self).map_or("", |(_, n)| n)
    }

    /// Decodes whole frames of interleaved samples and appends one mono sample (the mean over channels, full scale
    /// ±1) per frame. Bytes after the last whole frame are ignored. Returns how many samples were not finite; those
    /// count as zero.
    pub(crate) fn decode_mono(self, bytes: &[u8], channels: usize, out: &mut Vec<f32>) -> u64 {
        match self {
            S8 => frames(bytes, channels, out, |b: [u8; 1]| f32::from(b[0] as i8) / 128.0),
            U8 => frames(bytes, channels, out, |b: [u8; 1]| (f32::from(b[0]) - 128.0) / 128.0),
            S16Le => frames(bytes, channels, out, |b| f32::from(i16::from_le_bytes(b)) / 32_768.0),
            S16Be => frames(bytes, channels, out, |b| f32::from(i16::from_be_bytes(b)) / 32_768.0),
            S24Le => frames(bytes, channels, out, |b: [u8; 3]| s32([0, b[0], b[1], b[2]])),
            S24Be => frames(bytes, channels, out, |b: [u8; 3]| s32([0, b[2], b[1], b[0]])),
            S32Le => frames(bytes, channels, out, s32),
            S32Be => frames(bytes, channels, out, |[a, b, c, d]: [u8; 4]| s32([d, c, b, a])),
            F32Le => frames(bytes, channels, out, f32::from_le_bytes),
            F32Be => frames(bytes, channels, out, f32::from_be_bytes),
            F64Le => frames(bytes, channels, out, |b| f64::from_le_bytes(b) as f32),
            F64Be => frames(bytes, channels, out, |b| f64::from_be_bytes(b) as f32),
            Alaw => frames(bytes, channels, out, |b: [u8; 1]| alaw(b[0])),
            Mulaw => frames(bytes, channels, out, |b: [u8; 1]| mulaw(b[0])),
        }
    }
}

fn s32(b: [u8; 4]) -> f32 {
    (f64::from(i32::from_le_bytes(b)) / 2_147_483_648.0) as f32
}

fn frames<const N: usize>(
    bytes: &[u8],
    channels: usize,
    out: &mut Vec<f32>,
    sample: impl Fn([u8; N]) -> f32,
) -> u64 {
    let (samples, _) = bytes.as_chunks::<N>();
    let mut bad = 0;
    let mut finite = |x: f32| {
        if x.is_finite() {
            x
        } else {
            bad += 1;
            0.0
        }
    };
    if channels == 1 {
        out.extend(samples.iter().map(|b| finite(sample(*b))));
    } else {
        let scale = 1.0 / channels as f32;
        out.extend(
            samples
                .chunks_exact(channels)
                .map(|frame| frame.iter().map(|b| finite(sample(*b))).sum::<f32>() * scale),
        );
    }
    bad
}

/// ITU-T G.711 A-law.
fn alaw(code: u8) -> f32 {
    let code = code ^ 0x55;
    let exponent = u32::from(code >> 4 & 7);
    let mantissa = i32::from(code & 15) << 4;
    let magnitude = if exponent == 0 { mantissa + 8 } else { (mantissa + 0x108) << (exponent - 1) };
    (if code & 0x80 != 0 { magnitude } else { -magnitude }) as f32 / 32_768.0
}

/// ITU-T G.711 µ-law.
fn mulaw(code: u8) -> f32 {
    let code = !code;
    let magnitude = (((i32::from(code & 15) << 3) + 0x84) << (code >> 4 & 7)) - 0x84;
    (if code & 0x80 != 0 { -magnitude } else { magnitude }) as f32 / 32_768.0
}

/// The format of raw samples without a header, written `FORMAT:RATE:CHANNELS`, as in `s16le:16000:1`.
///
/// ```
/// let f: wnw_audio::PcmFormat = "s16le:48000:2".parse().unwrap();
/// assert_eq!((f.rate, f.channels), (48_000, 2));
/// assert_eq!(f.to_string(), "s16le:48000:2");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PcmFormat {
    /// How one sample is stored.
    pub format: SampleFormat,
    /// Sampling rate in Hz.
    pub rate: u32,
    /// Interleaved channels.
    pub channels: u16,
}

/// A string that is no [`PcmFormat`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no raw sample format: write FORMAT:RATE:CHANNELS as in s16le:16000:1, FORMAT one of {}",
    format_names()
)]
pub struct PcmFormatError {
    text: String,
}

fn format_names() -> String {
    NAMES.map(|(_, n)| n).join(", ")
}

impl FromStr for PcmFormat {
    type Err = PcmFormatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.split(':');
            let name = parts.next()?.to_ascii_lowercase();
            let (format, _) = *NAMES.iter().find(|(_, n)| *n == name)?;
            let rate = parts.next()?.parse().ok().filter(|r| *r > 0)?;
            let channels = parts.next().map_or(Some(1), |c| c.parse().ok()).filter(|c| *c > 0)?;
            parts.next().is_none().then_some(Self { format, rate, channels })
        };
        parse().ok_or_else(|| PcmFormatError { text: text.to_owned() })
    }
}

impl fmt::Display for PcmFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.format.name(), self.rate, self.channels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mono(format: SampleFormat, bytes: &[u8]) -> Vec<f32> {
        let mut out = Vec::new();
        assert_eq!(format.decode_mono(bytes, 1, &mut out), 0);
        out
    }

    #[test]
    fn every_format_puts_half_scale_at_one_half() {
        for (format, bytes) in [
            (S8, vec![64]),
            (U8, vec![192]),
            (S16Le, vec![0, 0x40]),
            (S16Be, vec![0x40, 0]),
            (S24Le, vec![0, 0, 0x40]),
            (S24Be, vec![0x40, 0, 0]),
            (S32Le, vec![0, 0, 0, 0x40]),
            (S32Be, vec![0x40, 0, 0, 0]),
            (F32Le, 0.5f32.to_le_bytes().to_vec()),
            (F32Be, 0.5f32.to_be_bytes().to_vec()),
            (F64Le, 0.5f64.to_le_bytes().to_vec()),
            (F64Be, 0.5f64.to_be_bytes().to_vec()),
        ] {
            assert_eq!(mono(format, &bytes), [0.5], "{}", format.name());
            assert_eq!(format.bytes(), bytes.len());
        }
    }

    /// The decoder output values of G.711, tables 1a to 2b, scaled to 16 bits.
    #[test]
    fn companded_samples_follow_g711() {
        let scaled = |format, codes: &[u8]| -> Vec<i32> {
            mono(format, codes).iter().map(|x| (x * 32_768.0) as i32).collect()
        };
        assert_eq!(scaled(Alaw, &[0xD5, 0x55, 0xAA, 0x2A, 0x80]), [8, -8, 32_256, -32_256, 5_504]);
        assert_eq!(scaled(Mulaw, &[0xFF, 0x7F, 0x80, 0x00, 0xF0]), [0, 0, 32_124, -32_124, 120]);
    }

    #[test]
    fn channels_are_averaged_and_partial_frames_left() {
        let mut out = Vec::new();
        S16Le.decode_mono(&[0, 0x40, 0, 0xC0, 0, 0x40, 0, 0x20, 9, 9], 2, &mut out);
        assert_eq!(out, [0.0, 0.375]);
    }

    #[test]
    fn not_finite_counts_as_zero() {
        let mut out = Vec::new();
        let bytes: Vec<u8> = [f32::NAN, f32::INFINITY, 0.25].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(F32Le.decode_mono(&bytes, 1, &mut out), 2);
        assert_eq!(out, [0.0, 0.0, 0.25]);
    }

    #[test]
    fn raw_format_strings() {
        for good in ["s16le:16000:1", "f32le:48000:2", "mulaw:8000:1", "s24be:44100:6"] {
            assert_eq!(good.parse::<PcmFormat>().map(|f| f.to_string()).as_deref(), Ok(good));
        }
        assert_eq!("U8:8000".parse::<PcmFormat>().map(|f| f.channels), Ok(1));
        for bad in
            ["", "s16le", "s16le:0:1", "s16le:16000:0", "s17le:16000:1", "s16le:16000:1:1", "s16le:-1:1"]
        {
            let error = bad.parse::<PcmFormat>().map_err(|e| e.to_string());
            assert!(error.is_err_and(|e| e.contains("s16le:16000:1")), "{bad}");
        }
    }
}
