//! AAC's AudioSpecificConfig (ISO/IEC 14496-3, 1.6.2.1): which profile a track has, and its AAC-LC core.
//!
//! A track of High-Efficiency AAC holds an ordinary AAC-LC stream at half the sampling rate, with side data that
//! restores the upper half of the spectrum and, in version 2, the stereo image. Speech models see 0–8 kHz in mono, so
//! the core alone serves them; the caller warns.

use crate::error::Fault;

const RATES: [u32; 13] =
    [96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000, 7_350];

/// The parts of the configuration that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Config {
    /// Object type of the core.
    object: u8,
    /// Object type of the extension: 5 (spectral band replication), 29 (parametric stereo) or 0.
    extension: u8,
    /// Sampling rate of the core in Hz.
    pub rate: u32,
    channels: u8,
}

impl Config {
    /// Reads a configuration; `None` when it is too short.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut bits = Bits { bytes, at: 0 };
        let mut object = bits.object()?;
        let rate = bits.rate()?;
        let channels = bits.take(4)? as u8;
        let mut extension = 0;
        if matches!(object, 5 | 29) {
            extension = object;
            bits.rate()?;
            object = bits.object()?;
        }
        Some(Self { object, extension, rate, channels })
    }

    /// The profile by name.
    pub fn name(&self) -> String {
        let name = match (self.object, self.extension) {
            (_, 5) => "HE-AAC",
            (_, 29) => "HE-AAC v2",
            (1, _) => "AAC Main",
            (2, _) => "AAC-LC",
            (3, _) => "AAC-SSR",
            (4, _) => "AAC-LTP",
            (23, _) => "AAC-LD",
            (39, _) => "AAC-ELD",
            (42, _) => "xHE-AAC (USAC)",
            (36, _) => "MPEG-4 ALS",
            (34, _) => "MP3",
            (object, _) => return format!("MPEG-4 audio object type {object}"),
        };
        name.to_owned()
    }

    /// The configuration of the AAC-LC core where an extension wraps it, `None` where the track is AAC-LC already.
    /// Any other object type cannot be decoded.
    pub fn core(&self) -> Result<Option<[u8; 2]>, Fault> {
        match (self.object, self.extension) {
            (2, 0) => Ok(None),
            (2, _) => match RATES.iter().position(|r| *r == self.rate) {
                Some(index) => {
                    let bits = 2 << 11 | (index as u16) << 7 | u16::from(self.channels) << 3;
                    Ok(Some(bits.to_be_bytes()))
                }
                None => Err(Fault::Unsupported(format!("{} with a core at {} Hz", self.name(), self.rate))),
            },
            _ => Err(Fault::Unsupported(self.name())),
        }
    }
}

struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn take(&mut self, n: usize) -> Option<u32> {
        let mut value = 0;
        for _ in 0..n {
            let byte = self.bytes.get(self.at / 8)?;
            value = value << 1 | u32::from(byte >> (7 - self.at % 8) & 1);
            self.at += 1;
        }
        Some(value)
    }

    fn object(&mut self) -> Option<u8> {
        match self.take(5)? {
            31 => Some(32 + self.take(6)? as u8),
            object => Some(object as u8),
        }
    }

    fn rate(&mut self) -> Option<u32> {
        match self.take(4)? {
            15 => self.take(24),
            index => RATES.get(index as usize).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_have_names() {
        let name = |bytes: &[u8]| Config::parse(bytes).map(|c| c.name());
        assert_eq!(name(&[0x12, 0x10]).as_deref(), Some("AAC-LC"));
        assert_eq!(name(&[0x2B, 0x92, 0x08, 0x00]).as_deref(), Some("HE-AAC"));
        assert_eq!(name(&[0xEB, 0x8A, 0x08, 0x00]).as_deref(), Some("HE-AAC v2"));
        assert_eq!(name(&[0xF9, 0x46, 0x40]).as_deref(), Some("xHE-AAC (USAC)"));
        assert_eq!(name(&[0x12]), None);
    }

    #[test]
    fn he_aac_gives_its_core() {
        let he = Config::parse(&[0x2B, 0x92, 0x08, 0x00]).expect("valid");
        assert_eq!(he.rate, 22_050);
        // Object type 2, rate index 7, 2 channels.
        assert_eq!(he.core().ok().flatten(), Some([0x13, 0x90]));
        let lc = Config::parse(&[0x12, 0x10]).expect("valid");
        assert!(matches!(lc.core(), Ok(None)));
        let usac = Config::parse(&[0xF9, 0x46, 0x40]).expect("valid");
        assert!(matches!(usac.core(), Err(Fault::Unsupported(name)) if name.contains("xHE-AAC")));
    }
}
