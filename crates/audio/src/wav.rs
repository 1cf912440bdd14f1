//! WAV headers as they are found in the wild: RIFF, RIFX, RF64 and BW64; sizes of 0 or 0xFFFFFFFF as pipes write
//! them; LIST, JUNK and odd-sized chunks anywhere; EXTENSIBLE formats.

use crate::adpcm::AdpcmReader;
use crate::error::Fault;
use crate::input::Input;
use crate::mpeg::MpegReader;
use crate::pcm::{PcmFormat, SampleFormat};
use crate::raw::RawReader;
use crate::reader::{DecodeOptions, Reader};

/// The `fmt ` chunk.
#[derive(Debug, Default, Clone)]
pub(crate) struct Format {
    pub tag: u16,
    pub channels: u16,
    pub rate: u32,
    /// Bytes of one frame, or of one block of a compressed format.
    pub block: u16,
    pub bits: u16,
}

/// Reads the header and hands the data to the reader of its codec.
pub(crate) fn open(mut input: Input, options: &DecodeOptions) -> Result<Box<dyn Reader>, Fault> {
    let big = input.peek(4)? == b"RIFX";
    input.skip(12)?;
    let mut format = None;
    let mut data64 = None;
    loop {
        let Some((id, size)) = chunk(&mut input, big)? else {
            return Err(match format {
                None if input.remaining() == Some(0) => {
                    Fault::Corrupt("the WAV file ends before its format; it was cut off".into())
                }
                None => Fault::Corrupt("the WAV file has no format chunk".into()),
                Some(_) => Fault::Empty("holds no audio samples (a WAV header without data)".into()),
            });
        };
        match &id {
            b"fmt " => format = Some(read_format(&mut input, size, big)?),
            b"ds64" => {
                let mut ds64 = [0; 16];
                let got = input.read_full(&mut ds64)? as u64;
                data64 = ds64[8..].first_chunk().map(|b| u64::from_le_bytes(*b));
                skip_chunk(&mut input, u64::from(size).saturating_sub(got), size % 2 == 1)?;
            }
            b"data" => {
                let Some(format) = format else {
                    return Err(Fault::Corrupt("the WAV file has its data before its format".into()));
                };
                let limit = data_limit(&mut input, size, data64)?;
                return data(input, &format, big, limit, options);
            }
            _ => skip_chunk(&mut input, size.into(), size % 2 == 1)?,
        }
    }
}

/// The next chunk's name and size, or `None` at the end of the file.
fn chunk(input: &mut Input, big: bool) -> Result<Option<([u8; 4], u32)>, Fault> {
    let mut head = [0; 8];
    if input.read_full(&mut head)? < 8 {
        return Ok(None);
    }
    let [a, b, c, d, size @ ..] = head;
    let size = if big { u32::from_be_bytes(size) } else { u32::from_le_bytes(size) };
    Ok(Some(([a, b, c, d], size)))
}

/// Skips a chunk's rest. An odd chunk is followed by a zero byte, which some programs forget.
fn skip_chunk(input: &mut Input, size: u64, odd: bool) -> Result<(), Fault> {
    input.skip(size)?;
    if odd && input.peek(1)?.first().is_some_and(|b| !b.is_ascii_alphanumeric()) {
        input.skip(1)?;
    }
    Ok(())
}

fn read_format(input: &mut Input, size: u32, big: bool) -> Result<Format, Fault> {
    let mut bytes = [0u8; 40];
    let want = bytes.len().min(size as usize);
    let got = input.read_full(&mut bytes[..want])?;
    if got < want || got < 14 {
        return Err(Fault::Corrupt("the WAV format chunk is too short".into()));
    }
    skip_chunk(input, u64::from(size) - got as u64, size % 2 == 1)?;
    let u16_at = |i: usize| {
        let pair = [bytes[i], bytes[i + 1]];
        if big { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) }
    };
    let (low, high) =
        (u32::from(u16_at(if big { 6 } else { 4 })), u32::from(u16_at(if big { 4 } else { 6 })));
    let mut format = Format {
        tag: u16_at(0),
        channels: u16_at(2),
        rate: high << 16 | low,
        block: u16_at(12),
        bits: if got >= 16 { u16_at(14) } else { 8 },
    };
    if format.tag == 0xFFFE && got >= 26 {
        format.tag = u16_at(24); // EXTENSIBLE: the first two bytes of the sub-format's GUID
    }
    Ok(format)
}

