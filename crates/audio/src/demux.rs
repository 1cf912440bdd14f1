//! Containers with packets and time stamps, through symphonia: FLAC, Matroska/WebM, MP4/QuickTime, CAF.
//!
//! The clock of what was decoded is compared with each packet's time stamp; where packets are missing or damaged,
//! the difference is reported, so that the stream can put silence there.

use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::errors::Error;
use symphonia::core::formats::{FormatOptions, FormatReader, Track};
use symphonia::core::io::{MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::packet::Packet;
use symphonia::default::formats::{CafReader, FlacReader, IsoMp4Reader, MkvReader};

use crate::codec::{Codec, fault};
use crate::error::{AudioWarning, Fault};
use crate::input::Input;
use crate::mp4::{Edit, Movie};
use crate::reader::{AudioInfo, DecodeOptions, Event, Reader};

/// Containers read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Flac,
    Matroska,
    Mp4,
    Caf,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Flac => "FLAC",
            Self::Matroska => "Matroska/WebM",
            Self::Mp4 => "MP4/QuickTime",
            Self::Caf => "CAF",
        }
    }

    /// Differences between clock and time stamps that are no gap, in seconds: Matroska counts in milliseconds.
    fn tolerance(self) -> f64 {
        match self {
            Self::Matroska | Self::Mp4 => 0.1,
            _ => 0.02,
        }
    }

    /// Whether holes between time stamps are part of the format (recorders that pause) rather than damage.
    fn may_pause(self) -> bool {
        matches!(self, Self::Matroska | Self::Mp4)
    }
}

/// Longest file whose stated length is passed on: 1 TiB.
const MAX_STATED: u64 = 1 << 40;

/// As [`Kind::tolerance`], after packets have failed.
const AFTER_FAILURE: f64 = 0.002;

/// Errors of the demultiplexer in a row after which it is left.
const MAX_ERRORS: u32 = 64;

pub(crate) struct DemuxReader {
    kind: Kind,
    format: Box<dyn FormatReader>,
    track: u32,
    /// Seconds of one time stamp unit.
    unit: f64,
    codec: Codec,
    info: AudioInfo,
    options: DecodeOptions,
    rate: u32,
    /// Time stamp of the first packet, in seconds.
    start: Option<f64>,
    /// Seconds decoded or reported lost since then.
    clock: f64,
    /// Seconds before the first packet in which nothing is played.
    delay: f64,
    /// Why packets since the last good one failed.
    reason: Option<String>,
    /// A packet that waits until the gap before it is reported.
    waiting: Option<Packet>,
    /// The part to be played: frames to drop, then frames to keep.
    drop_frames: u64,
    keep_frames: u64,
    notes: Vec<AudioWarning>,
    errors: u32,
    opus: bool,
    ended: bool,
}

