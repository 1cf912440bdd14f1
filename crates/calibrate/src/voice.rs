//! Voice score: how often a head looks where the current word is said.
//!
//! For an answer token aligned to a word, hit(l, h, t) is the share of query head (l, h)'s K most attended audio
//! positions, by the query that predicts token t, that lie in the word's audio span. VS(l, k) is its mean over tokens and
//! samples, and over the g query heads of KV head k (paper, Appendix E, equation 3; K = 4 for Voxtral, about one spoken
//! word).
//!
//! Softmax does not change an order, so the scores q · k are ranked as they are, audio positions alone: one row of
//! T_a scores per query head at a time. Weights that would underflow to an equal zero keep their order this way.

use std::ops::Range;

use rayon::prelude::*;
use wnw_kernels::vector::score_rows;
use wnw_kv::{HeadSelection, KvShape, LayerView, Policy, PromptLayout};

use crate::mapping::TokenTime;

/// K of the paper for Voxtral: 4 audio positions are 320 ms.
pub const VOXTRAL_TOP_K: usize = 4;

/// The audio positions in which a token's word is said: `[⌊start · r⌋, ⌊end · r⌋)` at `r` audio tokens per second, as
/// ordinals among the recording's `n_audio` positions.
///
/// A reading: an empty span is widened to one token. A span is cut at the recording's end; none if it starts after it.
pub fn audio_span(time: &TokenTime, tokens_per_second: f64, n_audio: usize) -> Option<Range<usize>> {
    let start = (time.start * tokens_per_second).floor().max(0.0) as usize;
    let end = (time.end * tokens_per_second).floor().max(0.0) as usize;
    (start < n_audio).then(|| start..end.max(start + 1).min(n_audio))
}

/// Stands for a position in [`top_positions`] when fewer than K audio positions are before the query.
const NOTHING: u32 = u32::MAX;

/// The audio ordinals that each query head attends to most, best first: `(observed, n_q_heads, top_k)`.
///
/// Only audio before the query is seen; of equal scores the lower position wins. Where there are fewer than `top_k`, the
/// rest is `u32::MAX`.
///
/// # Panics
/// When a slice's length is not what the shape says.
pub fn top_positions(view: &LayerView<'_>, top_k: usize) -> Vec<u32> {
    let KvShape { n_q_heads, n_kv_heads, head_dim, .. } = view.shape;
    let (len, group) = (view.layout.len(), view.shape.group());
    assert_eq!(view.q.len(), view.observed.len() * n_q_heads * head_dim, "observed queries");
    assert_eq!(view.k.len(), n_kv_heads * len * head_dim, "keys");
    let n_audio = view.layout.n_audio();
    let mut all = vec![NOTHING; view.observed.len() * n_q_heads * top_k];
    if top_k == 0 {
        return all;
    }
    all.par_chunks_mut(n_q_heads * top_k)
        .zip(view.observed)
        .zip(view.q.par_chunks(n_q_heads * head_dim))
        .for_each_init(
            || (vec![0.0; group * n_audio], Vec::with_capacity(top_k + 1)),
            |(scores, top), ((found, &position), q)| {
                for (head, q) in q.chunks_exact(group * head_dim).enumerate() {
                    let k = &view.k[head * len * head_dim..(head + 1) * len * head_dim];
                    let mut seen = 0;
                    for stretch in view.layout.audio() {
                        let rows = stretch.start..stretch.end.min(position + 1);
                        if rows.is_empty() {
                            break;
                        }
                        let k = &k[rows.start * head_dim..rows.end * head_dim];
                        score_rows(q, k, &[], head_dim, 1.0, scores, n_audio, seen);
                        seen += rows.len();
                    }
                    let found = found[head * group * top_k..].chunks_exact_mut(top_k);
                    for (found, scores) in found.zip(scores.chunks_exact(n_audio.max(1)).take(group)) {
                        top_ordinals(&scores[..seen], top_k, top);
                        found[..top.len()].copy_from_slice(top);
                    }
                }
            },
        );
    all
}

