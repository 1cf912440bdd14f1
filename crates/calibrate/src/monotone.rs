//! Monotone score: how well a head's attention follows the recording from token to token.
//!
//! An answer is written in the order in which it was said. So a head that looks where the current word is said goes
//! forward with the tokens, and this can be seen without knowing when any word was said. Ours, since the paper takes word
//! times from an aligner:
//!
//! - a(t, τ) is the softmax weight (text included in the softmax) on audio position τ by the query that predicts answer
//!   token t, mean over the g query heads of a KV head, and ā(τ) its mean over the T tokens of a recording.
//! - e(t, τ) = max(a(t, τ) − ā(τ), 0): what a head gives to a position whatever is being written, such as a sink or a
//!   place where it always looks, says nothing of the token.
//! - F = 1/T · max over non-decreasing paths p of Σ_t Σ_{|τ − p(t)| ≤ w} e(t, τ), with w of 0.4 s: the attention near the
//!   best path that never goes back. B is the same for paths that never go forward.
//! - M = max(F − B, 0), between 0 and 1.
//!
//! Every standing path is of both kinds, and random attention can be caught by a path forward as well as by one
//! backward: both are taken off by B, and what is left is attention that moves on through the recording as the answer
//! does. M is low for a head that spreads over more than w, looks at the audio seldom, or stands still. It cannot tell
//! where a head looks from where it is said: one that runs ahead by a constant time scores as well.
//!
//! A path may leave tokens out, and goes through positions that a token attends to. The best one is found exactly, in
//! `tokens · kept positions · log(positions)` steps.

use wnw_engine::times::AttentionTrace;
use wnw_kv::{HeadSelection, KvShape, LayerView, Policy, PromptLayout};

use rayon::prelude::*;

/// Half width of the neighbourhood of a path, in seconds.
pub const NEIGHBOURHOOD_SECONDS: f64 = 0.4;

/// The best path through a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MonotonePath {
    /// The position of each token, `(tokens)`; none for one that is left out.
    pub places: Vec<Option<u32>>,
    /// Attention near the path, summed over tokens.
    pub weight: f64,
}

/// Which way a path may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Never back.
    Forward,
    /// Never on.
    Backward,
}

/// What a head's attention has in excess of its mean at each position: e(t, τ) above, of kept positions.
#[derive(Clone, Debug)]
pub struct Excess {
    /// By token: positions, ascending, and weights above 0.
    tokens: Vec<Vec<(u32, f64)>>,
    n_positions: usize,
}

impl Excess {
    /// The excess of `trace`, whose weights are divided by `heads`, on positions below `n_positions` (the recording
    /// without its padding).
    pub fn new(trace: &AttentionTrace, heads: usize, n_positions: usize) -> Self {
        let unit = 1.0 / heads.max(1) as f64;
        let entry = |token: usize| {
            let (positions, weights) = trace.entry(token);
            let inside = positions.iter().zip(weights).filter(|(p, _)| (**p as usize) < n_positions);
            inside.map(|(p, w)| (*p, f64::from(*w) * unit)).collect::<Vec<_>>()
        };
        let mut tokens: Vec<Vec<(u32, f64)>> = (0..trace.len()).map(entry).collect();
        let mut mean = vec![0.0; n_positions];
        for (position, weight) in tokens.iter().flatten() {
            mean[*position as usize] += weight / trace.len() as f64;
        }
        for token in &mut tokens {
            token.iter_mut().for_each(|(position, weight)| *weight -= mean[*position as usize]);
            token.retain(|(_, weight)| *weight > 0.0);
        }
        Self { tokens, n_positions }
    }

