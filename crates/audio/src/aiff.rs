//! AIFF and AIFF-C headers.

use crate::error::Fault;
use crate::input::Input;
use crate::pcm::{PcmFormat, SampleFormat};
use crate::raw::RawReader;
use crate::reader::{DecodeOptions, Reader};

/// Reads the header and hands the sound data to the reader of its format.
pub(crate) fn open(mut input: Input, options: &DecodeOptions) -> Result<Box<dyn Reader>, Fault> {
    input.skip(12)?;
    let mut format = None;
    loop {
        let mut head = [0; 8];
        if input.read_full(&mut head)? < 8 {
            return Err(match format {
                Some(_) => Fault::Empty("holds no audio samples (an AIFF header without sound data)".into()),
                None => Fault::Corrupt("the AIFF file ends before its format; it was cut off".into()),
            });
        }
        let [a, b, c, d, size @ ..] = head;
        let size = u64::from(u32::from_be_bytes(size));
        match &[a, b, c, d] {
            b"COMM" => {
                let mut bytes = [0; 22];
                let want = bytes.len().min(size as usize);
                let got = input.read_full(&mut bytes[..want])?;
                format = Some(read_format(&bytes[..got])?);
                input.skip(size + size % 2 - got as u64)?;
            }
            b"SSND" => {
                let Some((pcm, frames)) = format else {
                    return Err(Fault::Unsupported("AIFF with its sound before its format".into()));
                };
                let mut offset = [0; 8];
                input.read_full(&mut offset)?;
                let [a, b, c, d, ..] = offset;
                let offset = u64::from(u32::from_be_bytes([a, b, c, d]));
                input.skip(offset)?;
                // Pipes leave the sizes at 0 or at their largest; then the sound runs to the end.
                let stated = size.saturating_sub(8 + offset);
                let limit = (stated > 0 && stated < 0x7FFF_0000).then_some(stated);
                let frame = pcm.channels as u64 * pcm.format.bytes() as u64;
                let limit = limit.map(|l| if frames > 0 { l.min(frames.saturating_mul(frame)) } else { l });
                return Ok(Box::new(RawReader::new(input, "AIFF", pcm, limit, options)?));
            }
            _ => {
                input.skip(size + size % 2)?;
            }
        }
    }
}

/// The COMM chunk: the sample format and the number of frames.
fn read_format(b: &[u8]) -> Result<(PcmFormat, u64), Fault> {
    use SampleFormat::*;
    let short = || Fault::Corrupt("the AIFF format chunk is too short".into());
    let (fixed, compression) = b.split_first_chunk::<18>().ok_or_else(short)?;
    let channels = u16::from_be_bytes([fixed[0], fixed[1]]);
    let frames = u32::from_be_bytes([fixed[2], fixed[3], fixed[4], fixed[5]]);
    let bits = u16::from_be_bytes([fixed[6], fixed[7]]);
    let rate = extended(fixed.last_chunk().ok_or_else(short)?);
    let format = match (compression, bits.div_ceil(8)) {
        (b"" | b"NONE" | b"twos", 1) => S8,
        (b"" | b"NONE" | b"twos", 2) => S16Be,
        (b"" | b"NONE" | b"twos", 3) | (b"in24", _) => S24Be,
        (b"" | b"NONE" | b"twos", 4) | (b"in32", _) => S32Be,
        (b"raw ", 1) => U8,
        (b"sowt", 1) => S8,
        (b"sowt", 2) => S16Le,
        (b"sowt", 3) => S24Le,
        (b"sowt", 4) => S32Le,
        (b"fl32" | b"FL32", _) => F32Be,
        (b"fl64" | b"FL64", _) => F64Be,
        (b"alaw" | b"ALAW", _) => Alaw,
        (b"ulaw" | b"ULAW", _) => Mulaw,
        (other, _) => {
            let name = String::from_utf8_lossy(other);
            return Err(Fault::Unsupported(format!("AIFF-C with {name:?} compression at {bits} bits")));
        }
    };
    Ok((PcmFormat { format, rate, channels }, frames.into()))
}

/// An 80-bit extended float, rounded to whole Hz; 0 when out of range.
fn extended(b: &[u8; 10]) -> u32 {
    let exponent = i32::from(u16::from_be_bytes([b[0], b[1]])) - 16_383;
    let mantissa = b[2..].iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
    if !(0..=31).contains(&exponent) {
        return 0;
    }
    let value = (mantissa >> 32) as f64 * 2f64.powi(exponent - 31);
    value.round() as u32
}

#[cfg(test)]
mod tests {
    #[test]
    fn extended_floats() {
        assert_eq!(super::extended(&[0x40, 0x0E, 0xAC, 0x44, 0, 0, 0, 0, 0, 0]), 44_100);
        assert_eq!(super::extended(&[0x40, 0x0C, 0xFA, 0, 0, 0, 0, 0, 0, 0]), 16_000);
        assert_eq!(super::extended(&[0; 10]), 0);
        assert_eq!(super::extended(&[0xFF; 10]), 0);
    }
}
