//! The path of the tokens through the audio: never back, and through as much attention as possible.

use super::TimeOptions;
use super::trace::AttentionTrace;

/// A position that gets this share of the attention of all tokens is a sink: heads that have nothing to say rest their
/// weight there. It tells nothing about any one token.
const SINK_SHARE: f64 = 0.2;
/// Sinks are looked for only among at least this many tokens …
const SINK_TOKENS: usize = 40;
/// … and a position must have this many times its fair part: in a second of audio every position has a large one.
const SINK_EXCESS: f64 = 8.0;

/// Attention of each token as shares of what it gives to usable positions.
pub(super) struct Shares {
    offsets: Vec<usize>,
    /// Ascending within a token; below `n_positions`.
    positions: Vec<u32>,
    /// Above 0; of one token at most 1 together.
    shares: Vec<f64>,
    /// By token, 0 to 1: less if it looks at the audio less than the tokens of this window usually do.
    reliability: Vec<f64>,
    n_positions: usize,
}

impl Shares {
    /// Leaves out positions from `n_positions` on (padding) and sinks. Tokens beyond the trace have no attention.
    pub fn new(trace: &AttentionTrace, n_tokens: usize, n_positions: usize) -> Self {
        // What follows takes memory by position, so it goes by those that were attended to, not by what is claimed.
        let attended = (0..n_tokens).filter_map(|t| trace.entry(t).0.last()).max();
        let n_positions = n_positions.min(attended.map_or(0, |&p| p as usize + 1));
        let sinks = sinks(trace, n_tokens, n_positions);
        let mut shares = Self {
            offsets: vec![0],
            positions: Vec::new(),
            shares: Vec::new(),
            reliability: Vec::with_capacity(n_tokens),
            n_positions,
        };
        let mut masses: Vec<f32> = (0..n_tokens).map(|t| trace.mass(t)).filter(|m| *m > 0.0).collect();
        masses.sort_unstable_by(f32::total_cmp);
        let usual = f64::from(masses.get(masses.len() / 2).copied().unwrap_or(1.0));
        for token in 0..n_tokens {
            let (positions, weights) = trace.entry(token);
            let usable = |p: u32| (p as usize) < n_positions && sinks.binary_search(&p).is_err();
            let all = f64::from(trace.mass(token));
            let lost: f64 =
                positions.iter().zip(weights).filter(|(p, _)| !usable(**p)).map(|(_, w)| f64::from(*w)).sum();
            let kept: f64 = weights.iter().map(|w| f64::from(*w)).sum::<f64>() - lost;
            // Not below what is kept, whatever rounding does.
            let left = (all - lost).max(kept);
            if left > 0.0 && kept > 0.0 {
                for (&position, &weight) in positions.iter().zip(weights).filter(|(p, _)| usable(**p)) {
                    shares.positions.push(position);
                    shares.shares.push(f64::from(weight) / left);
                }
            }
            shares.offsets.push(shares.positions.len());
            shares.reliability.push(if left > 0.0 { (left / usual).min(1.0) } else { 0.0 });
        }
        shares
    }

    /// Positions, ascending, and shares of a token.
    pub fn of(&self, token: usize) -> (&[u32], &[f64]) {
        let range = self.offsets[token]..self.offsets[token + 1];
        (&self.positions[range.clone()], &self.shares[range])
    }

    /// How far a token's attention is to be trusted, 0 to 1.
    pub fn reliability(&self, token: usize) -> f64 {
        self.reliability[token]
    }

    fn n_tokens(&self) -> usize {
        self.reliability.len()
    }
}

/// Positions that attract attention whatever is being written; ascending.
fn sinks(trace: &AttentionTrace, n_tokens: usize, n_positions: usize) -> Vec<u32> {
    if n_tokens < SINK_TOKENS {
        return Vec::new();
    }
    let mut received = vec![0f64; n_positions];
    let mut known = 0usize;
    for token in 0..n_tokens {
        let (positions, weights) = trace.entry(token);
        let mass = f64::from(trace.mass(token));
        known += usize::from(mass > 0.0);
        for (&position, &weight) in positions.iter().zip(weights) {
            if let Some(sum) = received.get_mut(position as usize) {
                *sum += f64::from(weight) / mass;
            }
        }
    }
    let share = SINK_SHARE.max(SINK_EXCESS / n_positions as f64);
    let limit = known.max(SINK_TOKENS) as f64 * share;
    (0..n_positions as u32).filter(|&p| received[p as usize] > limit).collect()
}