    /// The path of `direction` with the most attention within `reach` positions of it.
    pub fn best_path(&self, direction: Direction, reach: u32) -> MonotonePath {
        // A path that never goes on is one that never goes back, read from the end.
        let order: Vec<usize> = match direction {
            Direction::Forward => (0..self.tokens.len()).collect(),
            Direction::Backward => (0..self.tokens.len()).rev().collect(),
        };
        let mut tree = BestUpTo::new(self.n_positions);
        let mut states: Vec<State> = Vec::new();
        let (mut weight, mut last) = (0.0, NOWHERE);
        for token in order {
            let first = states.len();
            for (near, position) in within(&self.tokens[token], reach) {
                let (before, previous) = tree.best(position);
                states.push(State { token, position, previous, weight: before + near });
            }
            // Only now may others come after them: a token has one place.
            for (id, state) in states.iter().enumerate().skip(first) {
                tree.raise(state.position, state.weight, id);
                if state.weight > weight {
                    (weight, last) = (state.weight, id);
                }
            }
        }
        let mut places = vec![None; self.tokens.len()];
        while let Some(state) = states.get(last) {
            places[state.token] = Some(state.position);
            last = state.previous;
        }
        MonotonePath { places, weight }
    }

    /// M, the monotone score, 0 to 1; 0 without tokens.
    pub fn monotone_score(&self, reach: u32) -> f64 {
        let weight = |direction| self.best_path(direction, reach).weight;
        let gain = weight(Direction::Forward) - weight(Direction::Backward);
        (gain / self.tokens.len().max(1) as f64).clamp(0.0, 1.0)
    }
}

/// Positions that a neighbourhood reaches to either side, at `tokens_per_second` audio tokens.
pub fn reach(tokens_per_second: f64) -> u32 {
    (NEIGHBOURHOOD_SECONDS * tokens_per_second).round() as u32
}

/// The weight within `reach` of each position of an entry, with the position.
fn within(entry: &[(u32, f64)], reach: u32) -> impl Iterator<Item = (f64, u32)> {
    let (mut from, mut to) = (0, 0);
    entry.iter().map(move |(position, _)| {
        while entry[from].0.saturating_add(reach) < *position {
            from += 1;
        }
        while to < entry.len() && entry[to].0 <= position.saturating_add(reach) {
            to += 1;
        }
        (entry[from..to].iter().map(|e| e.1).sum(), *position)
    })
}

/// No state; larger than the index of any.
const NOWHERE: usize = usize::MAX;

struct State {
    token: usize,
    position: u32,
    previous: usize,
    weight: f64,
}

/// The best state at or before a position (a tree of prefix maxima, Fenwick 1994).
struct BestUpTo {
    nodes: Vec<(f64, usize)>,
}

impl BestUpTo {
    fn new(n: usize) -> Self {
        Self { nodes: vec![(0.0, NOWHERE); n + 1] }
    }

    fn raise(&mut self, position: u32, weight: f64, state: usize) {
        let mut node = position as usize + 1;
        while node < self.nodes.len() {
            if weight > self.nodes[node].0 {
                self.nodes[node] = (weight, state);
            }
            node += node & node.wrapping_neg();
        }
    }

    fn best(&self, position: u32) -> (f64, usize) {
        let mut node = position as usize + 1;
        let mut best = (0.0, NOWHERE);
        while node > 0 {
            if self.nodes[node].0 > best.0 {
                best = self.nodes[node];
            }
            node -= node & node.wrapping_neg();
        }
        best
    }
}

/// The attention of one KV head at the observed queries, summed over its query heads.
pub(crate) fn head_trace(view: &LayerView<'_>, kv_head: usize) -> AttentionTrace {
    let mut trace = AttentionTrace::new();
    let mut sum = vec![0f32; view.layout.n_audio()];
    let last = (kv_head + 1) * view.shape.group() - 1;
    view.audio_attention(kv_head, 0..view.observed.len(), |_, q_head, weights| {
        sum.iter_mut().zip(weights).for_each(|(s, w)| *s += w);
        if q_head == last {
            trace.push(&sum);
            sum.fill(0.0);
        }
    });
    trace
}

