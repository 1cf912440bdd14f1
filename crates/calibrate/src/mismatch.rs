//! How far the attention that a prefill sees differs from that of the whole answer (WnW, section 2.1 and Figure 1).
//!
//! *Prefill* is the attention of the query that predicts the first answer token, the prompt's last; *decode* is the mean
//! over the queries that predict each of the answer's tokens (the end of sequence left out). Both come from one forced
//! pass over prompt and answer with the full cache, layer by layer; no more than one row of scores per query head exists.
//!
//! A weight is that of a softmax over all visible keys, text included. The mean over layers and query heads is taken of
//! these weights as they are, so a head that hardly attends to audio counts little; what lies on audio positions is then
//! scaled to a sum of 1. Shares of positions are read off the cumulative sum, which is linear inside a position.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::str::FromStr;

use rayon::prelude::*;
use serde::{Serialize, Serializer};
use wnw_kv::{HeadSelection, LayerView, Policy, PromptLayout};
use wnw_model::SpeechModel;
use wnw_model::prompt::{Prompt, Task};

use crate::CalibrateError;
use crate::forced::observe;

/// Parts of the uniform grid.
pub const GRID: usize = 200;
/// A head whose overlap is below this does hardly attend to the same positions (the paper's figure).
pub const LOW_OVERLAP: f64 = 0.1;

/// Size K of a top set: positions, or a share of all audio positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Top {
    /// So many positions, or all if there are fewer.
    Count(usize),
    /// This share of the positions, rounded up.
    Share(f64),
}

impl Top {
    /// K for `n` positions, at least 1.
    pub fn of(self, n: usize) -> usize {
        let k = match self {
            Self::Count(k) => k,
            // 0.1 of 375 is 37.5; what rounding put above a whole number is no further position.
            Self::Share(share) => (share * n as f64 - 1e-9).ceil() as usize,
        };
        k.min(n).max(1)
    }
}

impl FromStr for Top {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}': write a number of positions such as 100, or a share such as 10%");
        match text.strip_suffix('%') {
            Some(share) => {
                let share: f64 = share.trim().parse().map_err(|_| bad())?;
                if share > 0.0 && share < 100.0 { Ok(Self::Share(share / 100.0)) } else { Err(bad()) }
            }
            None => text.parse().ok().filter(|k| *k > 0).map(Self::Count).ok_or_else(bad),
        }
    }
}

impl fmt::Display for Top {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(k) => write!(f, "{k}"),
            Self::Share(share) => write!(f, "{}%", (share * 1e6).round() / 1e4),
        }
    }
}

impl Serialize for Top {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Where attention lies, of a distribution over audio positions with sum 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Mass {
    /// Share on the first 10 % of positions.
    pub first_tenth: f64,
    /// Share on the first half.
    pub first_half: f64,
    /// Share on the second half.
    pub second_half: f64,
    /// Audio's share of all attention, text included, before scaling.
    pub audio_share: f64,
    /// Share in each of [`GRID`] equal parts.
    pub grid: Vec<f64>,
}

/// How much the two top-K sets have in common.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overlap {
    /// The K asked for.
    pub top: Top,
    /// The K used, mean over recordings: a short one may have fewer positions than asked for.
    pub k: f64,
    /// Jaccard index of the top sets of the two mean distributions.
    pub jaccard: f64,
    /// What two random sets of K of the T positions have, about: K / (2T − K).
    pub random: f64,
    /// K / T: the share of one random set that another covers, which the paper gives as random level.
    pub random_share: f64,
    /// Least Jaccard index of a KV head (its own two distributions, summed over its query heads).
    pub head_min: f64,
    /// Largest Jaccard index of a KV head.
    pub head_max: f64,
    /// Share of KV heads below [`LOW_OVERLAP`].
    pub heads_low: f64,
    /// Jaccard index of each KV head, `(n_layers, n_kv_heads)`.
    pub heads: Vec<f64>,
}

