//! Pages of audio rows with digests of their keys, and who of them a step's attention sees: what ArkVale, Quest and FreeKV share.

use std::fmt;
use std::str::FromStr;

use super::budget::{Budget, even};
use super::ranking::best;
use crate::policy::{LayerView, Pager, Release, SwapPlan};
use crate::{KvShape, PromptLayout, Segments};

/// How far a digest reaches from a page's centre c = ½(max + min), per channel: statistics of |c − k| over its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Radius {
    /// Their mean: the best in ArkVale's paper, though no upper bound.
    #[default]
    Mean,
    /// Their largest: an upper bound of every q·k, and Quest's digest (channels' least and largest).
    Max,
    /// Midway between the least and the largest.
    Centre,
}

impl fmt::Display for Radius {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mean => "mean",
            Self::Max => "max",
            Self::Centre => "centre",
        })
    }
}

impl FromStr for Radius {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "mean" => Ok(Self::Mean),
            "max" => Ok(Self::Max),
            "centre" => Ok(Self::Centre),
            _ => Err("use mean, max or centre".into()),
        }
    }
}

impl Radius {
    fn of(self, distances: impl Iterator<Item = f32>) -> f32 {
        let (mut sum, mut n, mut least, mut most) = (0.0, 0, f32::INFINITY, 0f32);
        for d in distances {
            (sum, n, least, most) = (sum + d, n + 1, least.min(d), most.max(d));
        }
        match self {
            _ if n == 0 => 0.0,
            Self::Mean => sum / n as f32,
            Self::Max => most,
            Self::Centre => 0.5 * (least + most),
        }
    }
}

/// The shape that stands for a page's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// A box, [c − r, c + r] per channel: the score of q is Σ over channels of max(q·low, q·high).
    #[default]
    Cuboid,
    /// A ball: the score of q is q·c + R·‖q‖, R a statistic of ‖c − k‖.
    Sphere,
}

impl fmt::Display for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cuboid => "cuboid",
            Self::Sphere => "sphere",
        })
    }
}

impl FromStr for Body {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "cuboid" => Ok(Self::Cuboid),
            "sphere" => Ok(Self::Sphere),
            _ => Err("use cuboid or sphere".into()),
        }
    }
}

/// What stands for the keys of one page of one KV head.
#[derive(Clone, Debug, PartialEq)]
pub enum Digest {
    /// Lowest and highest value of each channel, `(head_dim)` each.
    Cuboid {
        /// c − r.
        low: Vec<f32>,
        /// c + r.
        high: Vec<f32>,
    },
    /// Centre `(head_dim)`, and radius.
    Sphere {
        /// c.
        centre: Vec<f32>,
        /// R.
        radius: f32,
    },
}

impl Digest {
    /// The digest of keys `(rows, head_dim)`, after rotary embedding.
    pub fn new(keys: &[&[f32]], body: Body, radius: Radius) -> Self {
        let channels = keys.first().map_or(0, |key| key.len());
        let column = |i: usize| keys.iter().map(move |key| key[i]);
        let centre: Vec<f32> = (0..channels)
            .map(|i| {
                0.5 * (column(i).fold(f32::INFINITY, f32::min) + column(i).fold(f32::NEG_INFINITY, f32::max))
            })
            .collect();
        match body {
            Body::Cuboid => {
                let reach: Vec<f32> =
                    (0..channels).map(|i| radius.of(column(i).map(|k| (centre[i] - k).abs()))).collect();
                let low = centre.iter().zip(&reach).map(|(c, r)| c - r).collect();
                Self::Cuboid { low, high: centre.iter().zip(&reach).map(|(c, r)| c + r).collect() }
            }
            Body::Sphere => {
                let distance = |key: &&[f32]| {
                    key.iter().zip(&centre).map(|(k, c)| (c - k) * (c - k)).sum::<f32>().sqrt()
                };
                Self::Sphere { radius: radius.of(keys.iter().map(distance)), centre }
            }
        }
    }

    /// How much of a page like this a query `(head_dim)` may attend to; not scaled.
    pub fn score(&self, q: &[f32]) -> f32 {
        match self {
            Self::Cuboid { low, high } => {
                q.iter().zip(low).zip(high).map(|((q, low), high)| (q * low).max(q * high)).sum()
            }
            Self::Sphere { centre, radius } => {
                let dot: f32 = q.iter().zip(centre).map(|(q, c)| q * c).sum();
                dot + radius * q.iter().map(|q| q * q).sum::<f32>().sqrt()
            }
        }
    }
}

