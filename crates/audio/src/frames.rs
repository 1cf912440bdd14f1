//! Bare streams of self-describing frames (MPEG audio, ADTS AAC): finding frames, and finding the next one after
//! damage.
//!
//! Damaged bytes are taken as overwritten, not inserted: the number of frames lost is the number of damaged bytes
//! over the size of a frame, so that what follows keeps its time.

use std::collections::VecDeque;

use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters};

use crate::codec::{Codec, codec_name, packet};
use crate::error::{AudioWarning, Fault};
use crate::input::Input;
use crate::reader::{AudioInfo, DecodeOptions, Event, Queue, Reader};

/// The header of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Bytes of the whole frame, header included.
    pub len: usize,
    /// Bytes before what the decoder wants.
    pub skip: usize,
    /// Samples of a channel.
    pub samples: u32,
    pub rate: u32,
    pub channels: u16,
    pub codec: AudioCodecId,
}

impl Header {
    /// Whether another frame can belong to the same stream; the channel mode may change.
    fn same_stream(&self, other: &Self) -> bool {
        (self.rate, self.codec) == (other.rate, other.codec)
    }
}

/// How frames of one kind look.
pub(crate) trait Framing: Send {
    /// Bytes `header` needs.
    const HEADER: usize;
    /// Reads the header at the start of `bytes`.
    fn header(bytes: &[u8]) -> Option<Header>;
    /// Parameters of a decoder for frames like `header`.
    fn params(header: &Header) -> AudioCodecParameters;
}

/// Offset of the first frame in `bytes` that is followed by others of its kind, or by the end when `whole`.
pub(crate) fn find<F: Framing>(bytes: &[u8], whole: bool) -> Option<usize> {
    (0..bytes.len().saturating_sub(F::HEADER - 1)).find(|&i| {
        // Cheap test first: both kinds start with eleven set bits.
        bytes[i] == 0xFF && bytes[i + 1] & 0xE0 == 0xE0 && chain::<F>(&bytes[i..], 3, whole)
    })
}

/// Whether `n` frames of one kind follow each other at the start of `bytes`, or as many as fit when `whole`.
fn chain<F: Framing>(bytes: &[u8], n: usize, whole: bool) -> bool {
    let Some(first) = F::header(bytes) else { return false };
    let mut at = first.len;
    for _ in 1..n {
        match bytes.get(at..).and_then(F::header) {
            Some(next) if next.same_stream(&first) => at += next.len,
            Some(_) => return false,
            // The end of the data, or a tag behind the last frame.
            None => return whole && bytes.get(at..).is_none_or(|b| b.is_empty() || tag_len(b).is_some()),
        }
    }
    true
}

/// Encoder delay to drop at the start and padding at the end, in samples.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Gapless {
    pub delay: usize,
    pub padding: usize,
}

/// Decodes a bare stream frame by frame.
pub(crate) struct FrameReader<F> {
    input: Input,
    info: AudioInfo,
    codec: Codec,
    last: Header,
    /// Bytes and number of the frames so far, for their mean size.
    bytes: u64,
    frames: u64,
    decoded: bool,
    gapless: Gapless,
    /// Samples that may turn out to be padding.
    held: VecDeque<f32>,
    /// Frames lost since the last good one, and why.
    lost: u64,
    reason: Option<String>,
    /// Seconds decoded or lost.
    clock: f64,
    queue: Queue,
    framing: std::marker::PhantomData<F>,
}

/// Bytes searched at a time for the next frame, and how many of them are looked at again together with what follows.
const SEARCH: usize = 64 * 1024;
const OVERLAP: usize = 26 * 1024;

/// Frames at the start that may fail because they refer to data before the recording, where it was cut.
const COLD_START: u64 = 3;

impl<F: Framing> FrameReader<F> {
    /// Starts at the first frame in `input`; `duration` and `gapless` come from a header frame, if there was one.
    pub fn open(
        mut input: Input,
        container: &str,
        duration: Option<f64>,
        gapless: Gapless,
        options: &DecodeOptions,
    ) -> Result<Self, Fault> {
        let first =
            F::header(input.peek(F::HEADER)?).ok_or_else(|| Fault::Empty("holds no audio frames".into()))?;
        options.check(first.rate, first.channels.into())?;
        let info = AudioInfo {
            container: container.to_owned(),
            codec: codec_name(first.codec),
            sample_rate: first.rate,
            channels: first.channels,
            duration,
        };
        Ok(Self {
            input,
            info,
            codec: Codec::new(&F::params(&first))?,
            last: first,
            bytes: 0,
            frames: 0,
            decoded: false,
            gapless,
            held: VecDeque::new(),
            lost: 0,
            reason: None,
            clock: 0.0,
            queue: Queue::new(first.rate),
            framing: std::marker::PhantomData,
        })
    }

    /// The next frame's header and the number of damaged bytes before it. `None` at the end.
    fn seek_frame(&mut self) -> Result<(Option<Header>, u64), Fault> {
        let mut damaged = 0;
        loop {
            let head = self.input.peek(TAG_HEADER)?;
            if head.is_empty() {
                return Ok((None, damaged));
            }
            if let Some(header) = F::header(head) {
                if damaged == 0 && header.same_stream(&self.last) && header.channels == self.last.channels {
                    return Ok((Some(header), 0));
                }
                // Something changed: only believe a header that is followed by others like it.
                let want = 3 * header.len + TAG_HEADER;
                let ahead = self.input.peek(want)?;
                if chain::<F>(ahead, 3, ahead.len() < want) {
                    return Ok((Some(header), damaged));
                }
            } else if let Some(tag) = tag_len(head) {
                self.input.skip(tag)?;
                continue;
            }
            let ahead = self.input.peek(SEARCH)?;
            let whole = ahead.len() < SEARCH;
            let junk = match find::<F>(&ahead[1..], whole) {
                Some(i) => i + 1,
                None if whole => ahead.len(),
                None => ahead.len() - OVERLAP,
            };
            // Zeros are padding, not damage, when nothing follows.
            let padding = whole && junk == ahead.len() && ahead.iter().all(|b| *b == 0);
            self.input.skip(junk as u64)?;
            damaged += if padding { 0 } else { junk as u64 };
        }
    }