impl DemuxReader {
    /// Reads the headers and prepares the decoder of the first audio track that can be decoded.
    pub fn open(input: Input, kind: Kind, options: &DecodeOptions) -> Result<Self, Fault> {
        let mut input = input;
        let mut movie = Movie::default();
        if matches!(kind, Kind::Mp4 | Kind::Caf) {
            input = input.into_seekable()?;
        } else if input.is_seekable() {
            input.rewind_to_base()?;
        }
        if kind == Kind::Mp4 {
            movie = Movie::read(&mut input)?;
            if !movie.has_moov {
                return Err(Fault::Corrupt(
                    "the index (moov) is missing, so the recording was not finished or the copy is incomplete".into(),
                ));
            }
            input.rewind_to_base()?;
            // Symphonia passes over a last box that is cut off, with all the sound in it, if it knows.
            if (input.remaining().unwrap_or(0)..MAX_STATED).contains(&movie.end) {
                input.state_length(movie.end);
            }
        }
        let codec_id = if kind == Kind::Matroska { matroska_codec(&mut input)? } else { None };
        let format = match kind {
            // Forward only, a file that is cut off can be read as far as it goes; only one with its tracks behind
            // its clusters needs to be sought in.
            Kind::Matroska => match input.forward_twin()?.map(|twin| demultiplexer(kind, twin)) {
                Some(Ok(format)) => format,
                _ => demultiplexer(kind, input)?,
            },
            _ => demultiplexer(kind, input)?,
        };
        let chosen = choose(format.tracks(), kind, &movie, codec_id.as_deref())?;
        let media_duration = format.media_info().time_base.zip(format.media_info().duration);
        let edit = movie.edit(chosen.track);
        let seconds = |units: f64, numer: u32, denom: u32| units * f64::from(numer) / f64::from(denom);
        let edited = edit.and_then(|e| Some(e.delay + e.length?));
        let duration = edited.or(chosen.duration).or_else(|| {
            let (base, duration) = media_duration?;
            Some(seconds(duration.get() as f64, base.numer.get(), base.denom.get()))
        });
        // Some tracks leave the channels to the decoder, but none has none.
        let channels = chosen.params.channels.as_ref().map_or(1, |c| c.count());
        let opus = chosen.params.codec == CODEC_ID_OPUS;
        // Matroska states the rate before encoding for Opus; without any, the decoder will tell.
        let rate = if opus { crate::opus::RATE } else { chosen.params.sample_rate.unwrap_or(48_000) };
        options.check(rate, channels as u64)?;
        let info = AudioInfo {
            container: kind.name().to_owned(),
            codec: chosen.codec.name.clone(),
            sample_rate: rate,
            channels: channels as u16,
            duration: duration.filter(|d| d.is_finite() && *d > 0.0),
        };
        let mut reader = Self {
            kind,
            format,
            track: chosen.track,
            unit: chosen.unit,
            codec: chosen.codec,
            info,
            options: options.clone(),
            rate,
            start: None,
            clock: 0.0,
            delay: 0.0,
            reason: None,
            waiting: None,
            drop_frames: 0,
            keep_frames: u64::MAX,
            notes: chosen.notes,
            errors: 0,
            opus,
            ended: false,
        };
        if let Some(Edit { delay, start, length }) = edit {
            reader.delay = delay;
            // Opus brings its own count of samples to drop.
            let start = if reader.opus { 0.0 } else { start };
            reader.drop_frames = (start * f64::from(rate)).round() as u64;
            if let Some(length) = length {
                reader.keep_frames = (length * f64::from(rate)).round() as u64;
            }
        }
        reader.notes.extend(reader.codec.warning.take());
        Ok(reader)
    }

    /// The next packet of the track; `None` at the end.
    fn packet(&mut self) -> Result<Option<Packet>, Fault> {
        loop {
            match self.format.next_packet() {
                Ok(Some(packet)) if packet.track_id == self.track => {
                    self.errors = 0;
                    return Ok(Some(packet));
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(None),
                Err(Error::IoError(e)) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                    // Read forward, Matroska always ends like this.
                    if self.kind != Kind::Matroska {
                        self.notes.push(AudioWarning::Truncated { at: self.clock });
                    }
                    return Ok(None);
                }
                Err(error) => {
                    let reason = match fault(error) {
                        Fault::Corrupt(reason) | Fault::Unsupported(reason) => reason,
                        other => return Err(other),
                    };
                    self.errors += 1;
                    self.reason.get_or_insert(reason);
                    if self.errors >= MAX_ERRORS {
                        return Ok(None);
                    }
                }
            }
        }
    }

