//! Rows 27 and 29: WAV files as programs and pipes really write them.

mod common;

use common::*;
use wnw_audio::{AudioError, AudioWarning};

fn signal() -> Vec<f32> {
    tone(440.0, 16_000, 1_600)
}

#[track_caller]
fn assert_signal(bytes: Vec<u8>, precision: f32) {
    let decoded = decode(bytes).expect("decodes");
    assert_eq!(decoded.samples.len(), 1_600);
    for (x, y) in decoded.samples.iter().zip(signal()) {
        assert!((x - y).abs() <= precision, "{x} instead of {y}");
    }
    assert_eq!(decoded.warnings, []);
}

/// The signal in every sample format: tag, bits, data, precision.
fn encodings() -> Vec<(u16, u16, Vec<u8>, f32)> {
    let ints = |bits: u32| -> Vec<u8> {
        let scale = f64::from(1u32 << (bits - 1));
        signal()
            .iter()
            .flat_map(|x| {
                let value = (f64::from(*x) * scale).round() as i64;
                value.to_le_bytes()[..bits as usize / 8].to_vec()
            })
            .collect()
    };
    let u8s = signal().iter().map(|x| (x * 128.0 + 128.0).round() as u8).collect();
    vec![
        (1, 8, u8s, 0.005),
        (1, 16, ints(16), 1e-4),
        (1, 24, ints(24), 1e-6),
        (1, 32, ints(32), 1e-6),
        (3, 32, signal().iter().flat_map(|x| x.to_le_bytes()).collect(), 0.0),
        (3, 64, signal().iter().flat_map(|x| f64::from(*x).to_le_bytes()).collect(), 0.0),
    ]
}

