//! Attention of a few prompt positions over the audio, for policies that rank rows by it.

use std::ops::Range;

use wnw_kernels::elementwise::{exp_sub_sum, max, scale};
use wnw_kernels::vector::score_rows;

use crate::LayerView;

impl LayerView<'_> {
    /// Softmax attention of the observed queries over the audio rows.
    ///
    /// Calls `each(observed, q_head, weights)` for every observed position of `which` (an index in
    /// [`LayerView::observed`]) and query head of `kv_head`, with the weights on the audio rows, `(n_audio)`. The softmax is over all keys that
    /// the position may see, text included; audio rows after it have weight 0. Memory is one row of scores per query
    /// head of the group.
    ///
    /// # Panics
    /// When `which` is not in [`LayerView::observed`].
    pub fn audio_attention(
        &self,
        kv_head: usize,
        which: Range<usize>,
        mut each: impl FnMut(usize, usize, &[f32]),
    ) {
        let (n, hd, group) = (self.layout.len(), self.shape.head_dim, self.shape.group());
        let k = &self.k[kv_head * n * hd..(kv_head + 1) * n * hd];
        let mut scores = vec![0.0; group * n]; // (group, n)
        let mut audio = vec![0.0; self.layout.n_audio()];
        for observed in which {
            let position = self.observed[observed];
            let q = &self.q[(observed * self.shape.n_q_heads + kv_head * group) * hd..][..group * hd];
            score_rows(q, &k[..(position + 1) * hd], &[], hd, self.scale, &mut scores, n, 0);
            for (head, scores) in scores.chunks_exact_mut(n).enumerate() {
                let seen = &mut scores[..=position];
                let top = max(seen);
                let sum = exp_sub_sum(seen, top);
                scale(seen, 1.0 / sum);
                scores[position + 1..].fill(0.0);
                let mut at = 0;
                for stretch in self.layout.audio() {
                    audio[at..at + stretch.len()].copy_from_slice(&scores[stretch.clone()]);
                    at += stretch.len();
                }
                each(observed, kv_head * group + head, &audio);
            }
        }
    }
}
