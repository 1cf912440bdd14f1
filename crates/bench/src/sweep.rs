//! A script of what the anchor heads attend to, step by step.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::random::Random;

/// How attention moves over the audio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SweepKind {
    /// A centre that advances at speaking rate, unevenly, with noise beside it.
    #[default]
    Speech,
    /// Somewhere else in every step: whatever can be recalled is.
    Worst,
    /// The same in every step: nothing is recalled.
    Still,
}

impl fmt::Display for SweepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Speech => "speech",
            Self::Worst => "worst",
            Self::Still => "still",
        })
    }
}

impl FromStr for SweepKind {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "speech" => Ok(Self::Speech),
            "worst" => Ok(Self::Worst),
            "still" => Ok(Self::Still),
            _ => Err(format!("'{s}' is no sweep; use speech, worst or still")),
        }
    }
}

/// Tokens written for each second of audio: ordinary speech.
pub const TOKENS_PER_SECOND: f64 = 3.5;

/// Shares of a step's attention: around the centre, in its neighbourhood, and anywhere.
const NEAR: f64 = 0.6;
const AROUND: f64 = 0.25;
const ANYWHERE: f64 = 0.15;
/// Widths of the first two in seconds: a syllable or two (standard deviation), and a clause (decay).
const NEAR_SECONDS: f64 = 0.3;
const AROUND_SECONDS: f64 = 2.0;
/// Places that a step of the worst case attends to.
const PLACES: usize = 8;

/// The script of one session.
#[derive(Clone, Debug)]
pub struct Sweep {
    kind: SweepKind,
    /// Row at the centre.
    centre: f64,
    rows_per_second: f64,
    attention: Vec<f32>, // (n_audio)
    random: Random,
}

impl Sweep {
    /// A script over `n_audio` rows of `rows_per_second`, beginning at `start` seconds. It attends to its start already.
    pub fn new(kind: SweepKind, n_audio: usize, rows_per_second: f64, start: f64, seed: u64) -> Self {
        let mut sweep = Self {
            kind: SweepKind::Speech,
            centre: 0.0,
            rows_per_second,
            attention: vec![0.0; n_audio],
            random: Random::new(seed),
        };
        sweep.go_to(start);
        sweep.kind = kind;
        sweep
    }

    /// Moves the centre.
    pub fn go_to(&mut self, seconds: f64) {
        self.centre = self.within(seconds * self.rows_per_second);
        self.listen();
    }

    /// Goes on in another manner.
    pub fn set_kind(&mut self, kind: SweepKind) {
        self.kind = kind;
    }

    /// Softmax weight on each audio row of the step, `(n_audio)`.
    pub fn attention(&self) -> &[f32] {
        &self.attention
    }

    /// The next step.
    pub fn advance(&mut self) {
        match self.kind {
            SweepKind::Still => {}
            SweepKind::Speech => {
                let step = self.rows_per_second / TOKENS_PER_SECOND * (0.5 + self.random.unit());
                self.centre = self.within(self.centre + step);
                self.listen();
            }
            SweepKind::Worst => {
                self.attention.fill(0.0);
                for _ in 0..PLACES.min(self.attention.len()) {
                    let place = self.random.below(self.attention.len());
                    self.attention[place] = (0.5 + self.random.unit()) as f32;
                }
            }
        }
    }

    /// A recording's end is where a centre stays.
    fn within(&self, row: f64) -> f64 {
        row.clamp(0.0, self.attention.len().saturating_sub(1) as f64)
    }

    /// Attention around the centre, which itself trembles.
    fn listen(&mut self) {
        let n = self.attention.len() as f64;
        let centre = self.centre + NEAR_SECONDS * self.rows_per_second * (2.0 * self.random.unit() - 1.0);
        let (near, around) = (NEAR_SECONDS * self.rows_per_second, AROUND_SECONDS * self.rows_per_second);
        for (row, weight) in self.attention.iter_mut().enumerate() {
            let away = (row as f64 - centre).abs();
            let anywhere = ANYWHERE / n * 2.0 * self.random.unit();
            let gauss = NEAR / (near * std::f64::consts::TAU.sqrt()) * (-0.5 * (away / near).powi(2)).exp();
            let decay = AROUND / (2.0 * around) * (-away / around).exp();
            *weight = (anywhere + gauss + decay) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heaviest(sweep: &Sweep) -> usize {
        let attention = sweep.attention();
        (0..attention.len()).max_by(|a, b| attention[*a].total_cmp(&attention[*b])).unwrap()
    }

    #[test]
    fn a_centre_advances_at_speaking_rate_and_stops_at_the_end() {
        let mut sweep = Sweep::new(SweepKind::Speech, 3000, 12.5, 10.0, 1);
        assert!((sweep.attention().iter().sum::<f32>() - 1.0).abs() < 0.05);
        let start = heaviest(&sweep) as f64;
        assert!((start - 125.0).abs() < 8.0, "{start}");
        for _ in 0..350 {
            sweep.advance();
        }
        let end = heaviest(&sweep) as f64;
        assert!((end - start - 1250.0).abs() < 100.0, "100 s further: {start} {end}");
        for _ in 0..2000 {
            sweep.advance();
        }
        assert!(heaviest(&sweep) > 2980);
        sweep.set_kind(SweepKind::Still);
        let before = sweep.attention().to_vec();
        sweep.advance();
        assert_eq!(before, sweep.attention());
    }

    #[test]
    fn the_worst_case_is_elsewhere_in_every_step() {
        let mut sweep = Sweep::new(SweepKind::Worst, 3000, 12.5, 0.0, 1);
        let places: Vec<usize> = (0..50)
            .map(|_| {
                sweep.advance();
                heaviest(&sweep)
            })
            .collect();
        let far = places.windows(2).filter(|w| w[0].abs_diff(w[1]) > 100).count();
        assert!(far > 40, "{places:?}");
        let mut none = Sweep::new(SweepKind::Worst, 0, 12.5, 0.0, 1);
        none.advance();
        assert!(none.attention().is_empty());
    }
}