/// How pages are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Most pages that a step's query chooses.
    pub top: usize,
    /// First pages that always stay.
    pub sinks: usize,
    /// Last pages that always stay.
    pub recent: usize,
    /// Whether each KV head has its own pages; otherwise a layer's heads share theirs.
    pub per_head: bool,
    /// Whether pages out of sight stay on the device.
    pub hide: bool,
    /// What scores are multiplied by before a softmax over a head's pages makes weights of them, of which the mean over
    /// query heads is taken; without it, it is taken of the scores.
    pub softmax: Option<f32>,
}

/// Pages that each KV head of `layer` may have on the device, `(n_kv_heads)`; `usize::MAX` where that is everything.
///
/// The first `dense` layers keep everything, out of the same budget. The others' rows are rounded to the nearest page,
/// and to one page where there are any rows. A budget in bytes is a limit: digests come off it, and pages are rounded
/// down.
pub fn capacity(
    budget: Budget,
    page_rows: usize,
    dense: usize,
    shape: KvShape,
    layout: &PromptLayout,
    layer: usize,
) -> Vec<usize> {
    let (n_audio, page) = (layout.n_audio(), page_rows.max(1));
    let (dense, total) = (dense.min(shape.n_layers), budget.total(shape, n_audio));
    let heads = (shape.n_layers - dense) * shape.n_kv_heads;
    let left = total.saturating_sub(dense * shape.n_kv_heads * n_audio);
    let pages = |rows: usize| match budget {
        Budget::Bytes { dtype, .. } => {
            let digests = Segments::new(layout, page).len() * shape.head_dim * size_of::<f32>();
            rows.saturating_sub(digests.div_ceil(dtype.row_bytes(shape.head_dim).max(1))) / page
        }
        _ if rows == 0 => 0,
        _ => ((rows + page / 2) / page).max(1),
    };
    let head = |kv_head: usize| match layer.checked_sub(dense) {
        None => usize::MAX,
        Some(layer) => match even(left, heads, layer * shape.n_kv_heads + kv_head) {
            rows if rows >= n_audio => usize::MAX,
            rows => pages(rows),
        },
    };
    (0..shape.n_kv_heads).map(head).collect()
}

/// The digests of one layer, and what its heads see.
#[derive(Debug)]
struct Layer {
    digests: Vec<Vec<Digest>>, // (n_kv_heads, pages)
    capacity: Vec<usize>,      // pages that each head may see
    seen: Vec<Vec<u32>>,       // per head, ascending
}

/// Shows each head the pages whose digests score best for the step's query.
///
/// What is chosen and not seen comes in; as many of the pages seen as must make room leave, those with the lowest scores
/// of the moment first (of equals the later), and attention then reads all that are seen.
#[derive(Debug)]
pub struct Pages {
    shape: KvShape,
    choice: Choice,
    layers: Vec<Option<Layer>>,
}

impl Pages {
    /// No layer yet.
    pub fn new(shape: KvShape, choice: Choice) -> Self {
        Self { shape, choice, layers: (0..shape.n_layers).map(|_| None).collect() }
    }

    /// Digests a layer whose heads may see `capacity` pages of `page_rows` rows each, `(n_kv_heads)`. At first they see
    /// the best for the last observed query, or, where pages are only hidden, all.
    pub fn admit(
        &mut self,
        view: &LayerView<'_>,
        page_rows: usize,
        body: Body,
        radius: Radius,
        capacity: Vec<usize>,
    ) {
        let (n, hd) = (view.layout.len(), self.shape.head_dim);
        let positions: Vec<usize> = view.layout.audio().iter().flat_map(Clone::clone).collect();
        let pages = Segments::new(view.layout, page_rows);
        let digests: Vec<Vec<Digest>> = (0..self.shape.n_kv_heads)
            .map(|kv_head| {
                let key = |p: &usize| &view.k[(kv_head * n + p) * hd..][..hd];
                let digest = |page: &std::ops::Range<usize>| {
                    let keys: Vec<&[f32]> = positions[page.clone()].iter().map(key).collect();
                    Digest::new(&keys, body, radius)
                };
                pages.ranges().iter().map(digest).collect()
            })
            .collect();
        let all: Vec<u32> = (0..pages.len() as u32).collect();
        let mut layer = Layer { digests, capacity, seen: vec![all; self.shape.n_kv_heads] };
        if !self.choice.hide {
            // As if all pages were there, and the least wanted had to leave.
            let row = self.shape.n_q_heads * hd;
            let none = vec![0.0; row];
            let q = view.q.len().checked_sub(row).map_or(&none[..], |last| &view.q[last..]);
            self.plans(&mut layer, q, |_| true);
        }
        self.layers[view.layer] = Some(layer);
    }