/// The position of each token, never going back; none for tokens that do not fit in or have no attention.
///
/// Of all ways to choose some tokens and for each a position that is not before the last one's, this is the one with
/// the largest sum of `reliability · ln(share / least_share)` less the penalties for jumps. Leaving a token out costs
/// what it would have brought, so one token that looks elsewhere is left out, and many that go on elsewhere are followed.
/// `tokens · candidates · log(positions)` steps.
pub(super) fn monotone(shares: &Shares, options: &TimeOptions, seconds_per_token: f64) -> Vec<Option<u32>> {
    path(shares, options, seconds_per_token, f64::INFINITY)
}

/// As [`monotone`], but the path may go back, as often as it likes, at a cost of `back` each time (natural-log units of
/// attention): it does where the tokens that would be left out otherwise have brought more.
pub(super) fn wandering(
    shares: &Shares,
    options: &TimeOptions,
    seconds_per_token: f64,
    back: f64,
) -> Vec<Option<u32>> {
    path(shares, options, seconds_per_token, back)
}

fn path(shares: &Shares, options: &TimeOptions, seconds_per_token: f64, back: f64) -> Vec<Option<u32>> {
    let n = shares.n_positions;
    let free = (options.free_jump / seconds_per_token).clamp(1.0, n.max(1) as f64) as usize;
    let mut tree = BestBefore::new(n);
    // One state for each candidate that is worth being on the path.
    let mut states: Vec<State> = Vec::new();
    let mut last = NOWHERE;
    let mut best = 0.0;
    for token in 0..shares.n_tokens() {
        let from = states.len();
        let (positions, weights) = shares.of(token);
        for (k, &position) in positions.iter().enumerate() {
            let share = with_neighbours(positions, weights, k);
            let gain = shares.reliability(token) * (share / options.least_share).ln();
            if gain <= 0.0 {
                continue;
            }
            let (mut before, mut previous) = reach(&tree, position as usize, free, options.jump_penalty);
            if best - back > before {
                (before, previous) = (best - back, last);
            }
            states.push(State { token: token as u32, position, previous, value: before + gain });
        }
        // Only now may others come after them: a token has one place.
        for (id, state) in states.iter().enumerate().skip(from) {
            tree.raise(state.position as usize, state.value, id as u32);
            if state.value > best {
                (best, last) = (state.value, id as u32);
            }
        }
    }
    let mut path = vec![None; shares.n_tokens()];
    while let Some(state) = states.get(last as usize) {
        path[state.token as usize] = Some(state.position);
        last = state.previous;
    }
    path
}

/// No state; larger than the index of any.
const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct State {
    token: u32,
    position: u32,
    previous: u32,
    value: f64,
}

/// A share with half of those next to it, since attention to a sound spreads over neighbouring positions; at most 1.
fn with_neighbours(positions: &[u32], shares: &[f64], k: usize) -> f64 {
    let mut sum = shares[k];
    if k > 0 && positions[k - 1] + 1 == positions[k] {
        sum += shares[k - 1] / 2.0;
    }
    if k + 1 < positions.len() && positions[k] + 1 == positions[k + 1] {
        sum += shares[k + 1] / 2.0;
    }
    sum.min(1.0)
}

/// The best path that can go on at `position`: a jump of up to `free` costs nothing, each further factor of four
/// `penalty`. A path that begins here has value 0.
fn reach(tree: &BestBefore, position: usize, free: usize, penalty: f64) -> (f64, u32) {
    let (mut best, mut cost, mut distance) = ((0.0, NOWHERE), 0.0, free);
    loop {
        let found = tree.best(position.saturating_sub(distance), position);
        if found.0 - cost > best.0 {
            best = (found.0 - cost, found.1);
        }
        if distance >= position {
            return best;
        }
        distance = distance.saturating_mul(4);
        cost += penalty;
    }
}

/// The best state by position, and the best of any range of positions (a segment tree).
struct BestBefore {
    n: usize,
    nodes: Vec<(f64, u32)>,
}

impl BestBefore {
    fn new(n: usize) -> Self {
        Self { n, nodes: vec![(0.0, NOWHERE); 2 * n] }
    }

    /// Keeps a state if it is better than the one at its position.
    fn raise(&mut self, position: usize, value: f64, state: u32) {
        let mut node = position + self.n;
        while node > 0 && value > self.nodes[node].0 {
            self.nodes[node] = (value, state);
            node /= 2;
        }
    }

