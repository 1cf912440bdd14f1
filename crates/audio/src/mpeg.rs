//! MPEG audio (MP1, MP2, MP3) as a bare stream: frame headers, and the header frame that Xing, LAME and Fraunhofer
//! encoders put first.

use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::codecs::audio::well_known::{CODEC_ID_MP1, CODEC_ID_MP2, CODEC_ID_MP3};

use crate::error::Fault;
use crate::frames::{FrameReader, Framing, Gapless, Header};
use crate::input::Input;
use crate::reader::DecodeOptions;

/// MPEG-1, -2 and -2.5 audio, layers 1 to 3.
pub(crate) struct Mpeg;

pub(crate) type MpegReader = FrameReader<Mpeg>;

/// kbit/s by [MPEG-1 layer 1, 2, 3, MPEG-2 layer 1, layers 2 and 3] and index 1 to 14.
const BITRATES: [[u16; 14]; 5] = [
    [32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448],
    [32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384],
    [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
    [32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256],
    [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
];

/// Decoder delay that a LAME tag leaves out, in samples.
const DECODER_DELAY: usize = 529;

impl Framing for Mpeg {
    const HEADER: usize = 4;

    fn header(bytes: &[u8]) -> Option<Header> {
        let [0xFF, b1, b2, b3, ..] = *bytes else { return None };
        let (version, layer) = (b1 >> 3 & 3, 4 - (b1 >> 1 & 3));
        let (bitrate, rate) = (usize::from(b2 >> 4), usize::from(b2 >> 2 & 3));
        // Version 1 and layer 4 are reserved; bit-rate 0 is "free format", 15 invalid; emphasis 2 is reserved.
        if b1 & 0xE0 != 0xE0
            || version == 1
            || layer == 4
            || !(1..=14).contains(&bitrate)
            || rate == 3
            || b3 & 3 == 2
        {
            return None;
        }
        let mpeg1 = version == 3;
        let row = if mpeg1 { usize::from(layer) - 1 } else { 3 + usize::from(layer > 1) };
        let bits = u32::from(BITRATES[row][bitrate - 1]) * 1_000;
        let rate = [44_100, 48_000, 32_000][rate] >> [2, 0, 1, 0][usize::from(version)];
        let padding = u32::from(b2 >> 1 & 1);
        let (samples, codec) = match layer {
            1 => (384, CODEC_ID_MP1),
            2 => (1_152, CODEC_ID_MP2),
            _ => (if mpeg1 { 1_152 } else { 576 }, CODEC_ID_MP3),
        };
        let len =
            if layer == 1 { (12 * bits / rate + padding) * 4 } else { samples / 8 * bits / rate + padding };
        let channels = if b3 >> 6 == 3 { 1 } else { 2 };
        Some(Header { len: len as usize, skip: 0, samples, rate, channels, codec })
    }

    fn params(header: &Header) -> AudioCodecParameters {
        let mut params = AudioCodecParameters::new();
        params.for_codec(header.codec).with_sample_rate(header.rate);
        params
    }
}

impl MpegReader {
    /// Starts at the first frame; a header frame is read and left out.
    pub fn open_mpeg(mut input: Input, container: &str, options: &DecodeOptions) -> Result<Self, Fault> {
        let mut info = None;
        if let Some(header) = Mpeg::header(input.peek(Mpeg::HEADER)?) {
            info = HeaderFrame::parse(input.peek(header.len)?, &header);
            if info.is_some() {
                input.skip(header.len as u64)?;
            }
        }
        let info = info.unwrap_or_default();
        Self::open(input, container, info.duration, info.gapless, options)
    }
}

/// What a Xing, Info or VBRI frame says.
#[derive(Debug, Default)]
struct HeaderFrame {
    duration: Option<f64>,
    gapless: Gapless,
}

impl HeaderFrame {
    fn parse(frame: &[u8], header: &Header) -> Option<Self> {
        let mpeg1 = header.samples == 1_152 && header.codec == CODEC_ID_MP3;
        let side = match (mpeg1, header.channels) {
            (true, 2) => 32,
            (true, _) | (false, 2) => 17,
            (false, _) => 9,
        };
        let seconds = |frames: u32, trimmed: usize| {
            let samples = (u64::from(frames) * u64::from(header.samples)).saturating_sub(trimmed as u64);
            Some(samples as f64 / f64::from(header.rate)).filter(|_| frames > 0)
        };
        if let Some(vbri) = frame.get(36..).and_then(|b| b.strip_prefix(b"VBRI")) {
            let frames = vbri.get(10..14).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b));
            return Some(Self { duration: seconds(frames, 0), gapless: Gapless::default() });
        }
        let xing = frame.get(4 + side..)?;
        let xing = xing.strip_prefix(b"Xing").or_else(|| xing.strip_prefix(b"Info"))?;
        let flags = u32::from_be_bytes(*xing.first_chunk()?);
        let mut at = 4;
        let mut frames = 0;
        if flags & 1 != 0 {
            frames = u32::from_be_bytes(*xing.get(at..)?.first_chunk()?);
            at += 4;
        }
        at += if flags & 2 != 0 { 4 } else { 0 } + if flags & 4 != 0 { 100 } else { 0 };
        at += if flags & 8 != 0 { 4 } else { 0 };
        // LAME's extension: a name of 9 bytes, 12 other bytes, then 12 bits of delay and 12 of padding.
        let mut gapless = Gapless::default();
        if let Some(&[a, b, c]) = xing.get(at + 21..at + 24).and_then(|b| b.first_chunk())
            && xing[at].is_ascii_alphabetic()
        {
            let delay = usize::from(a) << 4 | usize::from(b) >> 4;
            let padding = usize::from(b & 15) << 8 | usize::from(c);
            gapless =
                Gapless { delay: delay + DECODER_DELAY, padding: padding.saturating_sub(DECODER_DELAY) };
        }
        let duration = seconds(frames, gapless.delay + gapless.padding);
        Some(Self { duration, gapless })
    }
}
