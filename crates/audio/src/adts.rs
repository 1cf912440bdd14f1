//! AAC in an Audio Data Transport Stream, the usual form of `.aac` files.

use symphonia::core::audio::layouts;
use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::codecs::audio::well_known::CODEC_ID_AAC;

use crate::error::Fault;
use crate::frames::{FrameReader, Framing, Gapless, Header};
use crate::input::Input;
use crate::reader::DecodeOptions;

/// ADTS frames of AAC.
pub(crate) struct Adts;

pub(crate) type AdtsReader = FrameReader<Adts>;

const RATES: [u32; 13] =
    [96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000, 7_350];

impl Framing for Adts {
    const HEADER: usize = 7;

    fn header(bytes: &[u8]) -> Option<Header> {
        let [0xFF, b1, b2, b3, b4, b5, b6, ..] = *bytes else { return None };
        if b1 & 0xF6 != 0xF0 {
            return None;
        }
        let rate = *RATES.get(usize::from(b2 >> 2 & 15))?;
        let len = usize::from(b3 & 3) << 11 | usize::from(b4) << 3 | usize::from(b5) >> 5;
        let skip = if b1 & 1 == 1 { 7 } else { 9 };
        let channels = match (b2 & 1) << 2 | b3 >> 6 {
            7 => 8,
            n => n.into(),
        };
        let samples = 1_024 * (u32::from(b6 & 3) + 1);
        (len > skip).then_some(Header { len, skip, samples, rate, channels, codec: CODEC_ID_AAC })
    }

    fn params(header: &Header) -> AudioCodecParameters {
        let mut params = AudioCodecParameters::new();
        params.for_codec(header.codec).with_sample_rate(header.rate).with_channels(match header.channels {
            1 => layouts::CHANNEL_LAYOUT_MONO,
            2 => layouts::CHANNEL_LAYOUT_STEREO,
            n => symphonia::core::audio::Channels::Discrete(n),
        });
        params
    }
}

impl AdtsReader {
    /// Starts at the first frame.
    pub fn open_adts(mut input: Input, options: &DecodeOptions) -> Result<Self, Fault> {
        let head = input.peek(Adts::HEADER)?;
        if let (Some(header), Some(profile)) = (Adts::header(head), head.get(2).map(|b| b >> 6)) {
            let name = ["AAC Main", "AAC-LC", "AAC-SSR", "AAC-LTP"][usize::from(profile)];
            if profile != 1 {
                return Err(Fault::Unsupported(name.into()));
            }
            if header.channels == 0 {
                return Err(Fault::Unsupported("AAC with a channel configuration in its stream".into()));
            }
            if header.samples != 1_024 {
                return Err(Fault::Unsupported("ADTS with several AAC frames in one".into()));
            }
        }
        Self::open(input, "ADTS", None, Gapless::default(), options)
    }
}