    /// Frames that `bytes` damaged bytes have stood for.
    fn frames_in(&self, bytes: u64) -> u64 {
        let mean =
            if self.frames > 0 { self.bytes as f64 / self.frames as f64 } else { self.last.len as f64 };
        (bytes as f64 / mean.max(1.0)).round() as u64
    }

    /// Puts a loss in line, after what was held back: that is no padding, for more follows.
    fn report_loss(&mut self) {
        if let Some(reason) = self.reason.take() {
            self.release_held();
            let samples = std::mem::take(&mut self.lost) * u64::from(self.last.samples);
            let seconds = samples as f64 / f64::from(self.last.rate);
            self.clock += seconds;
            self.queue.event(Event::Lost { seconds, reason });
        }
    }

    fn release_held(&mut self) {
        if !self.held.is_empty() {
            let samples = std::mem::take(&mut self.held).into();
            self.queue.samples(samples, self.last.rate);
        }
    }

    /// Puts decoded samples in line, without the encoder's delay and, as far as known, its padding.
    fn put(&mut self, mut samples: Vec<f32>) {
        self.clock += f64::from(self.last.samples) / f64::from(self.last.rate);
        let skip = self.gapless.delay.min(samples.len());
        self.gapless.delay -= skip;
        samples.drain(..skip);
        if self.gapless.padding > 0 {
            self.held.extend(samples);
            let ready = self.held.len().saturating_sub(self.gapless.padding);
            samples = self.held.drain(..ready).collect();
        }
        self.queue.samples(samples, self.last.rate);
    }

    /// Reads one frame and puts what comes of it in line.
    fn step(&mut self) -> Result<(), Fault> {
        let (header, damaged) = self.seek_frame()?;
        let Some(header) = header else {
            self.report_loss();
            if damaged > self.last.len as u64 {
                self.queue.event(Event::Note(AudioWarning::TrailingJunk { bytes: damaged }));
            }
            self.queue.end();
            return Ok(());
        };
        if damaged > 0 {
            self.lost += self.frames_in(damaged);
            self.reason.get_or_insert_with(|| format!("{damaged} bytes are no audio frames"));
            self.codec.reset();
        }
        if !header.same_stream(&self.last) || header.channels != self.last.channels {
            self.report_loss();
            self.release_held();
            self.codec = Codec::new(&F::params(&header))?;
        }
        self.last = header;
        let frame = self.input.peek(header.len)?;
        if frame.len() < header.len {
            // The file was cut within its last frame.
            self.report_loss();
            self.queue.event(Event::Note(AudioWarning::Truncated { at: self.clock }));
            self.queue.end();
            return Ok(());
        }
        let mut samples = Vec::new();
        let decoded = self.codec.decode(&packet(&frame[header.skip..], header.samples.into()), &mut samples);
        self.input.skip(header.len as u64)?;
        self.bytes += header.len as u64;
        self.frames += 1;
        match decoded {
            Ok(_) => {
                self.decoded = true;
                self.report_loss();
                self.put(samples);
            }
            Err(Fault::Corrupt(_)) if !self.decoded && self.frames <= COLD_START => {
                self.put(vec![0.0; header.samples as usize]);
            }
            Err(Fault::Corrupt(reason)) => {
                self.lost += 1;
                self.reason.get_or_insert(reason);
            }
            Err(other) => return Err(other),
        }
        Ok(())
    }
}

impl<F: Framing> Reader for FrameReader<F> {
    fn info(&self) -> &AudioInfo {
        &self.info
    }

    fn rate(&self) -> u32 {
        self.queue.rate()
    }

    fn next(&mut self, out: &mut Vec<f32>) -> Result<Event, Fault> {
        loop {
            if let Some(event) = self.queue.pop(out) {
                return Ok(event);
            }
            self.step()?;
        }
    }
}

/// Bytes `tag_len` looks at.
const TAG_HEADER: usize = 32;

/// Length of an ID3 (both versions) or APE tag that starts here.
pub(crate) fn tag_len(bytes: &[u8]) -> Option<u64> {
    match bytes {
        [b'I', b'D', b'3', version @ 2..=4, _, flags, size @ ..]
            if size.len() >= 4 && size[..4].iter().all(|b| b & 0x80 == 0) =>
        {
            let size = size[..4].iter().fold(0u64, |n, b| n << 7 | u64::from(*b));
            let footer = if *version == 4 && flags & 0x10 != 0 { 10 } else { 0 };
            Some(10 + size + footer)
        }
        [b'T', b'A', b'G', ..] => Some(128),
        [b'A', b'P', b'E', b'T', b'A', b'G', b'E', b'X', _, _, _, _, a, b, c, d, ..] => {
            Some(32 + u64::from(u32::from_le_bytes([*a, *b, *c, *d])))
        }
        _ => None,
    }
}
