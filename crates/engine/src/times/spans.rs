//! From the path to the start and end of each word.

use super::TimeOptions;
use super::grouping::Group;
use super::path::Shares;

/// Longest time given to a word of which nothing is known but its neighbours, in seconds.
const GUESSED_SECONDS: f64 = 1.0;

/// The stretch of audio that a window's words lie in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    start: f64,
    end: f64,
    seconds_per_token: f64,
}

impl Window {
    /// Seconds of the recording, and of one position. What cannot be is put right: an end before the start is the
    /// start; a length of position that is none makes one position of the whole.
    pub fn new(start: f64, end: f64, seconds_per_token: f64) -> Self {
        let start = if start.is_finite() { start } else { 0.0 };
        let end = if end.is_finite() { end.max(start) } else { start };
        let usable = seconds_per_token.is_finite() && seconds_per_token > 0.0;
        Self {
            start,
            end,
            seconds_per_token: if usable { seconds_per_token } else { (end - start).max(1.0) },
        }
    }

    /// Positions that hold real audio.
    pub fn positions(&self) -> usize {
        (((self.end - self.start) / self.seconds_per_token).ceil() as usize).max(1)
    }

    pub fn seconds_per_token(&self) -> f64 {
        self.seconds_per_token
    }

    fn seconds(&self, position: f64, bias: f64) -> f64 {
        (self.start + position * self.seconds_per_token + bias).clamp(self.start, self.end)
    }
}

/// When a word is said, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Span {
    pub start: f64,
    pub end: f64,
    pub confidence: f64,
    /// The middle of its attention: what the word keeps when it and a neighbour claim the same time.
    centre: f64,
}

/// A span for each word; in order, without overlap, inside the window.
pub(super) fn spans(
    groups: &[Group],
    shares: &Shares,
    path: &[Option<u32>],
    options: &TimeOptions,
    window: Window,
) -> Vec<Span> {
    let reach: Vec<Option<(u32, u32)>> = groups
        .iter()
        .map(|g| {
            let mut places = g.tokens.iter().filter_map(|&t| path[t]);
            let first = places.next()?;
            Some((first, places.next_back().unwrap_or(first)))
        })
        .collect();
    let margin = options.neighbourhood / window.seconds_per_token;
    let mut before = 0u32;
    let mut after: Vec<u32> = vec![u32::MAX; groups.len()];
    let mut next = u32::MAX;
    for (after, reach) in after.iter_mut().zip(&reach).rev() {
        *after = next;
        next = reach.map_or(next, |(first, _)| first);
    }
    let mut spans: Vec<Option<Span>> = Vec::with_capacity(groups.len());
    for ((group, reach), &after) in groups.iter().zip(&reach).zip(&after) {
        let Some((first, last)) = *reach else {
            spans.push(None);
            continue;
        };
        // Attention before the last word's place or after the next one's is theirs.
        let low = (f64::from(first) - margin).max(f64::from(before));
        let high = (f64::from(last) + margin).min(f64::from(after.max(last)));
        spans.push(span(group, shares, path, options, window, (low.ceil() as u32, high.floor() as u32)));
        before = last;
    }
    separate(&mut spans);
    fill(spans, groups, window)
}

/// A word's span from its attention on the positions `low..=high`.
fn span(
    group: &Group,
    shares: &Shares,
    path: &[Option<u32>],
    options: &TimeOptions,
    window: Window,
    (low, high): (u32, u32),
) -> Option<Span> {
    let mut near: Vec<(u32, f64)> = Vec::new();
    let mut support = 0.0;
    for &token in group.tokens.iter().filter(|&&t| path[t].is_some()) {
        let (positions, weights) = shares.of(token);
        let inside = positions.partition_point(|p| *p < low)..positions.partition_point(|p| *p <= high);
        let reliability = shares.reliability(token);
        for (&position, &share) in positions[inside.clone()].iter().zip(&weights[inside]) {
            near.push((position, share * reliability));
            support += share * reliability;
        }
    }
    near.sort_unstable_by_key(|n| n.0);
    let quantile = |share: f64| quantile(&near, share);
    let (start, centre, end) = (quantile(options.onset)?, quantile(0.5)?, quantile(options.offset)?);
    let centre = window.seconds(centre, options.bias);
    Some(Span {
        start: window.seconds(start, options.bias).min(centre),
        centre,
        end: window.seconds(end, options.bias).max(centre),
        confidence: (support / group.tokens.len() as f64).clamp(0.0, 1.0),
    })
}

