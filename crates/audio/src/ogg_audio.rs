//! Vorbis, Opus and FLAC in Ogg. Every page states how many samples there are up to its end, so what damage took can
//! be told to the sample.

use symphonia::core::audio::Channels;
use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::codecs::audio::well_known::{CODEC_ID_FLAC, CODEC_ID_OPUS, CODEC_ID_VORBIS};

use crate::codec::{Codec, packet};
use crate::error::{AudioWarning, Fault};
use crate::input::Input;
use crate::ogg::{MAX_PAGE, Packets, Page};
use crate::reader::{AudioInfo, DecodeOptions, Event, Queue, Reader};

/// Header pages read before a stream counts as broken.
const MAX_HEADER_PAGES: usize = 512;

/// Seconds that may be missing at the start.
const MAX_LATE_START: i64 = 10;

pub(crate) struct OggReader {
    input: Input,
    options: DecodeOptions,
    info: AudioInfo,
    stream: Stream,
    queue: Queue,
}

/// The logical stream being decoded.
struct Stream {
    serial: u32,
    packets: Packets,
    codec: Codec,
    rate: u32,
    channels: u16,
    /// Samples at the start that are not played.
    pre_skip: u64,
    /// The position at the end of the last page, once known.
    clock: Option<i64>,
    finished: bool,
    /// The first audio packets, when they share a page with the last header.
    early: Option<(Page, Vec<Vec<u8>>)>,
    others: usize,
}

impl OggReader {
    /// Reads the headers of the first stream with audio in it.
    pub fn open(mut input: Input, options: &DecodeOptions) -> Result<Self, Fault> {
        let duration_of = tail(&mut input)?;
        let (page, _) = Page::next(&mut input)?;
        let first = page.ok_or_else(|| Fault::Corrupt("no whole Ogg page".into()))?;
        let stream = Stream::open(&mut input, first, options)?;
        let last = duration_of.and_then(|tail| Page::last_granule(&tail, stream.serial));
        let samples = last.map(|last| (last as u64).saturating_sub(stream.pre_skip));
        let mut queue = Queue::new(stream.rate);
        if stream.others > 0 {
            let note = AudioWarning::SeveralTracks { tracks: stream.others + 1, taken: 1 };
            queue.event(Event::Note(note));
        }
        let info = AudioInfo {
            container: "Ogg".to_owned(),
            codec: stream.codec.name.clone(),
            sample_rate: stream.rate,
            channels: stream.channels,
            duration: samples.map(|n| n as f64 / f64::from(stream.rate)).filter(|d| *d > 0.0),
        };
        Ok(Self { input, options: options.clone(), info, stream, queue })
    }

    fn step(&mut self) -> Result<(), Fault> {
        if let Some((page, packets)) = self.stream.early.take() {
            return self.decode(&page, packets, false);
        }
        let (page, damaged) = Page::next(&mut self.input)?;
        let Some(page) = page else {
            if !self.stream.finished {
                let at = self.stream.clock.unwrap_or(0).max(0) as f64 / f64::from(self.stream.rate);
                self.queue.event(Event::Note(AudioWarning::Truncated { at }));
            }
            self.queue.end();
            return Ok(());
        };
        if page.first {
            // A chained stream. What does not hold audio is passed over.
            match Stream::open(&mut self.input, page, &self.options) {
                Ok(stream) => {
                    self.stream = stream;
                    self.info.duration = None;
                }
                Err(Fault::Io(error)) => return Err(Fault::Io(error)),
                Err(Fault::Limit { what, value, limit }) => return Err(Fault::Limit { what, value, limit }),
                Err(_) => {}
            }
            return Ok(());
        }
        if page.serial != self.stream.serial {
            return Ok(());
        }
        let (packets, hole) = self.stream.packets.take(&page);
        self.decode(&page, packets, hole || damaged)
    }