/// Takes every KV head's monotone score while a teacher-forced sequence runs through the layers, and keeps no audio.
/// One layer's traces exist at a time, in each the strongest positions of a token.
#[derive(Debug)]
pub struct MonotoneProbe {
    /// M of every KV head, `(n_layers, n_kv_heads)`; complete when the last layer has run.
    pub scores: Vec<f64>,
    positions: Vec<usize>,
    n_positions: usize,
    reach: u32,
}

impl MonotoneProbe {
    /// Watches the queries at `positions`, ascending. Audio ordinals from `n_positions` on are padding. `reach` is that of
    /// [`reach`].
    pub fn new(shape: KvShape, positions: Vec<usize>, n_positions: usize, reach: u32) -> Self {
        Self { scores: vec![0.0; shape.n_layers * shape.n_kv_heads], positions, n_positions, reach }
    }
}

impl Policy for MonotoneProbe {
    fn name(&self) -> &'static str {
        "monotone-probe"
    }

    fn observes(&self, _layout: &PromptLayout) -> Vec<usize> {
        self.positions.clone()
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let n = view.shape.n_kv_heads;
        let n_positions = self.n_positions.min(view.layout.n_audio());
        let score = |(head, score): (usize, &mut f64)| {
            let trace = head_trace(view, head);
            *score = Excess::new(&trace, view.shape.group(), n_positions).monotone_score(self.reach);
        };
        self.scores[view.layer * n..(view.layer + 1) * n].par_iter_mut().enumerate().for_each(score);
        vec![HeadSelection::Only(Vec::new()); n]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const N: usize = 300;
    const T: usize = 80;

    /// The score of a head that gives token `t` the weights `a(t)`.
    fn score(a: impl Fn(usize) -> Vec<f32>) -> f64 {
        let mut trace = AttentionTrace::new();
        (0..T).for_each(|t| trace.push(&a(t)));
        Excess::new(&trace, 1, N).monotone_score(reach(12.5))
    }

    /// All of `mass` at `at`, spread over three positions.
    fn peak(at: usize, mass: f32) -> Vec<f32> {
        let mut a = vec![0.0; N];
        a[at.clamp(1, N - 2) - 1..][..3].copy_from_slice(&[0.25 * mass, 0.5 * mass, 0.25 * mass]);
        a
    }

    /// Whole numbers below `n` that look random.
    fn noise(t: usize, n: usize) -> usize {
        let x = (t as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33) as usize % n
    }

    fn add(mut a: Vec<f32>, b: &[f32]) -> Vec<f32> {
        a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        a
    }

    #[test]
    fn heads_that_follow_the_recording_score_and_others_do_not() {
        let diagonal = |t: usize| 10 + t * 7 / 2;
        let clean = score(|t| peak(diagonal(t), 1.0));
        let half = score(|t| peak(diagonal(t), 0.5));
        let strays = score(|t| peak(if t % 3 == 0 { noise(t, N) } else { diagonal(t) }, 1.0));
        let sink = score(|t| add(peak(diagonal(t), 0.4), &peak(2, 0.6)));
        let wide =
            score(|t| (0..N).map(|i| if i.abs_diff(diagonal(t)) < 30 { 1.0 / 60.0 } else { 0.0 }).collect());
        let uniform = score(|_| vec![1.0 / N as f32; N]);
        let constant = score(|_| peak(5, 1.0));
        let flickering = score(|t| peak(5, 0.2 + 0.1 * (t % 5) as f32));
        let random = score(|t| peak(noise(t, N), 1.0));
        let backward = score(|t| peak(N - diagonal(t), 1.0));
        let none = score(|_| vec![0.0; N]);
        println!(
            "{clean:.3} {strays:.3} {half:.3} {sink:.3} {wide:.3} | {uniform:.3} {constant:.3} {flickering:.3} {random:.3} {backward:.3}"
        );
        assert!(clean > 0.85, "{clean}");
        assert!(
            (half - clean / 2.0).abs() < 1e-9,
            "attention elsewhere is not attention to the recording: {half}"
        );
        assert!((0.45..0.75).contains(&strays), "{strays}");
        assert!((0.3..0.41).contains(&sink), "a head with a sink follows all the same: {sink}");
        assert!((0.05..0.25).contains(&wide), "{wide}");
        for (name, low) in
            [("uniform", uniform), ("constant", constant), ("backward", backward), ("none", none)]
        {
            assert!(low < 1e-6, "{name} {low}");
        }
        assert!(flickering < 0.01 && random < 0.12, "{flickering} {random}");
    }

    #[test]
    fn padding_and_lone_tokens_say_nothing() {
        let mut trace = AttentionTrace::new();
        assert_eq!(Excess::new(&trace, 4, N).monotone_score(5), 0.0);
        trace.push(&peak(20, 4.0));
        assert_eq!(Excess::new(&trace, 4, N).monotone_score(5), 0.0);
        (1..T).for_each(|t| trace.push(&peak(20 + 3 * t, 4.0)));
        let whole = Excess::new(&trace, 4, N).monotone_score(5);
        let cut = Excess::new(&trace, 4, 140).monotone_score(5);
        assert!(whole > 0.8 && (0.4..0.6).contains(&(cut / whole)), "{whole} {cut}");
        assert_eq!(Excess::new(&trace, 4, 0).monotone_score(5), 0.0);
    }

    proptest! {
        /// Against trying every path, in both directions.
        #[test]
        fn paths_keep_their_direction_and_none_is_better(
            attention in prop::collection::vec(prop::collection::vec(0f32..0.2, 5), 0..6),
            reach in 0u32..3,
        ) {
            let mut trace = AttentionTrace::new();
            attention.iter().for_each(|a| trace.push(a));
            let excess = Excess::new(&trace, 1, 5);
            let near = |token: usize, at: u32| {
                within(&excess.tokens[token], reach).find(|x| x.1 == at).map(|x| x.0)
            };
            for direction in [Direction::Forward, Direction::Backward] {
                let fits = |places: &[Option<u32>]| {
                    let chosen: Vec<u32> = places.iter().flatten().copied().collect();
                    match direction {
                        Direction::Forward => chosen.is_sorted(),
                        Direction::Backward => chosen.is_sorted_by(|a, b| a >= b),
                    }
                };
                let weight = |places: &[Option<u32>]| places.iter().enumerate()
                    .map(|(t, p)| p.map_or(Some(0.0), |p| near(t, p))).sum::<Option<f64>>();
                let found = excess.best_path(direction, reach);
                prop_assert!(fits(&found.places), "{:?}", found);
                prop_assert!((weight(&found.places).unwrap() - found.weight).abs() < 1e-9);
                let mut best = 0f64;
                for code in 0..6usize.pow(attention.len() as u32) {
                    let other: Vec<Option<u32>> = (0..attention.len() as u32)
                        .map(|t| (code / 6usize.pow(t) % 6).checked_sub(1).map(|p| p as u32)).collect();
                    if fits(&other) {
                        best = best.max(weight(&other).unwrap_or(0.0));
                    }
                }
                prop_assert!((best - found.weight).abs() < 1e-9, "{} for {}", found.weight, best);
            }
            prop_assert!((0.0..=1.0).contains(&excess.monotone_score(reach)));
        }

        /// Any attention at all: a path in order, a score in range.
        #[test]
        fn any_attention_has_a_score(
            attention in prop::collection::vec(prop::collection::vec(prop_oneof![
                6 => 0f32..1.0,
                1 => prop::sample::select(vec![f32::NAN, f32::INFINITY, -1.0, f32::MAX]),
            ], 0..90), 0..30),
            n_positions in 0usize..100,
            reach in 0u32..200,
        ) {
            let mut trace = AttentionTrace::new();
            attention.iter().for_each(|a| trace.push(a));
            let excess = Excess::new(&trace, 1, n_positions);
            prop_assert!((0.0..=1.0).contains(&excess.monotone_score(reach)));
            let path = excess.best_path(Direction::Forward, reach);
            prop_assert_eq!(path.places.len(), attention.len());
            prop_assert!(path.places.iter().flatten().is_sorted());
        }
    }
}
