//! Byte-pair merging: again and again, the neighbouring parts of a piece whose union comes first in an order become one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The order of the merges.
pub(crate) trait Merges {
    /// The token that a whole piece is without any merging.
    fn whole(&self, piece: &[u8]) -> Option<u32>;

    /// When the parts `start..mid` and `mid..end` of a piece become one, lowest first; none if they do not.
    fn priority(&self, piece: &[u8], start: usize, mid: usize, end: usize) -> Option<u32>;

    /// The token of a part.
    fn id(&self, part: &[u8]) -> Option<u32>;
}

/// Tokens whose rank is their number and the order of the merges too: bytes to rank and back.
#[derive(Default)]
pub(crate) struct Ranks {
    by_bytes: HashMap<Box<[u8]>, u32>,
    /// The tokens' bytes one after another, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    longest: usize,
}

impl Ranks {
    pub fn with_capacity(tokens: usize) -> Self {
        Self {
            by_bytes: HashMap::with_capacity(tokens),
            bytes: Vec::with_capacity(tokens * 8),
            ends: Vec::with_capacity(tokens),
            longest: 0,
        }
    }

    /// Adds the token of the next rank; an error gives the rank that has these bytes already.
    pub fn push(&mut self, token: &[u8]) -> Result<(), u32> {
        let rank = self.ends.len() as u32;
        if let Some(&first) = self.by_bytes.get(token) {
            return Err(first);
        }
        self.by_bytes.insert(token.into(), rank);
        self.bytes.extend_from_slice(token);
        self.ends.push(self.bytes.len());
        self.longest = self.longest.max(token.len());
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token.
    pub fn bytes(&self, rank: usize) -> Option<&[u8]> {
        let end = *self.ends.get(rank)?;
        let start = if rank == 0 { 0 } else { self.ends[rank - 1] };
        Some(&self.bytes[start..end])
    }

    fn rank(&self, token: &[u8]) -> Option<u32> {
        if token.len() > self.longest { None } else { self.by_bytes.get(token).copied() }
    }
}

impl Merges for Ranks {
    /// A piece that is a token is that token, even if merging would not lead there.
    fn whole(&self, piece: &[u8]) -> Option<u32> {
        self.rank(piece)
    }

    fn priority(&self, piece: &[u8], start: usize, _mid: usize, end: usize) -> Option<u32> {
        self.rank(&piece[start..end])
    }

    fn id(&self, part: &[u8]) -> Option<u32> {
        self.rank(part)
    }
}

/// Two neighbouring parts, `start..mid` and `mid..end`, that can be merged. Ordered as they are: by priority, and the
/// leftmost first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    priority: u32,
    start: usize,
    mid: usize,
    end: usize,
}

/// Merges pieces; keeps its buffers from one to the next.
///
/// The parts of a piece are a linked list and the mergeable pairs a heap, so a piece of n bytes takes
/// O(n log n), however long it is: a megabyte of one letter is a legal input.
#[derive(Default)]
pub(crate) struct Merger {
    /// End of the part that starts at an index; 0 if none starts there.
    ends: Vec<usize>,
    /// Start of the part before the one that starts at an index.
    before: Vec<usize>,
    pairs: BinaryHeap<Reverse<Pair>>,
}

impl Merger {
    /// Appends the tokens of a piece, plus `offset`.
    pub fn encode(&mut self, merges: &impl Merges, piece: &[u8], offset: u32, ids: &mut Vec<u32>) {
        if piece.is_empty() {
            return;
        }
        if let Some(id) = merges.whole(piece) {
            ids.push(id + offset);
            return;
        }
        let n = piece.len();
        self.ends.clear();
        self.ends.extend(1..=n);
        self.before.clear();
        self.before.extend((0..n).map(|i| i.saturating_sub(1)));
        self.pairs.clear();
        self.pairs.extend((1..n).filter_map(|mid| pair(merges, piece, mid - 1, mid, mid + 1)).map(Reverse));

        while let Some(Reverse(Pair { start, mid, end, .. })) = self.pairs.pop() {
            // One of the two has been merged with another neighbour since.
            if self.ends[start] != mid || self.ends[mid] != end {
                continue;
            }
            self.ends[start] = end;
            self.ends[mid] = 0;
            if end < n {
                self.before[end] = start;
                self.pairs.extend(pair(merges, piece, start, end, self.ends[end]).map(Reverse));
            }
            if start > 0 {
                self.pairs.extend(pair(merges, piece, self.before[start], start, end).map(Reverse));
            }
        }

        let mut start = 0;
        while start < n {
            let end = self.ends[start];
            // Parts are single bytes or unions that were looked up, so each is a token.
            ids.extend(merges.id(&piece[start..end]).map(|id| id + offset));
            start = end;
        }
    }
}

fn pair(merges: &impl Merges, piece: &[u8], start: usize, mid: usize, end: usize) -> Option<Pair> {
    merges.priority(piece, start, mid, end).map(|priority| Pair { priority, start, mid, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(tokens: &[&str]) -> Ranks {
        let mut ranks = Ranks::default();
        for byte in 0..=255u8 {
            ranks.push(&[byte]).unwrap();
        }
        for token in tokens {
            ranks.push(token.as_bytes()).unwrap();
        }
        ranks
    }

    fn encode(ranks: &Ranks, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        Merger::default().encode(ranks, text.as_bytes(), 0, &mut ids);
        ids
    }

    /// The definition, without any cleverness.
    fn by_definition(ranks: &Ranks, text: &str) -> Vec<u32> {
        let bytes = text.as_bytes();
        if let Some(rank) = ranks.rank(bytes) {
            return vec![rank];
        }
        let mut cuts: Vec<usize> = (0..=bytes.len()).collect();
        loop {
            let best = (1..cuts.len().saturating_sub(1))
                .filter_map(|i| ranks.rank(&bytes[cuts[i - 1]..cuts[i + 1]]).map(|rank| (rank, i)))
                .min();
            let Some((_, i)) = best else { break };
            cuts.remove(i);
        }
        cuts.windows(2).map(|w| ranks.rank(&bytes[w[0]..w[1]]).unwrap()).collect()
    }

    #[test]
    fn merges_the_lowest_rank_first_and_the_leftmost_of_equals() {
        let ranks = ranks(&["bc", "ab", "aa", "aaa"]);
        assert_eq!(encode(&ranks, "abc"), [97, 256]);
        assert_eq!(encode(&ranks, "aaaa"), [258, 258]);
        assert_eq!(encode(&ranks, "aaaab"), [259, 257]);
    }

    #[test]
    fn agrees_with_the_definition() {
        let ranks =
            ranks(&["ab", "ba", "aab", "bb", "abab", "aa", "bba", "aaaa", "abba", "baab", "ac", "cab"]);
        let mut state = 1u32;
        for length in 1..200 {
            let text: String = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    ['a', 'b', 'a', 'b', 'c'][(state >> 24) as usize % 5]
                })
                .collect();
            assert_eq!(encode(&ranks, &text), by_definition(&ranks, &text), "{text}");
        }
    }

    #[test]
    fn a_token_that_merging_cannot_reach_is_still_found_as_a_whole_piece() {
        let ranks = ranks(&["xyz"]);
        assert_eq!(encode(&ranks, "xyz"), [256]);
        assert_eq!(encode(&ranks, "wxyz"), [119, 120, 121, 122]);
    }
}
