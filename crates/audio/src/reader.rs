//! What every format's reader gives to the stream, and what the stream tells people about the file.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::{AudioWarning, Fault};
use crate::pcm::PcmFormat;

/// How to decode, and how far to trust a header.
#[derive(Debug, Clone)]
pub struct DecodeOptions {
    /// Damage is an error instead of silence and a warning.
    pub strict: bool,
    /// Take the bytes as raw samples of this format instead of sniffing them.
    pub pcm: Option<PcmFormat>,
    /// Stop with [`AudioError::TooLong`](crate::AudioError::TooLong) once more than this was decoded. Counts
    /// decoded audio, not what a header states. `None` (the default): no limit.
    pub max_duration: Option<Duration>,
    /// Most channels a header may ask for. Default 64.
    pub max_channels: u16,
    /// Highest sampling rate a header may ask for, in Hz. Default 384,000. The lowest is always 2,000.
    pub max_sample_rate: u32,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { strict: false, pcm: None, max_duration: None, max_channels: 64, max_sample_rate: 384_000 }
    }
}

/// The lowest sampling rate that is accepted, so that upsampling to 16 kHz cannot blow a small file up.
const MIN_SAMPLE_RATE: u32 = 2_000;

impl DecodeOptions {
    /// Refuses rates and channel numbers outside the limits.
    pub(crate) fn check(&self, rate: u32, channels: u64) -> Result<(), Fault> {
        if rate > self.max_sample_rate {
            let (value, limit) = (rate.into(), self.max_sample_rate.into());
            return Err(Fault::Limit { what: "a sampling rate in Hz of", value, limit });
        }
        if channels > self.max_channels.into() {
            let limit = self.max_channels.into();
            return Err(Fault::Limit { what: "a number of channels of", value: channels, limit });
        }
        if rate < MIN_SAMPLE_RATE || channels == 0 {
            return Err(Fault::Corrupt(format!("a sampling rate of {rate} Hz with {channels} channels")));
        }
        Ok(())
    }
}

/// What a recording says about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct AudioInfo {
    /// The container, as "WAV" or "Matroska/WebM".
    pub container: String,
    /// The codec, as "MP3" or "PCM s16le".
    pub codec: String,
    /// Sampling rate before resampling, in Hz.
    pub sample_rate: u32,
    /// Channels before the downmix.
    pub channels: u16,
    /// Seconds the container states, where it does.
    pub duration: Option<f64>,
}

/// The next thing a reader found.
#[derive(Debug)]
pub(crate) enum Event {
    /// Samples were appended to the buffer.
    Samples,
    /// `seconds` of audio are damaged or missing here.
    Lost { seconds: f64, reason: String },
    /// The time stamps leave a hole of `seconds` here, without damage.
    Gap { seconds: f64 },
    /// A warning without loss.
    Note(AudioWarning),
    /// Nothing follows.
    End,
}

/// One recording being decoded.
pub(crate) trait Reader: Send {
    /// What the headers say.
    fn info(&self) -> &AudioInfo;

    /// Sampling rate of the samples that `next` appended last, in Hz.
    fn rate(&self) -> u32;

    /// Decodes a bounded piece: appends mono samples to `out`, or reports something else.
    fn next(&mut self, out: &mut Vec<f32>) -> Result<Event, Fault>;
}

/// What a reader has found and not handed out yet, for readers that find several things at once.
pub(crate) struct Queue {
    ready: VecDeque<Ready>,
    /// Rate of the samples that were handed out last.
    rate: u32,
    ended: bool,
}

enum Ready {
    Samples(Vec<f32>, u32),
    Event(Event),
}

impl Queue {
    /// An empty queue; `rate` holds until samples are handed out.
    pub fn new(rate: u32) -> Self {
        Self { ready: VecDeque::new(), rate, ended: false }
    }

    /// Rate of the samples that were handed out last.
    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// Puts samples in line.
    pub fn samples(&mut self, samples: Vec<f32>, rate: u32) {
        self.ready.push_back(Ready::Samples(samples, rate));
    }

    /// Puts something else in line.
    pub fn event(&mut self, event: Event) {
        self.ready.push_back(Ready::Event(event));
    }

    /// Nothing will follow what is in line.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Hands the first thing out, samples by appending them to `out`; `None` when the reader has to go on.
    pub fn pop(&mut self, out: &mut Vec<f32>) -> Option<Event> {
        match self.ready.pop_front() {
            Some(Ready::Samples(samples, rate)) => {
                self.rate = rate;
                out.extend_from_slice(&samples);
                Some(Event::Samples)
            }
            Some(Ready::Event(event)) => Some(event),
            None => self.ended.then_some(Event::End),
        }
    }
}
