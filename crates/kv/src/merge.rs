//! Rows of a prompt of which neighbours have been merged before a layer: later layers run over fewer.

use std::ops::Range;

use thiserror::Error;

use crate::PromptLayout;
use crate::policy::HeadSelection;

/// Which rows become one, as [`crate::Policy::before_layer`] decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// Whether a row joins the one before it, `(rows)`. A row and those that join it become their mean.
    pub joins: Vec<bool>,
    /// Which rotary position the mean gets.
    pub position: MergedPosition,
}

/// The rotary position of a merged row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MergedPosition {
    /// That of its first position.
    #[default]
    First,
    /// The mean of its positions, rounded down.
    Mean,
}

/// A merge, or a selection after one, that cannot be.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MergeError {
    /// One entry per row.
    #[error("a merge of {got} rows where there are {want}")]
    Count {
        /// Entries given.
        got: usize,
        /// Rows there are.
        want: usize,
    },
    /// Text, and the first row of a recording, join nothing.
    #[error(
        "prompt position {0} cannot be merged with what lies before it: only neighbouring audio of one recording can"
    )]
    NotAudio(usize),
    /// A selection names a row that was merged into another one, or sends merged rows to the host.
    #[error("a selection must be all rows, or some of those that are left after a merge")]
    Selection,
}

/// The rows that a layer runs over. Each stands for a stretch of the prompt, and together they are the whole of it.
///
/// Of a merged row, the store knows the *place*: the middle of its stretch. Where a head listens is told by places, so
/// times are right to half a stretch. Its rotary *position* is another matter ([`MergedPosition`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptRows {
    spans: Vec<Range<usize>>,
    positions: Vec<usize>,
    merged: bool,
}

impl PromptRows {
    /// One row per position of a prompt of `len`.
    pub fn new(len: usize) -> Self {
        Self { spans: (0..len).map(|p| p..p + 1).collect(), positions: (0..len).collect(), merged: false }
    }

    /// Rows there are.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Whether any row stands for more than one position.
    pub fn is_merged(&self) -> bool {
        self.merged
    }

    /// The prompt positions that each row stands for, ascending; never empty.
    pub fn spans(&self) -> &[Range<usize>] {
        &self.spans
    }