/// How many bytes the data chunk really has; `None` when its size is a place-holder and the data runs to the end.
fn data_limit(input: &mut Input, size: u32, data64: Option<u64>) -> Result<Option<u64>, Fault> {
    const CHUNKS_AFTER_DATA: [&[u8; 4]; 7] = [b"LIST", b"id3 ", b"ID3 ", b"fact", b"cue ", b"bext", b"JUNK"];
    match (size, data64) {
        (u32::MAX, Some(real)) if real != 0 && real != u64::MAX => Ok(Some(real)),
        // An honest 0 is followed by nothing or another chunk; a pipe's 0 by samples.
        (0, _) => {
            let next = input.peek(4)?;
            let honest = next.is_empty() || CHUNKS_AFTER_DATA.iter().any(|id| next == *id);
            Ok(if honest { Some(0) } else { None })
        }
        // ffmpeg writes 0xFFFFFFFF, sox a size just below 2 GiB, others just below 4 GiB. A file that really is
        // that long states the same as what it holds.
        (0x7FFF_0000..=0x8000_0000 | 0xFFFF_0000.., _) => match input.remaining() {
            Some(left) if left >= size.into() => Ok(Some(size.into())),
            _ => Ok(None),
        },
        (size, _) => Ok(Some(size.into())),
    }
}

fn data(
    input: Input,
    format: &Format,
    big: bool,
    limit: Option<u64>,
    options: &DecodeOptions,
) -> Result<Box<dyn Reader>, Fault> {
    use SampleFormat::*;
    options.check(format.rate, format.channels.into())?;
    // Bytes of one sample: from the frame size, which also holds for 20 bits in 3 bytes or 24 in 4.
    let bytes = match format.block / format.channels {
        n @ (1..=4 | 8) if format.block.is_multiple_of(format.channels) && n * 8 >= format.bits => n,
        _ => format.bits.div_ceil(8),
    };
    let sample = match (format.tag, bytes, big) {
        (1, 1, _) => U8,
        (1, 2, false) => S16Le,
        (1, 2, true) => S16Be,
        (1, 3, false) => S24Le,
        (1, 3, true) => S24Be,
        (1, 4, false) => S32Le,
        (1, 4, true) => S32Be,
        (3, 4, false) => F32Le,
        (3, 4, true) => F32Be,
        (3, 8, false) => F64Le,
        (3, 8, true) => F64Be,
        (6, ..) => Alaw,
        (7, ..) => Mulaw,
        (2 | 0x11, ..) => return Ok(Box::new(AdpcmReader::new(input, format, limit, options)?)),
        (0x50 | 0x55, ..) => {
            return Ok(Box::new(MpegReader::open_mpeg(input.take_only(limit), "WAV", options)?));
        }
        (tag, ..) => return Err(Fault::Unsupported(format!("WAV with {}", codec_name(tag, format.bits)))),
    };
    let pcm = PcmFormat { format: sample, rate: format.rate, channels: format.channels };
    Ok(Box::new(RawReader::new(input, "WAV", pcm, limit, options)?))
}

fn codec_name(tag: u16, bits: u16) -> String {
    let name = match tag {
        1 | 3 => return format!("{bits}-bit samples"),
        0x31 => "GSM 6.10",
        0x45 | 0x64 | 0x65 => "G.726",
        0x28F => "G.722",
        0x22 => "TrueSpeech",
        0x42 => "G.723.1",
        0x83 => "G.729",
        0xFF | 0x1600 | 0x1602 | 0x1610 => "AAC",
        0x160 => "Windows Media Audio 1",
        0x161 => "Windows Media Audio 2",
        0x162 => "Windows Media Audio Professional",
        0x163 => "Windows Media Audio Lossless",
        0x2000 => "AC-3",
        0x2001 => "DTS",
        0x674F..=0x6771 => "Vorbis",
        0xA109 => "Speex",
        0xF1AC => "FLAC",
        _ => return format!("codec 0x{tag:04X}"),
    };
    name.to_owned()
}
