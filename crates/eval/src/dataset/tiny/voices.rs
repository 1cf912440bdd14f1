//! The spoken parts of the recordings: prompts of the installed packages, and digits from two speech synthesisers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{TinyError, TinySources, g722};

/// Sampling rate of the recordings, in Hz.
pub(super) const RATE: u32 = 16_000;

/// How loud a unit is, as the root of the mean square.
const LEVEL: f64 = 0.08;
/// What counts as sound, relative to the loudest sample, and how much is kept around it.
const LOUD: f64 = 0.02;
const MARGIN: usize = 320;

/// Reads units by language, key and version.
pub(super) struct Voices<'a> {
    sources: &'a TinySources,
    /// Synthesised words, which are used many times over.
    synthesised: HashMap<String, Vec<f32>>,
}

impl<'a> Voices<'a> {
    pub fn new(sources: &'a TinySources) -> Self {
        Self { sources, synthesised: HashMap::new() }
    }

    /// Trimmed samples of one level, mono at 16 kHz. Version 0 is the 8 kHz WAV, 1 the G.722 file.
    pub fn unit(&mut self, language: &str, key: &str, version: usize) -> Result<Vec<f32>, TinyError> {
        if let Some(spoken) = key.strip_prefix("synth/") {
            if !self.synthesised.contains_key(key) {
                let samples = self.synthesise(spoken)?;
                self.synthesised.insert(key.to_owned(), samples);
            }
            return Ok(self.synthesised[key].clone());
        }
        let (folder, suffix) = (
            if language == "fr" { "fr_CA_f_June" } else { "en_US_f_Allison" },
            if version == 0 { "wav" } else { "g722" },
        );
        let path = self.sources.sounds.join(folder).join(format!("{key}.{suffix}"));
        let bytes = std::fs::read(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => {
                TinyError::NoPrompts { path: path.clone(), language: language.to_owned(), suffix }
            }
            _ => TinyError::Io { path: path.clone(), source },
        })?;
        let samples = if version == 0 {
            at_16_khz(&path, &bytes)?
        } else {
            g722::decode(&bytes).into_iter().map(|x| f32::from(x) / 32768.0).collect()
        };
        Ok(trim(&samples))
    }

    /// `VOICE/WORD`, spoken by flite if it has such a voice, else by eSpeak NG.
    fn synthesise(&self, spoken: &str) -> Result<Vec<f32>, TinyError> {
        const FLITE: [&str; 4] = ["kal16", "awb", "rms", "slt"];
        let (voice, word) = spoken.rsplit_once('/').unwrap_or(("", spoken));
        let dir =
            tempfile::tempdir().map_err(|source| TinyError::Io { path: std::env::temp_dir(), source })?;
        let path = dir.path().join("word.wav");
        let said = if word.len() == 1 { format!("{}.", word.to_uppercase()) } else { word.to_owned() };
        let program: &PathBuf;
        let mut command;
        if FLITE.contains(&voice) {
            program = &self.sources.flite;
            command = Command::new(program);
            command.args(["-voice", voice, "-t", &said, "-o"]).arg(&path);
        } else {
            program = &self.sources.espeak;
            command = Command::new(program);
            command.args(["-v", voice, "-s", "150", "-w"]).arg(&path).arg(&said);
        }
        let failed = |reason: String| TinyError::Synthesiser { program: program.clone(), reason };
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        let status = status.map_err(|error| failed(error.to_string()))?;
        if !status.success() {
            return Err(failed(format!("it ended with {status}")));
        }
        let bytes = std::fs::read(&path).map_err(|error| failed(format!("it wrote no sound ({error})")))?;
        Ok(trim(&at_16_khz(&path, &bytes)?))
    }
}

/// A mono 16-bit WAV file, brought to 16 kHz.
fn at_16_khz(path: &Path, bytes: &[u8]) -> Result<Vec<f32>, TinyError> {
    let malformed = || TinyError::Prompt { path: path.to_owned() };
    if bytes.len() < 12 || &bytes[..4] != b"RIFF" || &bytes[8..12] != b"WAVE" {
        return Err(malformed());
    }
    let (mut rest, mut rate) = (&bytes[12..], None);
    while rest.len() >= 8 {
        let (name, size) = (&rest[..4], u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]) as usize);
        let body = &rest[8..];
        let body = &body[..size.min(body.len())];
        match name {
            b"fmt " if body.len() >= 16 => {
                let (format, channels, bits) = (
                    u16::from_le_bytes([body[0], body[1]]),
                    u16::from_le_bytes([body[2], body[3]]),
                    u16::from_le_bytes([body[14], body[15]]),
                );
                if (format, channels, bits) != (1, 1, 16) {
                    return Err(malformed());
                }
                rate = Some(u32::from_le_bytes([body[4], body[5], body[6], body[7]]));
            }
            b"data" => {
                let rate = rate.filter(|rate| (4_000..=96_000).contains(rate)).ok_or_else(malformed)?;
                let samples: Vec<f32> = body
                    .chunks_exact(2)
                    .map(|pair| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32768.0)
                    .collect();
                return Ok(resample(&samples, rate));
            }
            _ => {}
        }
        rest = rest.get(8 + size + size % 2..).unwrap_or(&[]);
    }
    Err(malformed())
}