    /// The best of `first..=last`.
    fn best(&self, first: usize, last: usize) -> (f64, u32) {
        let (mut from, mut to) = (first + self.n, last + self.n + 1);
        let mut best = (0.0, NOWHERE);
        let mut take = |node: (f64, u32)| {
            if node.0 > best.0 {
                best = node;
            }
        };
        while from < to {
            if from % 2 == 1 {
                take(self.nodes[from]);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                take(self.nodes[to]);
            }
            from /= 2;
            to /= 2;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The path through attention given as one peak per token; `None` for a token without.
    fn path_of(peaks: &[Option<usize>], n: usize) -> Vec<Option<u32>> {
        let mut trace = AttentionTrace::new();
        for peak in peaks {
            match peak {
                Some(p) => trace.push(&(0..n).map(|i| if i == *p { 1.0 } else { 0.0 }).collect::<Vec<_>>()),
                None => trace.push_unknown(),
            }
        }
        monotone(&Shares::new(&trace, peaks.len(), n), &TimeOptions::default(), 0.08)
    }

    #[test]
    fn strays_are_left_out_and_moves_are_followed() {
        let some = |p: &[usize]| p.iter().map(|&p| Some(p)).collect::<Vec<_>>();
        assert_eq!(
            path_of(&some(&[3, 5, 900, 8, 1, 10, 11]), 1000),
            [Some(3), Some(5), None, Some(8), None, Some(10), Some(11)]
        );
        // Ninety seconds of silence.
        assert_eq!(
            path_of(&some(&[3, 5, 1200, 1203, 1203]), 1300),
            [Some(3), Some(5), Some(1200), Some(1203), Some(1203)]
        );
        assert_eq!(path_of(&[Some(4), None, Some(6)], 10), [Some(4), None, Some(6)]);
        assert_eq!(path_of(&[], 0), []);
    }

    #[test]
    fn a_sink_hides_nothing() {
        let mut trace = AttentionTrace::new();
        let n = 400;
        for token in 0..100 {
            let mut a = vec![0f32; n];
            a[0] = 3.0;
            a[3 * token + 20] = 0.5;
            trace.push(&a);
        }
        let path = monotone(&Shares::new(&trace, 100, n), &TimeOptions::default(), 0.08);
        assert!(path.iter().enumerate().all(|(t, p)| *p == Some(3 * t as u32 + 20)), "{path:?}");
    }

    #[test]
    fn a_long_window_is_done_at_once() {
        let (n_tokens, n) = (8000, 22_500);
        let mut trace = AttentionTrace::new();
        let mut state = 7u32;
        for token in 0..n_tokens {
            let mut a = vec![0f32; n];
            for k in 0..64 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                a[(state >> 8) as usize % n] += 0.01;
                a[(token * n / n_tokens + k % 7).min(n - 1)] += 0.02;
            }
            trace.push(&a);
        }
        let clock = std::time::Instant::now();
        let path = monotone(&Shares::new(&trace, n_tokens, n), &TimeOptions::default(), 0.08);
        assert!(clock.elapsed().as_secs_f64() < 20.0);
        let off =
            |(t, p): (usize, &Option<u32>)| p.is_none_or(|p| (p as usize).abs_diff(t * n / n_tokens) > 10);
        assert!(path.iter().enumerate().filter(|x| off(*x)).count() < n_tokens / 50);
    }

    proptest! {
        /// Against trying every subset and place.
        #[test]
        fn no_path_is_better(
            attention in prop::collection::vec(prop::collection::vec(0f32..1.0, 5), 0..5),
            penalty in 0f64..2.0,
        ) {
            let mut trace = AttentionTrace::new();
            attention.iter().for_each(|a| trace.push(a));
            let shares = Shares::new(&trace, attention.len(), 5);
            let options = TimeOptions { least_share: 0.15, free_jump: 1.0, jump_penalty: penalty, ..TimeOptions::default() };
            let path = monotone(&shares, &options, 1.0);
            let chosen: Vec<u32> = path.iter().flatten().copied().collect();
            prop_assert!(chosen.is_sorted());
            let value = |path: &[Option<u32>]| -> Option<f64> {
                let (mut sum, mut last) = (0.0, None::<u32>);
                for (token, place) in path.iter().enumerate() {
                    let Some(place) = *place else { continue };
                    let (positions, weights) = shares.of(token);
                    let k = positions.binary_search(&place).ok()?;
                    sum += shares.reliability(token) * (with_neighbours(positions, weights, k) / options.least_share).ln();
                    if let Some(last) = last {
                        let jump = place.checked_sub(last)?;
                        sum -= penalty * match jump { 0..=1 => 0.0, 2..=4 => 1.0, _ => 2.0 };
                    }
                    last = Some(place);
                }
                Some(sum)
            };
            let mut best = 0.0f64;
            for code in 0..6usize.pow(attention.len() as u32) {
                let other: Vec<Option<u32>> = (0..attention.len() as u32)
                    .map(|t| (code / 6usize.pow(t) % 6).checked_sub(1).map(|p| p as u32))
                    .collect();
                best = best.max(value(&other).unwrap_or(0.0));
            }
            prop_assert!((value(&path).unwrap() - best).abs() < 1e-9);
        }
    }
}
