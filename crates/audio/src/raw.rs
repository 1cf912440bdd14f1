//! Uncompressed samples in any wrapping: the data part of WAV and AIFF, and raw PCM.

use crate::error::{AudioWarning, Fault};
use crate::input::Input;
use crate::pcm::{PcmFormat, SampleFormat};
use crate::reader::{AudioInfo, DecodeOptions, Event, Reader};

/// Frames decoded at a time.
const BLOCK: usize = 4096;

/// Reads interleaved samples until `left` bytes or the input are used up.
pub(crate) struct RawReader {
    input: Input,
    info: AudioInfo,
    format: SampleFormat,
    channels: usize,
    left: u64,
    buffer: Vec<u8>,
    not_finite: u64,
    done: bool,
}

impl RawReader {
    /// The rest of `input`, at most `limit` bytes where that is known, as samples of `pcm`.
    pub fn new(
        input: Input,
        container: &str,
        pcm: PcmFormat,
        limit: Option<u64>,
        options: &DecodeOptions,
    ) -> Result<Self, Fault> {
        options.check(pcm.rate, pcm.channels.into())?;
        let channels = usize::from(pcm.channels);
        let frame = (channels * pcm.format.bytes()) as u64;
        let known = limit.or(input.remaining());
        let info = AudioInfo {
            container: container.to_owned(),
            codec: format!("PCM {}", pcm.format.name()),
            sample_rate: pcm.rate,
            channels: pcm.channels,
            duration: known.map(|bytes| (bytes / frame) as f64 / f64::from(pcm.rate)),
        };
        Ok(Self {
            input,
            info,
            format: pcm.format,
            channels,
            left: limit.unwrap_or(u64::MAX),
            buffer: vec![0; BLOCK * frame as usize],
            not_finite: 0,
            done: false,
        })
    }
}

impl Reader for RawReader {
    fn info(&self) -> &AudioInfo {
        &self.info
    }

    fn rate(&self) -> u32 {
        self.info.sample_rate
    }

    fn next(&mut self, out: &mut Vec<f32>) -> Result<Event, Fault> {
        if !self.done {
            let want = self.left.min(self.buffer.len() as u64) as usize;
            let got = self.input.read_full(&mut self.buffer[..want])?;
            self.left -= got as u64;
            self.done = got < want || self.left == 0;
            self.not_finite += self.format.decode_mono(&self.buffer[..got], self.channels, out);
            return Ok(Event::Samples);
        }
        if self.not_finite > 0 {
            let samples = std::mem::take(&mut self.not_finite);
            return Ok(Event::Note(AudioWarning::NotFinite { samples }));
        }
        Ok(Event::End)
    }
}