    /// Scores of a layer's pages for `q`, `(n_q_heads, head_dim)`: for each KV head the mean over its group, or over all
    /// heads of the layer.
    fn scores(&self, layer: &Layer, q: &[f32]) -> Vec<Vec<f64>> {
        let (hd, group) = (self.shape.head_dim, self.shape.group());
        let pages = layer.digests.first().map_or(0, Vec::len);
        let mut scores = vec![vec![0.0; pages]; self.shape.n_kv_heads];
        for (kv_head, (scores, digests)) in scores.iter_mut().zip(&layer.digests).enumerate() {
            for q in q[kv_head * group * hd..(kv_head + 1) * group * hd].chunks_exact(hd) {
                let mut own: Vec<f64> = digests.iter().map(|digest| f64::from(digest.score(q))).collect();
                if let Some(scale) = self.choice.softmax {
                    softmax(&mut own, f64::from(scale));
                }
                scores.iter_mut().zip(own).for_each(|(sum, score)| *sum += score);
            }
        }
        if !self.choice.per_head {
            let mean: Vec<f64> = (0..pages).map(|page| scores.iter().map(|head| head[page]).sum()).collect();
            scores.fill(mean);
        }
        scores
    }

    /// Moves those of a layer's heads that `turns` names on to what `q` chooses, and says how; none has an empty plan
    /// otherwise.
    fn plans(&self, layer: &mut Layer, q: &[f32], turns: impl Fn(usize) -> bool) -> Vec<SwapPlan> {
        let scores = self.scores(layer, q);
        let Choice { top, sinks, recent, hide, .. } = self.choice;
        let head = |(kv_head, scores): (usize, &Vec<f64>)| {
            let seen = &layer.seen[kv_head];
            if !turns(kv_head) {
                return (SwapPlan::default(), seen.clone());
            }
            let (pages, capacity) = (scores.len(), layer.capacity[kv_head].min(scores.len()));
            let guarded =
                |page: u32| (page as usize) < sinks || page as usize >= pages.saturating_sub(recent);
            let order = best(scores, pages);
            // Guarded pages first: they count against the capacity, and stay as far as it goes.
            let guard = order.iter().copied().filter(|page| guarded(*page));
            let free = order.iter().copied().filter(|page| !guarded(*page));
            let mut chosen: Vec<u32> = guard.chain(free.take(top)).take(capacity).collect();
            let stay = order.iter().copied().filter(|p| seen.binary_search(p).is_ok() && !chosen.contains(p));
            let stay: Vec<u32> = stay.take(capacity - chosen.len()).collect();
            chosen.extend(stay);
            chosen.sort_unstable();
            let leaves = |page: &&u32| chosen.binary_search(page).is_err();
            let release = |page: &u32| Release { segment: *page, whole: hide };
            let release = seen.iter().filter(leaves).map(release).collect();
            // All that are to be seen are wanted: one for which there was no room is asked for again.
            (SwapPlan { wanted: chosen.clone(), release }, chosen)
        };
        let (plans, seen) = scores.iter().enumerate().map(head).unzip();
        layer.seen = seen;
        plans
    }
}

impl Pages {
    /// What it takes to show those heads of `layer` that `turns` names what `q` chooses; none if the layer has no pages.
    pub fn turn(&mut self, layer: usize, q: &[f32], turns: impl Fn(usize) -> bool) -> Vec<SwapPlan> {
        let Some(mut pages) = self.layers.get_mut(layer).and_then(Option::take) else { return Vec::new() };
        let plans = self.plans(&mut pages, q, turns);
        self.layers[layer] = Some(pages);
        plans
    }
}

impl Pager for Pages {
    fn bytes(&self) -> u64 {
        let digest = |digest: &Digest| match digest {
            Digest::Cuboid { low, high } => low.len() + high.len(),
            Digest::Sphere { centre, .. } => centre.len() + 1,
        };
        let layers = self.layers.iter().flatten().flat_map(|layer| layer.digests.iter().flatten());
        (layers.map(digest).sum::<usize>() * size_of::<f32>()) as u64
    }

    fn at_first(&mut self, layer: usize) -> Vec<SwapPlan> {
        match &self.layers[layer] {
            Some(pages) if !self.choice.hide => {
                pages.seen.iter().map(|seen| SwapPlan { wanted: seen.clone(), release: Vec::new() }).collect()
            }
            _ => Vec::new(),
        }
    }

    fn before_attention(&mut self, layer: usize, q: &[f32]) -> Vec<SwapPlan> {
        self.turn(layer, q, |_| true)
    }
}

