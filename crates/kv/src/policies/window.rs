//! Scores of audio rows from the attention of a prompt's last positions: what SnapKV and its heirs rank by.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::pooling::{Pooling, pool_within};
use super::ranking::top;
use crate::{HeadSelection, LayerView, PromptLayout};

/// How the query heads that share a KV head become one score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupReduce {
    /// Their mean.
    #[default]
    Mean,
    /// Their largest.
    Max,
}

impl fmt::Display for GroupReduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mean => "mean",
            Self::Max => "max",
        })
    }
}

impl FromStr for GroupReduce {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "mean" => Ok(Self::Mean),
            "max" => Ok(Self::Max),
            _ => Err("use mean or max".into()),
        }
    }
}

/// SnapKV's score (arXiv 2404.14469): s(τ) = pool( reduce over the group ( mean over the last `window` prompt positions
/// of their softmax attention at τ ) ), softmax over all visible keys.
///
/// Readings. The papers sum or average over the window: the ranking is the same. The group is reduced before pooling, as
/// Ada-KV does; with average pooling and a mean the order makes no difference. Audio rows that lie inside the window
/// are kept before all others, as the papers keep their window, and count against the budget (the window is prompt
/// positions, most of them audio where little text follows it); `keep_window` false lets them compete instead.
/// Pooling ends where the ranked rows end, and at a recording's edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowScore {
    /// Last prompt positions whose queries count, w.
    pub window: usize,
    /// Whether audio rows inside the window are kept before all others.
    pub keep_window: bool,
    /// How a group's query heads become one.
    pub reduce: GroupReduce,
    /// Length of pooling, odd; 1 for none.
    pub kernel: usize,
    /// How neighbours are pooled.
    pub pooling: Pooling,
}

impl Default for WindowScore {
    /// SnapKV's own defaults: 32 positions, average pooling over 5.
    fn default() -> Self {
        Self {
            window: 32,
            keep_window: true,
            reduce: GroupReduce::Mean,
            kernel: 5,
            pooling: Pooling::Average,
        }
    }
}

impl WindowScore {
    /// The observed positions, ascending.
    pub fn positions(&self, layout: &PromptLayout) -> Vec<usize> {
        (layout.len().saturating_sub(self.window)..layout.len()).collect()
    }

    /// Audio rows kept for being inside the window: the last ones.
    pub fn protected(&self, layout: &PromptLayout) -> usize {
        if self.keep_window { rows_in_window(layout, self.window) } else { 0 }
    }

    /// Scores of the rows that compete, `(n_audio − protected)`.
    pub fn scores(&self, view: &LayerView<'_>, kv_head: usize) -> Vec<f64> {
        let ranked = view.layout.n_audio() - self.protected(view.layout);
        let scores = group_attention(view, kv_head, self.reduce);
        pool_within(&scores[..ranked], &stretches(view.layout, ranked), self.kernel, self.pooling)
    }

    /// What a method prints of it.
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        vec![
            ("window", self.window.to_string()),
            ("keep_window", self.keep_window.to_string()),
            ("reduce", self.reduce.to_string()),
            ("kernel", self.kernel.to_string()),
            ("pooling", self.pooling.to_string()),
        ]
    }
}

/// Audio rows among the last `window` prompt positions.
pub fn rows_in_window(layout: &PromptLayout, window: usize) -> usize {
    let first = layout.len().saturating_sub(window);
    layout.audio().iter().map(|stretch| stretch.end.saturating_sub(stretch.start.max(first))).sum()
}

/// The ordinals of each recording, of those below `rows`.
pub fn stretches(layout: &PromptLayout, rows: usize) -> Vec<Range<usize>> {
    let mut at = 0;
    let of = |stretch: &Range<usize>| {
        let first = at;
        at += stretch.len();
        first.min(rows)..at.min(rows)
    };
    layout.audio().iter().map(of).collect()
}