/// The figures of one recording, or their mean over several.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mismatch {
    /// Audio positions T, summed.
    pub audio_positions: usize,
    /// Answer tokens, summed.
    pub answer_tokens: usize,
    /// Attention of the first answer token.
    pub prefill: Mass,
    /// Mean attention of all answer tokens.
    pub decode: Mass,
    /// For each K asked for.
    pub overlap: Vec<Overlap>,
}

/// Runs prompt and `answer` through the model and compares. `samples` are 16 kHz mono, no longer than the model takes in
/// one pass; `answer` is what the model said to them, without the end of sequence.
///
/// `progress` is told the share that is done, 0 to 1; when it breaks, [`CalibrateError::Cancelled`].
pub fn measure(
    model: &SpeechModel,
    samples: &[f32],
    task: &Task,
    answer: &[u32],
    tops: &[Top],
    progress: &mut dyn FnMut(f64) -> ControlFlow<()>,
) -> Result<Mismatch, CalibrateError> {
    let probe = |prompt: &Prompt, queries| Ok(MismatchProbe::new(queries, prompt.layout.n_audio(), tops));
    observe(model, samples, task, answer, probe, progress)?.finish()
}

/// A method that compares attention while a forced sequence runs through the layers, and keeps no audio.
#[derive(Debug)]
pub struct MismatchProbe {
    queries: Range<usize>,
    n_audio: usize,
    tops: Vec<Top>,
    /// Sums over layers and query heads of the first query's weights, `(n_audio)`.
    prefill: Vec<f64>,
    /// The same of all queries, divided by their number.
    decode: Vec<f64>,
    /// Jaccard index of each KV head so far, for each K.
    heads: Vec<Vec<f64>>,
    query_heads: usize,
}

impl MismatchProbe {
    /// Compares the first of `queries` (positions) with the mean of all.
    pub fn new(queries: Range<usize>, n_audio: usize, tops: &[Top]) -> Self {
        Self {
            queries,
            n_audio,
            tops: tops.to_vec(),
            prefill: vec![0.0; n_audio],
            decode: vec![0.0; n_audio],
            heads: vec![Vec::new(); tops.len()],
            query_heads: 0,
        }
    }

    /// The figures, when all layers were seen.
    pub fn finish(self) -> Result<Mismatch, CalibrateError> {
        let heads = self.query_heads.max(1) as f64;
        let overlap = self.tops.iter().zip(self.heads).map(|(top, heads)| {
            let (k, n) = (top.of(self.n_audio), self.n_audio as f64);
            let jaccard = jaccard(&self.prefill, &self.decode, k);
            let k = k as f64;
            Overlap::new(*top, k, jaccard, k / (2.0 * n - k).max(1.0), k / n.max(1.0), heads)
        });
        let overlap = overlap.collect();
        Ok(Mismatch {
            audio_positions: self.n_audio,
            answer_tokens: self.queries.len(),
            prefill: Mass::of(&self.prefill, heads)?,
            decode: Mass::of(&self.decode, heads)?,
            overlap,
        })
    }
}

impl Policy for MismatchProbe {
    fn name(&self) -> &'static str {
        "mismatch-probe"
    }

    fn observes(&self, _layout: &PromptLayout) -> Vec<usize> {
        self.queries.clone().collect()
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let (n_audio, tokens) = (self.n_audio, self.queries.len().max(1) as f64);
        let tops: Vec<usize> = self.tops.iter().map(|top| top.of(n_audio)).collect();
        let seen: Vec<(Vec<f64>, Vec<f64>, Vec<f64>)> = (0..view.shape.n_kv_heads)
            .into_par_iter()
            .map(|kv_head| {
                let (mut first, mut all) = (vec![0.0; n_audio], vec![0.0; n_audio]);
                view.audio_attention(kv_head, 0..view.observed.len(), |observed, _, weights| {
                    if observed == 0 {
                        first.iter_mut().zip(weights).for_each(|(sum, w)| *sum += f64::from(*w));
                    }
                    all.iter_mut().zip(weights).for_each(|(sum, w)| *sum += f64::from(*w));
                });
                let overlap = tops.iter().map(|k| jaccard(&first, &all, *k)).collect();
                (first, all, overlap)
            })
            .collect();
        for (first, all, overlap) in seen {
            self.prefill.iter_mut().zip(first).for_each(|(sum, w)| *sum += w);
            self.decode.iter_mut().zip(all).for_each(|(sum, w)| *sum += w / tokens);
            self.heads.iter_mut().zip(overlap).for_each(|(heads, jaccard)| heads.push(jaccard));
        }
        self.query_heads += view.shape.n_q_heads;
        vec![HeadSelection::Only(Vec::new()); view.shape.n_kv_heads]
    }
}