#[test]
fn row_29_all_sample_formats_plain_and_extensible() {
    for (tag, bits, data, precision) in encodings() {
        assert_signal(wav(tag, 1, 16_000, bits, &data), precision);
        let mut format = format(0xFFFE, 1, 16_000, bits);
        format.extend([22, 0]);
        format.extend(bits.to_le_bytes());
        format.extend([4, 0, 0, 0]);
        format.extend(tag.to_le_bytes());
        format.extend(b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xAA\x00\x38\x9B\x71");
        assert_signal(riff(&[chunk(b"fmt ", &format), chunk(b"data", &data)]), precision);
    }
}

/// 24 valid bits in 4 bytes, left-justified.
#[test]
fn row_29_24_bits_in_4_bytes() {
    let data: Vec<u8> = signal()
        .iter()
        .flat_map(|x| (((f64::from(*x) * 8_388_608.0).round() as i32) << 8).to_le_bytes())
        .collect();
    let mut format = format(0xFFFE, 1, 16_000, 32);
    format.extend([22, 0, 24, 0, 4, 0, 0, 0]);
    format.extend(b"\x01\x00\x00\x00\x00\x00\x10\x00\x80\x00\x00\xAA\x00\x38\x9B\x71");
    assert_signal(riff(&[chunk(b"fmt ", &format), chunk(b"data", &data)]), 1e-6);
    // The same without EXTENSIBLE, stating 24 bits in frames of 4 bytes.
    let mut plain = common::format(1, 1, 16_000, 24);
    plain[12] = 4;
    assert_signal(riff(&[chunk(b"fmt ", &plain), chunk(b"data", &data)]), 1e-6);
}

#[test]
fn row_29_chunks_around_the_data() {
    let data = s16(&signal());
    let fmt = chunk(b"fmt ", &format(1, 1, 16_000, 16));
    let list = chunk(b"LIST", b"INFOISFT\x0e\0\0\0Lavf59.27.100\0");
    let junk = chunk(b"JUNK", &[0; 27]);
    let odd = chunk(b"bext", b"odd");
    let samples = chunk(b"data", &data);
    for chunks in [
        vec![list.clone(), fmt.clone(), samples.clone()],
        vec![junk.clone(), fmt.clone(), list.clone(), odd.clone(), samples.clone()],
        vec![fmt.clone(), odd.clone(), junk, samples.clone(), list.clone()],
        vec![fmt.clone(), chunk(b"fact", &[0; 4]), samples.clone(), odd.clone()],
    ] {
        assert_signal(riff(&chunks), 1e-4);
    }
    // A program that forgets the byte after an odd chunk.
    let mut unpadded = odd;
    unpadded.pop();
    assert_signal(riff(&[fmt.clone(), unpadded, samples.clone()]), 1e-4);
    // A format chunk of 18 and of 40 bytes.
    let mut long = format(1, 1, 16_000, 16);
    long.extend([0, 0]);
    assert_signal(riff(&[chunk(b"fmt ", &long), samples.clone()]), 1e-4);
    long.extend([0; 22]);
    assert_signal(riff(&[chunk(b"fmt ", &long), samples]), 1e-4);
}

/// Row 27: a pipe cannot go back to write the sizes.
#[test]
fn row_27_sizes_of_pipes() {
    for size in [0, u32::MAX, 0x7FFF_FFFF, 0x8000_0000, 0x7FFF_F000, u32::MAX - 8, u32::MAX - 44] {
        let mut bytes = wav(1, 1, 16_000, 16, &s16(&signal()));
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        bytes[40..44].copy_from_slice(&size.to_le_bytes());
        assert_signal(bytes, 1e-4);
    }
}

/// An honest size of 0 is followed by another chunk, which is no sound.
#[test]
fn row_27_an_empty_data_chunk_before_another() {
    let bytes = riff(&[
        chunk(b"fmt ", &format(1, 1, 16_000, 16)),
        chunk(b"data", &[]),
        chunk(b"LIST", b"INFOISFT\x0e\0\0\0Lavf59.27.100\0"),
    ]);
    assert!(matches!(decode(bytes), Err(AudioError::Empty { .. })));
}

#[test]
fn rf64_and_big_endian() {
    let data = s16(&signal());
    let mut ds64 = Vec::new();
    ds64.extend((data.len() as u64 + 100).to_le_bytes());
    ds64.extend((data.len() as u64).to_le_bytes());
    ds64.extend([0; 12]);
    let mut rf64 = riff(&[
        chunk(b"ds64", &ds64),
        chunk(b"fmt ", &format(1, 1, 16_000, 16)),
        chunk(b"data", &data),
        chunk(b"LIST", b"INFO"),
    ]);
    rf64[..4].copy_from_slice(b"RF64");
    let at = rf64.windows(4).position(|w| w == b"data").expect("data chunk");
    rf64[at + 4..at + 8].fill(0xFF);
    assert_signal(rf64, 1e-4);

    let be16 = |x: u16| x.to_be_bytes();
    let mut rifx = b"RIFX\0\0\0\0WAVEfmt \0\0\0\x10".to_vec();
    rifx.extend([be16(1), be16(1)].concat());
    rifx.extend([16_000u32.to_be_bytes(), 32_000u32.to_be_bytes()].concat());
    rifx.extend([be16(2), be16(16)].concat());
    rifx.extend(b"data");
    rifx.extend((data.len() as u32).to_be_bytes());
    rifx.extend(data.chunks_exact(2).flat_map(|b| [b[1], b[0]]));
    assert_signal(rifx, 1e-4);
}

/// Row 29: whisper.cpp#1819 refused files of less than 256 bytes.
#[test]
fn row_29_tiny_files() {
    for samples in 1..20 {
        let decoded = decode(wav(1, 1, 16_000, 16, &s16(&signal()[..samples]))).expect("decodes");
        assert_eq!(decoded.samples.len(), samples);
    }
    // Half a sample at the end is left out.
    let decoded = decode(wav(1, 1, 16_000, 16, &[0, 1, 2])).expect("decodes");
    assert_eq!(decoded.samples.len(), 1);
}

#[test]
fn broken_headers_are_told() {
    let whole = wav(1, 1, 16_000, 16, &s16(&signal()));
    for cut in 12..36 {
        let error = decode(whole[..cut].to_vec()).expect_err("cut off");
        assert!(matches!(error, AudioError::Corrupt { .. }), "{cut}: {error}");
    }
    let no_format = riff(&[chunk(b"data", &[0; 64])]);
    assert!(decode(no_format).expect_err("no format").to_string().contains("before its format"));
    let odd_bits = wav(1, 1, 16_000, 64, &[0; 64]);
    assert!(decode(odd_bits).expect_err("64 bits").to_string().contains("64-bit samples"));
}

#[test]
fn not_finite_samples_are_told() {
    let data: Vec<u8> = [0.5, f32::NAN, f32::INFINITY, -0.5].iter().flat_map(|x| x.to_le_bytes()).collect();
    let decoded = decode(wav(3, 1, 16_000, 32, &data)).expect("decodes");
    assert_eq!(decoded.samples, [0.5, 0.0, 0.0, -0.5]);
    assert_eq!(decoded.warnings, [AudioWarning::NotFinite { samples: 2 }]);
}
