//! Opus by libopus, with the parts of RFC 7845 that belong to a player: pre-skip, output gain, channel mapping.

use opusic_c::SampleRate;
use opusic_c::multistream::{Config, Decoder};

use crate::error::Fault;

/// Opus always decodes to 48 kHz here.
pub(crate) const RATE: u32 = 48_000;

/// Longest packet: 120 ms.
const MAX_FRAMES: usize = 5_760;

/// A libopus decoder that may move between threads.
struct Movable(Decoder);

// SAFETY: a libopus decoder is one block of memory that this value alone owns; libopus keeps no thread-local state
// and only requires that calls on one decoder do not overlap, which `&mut` guarantees.
unsafe impl Send for Movable {}

pub(crate) struct OpusDecoder {
    decoder: Movable,
    channels: usize,
    /// Samples still to be dropped at the start.
    skip: usize,
    gain: f32,
}

/// The identification header, `OpusHead`.
struct Head {
    channels: u8,
    pre_skip: u16,
    gain: i16,
    streams: u8,
    coupled: u8,
    mapping: Vec<u8>,
}

impl Head {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(b"OpusHead")?;
        let channels = *rest.get(1)?;
        // Ogg and Matroska store little-endian numbers and version 1; MP4 big-endian and version 0.
        let u16_at = |i: usize| {
            let pair = [*rest.get(i)?, *rest.get(i + 1)?];
            Some(if rest[0] == 0 { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) })
        };
        let (pre_skip, gain) = (u16_at(2)?, u16_at(8)? as i16);
        let (streams, coupled, mapping) = match *rest.get(10)? {
            0 => (1, channels.checked_sub(1)?, (0..channels).collect()),
            _ => (*rest.get(11)?, *rest.get(12)?, rest.get(13..13 + usize::from(channels))?.to_vec()),
        };
        Some(Self { channels, pre_skip, gain, streams, coupled, mapping })
    }
}

impl OpusDecoder {
    /// A decoder for a track with this identification header; without one, for `channels` and no pre-skip.
    pub fn new(head: &[u8], channels: usize) -> Result<Self, Fault> {
        let head = Head::parse(head).unwrap_or_else(|| {
            let channels = channels.clamp(1, 2) as u8;
            let mapping = (0..channels).collect();
            Head { channels, pre_skip: 0, gain: 0, streams: 1, coupled: channels - 1, mapping }
        });
        let decoder = match head.channels {
            1 => make::<1>(&head),
            2 => make::<2>(&head),
            3 => make::<3>(&head),
            4 => make::<4>(&head),
            5 => make::<5>(&head),
            6 => make::<6>(&head),
            7 => make::<7>(&head),
            8 => make::<8>(&head),
            n => return Err(Fault::Unsupported(format!("Opus with {n} channels"))),
        };
        let decoder = decoder.ok_or_else(|| Fault::Corrupt("the Opus header is not valid".into()))?;
        let gain = 10f32.powf(f32::from(head.gain) / (20.0 * 256.0));
        Ok(Self {
            decoder: Movable(decoder),
            channels: head.channels.into(),
            skip: head.pre_skip.into(),
            gain,
        })
    }

    /// Channels of a frame.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Appends one packet's interleaved samples, without the pre-skip and the last `trim_end` frames. Returns
    /// how many frames the packet held in all.
    pub fn decode(&mut self, data: &[u8], trim_end: usize, out: &mut Vec<f32>) -> Result<usize, Fault> {
        if data.is_empty() {
            return Err(Fault::Corrupt("an empty Opus packet".into()));
        }
        let start = out.len();
        out.resize(start + MAX_FRAMES * self.channels, 0.0);
        let decoded = self.decoder.0.decode_float_to_slice(data, &mut out[start..], false);
        let Ok(frames) = decoded else {
            out.truncate(start);
            return Err(Fault::Corrupt("an Opus packet is damaged".into()));
        };
        out.truncate(start + frames.saturating_sub(trim_end) * self.channels);
        let skip = self.skip.min(frames);
        self.skip -= skip;
        out.drain(start..(start + skip * self.channels).min(out.len()));
        if self.gain != 1.0 {
            out[start..].iter_mut().for_each(|x| *x *= self.gain);
        }
        Ok(frames)
    }

    /// Forgets what came before, after a loss.
    pub fn reset(&mut self) {
        // Fails only for an unknown request, which this is not; the next packet then conceals instead.
        let _ = self.decoder.0.reset();
    }
}

fn make<const CHANNELS: usize>(head: &Head) -> Option<Decoder> {
    let mapping: [u8; CHANNELS] = head.mapping.as_slice().try_into().ok()?;
    let config = Config::try_new(head.streams, head.coupled, mapping)?;
    Decoder::new(config, SampleRate::Hz48000).ok()
}
