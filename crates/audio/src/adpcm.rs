//! ADPCM in WAV (Microsoft and IMA), block by block.

use symphonia::core::audio::Channels;
use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::codecs::audio::well_known::{CODEC_ID_ADPCM_IMA_WAV, CODEC_ID_ADPCM_MS};

use crate::codec::{Codec, packet};
use crate::error::Fault;
use crate::input::Input;
use crate::reader::{AudioInfo, DecodeOptions, Event, Reader};
use crate::wav::Format;

pub(crate) struct AdpcmReader {
    input: Input,
    info: AudioInfo,
    codec: Codec,
    block: Vec<u8>,
    frames: u64,
}

impl AdpcmReader {
    /// The data chunk of a WAV file.
    pub fn new(
        input: Input,
        format: &Format,
        limit: Option<u64>,
        options: &DecodeOptions,
    ) -> Result<Self, Fault> {
        options.check(format.rate, format.channels.into())?;
        let (ms, channels) = (format.tag == 2, u64::from(format.channels));
        let (head, extra) = if ms { (7 * channels, 2) } else { (4 * channels, 1) };
        let nibbles = u64::from(format.block).checked_sub(head).filter(|_| format.bits == 4);
        let Some(nibbles) = nibbles.filter(|n| *n > 0) else {
            return Err(Fault::Corrupt("the ADPCM block size is not valid".into()));
        };
        let frames = nibbles * 2 / channels + extra;
        let mut params = AudioCodecParameters::new();
        params
            .for_codec(if ms { CODEC_ID_ADPCM_MS } else { CODEC_ID_ADPCM_IMA_WAV })
            .with_sample_rate(format.rate)
            .with_channels(Channels::Discrete(format.channels))
            .with_bits_per_coded_sample(4)
            .with_bits_per_sample(16)
            .with_max_frames_per_packet(frames)
            .with_frames_per_block(frames);
        let codec = Codec::new(&params)?;
        let input = input.take_only(limit);
        let info = AudioInfo {
            container: "WAV".into(),
            codec: codec.name.clone(),
            sample_rate: format.rate,
            channels: format.channels,
            duration: input
                .remaining()
                .map(|n| (n / u64::from(format.block) * frames) as f64 / f64::from(format.rate)),
        };
        Ok(Self { input, info, codec, block: vec![0; format.block.into()], frames })
    }
}

impl Reader for AdpcmReader {
    fn info(&self) -> &AudioInfo {
        &self.info
    }

    fn rate(&self) -> u32 {
        self.info.sample_rate
    }

    fn next(&mut self, out: &mut Vec<f32>) -> Result<Event, Fault> {
        // A last partial block is left out.
        if self.input.read_full(&mut self.block)? < self.block.len() {
            return Ok(Event::End);
        }
        match self.codec.decode(&packet(&self.block, self.frames), out) {
            Ok(_) => Ok(Event::Samples),
            Err(Fault::Corrupt(reason)) => {
                let seconds = self.frames as f64 / f64::from(self.info.sample_rate);
                Ok(Event::Lost { seconds, reason })
            }
            Err(other) => Err(other),
        }
    }
}