impl Mass {
    /// Of weights summed over `heads` query heads.
    fn of(weights: &[f64], heads: f64) -> Result<Self, CalibrateError> {
        let sum: f64 = weights.iter().sum();
        if !(sum.is_finite() && sum > 0.0) {
            return Err(CalibrateError::NotFinite("the attention to audio"));
        }
        let mass: Vec<f64> = weights.iter().map(|w| w / sum).collect();
        let up_to = cumulative(&mass, 10);
        Ok(Self {
            first_tenth: up_to[1],
            first_half: up_to[5],
            second_half: 1.0 - up_to[5],
            audio_share: sum / heads,
            grid: cumulative(&mass, GRID).windows(2).map(|w| w[1] - w[0]).collect(),
        })
    }

    fn mean(all: &[&Self]) -> Self {
        let mean =
            |value: &dyn Fn(&Self) -> f64| all.iter().map(|m| value(m)).sum::<f64>() / all.len() as f64;
        Self {
            first_tenth: mean(&|m| m.first_tenth),
            first_half: mean(&|m| m.first_half),
            second_half: mean(&|m| m.second_half),
            audio_share: mean(&|m| m.audio_share),
            grid: (0..GRID).map(|i| mean(&|m| m.grid[i])).collect(),
        }
    }
}

impl Overlap {
    fn new(top: Top, k: f64, jaccard: f64, random: f64, random_share: f64, heads: Vec<f64>) -> Self {
        let low = heads.iter().filter(|h| **h < LOW_OVERLAP).count();
        Self {
            top,
            k,
            jaccard,
            random,
            random_share,
            head_min: heads.iter().copied().reduce(f64::min).unwrap_or(0.0),
            head_max: heads.iter().copied().reduce(f64::max).unwrap_or(0.0),
            heads_low: low as f64 / heads.len().max(1) as f64,
            heads,
        }
    }

    fn mean(all: &[&Self]) -> Self {
        let mean =
            |value: &dyn Fn(&Self) -> f64| all.iter().map(|o| value(o)).sum::<f64>() / all.len() as f64;
        let heads = (0..all[0].heads.len()).map(|i| mean(&|o| o.heads[i])).collect();
        Self::new(
            all[0].top,
            mean(&|o| o.k),
            mean(&|o| o.jaccard),
            mean(&|o| o.random),
            mean(&|o| o.random_share),
            heads,
        )
    }
}

impl Mismatch {
    /// The mean over recordings, each weighing the same; a head's figures are those of its mean. `None` without any.
    ///
    /// All must come of one model and one list of K.
    pub fn mean(all: &[Self]) -> Option<Self> {
        let first = all.first()?;
        let sum = |value: &dyn Fn(&Self) -> usize| all.iter().map(value).sum();
        let overlap = (0..first.overlap.len())
            .map(|i| Overlap::mean(&all.iter().map(|m| &m.overlap[i]).collect::<Vec<_>>()));
        Some(Self {
            audio_positions: sum(&|m| m.audio_positions),
            answer_tokens: sum(&|m| m.answer_tokens),
            prefill: Mass::mean(&all.iter().map(|m| &m.prefill).collect::<Vec<_>>()),
            decode: Mass::mean(&all.iter().map(|m| &m.decode).collect::<Vec<_>>()),
            overlap: overlap.collect(),
        })
    }
}