/// To 16 kHz through a windowed sinc of ten zero crossings a side (Kaiser, β = 5), as SciPy's `resample_poly` has it. Every
/// operation is one that IEEE 754 fixes, and their order is fixed too: all machines give the same samples.
fn resample(samples: &[f32], rate: u32) -> Vec<f32> {
    let divisor = gcd(rate, RATE);
    let (up, down) = ((RATE / divisor) as usize, (rate / divisor) as usize);
    if up == down {
        return samples.to_vec();
    }
    let widest = up.max(down);
    let half = 10 * widest;
    let filter: Vec<f64> =
        (0..=2 * half).map(|i| sinc(i.abs_diff(half), widest) * kaiser(i.abs_diff(half), half)).collect();
    let gain = up as f64 / filter.iter().sum::<f64>();
    (0..(samples.len() * up).div_ceil(down))
        .map(|m| {
            // All n with 0 <= m·down − n·up + half <= 2·half.
            let centre = m * down + half;
            let first = centre.saturating_sub(2 * half).div_ceil(up);
            let last = (centre / up).min(samples.len().saturating_sub(1));
            let sum: f64 = (first..=last).map(|n| f64::from(samples[n]) * filter[centre - n * up]).sum();
            (sum * gain) as f32
        })
        .collect()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// sin(πk/n) / (πk/n); exact zeros where k is a multiple of n.
fn sinc(k: usize, n: usize) -> f64 {
    if k == 0 {
        return 1.0;
    }
    // sin(π(q + r/n)) = ±sin(πr/n), and that around a half is mirrored.
    let (q, r) = (k / n, k % n);
    let folded = std::f64::consts::PI * r.min(n - r) as f64 / n as f64;
    let sign = if q.is_multiple_of(2) { 1.0 } else { -1.0 };
    sign * series(folded, |i| -1.0 / ((2 * i) * (2 * i + 1)) as f64)
        / (std::f64::consts::PI * k as f64 / n as f64)
}

/// x + x³·f(1) + x⁵·f(1)·f(2) + …: the sine's series, whose terms fall below rounding within twenty.
fn series(x: f64, factor: impl Fn(usize) -> f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for i in 1..20 {
        term = term * x * x * factor(i);
        sum += term;
    }
    sum
}

fn kaiser(k: usize, half: usize) -> f64 {
    const BETA: f64 = 5.0;
    let x = k as f64 / half as f64;
    bessel(BETA * (1.0 - x * x).max(0.0).sqrt()) / bessel(BETA)
}

/// The modified Bessel function of order 0, for arguments up to 5.
fn bessel(x: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 1.0);
    for i in 1..40 {
        let half = x / 2.0 / f64::from(i);
        term *= half * half;
        sum += term;
    }
    sum
}

/// Without the silence around, at one level.
fn trim(samples: &[f32]) -> Vec<f32> {
    let peak = samples.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
    let loud = |x: &f32| f64::from(x.abs()) > LOUD * f64::from(peak) + 1e-6;
    let (Some(first), Some(last)) = (samples.iter().position(loud), samples.iter().rposition(loud)) else {
        return Vec::new();
    };
    let kept = &samples[first.saturating_sub(MARGIN)..(last + MARGIN).min(samples.len())];
    let square: f64 = kept.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let scale = LEVEL / ((square / kept.len() as f64).sqrt() + 1e-6);
    kept.iter().map(|x| (f64::from(*x) * scale) as f32).collect()
}

/// Faster or slower, by drawing lines between samples.
pub(super) fn at_speed(samples: Vec<f32>, speed: f64) -> Vec<f32> {
    if (speed - 1.0).abs() < 0.005 || samples.is_empty() {
        return samples;
    }
    let last = samples.len() - 1;
    (0..(samples.len() as f64 / speed) as usize)
        .map(|i| {
            let at = i as f64 * speed;
            let left = (at as usize).min(last);
            let (a, b) = (f64::from(samples[left]), f64::from(samples[(left + 1).min(last)]));
            (a + (b - a) * (at - left as f64)) as f32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sines_and_windows_are_those_of_mathematics() {
        for (k, n) in [(1, 2), (3, 7), (441, 441), (700, 441), (5, 2), (1, 441)] {
            let x = std::f64::consts::PI * k as f64 / n as f64;
            assert!((sinc(k, n) - x.sin() / x).abs() < 1e-14, "{k}/{n}");
        }
        // I0(5), from tables.
        assert!((bessel(5.0) - 27.239_871_823_604_44).abs() < 1e-12);
        assert_eq!(kaiser(0, 20), 1.0);
    }

    #[test]
    fn a_tone_stays_that_tone() {
        for rate in [8_000_u32, 22_050, 44_100] {
            let tone = |rate: u32, n: usize| -> Vec<f32> {
                (0..n)
                    .map(|i| (2.0 * std::f64::consts::PI * 440.0 * i as f64 / f64::from(rate)).sin() as f32)
                    .collect()
            };
            let made = resample(&tone(rate, rate as usize / 2), rate);
            assert_eq!(made.len(), 8_000);
            let worst = made
                .iter()
                .zip(tone(RATE, 8_000))
                .skip(200)
                .take(7_600)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f32::max);
            assert!(worst < 0.02, "{rate}: {worst}");
        }
    }

    #[test]
    fn units_are_trimmed_levelled_and_paced() {
        let mut samples = vec![0.0; 5_000];
        samples[1_000..3_000].fill(0.5);
        let unit = trim(&samples);
        assert_eq!(unit.len(), 2_000 + MARGIN + MARGIN - 1);
        let level = (unit.iter().map(|x| x * x).sum::<f32>() / unit.len() as f32).sqrt();
        assert!((level - 0.08).abs() < 1e-4);
        assert!(trim(&[0.0; 10]).is_empty() && trim(&[]).is_empty());
        assert_eq!(at_speed(vec![0.0, 1.0, 2.0, 3.0], 2.0), [0.0, 2.0]);
        assert_eq!(at_speed(vec![0.0, 1.0], 0.5), [0.0, 0.5, 1.0, 1.0]);
        assert_eq!(at_speed(vec![0.0, 1.0], 1.004), [0.0, 1.0]);
    }
}