    fn decode(&mut self, packet: &Packet, out: &mut Vec<f32>) -> Result<Event, Fault> {
        let start = out.len();
        match self.codec.decode(&packet.as_packet_ref(), out) {
            Ok(decoded) => {
                self.options.check(decoded.rate, decoded.channels as u64)?;
                self.rate = decoded.rate;
                self.info.channels = decoded.channels as u16;
                self.info.sample_rate = decoded.rate;
                self.clock += decoded.frames as f64 / f64::from(decoded.rate);
                let drop = self.drop_frames.min(decoded.kept as u64);
                self.drop_frames -= drop;
                out.drain(start..start + drop as usize);
                let keep = ((out.len() - start) as u64).min(self.keep_frames);
                self.keep_frames -= keep;
                out.truncate(start + keep as usize);
                Ok(Event::Samples)
            }
            Err(Fault::Corrupt(reason)) => {
                let seconds = packet.block_dur().get() as f64 * self.unit;
                self.clock += seconds;
                self.codec.reset();
                if seconds > 0.0 {
                    return Ok(Event::Lost { seconds, reason });
                }
                // The next time stamp will tell how long it was.
                self.reason.get_or_insert(reason);
                Ok(Event::Samples)
            }
            Err(other) => Err(other),
        }
    }
}

impl Reader for DemuxReader {
    fn info(&self) -> &AudioInfo {
        &self.info
    }

    fn rate(&self) -> u32 {
        self.rate
    }

    fn next(&mut self, out: &mut Vec<f32>) -> Result<Event, Fault> {
        if let Some(note) = self.notes.pop() {
            return Ok(Event::Note(note));
        }
        if let Some(packet) = self.waiting.take() {
            return self.decode(&packet, out);
        }
        if self.ended {
            return Ok(Event::End);
        }
        let Some(packet) = self.packet()? else {
            self.ended = true;
            return Ok(match self.reason.take() {
                Some(reason) => Event::Lost { seconds: 0.0, reason },
                None => Event::Samples,
            });
        };
        let stamp = packet.pts.get() as f64 * self.unit;
        let start = *self.start.get_or_insert_with(|| {
            // Matroska gives what an encoder put before the start negative times; Opus counts it itself.
            if stamp < 0.0 && self.kind == Kind::Matroska && !self.opus {
                self.drop_frames = (-stamp * f64::from(self.rate)).round() as u64;
            }
            // A track may start late in a film. A live stream's clock may start anywhere, but states no duration.
            if self.kind == Kind::Matroska && self.info.duration.is_some_and(|d| stamp < d) {
                self.delay = stamp;
            }
            stamp
        });
        if self.delay > self.kind.tolerance() {
            let seconds = std::mem::take(&mut self.delay);
            self.waiting = Some(packet);
            return Ok(Event::Gap { seconds });
        }
        let gap = stamp - start - self.clock;
        let failed = self.reason.is_some();
        if gap > if failed { AFTER_FAILURE } else { self.kind.tolerance() } {
            self.clock += gap;
            self.waiting = Some(packet);
            self.codec.reset();
            return Ok(match self.reason.take() {
                Some(reason) => Event::Lost { seconds: gap, reason },
                None if self.kind.may_pause() => Event::Gap { seconds: gap },
                None => Event::Lost { seconds: gap, reason: "packets are missing".into() },
            });
        }
        self.decode(&packet, out)
    }
}

fn demultiplexer(kind: Kind, input: Input) -> Result<Box<dyn FormatReader>, Fault> {
    let stream = MediaSourceStream::new(Box::new(input), MediaSourceStreamOptions::default());
    let opts = FormatOptions::default();
    let opened: Result<Box<dyn FormatReader>, Error> = match kind {
        Kind::Flac => FlacReader::try_new(stream, opts).map(|r| Box::new(r) as _),
        Kind::Matroska => MkvReader::try_new(stream, opts).map(|r| Box::new(r) as _),
        Kind::Mp4 => IsoMp4Reader::try_new(stream, opts).map(|r| Box::new(r) as _),
        Kind::Caf => CafReader::try_new(stream, opts).map(|r| Box::new(r) as _),
    };
    opened.map_err(|error| match error {
        Error::IoError(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            Fault::Corrupt("the file ends within its headers, before any sound".into())
        }
        // What these readers call unsupported are headers that make no sense.
        Error::Unsupported(what) => Fault::Corrupt(what.into()),
        error => fault(error),
    })
}

