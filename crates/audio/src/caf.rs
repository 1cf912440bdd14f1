//! Core Audio Format with uncompressed or companded samples. Compressed codecs in it go through symphonia.

use crate::demux::{DemuxReader, Kind};
use crate::error::Fault;
use crate::input::Input;
use crate::pcm::{PcmFormat, SampleFormat};
use crate::raw::RawReader;
use crate::reader::{DecodeOptions, Reader};

/// Reads the header and hands the data to the reader of its format.
pub(crate) fn open(mut input: Input, options: &DecodeOptions) -> Result<Box<dyn Reader>, Fault> {
    // File header, then the description chunk, which the format wants first.
    let head = input.peek(8 + 12 + 32)?;
    let description = head.get(20..52).filter(|_| head[8..12] == *b"desc");
    let description =
        description.ok_or_else(|| Fault::Corrupt("the CAF file ends within its header".into()))?;
    let Some(pcm) = pcm(description)? else {
        return Ok(Box::new(DemuxReader::open(input, Kind::Caf, options)?));
    };
    input.skip(8)?;
    loop {
        let mut head = [0; 12];
        if input.read_full(&mut head)? < head.len() {
            return Err(Fault::Empty("holds no audio samples (a CAF header without data)".into()));
        }
        let [a, b, c, d, size @ ..] = head;
        let size = i64::from_be_bytes(size);
        if [a, b, c, d] == *b"data" {
            input.skip(4)?; // edit count
            // −1: up to the end.
            let limit = u64::try_from(size).ok().map(|n| n.saturating_sub(4));
            return Ok(Box::new(RawReader::new(input, "CAF", pcm, limit, options)?));
        }
        let size = u64::try_from(size).map_err(|_| Fault::Corrupt("a CAF chunk of negative size".into()))?;
        input.skip(size)?;
    }
}

/// The sample format that a description chunk states; `None` for a compressed codec.
fn pcm(b: &[u8]) -> Result<Option<PcmFormat>, Fault> {
    use SampleFormat::*;
    let word = |i: usize| b.get(i..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b));
    let rate = b.first_chunk().map_or(0.0, |b| f64::from_be_bytes(*b)).round() as u32;
    let (float, little) = (word(12) & 1 != 0, word(12) & 2 != 0);
    let (channels, bits) = (word(24), word(28));
    let format = match (&b[8..12], float, bits, little) {
        (b"alaw", ..) => Alaw,
        (b"ulaw", ..) => Mulaw,
        (b"lpcm", true, 32, true) => F32Le,
        (b"lpcm", true, 32, false) => F32Be,
        (b"lpcm", true, 64, true) => F64Le,
        (b"lpcm", true, 64, false) => F64Be,
        (b"lpcm", false, 8, _) => S8,
        (b"lpcm", false, 16, true) => S16Le,
        (b"lpcm", false, 16, false) => S16Be,
        (b"lpcm", false, 24, true) => S24Le,
        (b"lpcm", false, 24, false) => S24Be,
        (b"lpcm", false, 32, true) => S32Le,
        (b"lpcm", false, 32, false) => S32Be,
        (b"lpcm", ..) => return Err(Fault::Unsupported(format!("CAF with {bits}-bit samples"))),
        _ => return Ok(None),
    };
    let channels = u16::try_from(channels).unwrap_or(u16::MAX);
    Ok(Some(PcmFormat { format, rate, channels }))
}
