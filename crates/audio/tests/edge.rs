//! Inputs at the edge: nothing, next to nothing, silence, noise, and files that are no audio.

mod common;

use common::*;
use wnw_audio::{AudioError, AudioStream, DecodeOptions, PcmFormat, Source};

#[test]
fn nothing_at_all_is_empty() {
    match decode(Vec::new()) {
        Err(error @ AudioError::Empty { .. }) => {
            assert!(error.to_string().contains("empty (0 bytes)"), "{error}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_header_alone_is_empty() {
    let bare = wav(1, 1, 16_000, 16, &[]);
    assert_eq!(bare.len(), 44);
    let (aiff, caf) = (fixture("ulaw.aifc"), fixture("ulaw.caf"));
    let ssnd = aiff.windows(4).position(|w| w == b"SSND").expect("sound chunk");
    let data = caf.windows(4).position(|w| w == b"data").expect("data chunk");
    for bytes in [bare, aiff[..ssnd].to_vec(), caf[..data].to_vec()] {
        match decode(bytes) {
            Err(error @ AudioError::Empty { .. }) => {
                assert!(error.to_string().contains("holds no audio samples"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Row 31: a recording may be as short as it likes.
#[test]
fn row_31_short_recordings() {
    for (samples, expected) in [(1, 1), (160, 160), (1_600, 1_600), (8_000, 8_000)] {
        let decoded = decode(wav(1, 1, 16_000, 16, &s16(&tone(440.0, 16_000, samples)))).expect("decodes");
        assert_eq!(decoded.samples.len(), expected);
        assert_eq!(decoded.warnings, []);
    }
    // One sample at 48 kHz is a third of one at 16 kHz: it rounds to none, and none is empty.
    for (samples, expected) in [(2, 1), (3, 1), (480, 160), (4_801, 1_600)] {
        let decoded = decode(wav(1, 1, 48_000, 16, &s16(&tone(440.0, 48_000, samples)))).expect("decodes");
        assert_eq!(decoded.samples.len(), expected, "{samples}");
    }
}

/// Row 23: silence, noise, touch tones decode like anything else.
#[test]
fn row_23_silence_noise_and_tones() {
    let silence = decode(wav(1, 2, 44_100, 16, &vec![0; 44_100 * 4])).expect("decodes");
    assert_eq!(silence.samples, vec![0.0; 16_000]);
    let mut state = 1u32;
    let noise: Vec<f32> = (0..16_000)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as f32 / 65_536.0 - 0.5
        })
        .collect();
    let dtmf: Vec<f32> = tone(697.0, 16_000, 16_000)
        .iter()
        .zip(tone(1_209.0, 16_000, 16_000))
        .map(|(a, b)| (a + b) / 2.0)
        .collect();
    for audio in [noise, dtmf] {
        let decoded = decode(wav(1, 1, 16_000, 16, &s16(&audio))).expect("decodes");
        assert!(decoded.samples.iter().zip(&audio).all(|(a, b)| (a - b).abs() < 1e-4));
        assert_eq!(decoded.warnings, []);
    }
}

/// Row 24: video without sound.
#[test]
fn row_24_no_audio_track() {
    for name in ["video_only.mp4", "video_only.mkv"] {
        match AudioStream::open(path(name).as_path(), &DecodeOptions::default()) {
            Err(error @ AudioError::NoAudioTrack { .. }) => {
                let text = error.to_string();
                assert!(text.contains(name) && text.contains("has no audio track"), "{text}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// Row 26: what is no audio is told with a reason, at once.
#[test]
fn row_26_other_files_have_a_reason() {
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x10\0\0\0\x10\x08\x06".repeat(40);
    for (bytes, reason) in [
        (b"To be, or not to be, that is the question:\n".repeat(2_000), "text"),
        (b"{\"error\": \"not found\"}".to_vec(), "text"),
        (b"<!DOCTYPE html><html></html>".to_vec(), "HTML"),
        (png, "PNG"),
        (b"PK\x03\x04\x14\0\0\0\x08\0".repeat(50), "ZIP"),
        (b"%PDF-1.7 ".to_vec(), "PDF"),
        (vec![0; 100_000], "starts with 00 00"),
        (vec![0xFF; 100_000], "starts with ff ff"),
        (vec![7], "starts with 07"),
    ] {
        match decode(bytes) {
            Err(error @ AudioError::UnknownFormat { .. }) => {
                let text = error.to_string();
                assert!(text.contains(reason) && text.contains("--pcm s16le:16000:1"), "{text}");
            }
            other => panic!("{reason}: {:?}", other.map(|d| d.info)),
        }
    }
}

#[test]
fn paths_that_are_no_files() {
    let missing = AudioStream::open(std::path::Path::new("/nonexistent/talk.mp3"), &DecodeOptions::default());
    assert!(matches!(missing, Err(AudioError::NotFound { name }) if name.ends_with("talk.mp3")));
    let directory = AudioStream::open(std::env::temp_dir().as_path(), &DecodeOptions::default());
    assert!(matches!(directory, Err(AudioError::Directory { .. })));
}

/// Row 27: raw samples.
#[test]
fn row_27_raw_samples() {
    let audio = tone(440.0, 8_000, 8_000);
    let stereo: Vec<f32> = audio.iter().flat_map(|x| [*x, *x]).collect();
    let floats: Vec<u8> = stereo.iter().flat_map(|x| x.to_le_bytes()).collect();
    for (bytes, format) in [(s16(&stereo), "s16le:8000:2"), (floats, "f32le:8000:2")] {
        let pcm: PcmFormat = format.parse().expect("valid");
        let options = DecodeOptions { pcm: Some(pcm), ..DecodeOptions::default() };
        let decoded = decode_with(bytes, &options).expect("decodes");
        assert_eq!((decoded.samples.len(), decoded.info.channels), (16_000, 2));
        let expected = tone(440.0, 16_000, 16_000);
        let worst = (1_000..15_000).map(|i| (decoded.samples[i] - expected[i]).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-3, "{format}: {worst}");
    }
}

/// Row 42: a forged header may not make us allocate or compute for hours.
#[test]
fn forged_headers_are_refused() {
    for (rate, channels) in [(655_350, 8), (u32::MAX, 1), (44_100, u16::MAX), (16_000, 65)] {
        let mut bytes = wav(1, 2, 16_000, 16, &[0; 64]);
        bytes[22..24].copy_from_slice(&channels.to_le_bytes());
        bytes[24..28].copy_from_slice(&rate.to_le_bytes());
        match decode(bytes) {
            Err(error @ AudioError::Limit { .. }) => println!("{error}"),
            other => panic!("{rate} {channels}: {other:?}"),
        }
    }
    for (rate, channels) in [(0u32, 1u16), (1, 1), (16_000, 0)] {
        let mut bytes = wav(1, 1, 16_000, 16, &[0; 64]);
        bytes[22..24].copy_from_slice(&channels.to_le_bytes());
        bytes[24..28].copy_from_slice(&rate.to_le_bytes());
        assert!(matches!(decode(bytes), Err(AudioError::Corrupt { .. })), "{rate} {channels}");
    }
}

#[test]
fn streams_can_move_between_threads() {
    let mut stream =
        AudioStream::open(Source::from(fixture("opus.opus")), &DecodeOptions::default()).expect("opens");
    let first = stream.next_block().expect("decodes").expect("not empty");
    let rest =
        std::thread::spawn(move || stream.read_all().expect("decodes").samples).join().expect("no panic");
    assert_eq!(first.len() + rest.len(), 32_000);
}

#[test]
fn decoding_is_deterministic() {
    for name in ["cbr.mp3", "vorbis.ogg", "moov_last.m4a"] {
        let runs = [decode(fixture(name)), decode(fixture(name))].map(|d| d.expect("decodes").samples);
        assert!(runs[0] == runs[1], "{name}");
    }
}