    /// Rotary positions, ascending, `(rows)`.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// Prompt positions under which the store knows the rows, ascending, `(rows)`.
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        self.spans.iter().map(|span| usize::midpoint(span.start, span.end - 1))
    }

    /// Maximal stretches of audio rows of one recording, as ranges of rows.
    pub fn audio(&self, layout: &PromptLayout) -> Vec<Range<usize>> {
        let row = |position: usize| self.spans.partition_point(|span| span.start < position);
        layout.audio().iter().map(|stretch| row(stretch.start)..row(stretch.end)).collect()
    }

    /// Merges rows and their states `x`, `(rows, width)`, which becomes shorter.
    ///
    /// The mean is over rows as they are, whatever number of positions each of them stands for.
    pub fn merge(
        &mut self,
        merge: &Merge,
        layout: &PromptLayout,
        x: &mut Vec<f32>,
    ) -> Result<(), MergeError> {
        if merge.joins.len() != self.len() {
            return Err(MergeError::Count { got: merge.joins.len(), want: self.len() });
        }
        if self.is_empty() {
            return Ok(());
        }
        let mut may_join = vec![false; self.len()];
        for rows in self.audio(layout) {
            may_join[rows].iter_mut().skip(1).for_each(|may| *may = true);
        }
        if let Some(row) = (0..self.len()).find(|i| merge.joins[*i] && !may_join[*i]) {
            return Err(MergeError::NotAudio(self.spans[row].start));
        }
        let width = x.len() / self.len();
        let mut starts: Vec<usize> = (0..self.len()).filter(|i| !merge.joins[*i]).collect();
        let rows = starts.len();
        starts.push(self.len());
        let mut sum = vec![0f64; width];
        for row in 0..rows {
            let members = starts[row]..starts[row + 1];
            let span = self.spans[members.start].start..self.spans[members.end - 1].end;
            if members.len() == 1 {
                x.copy_within(members.start * width..members.end * width, row * width);
                self.positions[row] = self.positions[members.start];
            } else {
                self.merged = true;
                sum.fill(0.0);
                for state in x[members.start * width..members.end * width].chunks_exact(width.max(1)) {
                    sum.iter_mut().zip(state).for_each(|(sum, x)| *sum += f64::from(*x));
                }
                let count = members.len() as f64;
                let mean = sum.iter().map(|sum| (sum / count) as f32);
                x[row * width..(row + 1) * width].iter_mut().zip(mean).for_each(|(x, mean)| *x = mean);
                self.positions[row] = match merge.position {
                    MergedPosition::First => span.start,
                    MergedPosition::Mean => usize::midpoint(span.start, span.end - 1),
                };
            }
            self.spans[row] = span;
        }
        self.spans.truncate(rows);
        self.positions.truncate(rows);
        x.truncate(rows * width);
        Ok(())
    }

    /// Spreads keys or values of these rows, `(heads, rows, head_dim)`, over the places of the prompt: `out` is `(heads,
    /// len, head_dim)`, in which what no row has stays as it is.
    pub fn spread(&self, rows: &[f32], head_dim: usize, out: &mut [f32]) {
        let Some(len) = self.spans.last().map(|span| span.end) else { return };
        let heads = rows.chunks_exact((self.len() * head_dim).max(1));
        for (rows, out) in heads.zip(out.chunks_exact_mut((len * head_dim).max(1))) {
            for (row, place) in rows.chunks_exact(head_dim.max(1)).zip(self.places()) {
                out[place * head_dim..(place + 1) * head_dim].copy_from_slice(row);
            }
        }
    }

    /// What heads keep, as a policy said it, in terms of the rows that there are: all is all of these.
    pub fn restrict(
        &self,
        selections: Vec<HeadSelection>,
        layout: &PromptLayout,
    ) -> Result<Vec<HeadSelection>, MergeError> {
        if !self.merged {
            return Ok(selections);
        }
        let mut left: Vec<u32> = Vec::new();
        let mut places = self.places().peekable();
        let positions = layout.audio().iter().flat_map(Clone::clone);
        for (ordinal, position) in (0u32..).zip(positions) {
            while places.next_if(|place| *place < position).is_some() {}
            if places.next_if_eq(&position).is_some() {
                left.push(ordinal);
            }
        }
        let of = |selection| match selection {
            HeadSelection::All => Ok(HeadSelection::Only(left.clone())),
            HeadSelection::Only(rows) if rows.iter().all(|row| left.binary_search(row).is_ok()) => {
                Ok(HeadSelection::Only(rows))
            }
            HeadSelection::Only(_) | HeadSelection::Tiered(_) => Err(MergeError::Selection),
        };
        selections.into_iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merge(joins: &[u8], position: MergedPosition) -> Merge {
        Merge { joins: joins.iter().map(|j| *j == 1).collect(), position }
    }

    #[test]
    fn rows_become_their_mean_and_keep_their_place() {
        let layout = PromptLayout::new(9, vec![1..6, 7..8]).unwrap();
        for (position, first, second) in [(MergedPosition::First, 1, 1), (MergedPosition::Mean, 2, 3)] {
            let mut rows = PromptRows::new(9);
            let mut x: Vec<f32> = (0..18).map(|i| (i * i) as f32).collect(); // (9, 2)
            rows.merge(&merge(&[0, 0, 1, 1, 0, 0, 0, 0, 0], position), &layout, &mut x).unwrap();
            assert_eq!(rows.spans(), [0..1, 1..4, 4..5, 5..6, 6..7, 7..8, 8..9]);
            assert_eq!(rows.positions(), [0, first, 4, 5, 6, 7, 8]);
            assert_eq!(rows.places().collect::<Vec<_>>(), [0, 2, 4, 5, 6, 7, 8]);
            assert_eq!(rows.audio(&layout), [1..4, 5..6]);
            assert_eq!(x[..6], [0.0, 1.0, (4.0 + 16.0 + 36.0) / 3.0, (9.0 + 25.0 + 49.0) / 3.0, 64.0, 81.0]);
            let all = vec![HeadSelection::All, HeadSelection::Only(vec![1, 5])];
            let restricted = rows.restrict(all, &layout).unwrap();
            assert_eq!(restricted[0], HeadSelection::Only(vec![1, 3, 4, 5]), "ordinals of audio");
            assert_eq!(restricted[1], HeadSelection::Only(vec![1, 5]));
            for gone in [HeadSelection::Only(vec![0]), HeadSelection::Tiered(vec![1])] {
                assert_eq!(rows.restrict(vec![gone], &layout), Err(MergeError::Selection));
            }
            // Once more: a row that stands for three counts like any other in the mean.
            let merged = x[2..4].to_vec();
            rows.merge(&merge(&[0, 0, 1, 1, 0, 0, 0], position), &layout, &mut x).unwrap();
            assert_eq!(rows.spans()[1], 1..6);
            assert_eq!((rows.positions()[1], rows.places().nth(1)), (second, Some(3)));
            assert!((x[2] - (merged[0] + 64.0 + 100.0) / 3.0).abs() < 1e-4);
            assert_eq!(x.len(), 2 * rows.len());
            let mut out = vec![-1.0; 2 * 9];
            rows.spread(&(0..2 * rows.len()).map(|i| i as f32).collect::<Vec<_>>(), 1, &mut out);
            assert_eq!(out[..9], [0.0, -1.0, -1.0, 1.0, -1.0, -1.0, 2.0, 3.0, 4.0]);
            assert_eq!(out[9..], [5.0, -1.0, -1.0, 6.0, -1.0, -1.0, 7.0, 8.0, 9.0]);
        }
    }

    #[test]
    fn text_and_recordings_are_not_mixed() {
        let layout = PromptLayout::new(6, vec![1..3, 3..5]).unwrap();
        let of = |joins: &[u8]| {
            PromptRows::new(6).merge(&merge(joins, MergedPosition::First), &layout, &mut vec![0.0; 6])
        };
        assert_eq!(of(&[0, 0, 1, 0, 1, 0]), Ok(()));
        assert_eq!(of(&[0, 1, 0, 0, 0, 0]), Err(MergeError::NotAudio(1)));
        assert_eq!(of(&[0, 0, 0, 1, 0, 0]), Err(MergeError::NotAudio(3)));
        assert_eq!(of(&[0, 0, 0, 0, 0, 1]), Err(MergeError::NotAudio(5)));
        assert_eq!(of(&[1, 0, 0, 0, 0, 0]), Err(MergeError::NotAudio(0)));
        assert_eq!(of(&[0, 0]), Err(MergeError::Count { got: 2, want: 6 }));
        assert!(!PromptRows::new(3).is_merged() && PromptRows::new(0).is_empty());
    }
}