/// Where `share` of the mass lies before, in positions; the mass of a position is spread evenly over it. `near` is
/// sorted by position. None without mass.
fn quantile(near: &[(u32, f64)], share: f64) -> Option<f64> {
    let total: f64 = near.iter().map(|n| n.1).sum();
    if !(total > 0.0 && total.is_finite()) {
        return None;
    }
    let mut missing = total * share;
    let mut at = None;
    // A position may occur once for each token; the place moves on only with the position.
    for same in near.chunk_by(|a, b| a.0 == b.0) {
        let mass: f64 = same.iter().map(|n| n.1).sum();
        if mass <= 0.0 {
            continue;
        }
        at = Some(f64::from(same[0].0) + (missing / mass).clamp(0.0, 1.0));
        if missing <= mass {
            break;
        }
        missing -= mass;
    }
    at
}

/// Puts centres in order and cuts spans that overlap half-way, but not beyond either centre.
fn separate(spans: &mut [Option<Span>]) {
    let mut last: Option<&mut Span> = None;
    for span in spans.iter_mut().flatten() {
        if let Some(previous) = last {
            span.centre = span.centre.max(previous.centre);
            span.end = span.end.max(span.centre);
            if previous.end > span.start {
                let cut = f64::midpoint(previous.end, span.start).clamp(previous.centre, span.centre);
                previous.end = cut;
                span.start = cut;
            }
        }
        last = Some(span);
    }
}

/// Spreads the words of which nothing is known over the gaps between the others, in proportion to their letters.
fn fill(spans: Vec<Option<Span>>, groups: &[Group], window: Window) -> Vec<Span> {
    let mut filled: Vec<Span> = Vec::with_capacity(spans.len());
    let mut i = 0;
    while i < spans.len() {
        if let Some(span) = spans[i] {
            filled.push(span);
            i += 1;
            continue;
        }
        let n = spans[i..].iter().take_while(|s| s.is_none()).count();
        let left = filled.last().map(|s| s.end);
        let right = spans.get(i + n).copied().flatten().map(|s| s.start);
        let (mut from, mut to) = (left.unwrap_or(window.start), right.unwrap_or(window.end));
        let most = GUESSED_SECONDS * n as f64;
        // Words follow the one before them closely; at the beginning they lead up to the first one known.
        match (left, right) {
            (Some(_), _) => to = to.min(from + most),
            (None, Some(_)) => from = from.max(to - most),
            (None, None) => {}
        }
        let letters = |g: &Group| g.text.chars().count() as f64;
        let all: f64 = groups[i..i + n].iter().map(letters).sum();
        let mut before = 0.0;
        for group in &groups[i..i + n] {
            let start = (from + (to - from) * before / all).clamp(from, to);
            before += letters(group);
            let end = (from + (to - from) * before / all).clamp(start, to);
            filled.push(Span { start, end, confidence: 0.0, centre: f64::midpoint(start, end) });
        }
        i += n;
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_inside_positions() {
        let near = [(3, 1.0), (3, 1.0), (7, 2.0)];
        assert_eq!(quantile(&near, 0.0), Some(3.0));
        assert_eq!(quantile(&near, 0.25), Some(3.5));
        assert_eq!(quantile(&near, 0.75), Some(7.5));
        assert_eq!(quantile(&near, 1.0), Some(8.0));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[(1, 0.0)], 0.5), None);
    }

    #[test]
    fn overlapping_words_meet_half_way() {
        let span = |start, centre, end| Some(Span { start, centre, end, confidence: 1.0 });
        let mut spans = [span(0.0, 1.0, 3.0), None, span(2.0, 4.0, 5.0), span(1.0, 3.0, 3.5)];
        separate(&mut spans);
        let found: Vec<(f64, f64)> = spans.iter().flatten().map(|s| (s.start, s.end)).collect();
        assert_eq!(found, [(0.0, 2.5), (2.5, 4.0), (4.0, 4.0)]);
    }
}
