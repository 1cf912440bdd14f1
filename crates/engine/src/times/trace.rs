//! What the anchor heads attended to, per generated token.

/// Positions kept per token. A head that has found its place spreads over a dozen; the rest is only needed as a sum.
pub const MAX_KEPT: usize = 64;
/// A position with less than this share of the strongest one's weight says nothing about the place.
const LEAST_OF_STRONGEST: f32 = 1e-3;

/// The strongest audio positions of each generated token.
///
/// The full attention of a 30 min window, 22,500 positions for thousands of tokens, would be hundreds of MB; this is
/// 0.5 kB per token.
#[derive(Clone, Debug)]
pub struct AttentionTrace {
    /// Entry `i` has `positions[offsets[i]..offsets[i + 1]]`, ascending.
    offsets: Vec<usize>,
    positions: Vec<u32>,
    weights: Vec<f32>,
    /// Attention on all audio positions, kept or not; 0 for tokens without attention.
    masses: Vec<f32>,
    /// Used again by each `push`.
    strongest: Vec<(f32, u32)>,
}

impl Default for AttentionTrace {
    fn default() -> Self {
        Self::new()
    }
}

impl AttentionTrace {
    /// A trace for one window.
    pub fn new() -> Self {
        Self {
            offsets: vec![0],
            positions: Vec::new(),
            weights: Vec::new(),
            masses: Vec::new(),
            strongest: Vec::with_capacity(2 * MAX_KEPT),
        }
    }

    /// Adds the next token. `a`, of shape `[n_audio]`, is the sum of the softmax weights on each audio position over
    /// the anchor (layer, query head) pairs, in the step whose logits predicted the token. Values that are not
    /// positive finite numbers count as no attention.
    pub fn push(&mut self, a: &[f32]) {
        let mass = self.keep(a.iter().enumerate().map(|(position, &weight)| (weight, position as u32)));
        self.close(mass);
    }

    /// The sum of several traces of the same tokens, such as those of single heads: positions that one of them kept, and
    /// the masses of all. As long as the longest; an unknown token counts as no attention.
    pub fn sum(traces: &[&Self]) -> Self {
        let mut sum = Self::new();
        let mut entries: Vec<(u32, f32)> = Vec::new();
        for token in 0..traces.iter().map(|t| t.len()).max().unwrap_or(0) {
            entries.clear();
            for trace in traces {
                let (positions, weights) = trace.entry(token);
                entries.extend(positions.iter().copied().zip(weights.iter().copied()));
            }
            // Stable, so that the weights of a position are added in the order of the traces.
            entries.sort_by_key(|e| e.0);
            let same = entries.chunk_by(|a, b| a.0 == b.0);
            sum.keep(same.map(|same| (same.iter().map(|e| e.1).sum(), same[0].0)));
            sum.close(traces.iter().map(|t| f64::from(t.mass(token))).sum());
        }
        sum
    }

    /// Takes the strongest of a token's weights, given with their positions in ascending order, and returns the sum of
    /// all that are positive and finite.
    fn keep(&mut self, weights: impl Iterator<Item = (f32, u32)>) -> f64 {
        let mut mass = 0f64;
        let mut threshold = 0f32;
        self.strongest.clear();
        for (weight, position) in weights {
            if !(weight > 0.0 && weight.is_finite()) {
                continue;
            }
            mass += f64::from(weight);
            if weight <= threshold {
                continue;
            }
            self.strongest.push((weight, position));
            // Thinned out once per MAX_KEPT newcomers, so that the cost per position stays constant.
            if self.strongest.len() == 2 * MAX_KEPT {
                threshold = keep_strongest(&mut self.strongest);
            }
        }
        if self.strongest.len() > MAX_KEPT {
            keep_strongest(&mut self.strongest);
        }
        let top = self.strongest.iter().fold(0f32, |top, s| top.max(s.0));
        self.strongest.retain(|s| s.0 >= top * LEAST_OF_STRONGEST);
        self.strongest.sort_unstable_by_key(|s| s.1);
        self.positions.extend(self.strongest.iter().map(|s| s.1));
        self.weights.extend(self.strongest.iter().map(|s| s.0));
        mass
    }

    /// Ends a token's entry.
    fn close(&mut self, mass: f64) {
        self.offsets.push(self.positions.len());
        self.masses.push(mass.min(f64::from(f32::MAX)) as f32);
    }

    /// Adds a token of which no attention is known, such as one predicted by the prefill.
    pub fn push_unknown(&mut self) {
        self.offsets.push(self.positions.len());
        self.masses.push(0.0);
    }

    /// The entries from a token on, as a trace of their own.
    pub fn since(&self, token: usize) -> Self {
        let mut tail = Self::new();
        for token in token..self.len() {
            let (positions, weights) = self.entry(token);
            tail.positions.extend_from_slice(positions);
            tail.weights.extend_from_slice(weights);
            tail.close(f64::from(self.mass(token)));
        }
        tail
    }

