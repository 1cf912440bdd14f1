//! The Voxtral goldens in `tests/data/voxtral/`: what transformers computed with small random-weight checkpoints.
//!
//! `tools/goldens/voxtral.py` makes them; nothing here knows how the model is loaded or run. Use it from a test with
//!
//! ```ignore
//! #[path = "common/golden.rs"]
//! mod golden;
//! ```
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

/// Every case, by the name of its directory.
pub const CASES: [&str; 5] = ["mha", "mha-consolidated", "gqa4-tied", "gqa8-chat", "gqa4-sharded"];

/// The id that stands where audio goes.
pub const AUDIO_ID: u32 = 24;
/// Mel bands.
pub const MELS: usize = 128;
/// Mel frames of one 30 s chunk.
pub const FRAMES: usize = 3000;

/// Some rows of a matrix, with their row numbers in the whole.
pub struct Rows {
    /// Row numbers in the whole matrix, ascending.
    pub rows: Vec<usize>,
    /// Length of a row.
    pub width: usize,
    /// The rows one after another.
    pub values: Vec<f32>,
}

impl Rows {
    /// Row number in the whole, and the row.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.rows.iter().copied().zip(self.values.chunks_exact(self.width))
    }

    /// The largest magnitude in these rows.
    pub fn max_abs(&self) -> f32 {
        self.values.iter().fold(0.0, |m, v| m.max(v.abs()))
    }

    /// The largest absolute difference from `whole`, the complete matrix in row-major order. NaN counts as infinite.
    pub fn max_difference(&self, whole: &[f32]) -> f32 {
        assert_eq!(whole.len() % self.width, 0, "rows of {} expected", self.width);
        let last = self.rows.last().copied().unwrap_or(0);
        assert!(whole.len() / self.width > last, "{} rows, need row {last}", whole.len() / self.width);
        let mut max = 0.0f32;
        for (row, want) in self.iter() {
            for (a, b) in whole[row * self.width..].iter().zip(want) {
                let d = (a - b).abs();
                max = if d.is_nan() { f32::INFINITY } else { max.max(d) };
            }
        }
        max
    }
}

/// One case: a checkpoint directory and its reference outputs.
pub struct Case {
    /// Directory name.
    pub name: String,
    /// The checkpoint directory.
    pub dir: PathBuf,
    /// 30 s chunks of audio, over all recordings of the prompt.
    pub chunks: usize,
    /// Seed of [`Case::mel`].
    pub mel_seed: u32,
    mel_checksum: u64,
    /// The prompt with its audio placeholders.
    pub prompt: Vec<u32>,
    /// The 64 tokens that follow greedily; the end-of-sequence id does not stop them.
    pub greedy: Vec<u32>,
    /// The smallest distance between the best and the second-best logit over the 64 steps.
    pub min_gap: f64,
    /// Encoder output `[1500 * chunks, d]`: every 50th row.
    pub encoder: Rows,
    /// Projector output `[375 * chunks, hidden]`: every 10th row.
    pub projector: Rows,
    /// Logits of the whole prompt `[prompt, vocab]`: all text positions and every 25th audio position.
    pub logits: Rows,
    /// Logits at the last of the 64 greedy tokens.
    pub last_logits: Vec<f32>,
}

impl Case {
    /// Reads the case of this name.
    pub fn read(name: &str) -> Case {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/voxtral").join(name);
        let info = std::fs::read(dir.join("golden.json")).unwrap();
        let info: serde_json::Value = serde_json::from_slice(&info).unwrap();
        let bytes = std::fs::read(dir.join("golden.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let rows = |name: &str| {
            let view = tensors.tensor(name).unwrap();
            let rows = u32s(&tensors, &format!("{name}_rows")).into_iter().map(|r| r as usize).collect();
            Rows { rows, width: view.shape()[1], values: f32s(&tensors, name) }
        };
        Case {
            name: name.to_owned(),
            chunks: info["chunks"].as_u64().unwrap() as usize,
            mel_seed: info["mel_seed"].as_u64().unwrap() as u32,
            mel_checksum: info["mel_checksum"].as_u64().unwrap(),
            prompt: u32s(&tensors, "prompt_ids"),
            greedy: u32s(&tensors, "greedy_ids"),
            min_gap: info["min_gap"].as_f64().unwrap(),
            encoder: rows("encoder"),
            projector: rows("projector"),
            logits: rows("logits"),
            last_logits: f32s(&tensors, "last_logits"),
            dir,
        }
    }

    /// The input features `[chunks, 128, 3000]`, row-major. The formula is in `tools/goldens/voxtral.py`.
    pub fn mel(&self) -> Vec<f32> {
        let mut mel = Vec::with_capacity(self.chunks * MELS * FRAMES);
        let mut checksum = 0u64;
        for c in 0..self.chunks as u32 {
            for m in 0..MELS as u32 {
                for t in 0..FRAMES as u32 {
                    let n = (c * MELS as u32 + m) * FRAMES as u32 + t;
                    let fine = hash(self.mel_seed, n) >> 22;
                    let patch = hash(self.mel_seed + 1, (c * 16 + m / 8) * 60 + t / 50) >> 22;
                    let whole = 3 * patch + fine;
                    checksum += u64::from(whole) * u64::from(n % 1009);
                    mel.push(whole as f32 / 2048.0 - 0.75);
                }
            }
        }
        assert_eq!(checksum, self.mel_checksum, "{}: the input differs from the generator's", self.name);
        mel
    }
}

fn hash(seed: u32, n: u32) -> u32 {
    let mut x = n ^ seed;
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

fn f32s(tensors: &SafeTensors, name: &str) -> Vec<f32> {
    let view = tensors.tensor(name).unwrap();
    assert_eq!(view.dtype(), Dtype::F32, "{name}");
    view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn u32s(tensors: &SafeTensors, name: &str) -> Vec<u32> {
    let view = tensors.tensor(name).unwrap();
    assert_eq!(view.dtype(), Dtype::U32, "{name}");
    view.data().chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn every_golden_case_is_whole() {
    for name in CASES {
        let case = Case::read(name);
        assert_eq!(case.mel().len(), case.chunks * MELS * FRAMES);
        assert_eq!(case.prompt.iter().filter(|&&id| id == AUDIO_ID).count(), 375 * case.chunks, "{name}");
        assert_eq!(case.greedy.len(), 64, "{name}");
        assert!(case.min_gap > 1e-3, "{name}");
        assert_eq!(case.encoder.rows.len(), 30 * case.chunks, "{name}");
        assert_eq!(case.logits.width, case.last_logits.len(), "{name}");
        let first = case.logits.rows.binary_search(&(case.prompt.len() - 1)).unwrap();
        let row = case.logits.iter().nth(first).unwrap().1;
        let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        assert_eq!(best as u32, case.greedy[0], "{name}");
    }
}
