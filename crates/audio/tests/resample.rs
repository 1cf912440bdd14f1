//! What the resampler lets through, what it keeps out, and that times hold.

mod common;

use common::*;
use wnw_audio::{AudioStream, DecodeOptions};

fn resampled(samples: &[f32], rate: u32) -> Vec<f32> {
    let data: Vec<u8> = samples.iter().flat_map(|x| x.to_le_bytes()).collect();
    decode(wav(3, 1, rate, 32, &data)).expect("decodes").samples
}

/// Level in dB of a tone after resampling to 16 kHz, against its level before. The first and last 0.1 s, where the
/// tone starts and stops abruptly, are left out.
fn gain(hertz: f64, rate: u32) -> f64 {
    let before = tone(hertz, rate, rate as usize);
    let after = resampled(&before, rate);
    20.0 * (rms(&after[1_600..14_400]) / rms(&before)).log10()
}

#[test]
fn what_would_alias_is_80_db_down() {
    for (hertz, rate) in [
        (10_000.0, 48_000),
        (8_400.0, 48_000),
        (12_000.0, 48_000),
        (16_000.0, 48_000),
        (23_000.0, 48_000),
        (10_000.0, 44_100),
        (8_400.0, 44_100),
        (10_000.0, 22_050),
        (8_800.0, 22_050),
        (10_000.0, 96_000),
        (40_000.0, 96_000),
        (10_000.0, 32_000),
        (11_000.0, 24_000),
        (50_000.0, 192_000),
    ] {
        let gain = gain(hertz, rate);
        println!("{hertz} Hz at {rate} Hz: {gain:.1} dB");
        assert!(gain < -80.0, "{hertz} Hz at {rate} Hz: {gain:.1} dB");
    }
}

#[test]
fn what_is_wanted_passes_unchanged() {
    for rate in
        [8_000, 11_025, 12_000, 22_050, 24_000, 32_000, 44_100, 48_000, 88_200, 96_000, 192_000, 44_099]
    {
        // The pass-band ends below half the lower rate.
        let top = if rate < 16_000 { f64::from(rate) * 0.45 } else { 7_200.0 };
        for hertz in [100.0, 440.0, 1_000.0, 3_000.0, top] {
            let gain = gain(hertz, rate);
            assert!(gain.abs() < 0.05, "{hertz} Hz at {rate} Hz: {gain:.3} dB");
        }
    }
}

/// Upsampling makes no mirror image above the old band.
#[test]
fn no_images_when_upsampling() {
    let audio = resampled(&tone(3_000.0, 8_000, 8_000), 8_000);
    let expected = tone(3_000.0, 16_000, 16_000);
    let error: Vec<f32> = audio.iter().zip(&expected).map(|(a, b)| a - b).collect();
    let db = 20.0 * (rms(&error[1_600..14_400]) / rms(&expected)).log10();
    assert!(db < -80.0, "{db:.1} dB");
}

/// The filter's delay is taken out: every sample is the signal at its own time.
#[test]
fn times_hold_at_every_rate() {
    for rate in [8_000, 11_025, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 44_099, 16_001] {
        let got = resampled(&tone(440.0, rate, rate as usize * 2), rate);
        let expected = tone(440.0, 16_000, got.len());
        let worst = (1_600..got.len() - 1_600).map(|i| (got[i] - expected[i]).abs()).fold(0.0, f32::max);
        // Half a sample late would be 0.04.
        assert!(worst < 1e-3, "{rate} Hz: {worst}");
    }
}

#[test]
fn lengths_are_exact() {
    for rate in
        [8_000u64, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 44_099, 384_000]
    {
        for n in [1u64, 2, 100, 441, 4_096, 10_007, 48_000] {
            let expected = ((n * 16_000) as f64 / rate as f64).round() as usize;
            let data = vec![0u8; n as usize * 2];
            let got = decode(wav(1, 1, rate as u32, 16, &data)).map_or(0, |d| d.samples.len());
            assert!(got.abs_diff(expected) <= 1, "{n} samples at {rate} Hz: {got}, not {expected}");
        }
    }
}

/// A quarter of an hour of 48 kHz stereo, 173 MB, streams through a few MB.
#[cfg(target_os = "linux")]
#[test]
fn memory_does_not_grow_with_the_recording() {
    let path = std::env::temp_dir().join(format!("wnw-audio-long-{}.wav", std::process::id()));
    let bytes = 900u64 * 48_000 * 4;
    let mut header = wav(1, 2, 48_000, 16, &[]);
    header[40..44].copy_from_slice(&(bytes as u32).to_le_bytes());
    std::fs::write(&path, header).expect("writes");
    // A file with a hole: it reads as zeros and takes no space.
    std::fs::OpenOptions::new().write(true).open(&path).and_then(|f| f.set_len(44 + bytes)).expect("grows");
    let mut stream = AudioStream::open(path.as_path(), &DecodeOptions::default()).expect("opens");
    std::fs::remove_file(&path).expect("removed");
    stream.next_block().expect("decodes");
    let before = resident();
    let (mut blocks, mut largest) = (0, 0);
    let start = std::time::Instant::now();
    while let Some(block) = stream.next_block().expect("decodes") {
        blocks += 1;
        largest = largest.max(block.len());
    }
    let grown = resident().saturating_sub(before);
    println!(
        "{blocks} blocks, the largest {largest}, {grown} kB more, {:.1} s",
        start.elapsed().as_secs_f64()
    );
    assert!((stream.position() - 900.0).abs() < 1e-3);
    assert!(largest < 40_000 && grown < 8_000, "{largest} samples, {grown} kB");
}

/// Resident memory of this process in kB.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|l| l.starts_with("VmRSS")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("number")
}