struct Chosen {
    track: u32,
    unit: f64,
    params: AudioCodecParameters,
    codec: Codec,
    duration: Option<f64>,
    notes: Vec<AudioWarning>,
}

/// The default audio track if it can be decoded, else the first that can.
fn choose(tracks: &[Track], kind: Kind, movie: &Movie, codec_id: Option<&str>) -> Result<Chosen, Fault> {
    use symphonia::core::formats::TrackFlags;
    let mut audio: Vec<(usize, &Track, &AudioCodecParameters)> = tracks
        .iter()
        .filter_map(|t| match &t.codec_params {
            Some(CodecParameters::Audio(params)) => Some((t, params)),
            _ => None,
        })
        .enumerate()
        .map(|(i, (t, params))| (i, t, params))
        .collect();
    let count = audio.len();
    audio.sort_by_key(|(_, t, _)| !t.flags.contains(TrackFlags::DEFAULT));
    let mut failure = None;
    for (index, track, params) in audio {
        match Codec::new(params) {
            Ok(codec) => {
                let (numer, denom) = track
                    .time_base
                    .map_or((1, params.sample_rate.unwrap_or(1)), |b| (b.numer.get(), b.denom.get()));
                let unit = f64::from(numer) / f64::from(denom.max(1));
                let several = AudioWarning::SeveralTracks { tracks: count, taken: index + 1 };
                return Ok(Chosen {
                    track: track.id,
                    unit,
                    params: params.clone(),
                    codec,
                    // In CAF, packets count with the padding of the last, frames without.
                    duration: match (track.num_frames, params.sample_rate) {
                        (Some(n), Some(rate)) if kind == Kind::Caf => Some(n as f64 / f64::from(rate)),
                        _ => track.duration.map(|d| d.get() as f64 * unit),
                    },
                    notes: if count > 1 { vec![several] } else { Vec::new() },
                });
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    if let Some(error) = failure {
        return Err(error);
    }
    // Symphonia does not report tracks whose codec it does not know.
    let unknown = movie.tracks.iter().find(|t| t.handler == *b"soun").map(|t| {
        let entry = String::from_utf8_lossy(&t.entry);
        match &t.entry {
            b"samr" => "AMR speech".into(),
            b"sawb" => "AMR wideband speech".into(),
            b"ac-3" => "AC-3 (Dolby Digital)".into(),
            b"ec-3" => "E-AC-3 (Dolby Digital Plus)".into(),
            b"ac-4" => "AC-4".into(),
            b"QDM2" | b"QDMC" => "QDesign audio".into(),
            b"dtsc" | b"dtse" | b"dtsh" => "DTS".into(),
            _ => format!("{entry:?} audio"),
        }
    });
    match unknown.or_else(|| codec_id.map(|id| format!("{id:?} audio"))) {
        Some(name) => Err(Fault::Unsupported(format!("{name} in {}", kind.name()))),
        None => Err(Fault::NoAudioTrack(kind.name().into())),
    }
}

/// The first audio codec's identifier near the start of a Matroska file, as "A_AC3".
fn matroska_codec(input: &mut Input) -> Result<Option<String>, Fault> {
    const LOOK: usize = 16 * 1024;
    let head = input.peek(LOOK)?;
    // The CodecID element: 0x86, a one-byte size, the name.
    let found = head.windows(4).position(|w| w[0] == 0x86 && w[1] & 0x80 != 0 && w[2..] == *b"A_");
    Ok(found.map(|i| {
        let len = usize::from(head[i + 1] & 0x7F);
        String::from_utf8_lossy(&head[i + 2..(i + 2 + len).min(head.len())]).into_owned()
    }))
}