/// Attention of all observed positions, summed per query head: `(group, n_audio)`.
pub fn attention_sums(view: &LayerView<'_>, kv_head: usize) -> Vec<Vec<f64>> {
    let group = view.shape.group();
    let mut sums = vec![vec![0.0; view.layout.n_audio()]; group];
    view.audio_attention(kv_head, 0..view.observed.len(), |_, q_head, weights| {
        let sum = &mut sums[q_head - kv_head * group];
        sum.iter_mut().zip(weights).for_each(|(sum, w)| *sum += f64::from(*w));
    });
    sums
}

/// Mean attention of the observed positions at each audio row, reduced over the group: `(n_audio)`.
pub fn group_attention(view: &LayerView<'_>, kv_head: usize, reduce: GroupReduce) -> Vec<f64> {
    let observed = view.observed.len().max(1) as f64;
    let mut scores = reduce_group(&attention_sums(view, kv_head), reduce);
    scores.iter_mut().for_each(|s| *s /= observed);
    scores
}

/// Reduces `(group, rows)` to `(rows)`.
pub fn reduce_group(heads: &[Vec<f64>], reduce: GroupReduce) -> Vec<f64> {
    let Some((first, rest)) = heads.split_first() else { return Vec::new() };
    let mut out = first.clone();
    for head in rest {
        out.iter_mut().zip(head).for_each(|(out, s)| match reduce {
            GroupReduce::Mean => *out += s,
            GroupReduce::Max => *out = out.max(*s),
        });
    }
    if reduce == GroupReduce::Mean {
        out.iter_mut().for_each(|s| *s /= heads.len() as f64);
    }
    out
}

/// The selection of a head that may keep `budget` rows of `n_audio`: the last `n_audio − scores.len()` rows first (the
/// latest, if the budget is smaller still), then the best by `scores`.
pub fn select(scores: &[f64], n_audio: usize, budget: usize) -> HeadSelection {
    let recent = (n_audio - scores.len()).min(budget);
    let mut kept = top(scores, budget - recent);
    kept.extend((n_audio - recent) as u32..n_audio as u32);
    selection(kept, n_audio)
}

/// `kept` as a selection: [`HeadSelection::All`] when that is everything.
pub fn selection(kept: Vec<u32>, n_audio: usize) -> HeadSelection {
    if kept.len() == n_audio { HeadSelection::All } else { HeadSelection::Only(kept) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_and_stretches() {
        let layout = PromptLayout::new(20, vec![2..6, 10..18]).unwrap();
        assert_eq!(rows_in_window(&layout, 2), 0);
        assert_eq!(rows_in_window(&layout, 5), 3);
        assert_eq!(rows_in_window(&layout, 15), 9);
        assert_eq!(rows_in_window(&layout, 99), 12);
        assert_eq!(stretches(&layout, 12), [0..4, 4..12]);
        assert_eq!(stretches(&layout, 3), [0..3, 3..3]);
        let score = WindowScore { window: 3, ..WindowScore::default() };
        assert_eq!(score.positions(&layout), [17, 18, 19]);
        assert_eq!(
            (score.protected(&layout), WindowScore { keep_window: false, ..score }.protected(&layout)),
            (1, 0)
        );
    }

    #[test]
    fn the_window_comes_first_then_the_best() {
        let scores = [0.1, 0.9, 0.5, 0.9];
        assert_eq!(select(&scores, 6, 3), HeadSelection::Only(vec![1, 4, 5]));
        assert_eq!(select(&scores, 6, 1), HeadSelection::Only(vec![5]));
        assert_eq!(select(&scores, 6, 0), HeadSelection::Only(vec![]));
        assert_eq!(select(&scores, 6, 6), HeadSelection::All);
    }

    #[test]
    fn groups_are_reduced_by_mean_or_max() {
        let heads = [vec![1.0, 4.0], vec![3.0, 0.0]];
        assert_eq!(reduce_group(&heads, GroupReduce::Mean), [2.0, 2.0]);
        assert_eq!(reduce_group(&heads, GroupReduce::Max), [3.0, 4.0]);
    }
}