/// Softmax of `scores` times `scale`.
fn softmax(scores: &mut [f64], scale: f64) {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    scores.iter_mut().for_each(|score| *score = ((*score - most) * scale).exp());
    let sum: f64 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    /// Worked example "ArkVale digest": keys (1,−2) (3,0) (2,4), q = (0.5, −1).
    #[test]
    fn worked_example_ark_vale_digest() {
        let keys: [&[f32]; 3] = [&[1.0, -2.0], &[3.0, 0.0], &[2.0, 4.0]];
        let q = [0.5, -1.0];
        let box_of = |radius| match Digest::new(&keys, Body::Cuboid, radius) {
            Digest::Cuboid { low, high } => {
                let half = |i: usize| (high[i] - low[i]) / 2.0;
                assert_eq!([0, 1].map(|i| (high[i] + low[i]) / 2.0), [2.0, 1.0], "the centre");
                [half(0), half(1)]
            }
            Digest::Sphere { .. } => unreachable!(),
        };
        let close = |a: f32, b: f32| assert!((a - b).abs() < 1e-4, "{a} for {b}");
        for (radius, reach, score) in [
            (Radius::Mean, [0.6667, 2.3333], 2.6667),
            (Radius::Max, [1.0, 3.0], 3.5),
            (Radius::Centre, [0.5, 2.0], 2.25),
        ] {
            let got = box_of(radius);
            close(got[0], reach[0]);
            close(got[1], reach[1]);
            close(Digest::new(&keys, Body::Cuboid, radius).score(&q), score);
        }
        close(Digest::new(&keys, Body::Sphere, Radius::Max).score(&q), 3.5355);
        close(Digest::new(&keys, Body::Sphere, Radius::Mean).score(&q), 2.8236);
        let best = keys.iter().map(|k| q[0] * k[0] + q[1] * k[1]).fold(f32::NEG_INFINITY, f32::max);
        close(best, 2.5);
        assert!(Digest::new(&keys, Body::Cuboid, Radius::Centre).score(&q) < best, "no upper bound");
    }

    #[test]
    fn weights_are_a_softmax_of_scaled_scores() {
        let mut scores = [2.0, 2.0 + 4.0 * 3f64.ln(), 2.0];
        softmax(&mut scores, 0.25);
        scores.iter().zip([0.2, 0.6, 0.2]).for_each(|(got, want)| assert!((got - want).abs() < 1e-12));
        let mut large = [-1e6, 1e6];
        softmax(&mut large, 1.0);
        assert_eq!(large, [0.0, 1.0]);
    }

    #[test]
    fn the_budget_is_rounded_to_pages_and_pays_for_dense_layers() {
        let shape = KvShape { n_layers: 4, n_q_heads: 4, n_kv_heads: 2, head_dim: 8 };
        let pages = |dense, budget, n_audio: usize, layer| {
            let layout = PromptLayout::new(n_audio + 4, vec![2..2 + n_audio]).unwrap();
            capacity(budget, 32, dense, shape, &layout, layer)
        };
        let share = Budget::Ratio;
        assert_eq!(pages(0, share(0.2), 800, 3), [5, 5]);
        assert_eq!(pages(0, share(0.2), 375, 0), [2, 2], "75 rows are 2.3 pages");
        assert_eq!(pages(0, share(0.2), 400, 0), [3, 3], "80 rows are 2.5 pages");
        assert_eq!(pages(0, share(0.1), 70, 0), [1, 1], "7 rows are less than half a page, but not nothing");
        assert_eq!(pages(1, share(0.4), 800, 0), [usize::MAX; 2]);
        assert_eq!(pages(1, share(0.4), 800, 1), [5, 5], "1.6 of 4 layers, less 1, over 3: 160 rows");
        assert_eq!(pages(2, share(0.4), 800, 2), [0, 0], "dense layers alone are more than that");
        assert_eq!(pages(0, share(1.0), 375, 0), [usize::MAX; 2]);
        // 8 heads of 800 rows: 32 bytes a row, 25 digests of 64 bytes a head.
        let bytes = |rows: u64| Budget::Bytes { bytes: 8 * rows * 32, dtype: crate::KvDtype::Bf16 };
        assert_eq!(pages(0, bytes(5 * 32 + 50), 800, 0), [5, 5]);
        assert_eq!(pages(0, bytes(5 * 32 + 49), 800, 0), [4, 4]);
        // In int8 a row is 24 bytes, so that the digests cost 25 · 64 / 24 = 66.7 rows.
        let bytes = |rows: u64| Budget::Bytes { bytes: 8 * rows * 24, dtype: crate::KvDtype::Int8 };
        assert_eq!(pages(0, bytes(5 * 32 + 67), 800, 0), [5, 5]);
        assert_eq!(pages(0, bytes(5 * 32 + 66), 800, 0), [4, 4]);
    }
}