    /// Decodes a page's packets and squares the result with the position the page states.
    fn decode(&mut self, page: &Page, packets: Vec<Vec<u8>>, hole: bool) -> Result<(), Fault> {
        let stream = &mut self.stream;
        stream.finished |= page.last;
        if hole {
            stream.codec.reset();
        }
        let mut samples = Vec::new();
        // Samples of a channel in the page, with those that Opus drops at its start.
        let mut frames = 0;
        // Where in the page something is missing, and why.
        let mut fault = hole.then(|| (0, "pages are missing or damaged".to_owned()));
        for data in &packets {
            match stream.codec.decode(&packet(data, 0), &mut samples) {
                Ok(decoded) => frames += decoded.frames as i64,
                Err(Fault::Corrupt(reason)) => {
                    stream.codec.reset();
                    fault.get_or_insert((samples.len(), reason));
                }
                Err(other) => return Err(other),
            }
        }
        let rate = stream.rate;
        // The first pages of audio may be missing too; but a radio stream that was joined starts anywhere.
        let late = page.granule.is_some_and(|end| end - frames <= i64::from(rate) * MAX_LATE_START);
        if hole && stream.clock.is_none() && late {
            stream.clock = Some(0);
        }
        let mut lost = None;
        match (page.granule, stream.clock) {
            (Some(end), Some(start)) if !packets.is_empty() => {
                let missing = end.saturating_sub(start).saturating_sub(frames);
                if missing > 0 && (fault.is_some() || missing > i64::from(rate / 50)) {
                    let (at, reason) = fault.unwrap_or((0, "the time stamps leave a hole".to_owned()));
                    lost = Some((at, missing, reason));
                } else if missing < 0 && page.last {
                    // The last page says how much of its last packet is padding.
                    let padding = usize::try_from(-missing).unwrap_or(usize::MAX);
                    samples.truncate(samples.len().saturating_sub(padding));
                }
                stream.clock = Some(if page.last { end } else { end.max(start + frames) });
            }
            (Some(end), None) if !packets.is_empty() => {
                // The first page with audio: what exceeds its position comes before the start, or, when it is also
                // the last, behind the end.
                let excess = usize::try_from(frames - end).unwrap_or(0).min(samples.len());
                if page.last {
                    samples.truncate(samples.len() - excess);
                } else if stream.pre_skip == 0 {
                    samples.drain(..excess);
                }
                stream.clock = Some(end);
            }
            _ => stream.clock = stream.clock.map(|c| c + frames),
        }
        if let Some((at, missing, reason)) = lost {
            let after = samples.split_off(at.min(samples.len()));
            self.queue.samples(samples, rate);
            let seconds = missing as f64 / f64::from(rate);
            self.queue.event(Event::Lost { seconds, reason });
            samples = after;
        }
        self.queue.samples(samples, rate);
        Ok(())
    }
}