/// Adds to `hits` `(n_q_heads)` how many of each query head's `top` positions, `(observed, n_q_heads, top_k)` as
/// [`top_positions`] finds them, lie in the span of their query; a query without one does not count. `spans` has one
/// entry of audio ordinals per observed query.
///
/// # Panics
/// When the slices do not fit each other.
pub fn add_hits(top: &[u32], spans: &[Option<Range<usize>>], hits: &mut [u64]) {
    if spans.is_empty() || hits.is_empty() {
        return;
    }
    assert_eq!(top.len() % (spans.len() * hits.len()), 0, "positions per query and head");
    let top_k = top.len() / (spans.len() * hits.len());
    if top_k == 0 {
        return;
    }
    for (top, span) in top.chunks_exact(hits.len() * top_k).zip(spans) {
        let Some(span) = span else { continue };
        for (count, top) in hits.iter_mut().zip(top.chunks_exact(top_k)) {
            *count += top.iter().filter(|o| span.contains(&(**o as usize))).count() as u64;
        }
    }
}

/// Indices of the `k` largest scores, best first, into `top`; of equal ones the lower index.
fn top_ordinals(scores: &[f32], k: usize, top: &mut Vec<u32>) {
    top.clear();
    for (i, score) in scores.iter().enumerate() {
        let better = |o: &u32| scores[*o as usize] >= *score;
        if top.len() == k && top.last().is_none_or(better) {
            continue;
        }
        let at = top.partition_point(better);
        top.insert(at, i as u32);
        top.truncate(k);
    }
}

/// Hits of all heads, summed over the answer tokens of any number of samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoiceCount {
    /// Hits, `(n_layers, n_q_heads)`.
    pub hits: Vec<u64>,
    /// Answer tokens counted.
    pub tokens: u64,
    /// K, positions looked at per token and head.
    pub top_k: usize,
}

impl VoiceCount {
    /// Nothing counted yet.
    pub fn new(shape: KvShape, top_k: usize) -> Self {
        Self { hits: vec![0; shape.n_layers * shape.n_q_heads], tokens: 0, top_k }
    }

    /// Adds another sample's count.
    ///
    /// # Panics
    /// When the two are of different models or K.
    pub fn add(&mut self, other: &Self) {
        assert_eq!((self.hits.len(), self.top_k), (other.hits.len(), other.top_k), "counts of one model");
        self.hits.iter_mut().zip(&other.hits).for_each(|(a, b)| *a += b);
        self.tokens += other.tokens;
    }

    /// Mean hit ratio of every query head, `(n_layers, n_q_heads)`, 0 to 1; 0 when no token was counted.
    ///
    /// A reading: every token of every sample weighs the same.
    pub fn per_query_head(&self) -> Vec<f64> {
        let all = (self.tokens * self.top_k as u64).max(1) as f64;
        self.hits.iter().map(|h| *h as f64 / all).collect()
    }

    /// VS of every KV head, `(n_layers, n_kv_heads)`: the mean over its `group` query heads.
    pub fn per_kv_head(&self, group: usize) -> Vec<f64> {
        let all = (self.tokens * self.top_k as u64 * group as u64).max(1) as f64;
        self.hits.chunks_exact(group).map(|g| g.iter().sum::<u64>() as f64 / all).collect()
    }
}

/// A method that counts hits while a teacher-forced sequence runs through the layers, and keeps no audio.
#[derive(Debug)]
pub struct VoiceProbe {
    /// What was counted so far; [`VoiceCount::tokens`] is complete from the start.
    pub count: VoiceCount,
    positions: Vec<usize>,
    spans: Vec<Option<Range<usize>>>,
}

impl VoiceProbe {
    /// Watches `queries`: positions, ascending, with the span of audio ordinals that the token they predict is said in.
    pub fn new(shape: KvShape, top_k: usize, queries: &[(usize, Range<usize>)]) -> Self {
        let (positions, spans): (Vec<_>, Vec<_>) = queries.iter().cloned().map(|(p, s)| (p, Some(s))).unzip();
        let count = VoiceCount { tokens: positions.len() as u64, ..VoiceCount::new(shape, top_k) };
        Self { count, positions, spans }
    }
}

