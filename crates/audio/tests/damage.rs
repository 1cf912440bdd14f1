//! Damaged recordings: what can be decoded is, times hold, and one warning tells the loss.

mod common;

use common::*;
use wnw_audio::{AudioError, AudioWarning, DecodeOptions};

/// The lost seconds of the only warning, which has to be a `Corrupt` one that starts near `at`.
fn only_loss(what: &str, warnings: &[AudioWarning], at: f64) -> f64 {
    match warnings {
        [warning @ AudioWarning::Corrupt { at: start, lost, .. }] => {
            println!("{what}: {warning}");
            assert!((start - at).abs() < 0.5, "{what}: {warning}");
            *lost
        }
        other => panic!("{what}: {other:?}"),
    }
}

fn garbage(bytes: &mut [u8]) {
    let mut state = 1u32;
    for b in bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *b = (state >> 24) as u8;
    }
}

/// Row 25: a file that is corrupt in the middle neither aborts nor stops early nor shifts what follows.
#[test]
fn row_25_mp3_with_garbage_in_the_middle() {
    for name in ["cbr.mp3", "vbr.mp3", "mono.mp3", "layer2.mp2", "adts.aac"] {
        let mut bytes = fixture(name);
        let seconds = decode(bytes.clone()).expect("decodes").samples.len();
        let len = bytes.len();
        garbage(&mut bytes[len * 48 / 100..len * 55 / 100]);
        let decoded = decode(bytes.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let lost = only_loss(name, &decoded.warnings, 1.0);
        assert!((0.1..0.4).contains(&lost), "{name}: {lost} s lost");
        let slack = if name == "vbr.mp3" { 0.08 } else { 0.06 };
        assert_speech_in_place(name, &decoded.samples, 1.3, 2.0, slack);
        let off = decoded.samples.len().abs_diff(seconds);
        assert!(off < 1_000, "{name}: {off} samples longer or shorter");
        let error = decode_with(bytes, &strict()).expect_err("strict");
        assert!(matches!(error, AudioError::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("damaged at 0:0"), "{error}");
    }
}

#[test]
fn row_25_flac_with_garbage_in_the_middle() {
    for name in ["speech.flac", "flac.oga", "flac.mkv", "vorbis.ogg", "opus.opus"] {
        let clean = decode(fixture(name)).expect("decodes").samples;
        let mut bytes = fixture(name);
        let len = bytes.len();
        garbage(&mut bytes[len / 2..len / 2 + 200]);
        let decoded = decode(bytes.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
        if name == "flac.mkv" {
            // Only the block's data is hit.
            assert!(!decoded.warnings.is_empty(), "{name}");
        } else {
            let lost = only_loss(name, &decoded.warnings, 1.0);
            assert!((0.01..1.2).contains(&lost), "{name}: {lost} s lost");
        }
        assert_eq!(decoded.samples.len(), clean.len(), "{name}");
        assert_speech_in_place(name, &decoded.samples, 1.6, 2.0, 0.001);
        assert!(matches!(decode_with(bytes, &strict()), Err(AudioError::Corrupt { .. })), "{name}");
    }
}

/// Row 25: cut off at the end.
#[test]
fn row_25_cut_off_files_give_what_is_there() {
    for name in [
        "speech.flac",
        "cbr.mp3",
        "adts.aac",
        "moov_first.mov",
        "vorbis.ogg",
        "opus.opus",
        "opus.webm",
        "vorbis.webm",
        "alaw.wav",
        "ulaw.aifc",
        "ulaw.caf",
        "fragmented.mp4",
        "video_and_audio.mp4",
    ] {
        let mut bytes = fixture(name);
        bytes.truncate(bytes.len() * 7 / 10);
        let decoded = match decode(bytes.clone()) {
            Err(AudioError::Corrupt { reason, .. }) if name == "video_and_audio.mp4" => {
                assert!(reason.contains("moov"), "{reason}");
                continue;
            }
            other => other.unwrap_or_else(|e| panic!("{name}: {e}")),
        };
        let seconds = decoded.samples.len() as f64 / 16_000.0;
        assert!((1.0..1.8).contains(&seconds), "{name}: {seconds} s");
        assert_speech_in_place(name, &decoded.samples, 0.0, 1.0, 0.06);
        println!("{name}: {seconds:.2} s, {:?}", decoded.warnings);
        // Cut between two fragments, nothing shows it.
        assert!(name == "fragmented.mp4" || !decoded.warnings.is_empty(), "{name}");
    }
}

/// A bare stream of frames states no length, but its last frame does.
#[test]
fn a_stream_that_breaks_off_within_a_frame_says_so() {
    for name in ["adts.aac", "layer2.mp2"] {
        let mut bytes = fixture(name);
        bytes.truncate(bytes.len() - 20);
        let decoded = decode(bytes.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
        match decoded.warnings.as_slice() {
            [AudioWarning::Truncated { at }] => assert!((1.9..2.1).contains(at), "{name}: {at}"),
            other => panic!("{name}: {other:?}"),
        }
        assert!(matches!(decode_with(bytes, &strict()), Err(AudioError::Corrupt { .. })), "{name}");
    }
}

/// A recording that was not finished has no index; that is said, not "invalid data".
#[test]
fn mp4_without_its_index_says_so() {
    let mut bytes = fixture("moov_last.m4a");
    bytes.truncate(bytes.len() * 8 / 10);
    let error = decode(bytes).expect_err("no moov").to_string();
    assert!(error.contains("index (moov) is missing"), "{error}");
}

/// Row 32, Symphonia#124: the channel mode changes within a stream.
#[test]
fn row_32_mono_to_stereo_within_a_stream() {
    let both = [fixture("mono.mp3"), fixture("cbr.mp3"), fixture("mono.mp3")].concat();
    let decoded = decode(both).expect("decodes");
    let seconds = decoded.samples.len() as f64 / 16_000.0;
    assert!((6.0..6.2).contains(&seconds), "{seconds}");
    println!("{:?}", decoded.warnings);
    assert!(
        decoded.warnings.iter().all(|w| matches!(w, AudioWarning::Duration { .. })),
        "{:?}",
        decoded.warnings
    );
    for i in 0..3 {
        let at = i * (decoded.samples.len() - 32_000) / 2;
        assert_speech_in_place("concatenated", &decoded.samples[at..], 0.0, 1.9, 0.06);
    }
}

/// Row 32, Symphonia#540: VBR MP3 decoded to nothing.
#[test]
fn row_32_vbr_mp3_is_not_empty() {
    for name in ["vbr.mp3", "vbr_no_xing.mp3"] {
        assert!(rms(&decode(fixture(name)).expect("decodes").samples) > 0.04, "{name}");
    }
}

/// Row 32, Symphonia#529: frames that fail may not shift what follows.
#[test]
fn row_32_single_bad_frames_do_not_shift_time() {
    let clean = decode(fixture("opus.webm")).expect("decodes").samples;
    let mut bytes = fixture("opus.webm");
    // Make some Opus packets invalid: an impossible frame count after the table-of-contents byte.
    let blocks: Vec<usize> =
        bytes.windows(4).enumerate().filter(|(_, w)| w[0] == 0xA3 && w[2] == 0x81).map(|(i, _)| i).collect();
    assert!(blocks.len() > 50, "{} blocks", blocks.len());
    for i in &blocks[40..43] {
        bytes[i + 6] |= 3;
        bytes[i + 7] = 0;
    }
    let decoded = decode(bytes).expect("decodes");
    let lost = only_loss("opus.webm", &decoded.warnings, 0.8);
    assert!((0.05..0.07).contains(&lost), "{lost}");
    assert!(decoded.samples.len().abs_diff(clean.len()) <= 16);
    assert_speech_in_place("opus.webm", &decoded.samples, 1.0, 2.0, 0.001);
}

/// A chained Ogg stream: another recording follows in the same file, at another rate.
#[test]
fn chained_ogg() {
    let chained = [fixture("vorbis.ogg"), fixture("opus.opus"), fixture("flac.oga")].concat();
    let decoded = decode(chained).expect("decodes");
    assert!(decoded.samples.len().abs_diff(96_000) < 3, "{}", decoded.samples.len());
    for i in 0..3 {
        assert_speech_in_place("chained", &decoded.samples[i * 32_000..], 0.0, 2.0, 0.001);
    }
    assert_eq!(decoded.warnings, []);
}

/// A lost page in the middle of an Ogg file, as a radio stream loses them.
#[test]
fn a_missing_ogg_page_leaves_silence_of_its_length() {
    for name in ["opus.opus", "flac.oga"] {
        let bytes = fixture(name);
        let pages: Vec<usize> =
            bytes.windows(4).enumerate().filter(|(_, w)| w == b"OggS").map(|(i, _)| i).collect();
        let gone = pages.len() / 2;
        let cut = [&bytes[..pages[gone]], &bytes[pages[gone + 1]..]].concat();
        let decoded = decode(cut).expect("decodes");
        let clean = decode(bytes).expect("decodes").samples;
        let lost = only_loss(name, &decoded.warnings, 1.0);
        assert!(lost > 0.05, "{lost}");
        assert_eq!(decoded.samples.len(), clean.len());
        // After the hole every sample is where it was.
        let after = 31_000;
        let (off, likeness) = lag(&clean[after..], &decoded.samples[after..], 200);
        assert!(off == 0 && likeness > 0.99, "{name}: {off} {likeness}");
    }
}

#[test]
fn tags_and_junk_around_frames_are_no_damage() {
    let mut id3 = b"ID3\x04\0\0\0\0\x01\x00".to_vec();
    id3.extend([b'x'; 128]);
    let mut tag = b"TAG".to_vec();
    tag.extend([b' '; 125]);
    for name in ["cbr.mp3", "adts.aac"] {
        let plain = decode(fixture(name)).expect("decodes").samples;
        let tagged = [id3.clone(), id3.clone(), fixture(name), tag.clone()].concat();
        let decoded = decode(tagged).expect("decodes");
        assert!(decoded.samples == plain && decoded.warnings.is_empty(), "{name}: {:?}", decoded.warnings);
        // Broken tags leave junk before the first frame, and recorders zeros behind the last.
        let junk = [vec![0x55; 3_000], fixture(name), vec![0; 5_000]].concat();
        let decoded = decode(junk).expect("decodes");
        assert!(decoded.samples == plain && decoded.warnings.is_empty(), "{name}: {:?}", decoded.warnings);
        let trailing = [fixture(name), b"<html>not found</html>".repeat(100)].concat();
        let decoded = decode(trailing).expect("decodes");
        assert_eq!(decoded.warnings, [AudioWarning::TrailingJunk { bytes: 2_200 }], "{name}");
    }
    let flac = [id3, fixture("speech.flac")].concat();
    assert!(decode(flac).expect("decodes").samples == reference());
}

#[test]
fn a_wrong_duration_is_told() {
    let mut bytes = fixture("alaw.wav");
    bytes.truncate(bytes.len() - 4_000);
    let decoded = decode(bytes.clone()).expect("decodes");
    match decoded.warnings.as_slice() {
        [warning @ AudioWarning::Duration { decoded, declared }] => {
            assert!((declared - 2.0).abs() < 0.01 && (decoded - 1.5).abs() < 0.01);
            assert_eq!(warning.to_string(), "0:01.5 decoded, but the file says it lasts 0:02.0");
        }
        other => panic!("{other:?}"),
    }
    assert!(decode_with(bytes, &strict()).is_err());
}

/// Limits hold for what is decoded, not for what a header says.
#[test]
fn max_duration_counts_decoded_audio() {
    let options = DecodeOptions {
        max_duration: Some(std::time::Duration::from_millis(1_500)),
        ..DecodeOptions::default()
    };
    for name in ["speech.flac", "cbr.mp3", "opus.webm", "alaw.wav"] {
        match decode_with(fixture(name), &options) {
            Err(error @ AudioError::TooLong { .. }) => assert!(error.to_string().contains("limit of 2 s")),
            other => panic!("{name}: {:?}", other.map(|d| d.samples.len())),
        }
    }
    let enough = DecodeOptions { max_duration: Some(std::time::Duration::from_secs(3)), ..options };
    assert!(decode_with(fixture("cbr.mp3"), &enough).is_ok());
}