impl Reader for OggReader {
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

/// The end of a seekable input, where the last page is.
fn tail(input: &mut Input) -> Result<Option<Vec<u8>>, Fault> {
    use std::io::{Seek, SeekFrom};
    let Some(len) = input.remaining().filter(|_| input.is_seekable()) else { return Ok(None) };
    let want = len.min(2 * MAX_PAGE as u64);
    input.seek(SeekFrom::Start(len - want))?;
    let mut bytes = vec![0; want as usize];
    let got = input.read_full(&mut bytes)?;
    bytes.truncate(got);
    input.rewind_to_base()?;
    Ok(Some(bytes))
}

impl Stream {
    /// Reads headers from the first page of the first logical stream on, up to the first packet of audio.
    fn open(input: &mut Input, first: Page, options: &DecodeOptions) -> Result<Self, Fault> {
        let mut page = first;
        let mut chosen: Option<(u32, Packets, Head)> = None;
        let mut named = None;
        let mut others = 0;
        for _ in 0..MAX_HEADER_PAGES {
            let ours = chosen.as_ref().is_some_and(|(serial, ..)| *serial == page.serial);
            if page.first && !ours {
                let mut packets = Packets::default();
                let (found, _) = packets.take(&page);
                match found.first().map(|p| Head::parse(p)) {
                    Some(Ok(head)) if chosen.is_none() => chosen = Some((page.serial, packets, head)),
                    Some(Ok(_)) => others += 1,
                    Some(Err(Some(name))) => named = named.or(Some(name)),
                    _ => {}
                }
            } else if let Some((serial, packets, head)) = chosen.as_mut().filter(|_| ours) {
                let (found, _) = packets.take(&page);
                let mut found = found.into_iter();
                while !head.complete() {
                    let Some(packet) = found.next() else { break };
                    head.add(packet);
                }
                if head.complete() {
                    let (codec, rate, channels) = head.codec(options)?;
                    let rest: Vec<_> = found.collect();
                    return Ok(Self {
                        serial: *serial,
                        pre_skip: head.pre_skip(),
                        packets: std::mem::take(packets),
                        codec,
                        rate,
                        channels,
                        clock: None,
                        finished: page.last,
                        early: if rest.is_empty() { None } else { Some((page, rest)) },
                        others,
                    });
                }
            } else if chosen.is_none() {
                break;
            }
            match Page::next(input)? {
                (Some(next), _) => page = next,
                (None, _) => break,
            }
        }
        Err(match (chosen, named) {
            (Some(_), _) => Fault::Corrupt("the file ends within its headers".into()),
            (None, Some(name)) => Fault::Unsupported(format!("{name} in Ogg")),
            (None, None) => Fault::NoAudioTrack("Ogg".into()),
        })
    }
}

/// Header packets of a stream.
enum Head {
    Vorbis(Vec<Vec<u8>>),
    Opus(Vec<Vec<u8>>),
    Flac { info: Vec<u8>, seen: usize, last: bool },
}

impl Head {
    /// What a stream's first packet says: our codec, or the name of one that is not ours, or nothing known.
    fn parse(first: &[u8]) -> Result<Self, Option<&'static str>> {
        match first {
            [1, b'v', b'o', b'r', b'b', b'i', b's', ..] if first.len() >= 30 => {
                Ok(Self::Vorbis(vec![first.to_vec()]))
            }
            [b'O', b'p', b'u', b's', b'H', b'e', b'a', b'd', ..] if first.len() >= 19 => {
                Ok(Self::Opus(vec![first.to_vec()]))
            }
            // Seven bytes of mapping, two of header count, the native marker, a block header of four, STREAMINFO.
            [0x7F, b'F', b'L', b'A', b'C', ..] if first.len() >= 51 => {
                Ok(Self::Flac { info: first[17..51].to_vec(), seen: 1, last: first[13] & 0x80 != 0 })
            }
            [b'S', b'p', b'e', b'e', b'x', b' ', ..] => Err(Some("Speex")),
            [b'C', b'E', b'L', b'T', ..] => Err(Some("CELT")),
            [b'P', b'C', b'M', b' ', ..] => Err(Some("PCM")),
            _ => Err(None),
        }
    }

    fn add(&mut self, packet: Vec<u8>) {
        match self {
            Self::Vorbis(packets) | Self::Opus(packets) => packets.push(packet),
            Self::Flac { seen, last, .. } => {
                *seen += 1;
                *last = packet.first().is_none_or(|b| b & 0x80 != 0 && *b != 0xFF);
            }
        }
    }

    fn complete(&self) -> bool {
        match self {
            Self::Vorbis(packets) => packets.len() >= 3,
            Self::Opus(packets) => packets.len() >= 2,
            Self::Flac { last, .. } => *last,
        }
    }

    /// Samples to drop at the start.
    fn pre_skip(&self) -> u64 {
        match self {
            Self::Opus(packets) => u64::from(u16::from_le_bytes([packets[0][10], packets[0][11]])),
            _ => 0,
        }
    }

    /// The decoder, its sampling rate and its channels.
    fn codec(&self, options: &DecodeOptions) -> Result<(Codec, u32, u16), Fault> {
        let mut params = AudioCodecParameters::new();
        let (rate, channels) = match self {
            Self::Vorbis(packets) => {
                let id = &packets[0];
                params.for_codec(CODEC_ID_VORBIS).with_extra_data([&id[..], &packets[2]].concat().into());
                (u32::from_le_bytes([id[12], id[13], id[14], id[15]]), u16::from(id[11]))
            }
            Self::Opus(packets) => {
                params.for_codec(CODEC_ID_OPUS).with_extra_data(packets[0].clone().into());
                (crate::opus::RATE, u16::from(packets[0][9]))
            }
            Self::Flac { info, .. } => {
                params.for_codec(CODEC_ID_FLAC).with_extra_data(info.clone().into());
                let rate = u32::from(info[10]) << 12 | u32::from(info[11]) << 4 | u32::from(info[12]) >> 4;
                (rate, u16::from(info[12] >> 1 & 7) + 1)
            }
        };
        options.check(rate, channels.into())?;
        params.with_sample_rate(rate).with_channels(Channels::Discrete(channels));
        Ok((Codec::new(&params)?, rate, channels))
    }
}
