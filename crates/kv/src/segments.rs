//! The grid of segments and chunks over a prompt's audio.

use std::ops::Range;

use crate::PromptLayout;

/// A prompt's audio rows cut into segments of equal length; the last one of each recording may be shorter.
///
/// Segments never straddle two recordings of one prompt. They are numbered through the prompt, and so are rows
/// ("ordinals": 0 is the prompt's first audio position).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    ranges: Vec<Range<usize>>,
    recordings: Vec<Range<usize>>, // of segment numbers
}

impl Segments {
    /// Segments of `rows` audio rows, n_s (at least 1).
    pub fn new(layout: &PromptLayout, rows: usize) -> Self {
        let rows = rows.max(1);
        let (mut ranges, mut recordings) = (Vec::new(), Vec::new());
        let mut first = 0;
        for recording in layout.audio() {
            let (end, from) = (first + recording.len(), ranges.len());
            while first < end {
                let next = first.saturating_add(rows).min(end);
                ranges.push(first..next);
                first = next;
            }
            recordings.push(from..ranges.len());
        }
        Self { ranges, recordings }
    }

    /// Number of segments.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there is no audio.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ordinals of each segment, in order.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Chunks of `span` consecutive segments with a stride of one segment, as ranges of segment numbers. A recording
    /// with fewer segments is one chunk.
    pub fn chunks(&self, span: usize) -> Vec<Range<usize>> {
        let mut out = Vec::new();
        for recording in &self.recordings {
            let span = span.clamp(1, recording.len());
            out.extend((recording.start..=recording.end - span).map(|s| s..s + span));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_restart_with_each_recording() {
        let layout = PromptLayout::new(100, vec![3..10, 20..25]).unwrap();
        let segments = Segments::new(&layout, 3);
        assert_eq!(segments.ranges(), [0..3, 3..6, 6..7, 7..10, 10..12]);
        assert_eq!(segments.chunks(2), [0..2, 1..3, 3..5]);
        assert_eq!(segments.chunks(9), [0..3, 3..5]);
        assert_eq!(Segments::new(&layout, usize::MAX).ranges(), [0..7, 7..12]);
        assert!(Segments::new(&PromptLayout::new(5, vec![]).unwrap(), 3).chunks(2).is_empty());
    }
}