impl Policy for VoiceProbe {
    fn name(&self) -> &'static str {
        "voice-probe"
    }

    fn observes(&self, _layout: &PromptLayout) -> Vec<usize> {
        self.positions.clone()
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let n = view.shape.n_q_heads;
        let hits = &mut self.count.hits[view.layer * n..(view.layer + 1) * n];
        add_hits(&top_positions(view, self.count.top_k), &self.spans, hits);
        vec![HeadSelection::Only(Vec::new()); view.shape.n_kv_heads]
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans_are_floored_widened_and_cut() {
        let span = |start, end| audio_span(&TokenTime { start, end, confidence: None }, 12.5, 375);
        assert_eq!(span(1.0, 1.5), Some(12..18));
        assert_eq!(span(1.0, 1.01), Some(12..13));
        assert_eq!(span(1.0, 1.0), Some(12..13));
        assert_eq!(span(29.9, 40.0), Some(373..375));
        assert_eq!(span(29.99, 30.0), Some(374..375));
        assert_eq!(span(30.0, 31.0), None);
        assert_eq!(span(-1.0, -0.5), Some(0..1));
        assert_eq!(audio_span(&TokenTime { start: 0.0, end: 1.0, confidence: None }, 12.5, 0), None);
    }

    proptest! {
        #[test]
        fn top_is_a_stable_sort_cut_short(scores in proptest::collection::vec(0u8..6, 0..40), k in 0usize..8) {
            let scores: Vec<f32> = scores.into_iter().map(f32::from).collect();
            let mut order: Vec<u32> = (0..scores.len() as u32).collect();
            order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
            order.truncate(k);
            let mut top = Vec::new();
            top_ordinals(&scores, k, &mut top);
            prop_assert_eq!(top, order);
        }
    }

    /// Two KV heads of two query heads each; keys are one-hot, so that a score is one element of the query.
    #[test]
    fn hits_are_counted_per_query_head_over_two_stretches() {
        let shape = KvShape { n_layers: 2, n_q_heads: 4, n_kv_heads: 2, head_dim: 8 };
        let layout = PromptLayout::new(8, vec![1..3, 4..6]).unwrap();
        let mut k = vec![0.0; 2 * 8 * 8];
        for head in 0..2 {
            for position in 0..8 {
                k[(head * 8 + position) * 8 + position] = 1.0;
            }
        }
        // Text positions 0 and 3 have the largest scores and do not count.
        let q = [
            [9.0, 4.0, 3.0, 9.0, 2.0, 1.0, 9.0, 9.0], // ordinals 0 1
            [9.0, 1.0, 2.0, 9.0, 3.0, 4.0, 9.0, 9.0], // 3 2
            [9.0, 1.0, 1.0, 9.0, 1.0, 1.0, 9.0, 9.0], // all equal: 0 1
            [9.0, 4.0, 1.0, 9.0, 3.0, 1.0, 9.0, 9.0], // 0 2
        ]
        .concat();
        let view = |layer, observed| LayerView {
            layer,
            shape,
            layout: &layout,
            k: &k,
            v: &[],
            observed,
            q: &q,
            scale: 1.0,
        };
        let mut probe = VoiceProbe::new(shape, 2, &[(7, 0..3)]);
        assert_eq!(probe.observes(&layout), [7]);
        let kept = probe.after_prefill(&view(1, &[7]));
        assert_eq!(kept, [HeadSelection::Only(vec![]), HeadSelection::Only(vec![])]);
        assert_eq!(probe.count.hits, [0, 0, 0, 0, 2, 1, 2, 2]);
        let mut count = probe.count;
        // From position 4 the last audio position is not seen yet: the second head takes ordinals 2 and 1.
        let top = top_positions(&view(0, &[4]), 2);
        add_hits(&top, &[Some(1..2)], &mut count.hits[..4]);
        assert_eq!(count.hits[..4], [1, 1, 1, 0]);
        add_hits(&top, &[None], &mut count.hits[..4]);
        assert_eq!(count.hits[..4], [1, 1, 1, 0], "a token without a time");
        // Position 1 sees one audio position, and has room for two.
        assert_eq!(top_positions(&view(0, &[1]), 2), [0, NOTHING].repeat(4));
        assert_eq!(count.tokens, 1);
        assert_eq!(count.per_kv_head(2), [0.5, 0.25, 0.75, 1.0]);
        assert_eq!(count.per_query_head()[4..], [1.0, 0.5, 1.0, 1.0]);
        let mut sum = VoiceCount::new(shape, 2);
        sum.add(&count);
        sum.add(&count);
        assert_eq!(sum.per_kv_head(2), count.per_kv_head(2));
        assert_eq!(VoiceCount::new(shape, 2).per_kv_head(2), [0.0; 4]);
    }
}
