//! Which positions of a prompt are audio.

use std::ops::Range;

use thiserror::Error;

/// A prompt's length and the stretches of it that hold audio embeddings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptLayout {
    len: usize,
    audio: Vec<Range<usize>>,
    n_audio: usize,
}

/// Why a list of audio stretches is no layout.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LayoutError {
    /// A stretch ends past the prompt or before it starts.
    #[error("audio stretch {0:?} does not lie inside a prompt of {1} positions")]
    Outside(Range<usize>, usize),
    /// Stretches must be sorted and must not overlap.
    #[error("audio stretch {0:?} starts before the previous one ends")]
    Unsorted(Range<usize>),
}

impl PromptLayout {
    /// A prompt of `len` positions with audio at `audio` (sorted, disjoint, possibly none; empty stretches are dropped).
    pub fn new(len: usize, audio: Vec<Range<usize>>) -> Result<Self, LayoutError> {
        let mut end = 0;
        for stretch in &audio {
            if stretch.start > stretch.end || stretch.end > len {
                return Err(LayoutError::Outside(stretch.clone(), len));
            }
            if stretch.start < end {
                return Err(LayoutError::Unsorted(stretch.clone()));
            }
            end = stretch.end;
        }
        let audio: Vec<_> = audio.into_iter().filter(|r| !r.is_empty()).collect();
        let n_audio = audio.iter().map(ExactSizeIterator::len).sum();
        Ok(Self { len, audio, n_audio })
    }

    /// A prompt of one stretch of `audio` positions with `text` positions before and after it.
    pub fn around(text: usize, audio: usize) -> Self {
        let stretch = text..text + audio;
        Self {
            len: audio + 2 * text,
            audio: if audio > 0 { vec![stretch] } else { Vec::new() },
            n_audio: audio,
        }
    }

    /// Positions of the prompt, text and audio.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the prompt is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Audio positions of the prompt, T_a.
    pub fn n_audio(&self) -> usize {
        self.n_audio
    }

    /// The audio stretches, in order.
    pub fn audio(&self) -> &[Range<usize>] {
        &self.audio
    }

    /// Maximal stretches of one kind in order, each with whether it is audio; together they are `0..len`.
    pub fn stretches(&self) -> Vec<(Range<usize>, bool)> {
        let mut out = Vec::with_capacity(2 * self.audio.len() + 1);
        let mut at = 0;
        for audio in &self.audio {
            if at < audio.start {
                out.push((at..audio.start, false));
            }
            out.push((audio.clone(), true));
            at = audio.end;
        }
        if at < self.len {
            out.push((at..self.len, false));
        }
        out
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    #[test]
    fn stretches_cover_the_prompt_once() {
        let layout = PromptLayout::new(20, vec![3..8, 8..8, 10..15]).unwrap();
        assert_eq!(layout.n_audio(), 10);
        let stretches = layout.stretches();
        assert_eq!(stretches, [(0..3, false), (3..8, true), (8..10, false), (10..15, true), (15..20, false)]);
    }

    #[test]
    fn bad_stretches_are_refused() {
        assert_eq!(PromptLayout::new(5, vec![2..6]), Err(LayoutError::Outside(2..6, 5)));
        assert_eq!(PromptLayout::new(9, vec![2..6, 5..7]), Err(LayoutError::Unsorted(5..7)));
    }
}
