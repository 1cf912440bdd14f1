//! Log-mel frames against transformers' feature extractor (tools/goldens/mel.py).

use std::time::Instant;

use wnw_audio::{LogMel, MelError};

/// The generator of tools/goldens/mel.py.
fn lcg(n: usize) -> impl Iterator<Item = u32> {
    let mut state = 12_345u32;
    (0..n).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    })
}

fn noise(n: usize) -> Vec<f32> {
    lcg(n).map(|x| ((x >> 16) as i32 - 32_768) as f32 / 65_536.0).collect()
}

fn voice(n: usize) -> Vec<f32> {
    lcg(n)
        .enumerate()
        .map(|(i, x)| {
            let segment = i as i32 / 3_200;
            let phase = (i as i32 % 3_200) % (80 + (segment * 37) % 120);
            let pulse = if phase < 24 { 24 * 24 - (phase - 12) * (phase - 12) * 4 } else { 0 };
            let loud = if segment % 5 == 4 { 0 } else { 8 + (segment * 13) % 24 };
            let hiss = (x >> 24) as i32 - 128;
            (pulse * loud + hiss * if segment % 7 == 3 { 16 } else { 1 }) as f32 / 32_768.0
        })
        .collect()
}

struct Golden<'a>(&'a [u8]);

impl Golden<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_first_chunk().expect("golden file is complete");
        self.0 = rest;
        *head
    }

    fn u32(&mut self) -> usize {
        u32::from_le_bytes(self.bytes()) as usize
    }
}

#[test]
fn frames_equal_the_reference() {
    let mut golden = Golden(include_bytes!("goldens/mel.bin"));
    assert_eq!(&golden.bytes(), b"MEL1");
    let transforms = [LogMel::voxtral(), LogMel::qwen2_5_omni()];
    for _ in 0..golden.u32() {
        let [family, signal] = golden.bytes();
        let (samples, frames, kept) = (golden.u32(), golden.u32(), golden.u32());
        let audio = [noise, voice, |n| vec![0.0; n]][usize::from(signal)](samples);
        let mel = transforms[usize::from(family)].compute(&audio).expect("not empty");
        let indices: Vec<usize> = (0..kept).map(|_| golden.u32()).collect();
        assert_eq!((mel.n_mels, mel.n_frames), (128, frames));
        let mut worst = 0f32;
        for index in indices {
            for band in 0..128 {
                let expected = f32::from_le_bytes(golden.bytes());
                worst = worst.max((mel.data[band * frames + index] - expected).abs());
            }
        }
        println!(
            "family {family} signal {signal} {:>7.2} s: max difference {worst:.1e}",
            samples as f64 / 16_000.0
        );
        assert!(worst <= 1e-4, "family {family}, signal {signal}, {samples} samples: {worst}");
    }
    assert!(golden.0.is_empty());
}

#[test]
fn four_minutes_take_well_under_a_second() {
    let audio = voice(240 * 16_000);
    let start = Instant::now();
    let mel = LogMel::voxtral().compute(&audio).expect("not empty");
    let seconds = start.elapsed().as_secs_f64();
    println!("4 minutes in {seconds:.3} s");
    assert_eq!(mel.n_frames, 24_000);
    // Measured 0.15 s on one core of a 2023 server; the bound leaves room for a busy machine.
    assert!(seconds < 2.0, "{seconds} s");
}

#[test]
fn lengths_and_limits() {
    let (voxtral, qwen) = (LogMel::voxtral(), LogMel::qwen2_5_omni());
    assert_eq!(voxtral.compute(&[]), Err(MelError::Empty));
    assert_eq!(qwen.compute(&[]), Err(MelError::Empty));
    let error = qwen.compute(&vec![0.0; 4_800_001]);
    assert_eq!(error, Err(MelError::TooLong { samples: 4_800_001, limit: 4_800_000 }));
    assert_eq!((voxtral.frames(480_001), qwen.frames(161)), (6_000, 2));
    assert_eq!(qwen.compute(&vec![0.1; 4_800_000]).map(|m| m.n_frames), Ok(30_000));
}

/// The floor is relative to the loudest value of all chunks together, not of each.
#[test]
fn loud_and_quiet_chunks_share_one_floor() {
    let mut audio = noise(960_000);
    audio[480_000..].iter_mut().for_each(|x| *x *= 1e-6);
    let mel = LogMel::voxtral().compute(&audio).expect("not empty");
    let loudest = mel.data.iter().copied().fold(f32::MIN, f32::max);
    assert!(mel.data.iter().all(|x| *x >= loudest - 2.0 - 1e-6));
    let quiet: f32 = mel.data[4_000..6_000].iter().copied().fold(f32::MIN, f32::max);
    assert!((quiet - (loudest - 2.0)).abs() < 1e-6);
}

/// Frames behind the last one that is returned may fill a block alone: every length modulo block and hop.
#[test]
fn every_length_of_a_few_seconds_has_its_frames() {
    let samples = noise(7_600);
    let mel = LogMel::qwen2_5_omni();
    for n in (1..200).chain(2_300..2_500).chain((4_900..7_600).step_by(40)) {
        let got = mel.compute(&samples[..n]).unwrap();
        assert_eq!(
            (got.n_frames, got.data.len()),
            (mel.frames(n), got.n_mels * mel.frames(n)),
            "{n} samples"
        );
    }
}