    /// Leaves the first `tokens` entries.
    pub fn truncate(&mut self, tokens: usize) {
        if let Some(&end) = self.offsets.get(tokens) {
            self.offsets.truncate(tokens + 1);
            self.positions.truncate(end);
            self.weights.truncate(end);
            self.masses.truncate(tokens);
        }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.masses.len()
    }

    /// No token yet.
    pub fn is_empty(&self) -> bool {
        self.masses.is_empty()
    }

    /// Kept positions of a token, ascending, and their weights; empty if unknown.
    pub fn entry(&self, token: usize) -> (&[u32], &[f32]) {
        match (self.offsets.get(token), self.offsets.get(token + 1)) {
            (Some(&from), Some(&to)) => (&self.positions[from..to], &self.weights[from..to]),
            _ => (&[], &[]),
        }
    }

    /// Attention of a token on all audio positions, in units of pairs (a pair gives at most 1); 0 if unknown.
    pub fn mass(&self, token: usize) -> f32 {
        self.masses.get(token).copied().unwrap_or(0.0)
    }

    /// Where the last token looked, in positions, and its mass; none if unknown. The place is the middle of a position
    /// with half of the kept attention on either side: a mean would lie where nobody looked when a head looks at two
    /// places.
    pub fn last_centre(&self) -> Option<(f64, f32)> {
        let last = self.len().checked_sub(1)?;
        let (positions, weights) = self.entry(last);
        let half = weights.iter().map(|w| f64::from(*w)).sum::<f64>() / 2.0;
        let mut before = 0.0;
        for (position, weight) in positions.iter().zip(weights) {
            before += f64::from(*weight);
            if before >= half {
                return Some((f64::from(*position) + 0.5, self.mass(last)));
            }
        }
        None
    }
}

/// Leaves the `MAX_KEPT` strongest, at equal weight the earlier ones, and returns the weakest of them.
fn keep_strongest(candidates: &mut Vec<(f32, u32)>) -> f32 {
    let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    let (_, weakest, _) = candidates.select_nth_unstable_by(MAX_KEPT - 1, order);
    let weakest = weakest.0;
    candidates.truncate(MAX_KEPT);
    weakest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_centre_is_where_most_attention_is() {
        let mut trace = AttentionTrace::new();
        assert_eq!(trace.last_centre(), None);
        trace.push(&[0.5, 0.0, 0.0, 0.0, 3.0, 1.0]);
        assert_eq!(trace.last_centre(), Some((4.5, 4.5)));
        trace.push_unknown();
        assert_eq!(trace.last_centre(), None);
        trace.push(&[f32::NAN, f32::INFINITY, -1.0, 0.0]);
        assert_eq!(trace.last_centre(), None);
        assert_eq!((trace.len(), trace.mass(0), trace.mass(1), trace.mass(9)), (3, 4.5, 0.0, 0.0));
    }

    #[test]
    fn a_sum_has_every_position_and_all_mass() {
        let (mut a, mut b) = (AttentionTrace::new(), AttentionTrace::new());
        a.push(&[0.5, 0.0, 0.25]);
        a.push_unknown();
        b.push(&[0.0, 0.125, 0.25]);
        b.push(&[0.0, 1.0, 0.0]);
        b.push(&vec![0.01; 100]);
        let sum = AttentionTrace::sum(&[&a, &b]);
        assert_eq!((sum.len(), sum.mass(0), sum.mass(1)), (3, 1.125, 1.0));
        assert_eq!(sum.entry(0), (&[0, 1, 2][..], &[0.5, 0.125, 0.5][..]));
        assert_eq!(sum.entry(1), (&[1][..], &[1.0][..]));
        // What a trace did not keep is lost as a place, not as mass.
        assert_eq!(sum.entry(2).0.len(), MAX_KEPT);
        assert!((sum.mass(2) - 1.0).abs() < 1e-5);
        assert!(AttentionTrace::sum(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn the_strongest_are_kept_in_order(a in prop::collection::vec(0f32..1.0, 0..700)) {
            let mut trace = AttentionTrace::new();
            trace.push(&a);
            let (positions, weights) = trace.entry(0);
            let mut sorted: Vec<(f32, usize)> = a.iter().copied().zip(0..).filter(|s| s.0 > 0.0).collect();
            sorted.sort_by(|x, y| y.0.total_cmp(&x.0).then(x.1.cmp(&y.1)));
            sorted.truncate(MAX_KEPT);
            let top = sorted.first().map_or(0.0, |s| s.0);
            sorted.retain(|s| s.0 >= top * LEAST_OF_STRONGEST);
            sorted.sort_by_key(|s| s.1);
            prop_assert_eq!(positions.iter().map(|p| *p as usize).collect::<Vec<_>>(), sorted.iter().map(|s| s.1).collect::<Vec<_>>());
            prop_assert_eq!(weights.to_vec(), sorted.iter().map(|s| s.0).collect::<Vec<_>>());
            prop_assert!((trace.mass(0) - a.iter().sum::<f32>()).abs() < 1e-2);
        }
    }
}
