//! What the tests share: fixtures, WAV writing, tones, and measuring where a signal lies within another.
#![allow(dead_code, missing_docs)] // Each test binary uses a part.

use std::path::PathBuf;

use wnw_audio::{AudioError, AudioStream, DecodeOptions, Decoded};

/// A recording of tools/goldens/audio_fixtures.sh.
pub fn fixture(name: &str) -> Vec<u8> {
    let path = path(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures")).join(name)
}

pub fn decode(bytes: Vec<u8>) -> Result<Decoded, AudioError> {
    decode_with(bytes, &DecodeOptions::default())
}

pub fn decode_with(bytes: Vec<u8>, options: &DecodeOptions) -> Result<Decoded, AudioError> {
    AudioStream::open(bytes, options)?.read_all()
}

pub fn strict() -> DecodeOptions {
    DecodeOptions { strict: true, ..DecodeOptions::default() }
}

/// The reference: 2 s of speech at 16 kHz.
pub fn reference() -> Vec<f32> {
    decode(fixture("speech.flac")).expect("the reference decodes").samples
}

/// Frequency `hertz` at `rate`, amplitude one half.
pub fn tone(hertz: f64, rate: u32, samples: usize) -> Vec<f32> {
    let step = std::f64::consts::TAU * hertz / f64::from(rate);
    (0..samples).map(|i| (0.5 * (step * i as f64).sin()) as f32).collect()
}

pub fn s16(samples: &[f32]) -> Vec<u8> {
    samples.iter().flat_map(|x| ((x * 32_767.0).round() as i16).to_le_bytes()).collect()
}

pub fn rms(samples: &[f32]) -> f64 {
    (samples.iter().map(|x| f64::from(x * x)).sum::<f64>() / samples.len().max(1) as f64).sqrt()
}

/// A chunk of a RIFF file, with its padding byte.
pub fn chunk(id: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let mut out = id.to_vec();
    out.extend((data.len() as u32).to_le_bytes());
    out.extend(data);
    if data.len() % 2 == 1 {
        out.push(0);
    }
    out
}

/// A `fmt ` chunk's data.
pub fn format(tag: u16, channels: u16, rate: u32, bits: u16) -> Vec<u8> {
    let block = channels * bits.div_ceil(8);
    let mut out = Vec::new();
    out.extend(tag.to_le_bytes());
    out.extend(channels.to_le_bytes());
    out.extend(rate.to_le_bytes());
    out.extend((rate * u32::from(block)).to_le_bytes());
    out.extend(block.to_le_bytes());
    out.extend(bits.to_le_bytes());
    out
}

/// A RIFF WAVE file of these chunks.
pub fn riff(chunks: &[Vec<u8>]) -> Vec<u8> {
    let body = chunks.concat();
    let mut out = b"RIFF".to_vec();
    out.extend((body.len() as u32 + 4).to_le_bytes());
    out.extend(b"WAVE");
    out.extend(body);
    out
}

/// A plain WAV file.
pub fn wav(tag: u16, channels: u16, rate: u32, bits: u16, data: &[u8]) -> Vec<u8> {
    riff(&[chunk(b"fmt ", &format(tag, channels, rate, bits)), chunk(b"data", data)])
}

/// How far `b` lags behind `a` in samples (within ±`reach`), and how alike they are there (1: the same shape).
pub fn lag(a: &[f32], b: &[f32], reach: usize) -> (i64, f64) {
    let energy = |x: &[f32]| x.iter().map(|x| f64::from(x * x)).sum::<f64>();
    let product = |a: &[f32], b: &[f32]| {
        let n = a.len().min(b.len());
        let mut sums = [0f32; 16];
        for (a, b) in a[..n].chunks_exact(16).zip(b[..n].chunks_exact(16)) {
            for ((s, a), b) in sums.iter_mut().zip(a).zip(b) {
                *s += a * b;
            }
        }
        f64::from(sums.iter().sum::<f32>())
    };
    let best = (-(reach as i64)..=reach as i64)
        .map(|shift| {
            let p = if shift >= 0 {
                product(a, b.get(shift as usize..).unwrap_or_default())
            } else {
                product(&a[(-shift) as usize..], b)
            };
            (shift, p)
        })
        .max_by(|x, y| x.1.total_cmp(&y.1))
        .expect("not empty");
    (best.0, best.1 / (energy(a) * energy(b)).sqrt())
}

/// Asserts that `decoded` holds the reference between `from` and `to` seconds, at the same time to `tolerance` s.
pub fn assert_speech_in_place(what: &str, decoded: &[f32], from: f64, to: f64, tolerance: f64) {
    let cut = |x: &[f32]| {
        let at = |s: f64| ((s * 16_000.0) as usize).min(x.len());
        x[at(from)..at(to)].to_vec()
    };
    let (lag, likeness) = lag(&cut(&reference()), &cut(decoded), 1_600);
    let off = lag as f64 / 16_000.0;
    println!("{what}: {from}–{to} s: {:.2} ms off, likeness {likeness:.3}", off * 1e3);
    assert!(likeness > 0.85, "{what}: likeness {likeness}");
    assert!(off.abs() <= tolerance, "{what}: {off} s off");
}