/// Mass up to 0, 1, …, `parts` parts of `mass`, which is spread evenly inside each of its positions: `(parts + 1)`.
fn cumulative(mass: &[f64], parts: usize) -> Vec<f64> {
    let mut sums = Vec::with_capacity(mass.len() + 1);
    let mut sum = 0.0;
    sums.push(0.0);
    for m in mass {
        sum += m;
        sums.push(sum);
    }
    let at = |part: usize| {
        // Whole positions below the part's end, and how much of the next: in integers, for no rounding to matter.
        let (whole, rest) = (part * mass.len() / parts, part * mass.len() % parts);
        let next = mass.get(whole).copied().unwrap_or(0.0);
        sums[whole] + next * rest as f64 / parts as f64
    };
    (0..=parts).map(at).collect()
}

/// Whether each position is among the `k` largest; of equal ones the lower position.
fn top_set(weights: &[f64], k: usize) -> Vec<bool> {
    let mut order: Vec<u32> = (0..weights.len() as u32).collect();
    let k = k.min(order.len());
    let before = |a: &u32, b: &u32| weights[*b as usize].total_cmp(&weights[*a as usize]).then(a.cmp(b));
    if k > 0 && k < order.len() {
        order.select_nth_unstable_by(k - 1, before);
    }
    let mut set = vec![false; weights.len()];
    order[..k].iter().for_each(|i| set[*i as usize] = true);
    set
}

