//! What a recording is, by its first bytes. Names and MIME types are not looked at: they are often wrong.

use crate::adts::{Adts, AdtsReader};
use crate::demux::{DemuxReader, Kind};
use crate::error::Fault;
use crate::frames;
use crate::input::Input;
use crate::mpeg::{Mpeg, MpegReader};
use crate::ogg_audio::OggReader;
use crate::raw::RawReader;
use crate::reader::{DecodeOptions, Reader};
use crate::{aiff, caf, wav};

/// Bytes looked at to recognise a container, and to find the first frame of a bare stream.
const HEAD: usize = 64 * 1024;

/// The reader for what `input` holds.
pub(crate) fn open(mut input: Input, options: &DecodeOptions) -> Result<Box<dyn Reader>, Fault> {
    if input.peek(1)?.is_empty() {
        return Err(Fault::Empty("the file is empty (0 bytes)".into()));
    }
    if let Some(pcm) = options.pcm {
        return Ok(Box::new(RawReader::new(input, "raw", pcm, None, options)?));
    }
    // Tags may stand before anything, even before FLAC; some files have several.
    while input.peek(3)? == b"ID3"
        && let Some(tag) = frames::tag_len(input.peek(32)?)
    {
        input.skip(tag)?;
        input.rebase();
        if input.peek(1)?.is_empty() {
            return Err(Fault::Empty("holds no audio samples (only a tag)".into()));
        }
    }
    let head = input.peek(32)?;
    match head {
        [b'R', b'I', b'F', b'F' | b'X', _, _, _, _, b'W', b'A', b'V', b'E', ..]
        | [b'R', b'F', b'6', b'4', _, _, _, _, b'W', b'A', b'V', b'E', ..]
        | [b'B', b'W', b'6', b'4', _, _, _, _, b'W', b'A', b'V', b'E', ..] => {
            return wav::open(input, options);
        }
        [b'F', b'O', b'R', b'M', _, _, _, _, b'A', b'I', b'F', b'F' | b'C', ..] => {
            return aiff::open(input, options);
        }
        [b'c', b'a', b'f', b'f', 0, 1, ..] => return caf::open(input, options),
        [b'O', b'g', b'g', b'S', ..] => return Ok(Box::new(OggReader::open(input, options)?)),
        _ => {}
    }
    let kind = match head {
        [b'f', b'L', b'a', b'C', ..] => Some(Kind::Flac),
        [0x1A, 0x45, 0xDF, 0xA3, ..] => Some(Kind::Matroska),
        [_, _, _, _, name @ ..] if is_mp4(name) => Some(Kind::Mp4),
        _ => None,
    };
    if let Some(kind) = kind {
        return Ok(Box::new(DemuxReader::open(input, kind, options)?));
    }
    if let Some(name) = known_but_not_ours(head) {
        return Err(Fault::Unsupported(name.into()));
    }
    if let Some(what) = no_audio(head) {
        return Err(Fault::Unknown(what.into()));
    }
    let bytes = input.peek(HEAD)?;
    let whole = bytes.len() < HEAD;
    let (mpeg, adts) = (frames::find::<Mpeg>(bytes, whole), frames::find::<Adts>(bytes, whole));
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        // A character may be cut off at the end.
        Err(e) => std::str::from_utf8(&bytes[..e.valid_up_to()]).ok().filter(|_| e.error_len().is_none()),
    };
    let text = text.is_some_and(|t| !t.is_empty() && t.chars().all(|c| !c.is_control() || c.is_whitespace()));
    let start = match (mpeg, adts) {
        (Some(m), a) if a.is_none_or(|a| m <= a) => m,
        (_, Some(a)) => {
            input.skip(a as u64)?;
            return Ok(Box::new(AdtsReader::open_adts(input, options)?));
        }
        _ if text => return Err(Fault::Unknown("it looks like text".into())),
        _ => {
            let start: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
            return Err(Fault::Unknown(format!("it starts with {}", start.join(" "))));
        }
    };
    input.skip(start as u64)?;
    Ok(Box::new(MpegReader::open_mpeg(input, "MPEG audio", options)?))
}

/// Whether a first box of this type starts an MP4 or QuickTime file.
fn is_mp4(name: &[u8]) -> bool {
    [b"ftyp", b"moov", b"mdat", b"wide", b"pnot", b"free", b"skip", b"styp"]
        .iter()
        .any(|t| name.starts_with(*t))
}

/// Containers that are recognised so that the message can name them.
fn known_but_not_ours(head: &[u8]) -> Option<&'static str> {
    Some(match head {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'A', b'V', b'I', b' ', ..] => "AVI video",
        [0x30, 0x26, 0xB2, 0x75, 0x8E, 0x66, 0xCF, 0x11, ..] => "Windows Media (ASF, WMA, WMV)",
        [b'#', b'!', b'A', b'M', b'R', ..] => "AMR speech",
        [b'F', b'L', b'V', 1, ..] => "Flash video",
        [0, 0, 1, 0xBA, ..] => "an MPEG program stream",
        [0x47, ..]
            if head.len() >= 4 && head[1] & 0x1F != 0x1F && head[3] & 0x30 != 0 && head[1..4] != *b"IF8" =>
        {
            "an MPEG transport stream"
        }
        [b'w', b'v', b'p', b'k', ..] => "WavPack",
        [b'M', b'A', b'C', b' ', ..] => "Monkey's Audio",
        [b'M', b'P', b'C', b'K', ..] | [b'M', b'P', b'+', ..] => "Musepack",
        [b'T', b'T', b'A', b'1' | b'2', ..] => "TTA",
        [b'D', b'S', b'D', b' ', ..] | [b'F', b'R', b'M', b'8', ..] => "DSD audio",
        [b'.', b's', b'n', b'd', ..] => "Sun AU",
        [b'.', b'R', b'M', b'F', ..] | [b'.', b'r', b'a', 0xFD, ..] => "RealMedia",
        [b'r', b'i', b'f', b'f', 0x2E, 0x91, ..] => "Sony Wave64",
        [0x0B, 0x77, ..] => "AC-3 (Dolby Digital)",
        [0x7F, 0xFE, 0x80, 0x01, ..] => "DTS",
        [b'M', b'T', b'h', b'd', ..] => "MIDI (notes, not sound)",
        [b'N', b'I', b'S', b'T', ..] => "NIST SPHERE",
        [b'C', b'r', b'e', b'a', b't', b'i', b'v', b'e', ..] => "Creative VOC",
        _ => return None,
    })
}

/// Files of other kinds, so that a mix-up is named at once.
fn no_audio(head: &[u8]) -> Option<&'static str> {
    Some(match head {
        [0x89, b'P', b'N', b'G', ..] => "it is a PNG picture",
        [0xFF, 0xD8, 0xFF, ..] => "it is a JPEG picture",
        [b'G', b'I', b'F', b'8', ..] => "it is a GIF picture",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "it is a WebP picture",
        [b'P', b'K', 3, 4, ..] => "it is a ZIP archive or office document",
        [0x1F, 0x8B, ..] => "it is compressed with gzip",
        [b'7', b'z', 0xBC, 0xAF, ..] => "it is a 7-Zip archive",
        [0x28, 0xB5, 0x2F, 0xFD, ..] => "it is compressed with Zstandard",
        [b'%', b'P', b'D', b'F', ..] => "it is a PDF document",
        [0x7F, b'E', b'L', b'F', ..] => "it is a program",
        [b'<', ..] | [0xEF, 0xBB, 0xBF, b'<', ..] => "it is HTML or XML, perhaps an error page",
        _ => return None,
    })
}
