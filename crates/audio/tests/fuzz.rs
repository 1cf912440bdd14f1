//! Forged, damaged and random input: an answer or an error, never a panic, a hang, or a large allocation.

mod common;

use std::time::{Duration, Instant};

use common::*;
use proptest::prelude::*;
use wnw_audio::{AudioError, DecodeOptions};

const FILES: &[&str] = &[
    "speech.flac",
    "flac.oga",
    "flac.mkv",
    "alac.m4a",
    "alac.caf",
    "ulaw.caf",
    "ulaw.aifc",
    "alaw.wav",
    "ms.wav",
    "ima.wav",
    "mp3.wav",
    "cbr.mp3",
    "vbr.mp3",
    "layer2.mp2",
    "adts.aac",
    "moov_last.m4a",
    "moov_first.mov",
    "video_and_audio.mp4",
    "fragmented.mp4",
    "opus.mp4",
    "aac.mkv",
    "vorbis.webm",
    "opus.webm",
    "vorbis.ogg",
    "opus.opus",
    "video_only.mp4",
    "video_only.mkv",
    "ac3.mkv",
    "speex.ogg",
    "wma.wma",
];

/// Decodes within bounds. A panic inside a decoder is caught by the crate and is an error like others; it is shown,
/// for it is worth a report to that decoder.
fn survives(bytes: Vec<u8>) {
    let options = DecodeOptions { max_duration: Some(Duration::from_secs(120)), ..DecodeOptions::default() };
    let start = Instant::now();
    match decode_with(bytes, &options) {
        Ok(decoded) => {
            assert!(!decoded.samples.is_empty());
            assert!(decoded.samples.iter().all(|x| x.is_finite()), "not finite");
            assert!(decoded.samples.len() <= 122 * 16_000);
        }
        Err(AudioError::DecoderPanic { message, .. }) => println!("caught: {message}"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    assert!(start.elapsed() < Duration::from_secs(20), "took {:?}", start.elapsed());
}

fn config(cases: u32) -> ProptestConfig {
    // The same cases at every run, so that a failure is a failure of the change at hand.
    let rng_seed = proptest::test_runner::RngSeed::Fixed(1);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(400))]
    #[test]
    fn flipped_bits(file in 0..FILES.len(), flips in prop::collection::vec((any::<u32>(), 0u8..8), 1..12)) {
        let mut bytes = fixture(FILES[file]);
        for (at, bit) in flips {
            let at = at as usize % bytes.len();
            bytes[at] ^= 1 << bit;
        }
        survives(bytes);
    }

    #[test]
    fn flipped_bits_in_headers(file in 0..FILES.len(), flips in prop::collection::vec((0usize..512, any::<u8>()), 1..6)) {
        let mut bytes = fixture(FILES[file]);
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        survives(bytes);
    }

    #[test]
    fn cut_short(file in 0..FILES.len(), keep in 0.0f64..1.0) {
        let mut bytes = fixture(FILES[file]);
        bytes.truncate((bytes.len() as f64 * keep) as usize);
        survives(bytes);
    }

    #[test]
    fn pieces_left_out_or_doubled(file in 0..FILES.len(), from in 0.0f64..1.0, len in 1usize..5_000, double in any::<bool>()) {
        let mut bytes = fixture(FILES[file]);
        let from = (bytes.len() as f64 * from) as usize;
        let to = (from + len).min(bytes.len());
        let piece: Vec<u8> = bytes.splice(from..to, []).collect();
        if double {
            let twice = [piece.clone(), piece].concat();
            bytes.splice(from..from, twice);
        }
        survives(bytes);
    }

    #[test]
    fn random_bytes_after_a_magic_number(
        magic in prop::sample::select(vec![
            &b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0"[..], b"FORM\0\0\xff\0AIFCCOMM\0\0\0\x16", b"caff\0\x01\0\0desc\0\0\0\0\0\0\0\x20",
            b"fLaC\0\0\0\x22", b"OggS\0\x02", b"\x1aE\xdf\xa3", b"\0\0\0\x18ftypisom", b"\0\0\x10\0moov", b"ID3\x04\0\0\0\0\0\0",
            b"\xff\xfb\x90\x64", b"\xff\xf1\x50\x80", b"",
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..4_000),
    ) {
        survives([magic, &rest].concat());
    }
}