/// Jaccard index of the two sets of the `k` largest: positions in both over positions in either.
fn jaccard(a: &[f64], b: &[f64], k: usize) -> f64 {
    let (a, b) = (top_set(a, k), top_set(b, k));
    let both = a.iter().zip(&b).filter(|(a, b)| **a && **b).count();
    let either = a.iter().zip(&b).filter(|(a, b)| **a || **b).count();
    if either == 0 { 1.0 } else { both as f64 / either as f64 }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use wnw_kv::KvShape;

    #[test]
    fn tops_are_positions_or_shares() {
        assert_eq!("100".parse(), Ok(Top::Count(100)));
        assert_eq!("10%".parse(), Ok(Top::Share(0.1)));
        for bad in ["0", "-1", "", "%", "0%", "100%", "1e3", "nan%", "x"] {
            assert!(bad.parse::<Top>().is_err(), "{bad}");
        }
        assert_eq!((Top::Count(100).of(375), Top::Count(500).of(375), Top::Count(5).of(0)), (100, 375, 1));
        assert_eq!(
            (Top::Share(0.1).of(375), Top::Share(0.1).of(3000), Top::Share(1e-9).of(10)),
            (38, 300, 1)
        );
        assert_eq!((Top::Share(0.125).to_string(), Top::Count(7).to_string()), ("12.5%".into(), "7".into()));
    }

    /// Four positions in ten parts: a part is 0.4 of a position.
    #[test]
    fn shares_of_positions_by_hand() {
        let got = cumulative(&[0.5, 0.25, 0.125, 0.125], 10);
        let want = [0.0, 0.2, 0.4, 0.55, 0.65, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0];
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-12, "{got} {want}");
        }
        let mass = Mass::of(&[2.0, 1.0, 0.5, 0.5], 8.0).unwrap();
        assert!((mass.first_tenth - 0.2).abs() < 1e-12);
        assert!((mass.first_half - 0.75).abs() < 1e-12 && (mass.second_half - 0.25).abs() < 1e-12);
        assert_eq!(mass.audio_share, 0.5);
        // 50 parts to a position.
        assert!((mass.grid[0] - 0.01).abs() < 1e-12 && (mass.grid[199] - 0.0025).abs() < 1e-12);
        assert!(Mass::of(&[0.0, f64::NAN], 1.0).is_err() && Mass::of(&[], 1.0).is_err());
    }

    #[test]
    fn jaccard_by_hand() {
        let (a, b) = ([5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 5.0, 4.0, 3.0, 2.0]);
        assert_eq!(jaccard(&a, &b, 1), 0.0);
        assert_eq!(jaccard(&a, &b, 2), 1.0 / 3.0); // {0 1} {1 2}
        assert_eq!(jaccard(&a, &b, 3), 0.5); // {0 1 2} {1 2 3}
        assert_eq!((jaccard(&a, &b, 5), jaccard(&a, &b, 9), jaccard(&[], &[], 3)), (1.0, 1.0, 1.0));
        assert_eq!(top_set(&[1.0, 1.0, 1.0], 2), [true, true, false]);
    }

    /// One layer, two KV heads of one query head each, keys one-hot: a score is an element of the query, and ln makes it
    /// a weight.
    #[test]
    fn a_layer_by_hand() {
        let shape = KvShape { n_layers: 1, n_q_heads: 2, n_kv_heads: 2, head_dim: 8 };
        let layout = PromptLayout::new(8, vec![1..5]).unwrap();
        let mut k = vec![0.0; 2 * 8 * 8];
        for head in 0..2 {
            for position in 0..8 {
                k[(head * 8 + position) * 8 + position] = 1.0;
            }
        }
        // Weights 0.5, 0.25, 0.15, 0.1 on the audio of the first head, whatever the second does; text has nearly none.
        let far = -60.0f32;
        let row = |w: [f32; 4]| {
            let mut q = [far; 8];
            q[1..5].iter_mut().zip(w).for_each(|(q, w)| *q = w.ln());
            q
        };
        // Observed positions 6 and 7, each two query heads.
        let q = [
            row([0.5, 0.25, 0.15, 0.1]),
            row([0.1, 0.2, 0.3, 0.4]),
            row([0.2, 0.15, 0.2, 0.45]),
            row([0.1, 0.2, 0.3, 0.4]),
        ]
        .concat();
        let view = LayerView {
            layer: 0,
            shape,
            layout: &layout,
            k: &k,
            v: &[],
            observed: &[6, 7],
            q: &q,
            scale: 1.0,
        };
        let mut probe = MismatchProbe::new(6..8, 4, &[Top::Count(2), Top::Share(0.25)]);
        assert_eq!(probe.observes(&layout), [6, 7]);
        let kept = probe.after_prefill(&view);
        assert_eq!(kept, vec![HeadSelection::Only(vec![]); 2]);
        let got = probe.finish().unwrap();
        assert_eq!((got.audio_positions, got.answer_tokens), (4, 2));
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}");
        // Prefill: (0.3, 0.225, 0.225, 0.25). Decode: (0.225, 0.2, 0.2375, 0.3375).
        close(got.prefill.first_half, 0.525);
        close(got.decode.first_half, 0.425);
        close(got.prefill.first_tenth, 0.12);
        close(got.decode.first_tenth, 0.09);
        close(got.prefill.audio_share, 1.0);
        let [two, one] = &got.overlap[..] else { panic!("two K") };
        // Top 2: {0 3} against {2 3}; first head {0 1} against {0 3} (means 0.35, 0.2, 0.175, 0.275), second equal.
        close(two.jaccard, 1.0 / 3.0);
        close(two.heads[0], 1.0 / 3.0);
        close(two.heads[1], 1.0);
        close(two.random, 2.0 / 6.0);
        close(two.random_share, 0.5);
        assert_eq!((one.k, one.jaccard, one.heads_low), (1.0, 0.0, 0.0));
        let twice = Mismatch::mean(&[got.clone(), got.clone()]).unwrap();
        assert_eq!((twice.audio_positions, &twice.overlap), (8, &got.overlap));
        assert_eq!(Mismatch::mean(&[]), None);
    }
}
