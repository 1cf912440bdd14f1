//! Finds where a model lost its place, from where it listened while it wrote.

use super::RecoveryConfig;
use super::loudness::Loudness;

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Speech was passed over.
    Skip,
    /// A stretch is being written again.
    Back,
    /// The model writes on and does not move.
    Still,
    /// The answer ended before the speech did.
    End,
}

/// A lost place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Loss {
    /// What went wrong.
    pub fault: Fault,
    /// The last token that can be trusted; none if the first cannot.
    pub last_good: Option<usize>,
    /// Where it listened, in seconds of the window: what was said up to there is written.
    pub from: f64,
    /// Where the model went on; the window's end for [`Fault::End`].
    pub to: f64,
}

/// The first skip or step back that enough tokens confirm. `places` are seconds of the window by token, on a path that
/// goes back only for good; `before` says where the model listened before the first of them, if that is known. Jumps
/// before token `least` are passed over.
pub(crate) fn jump(
    places: &[Option<f64>],
    before: Option<f64>,
    least: usize,
    loudness: &Loudness,
    config: &RecoveryConfig,
    ended: bool,
) -> Option<Loss> {
    let known: Vec<(usize, f64)> = places.iter().enumerate().filter_map(|(i, p)| Some((i, (*p)?))).collect();
    // Tokens so far, then place; what precedes the first token counts as one more.
    let mut path: Vec<(usize, f64)> = Vec::with_capacity(known.len() + 1);
    path.extend(before.map(|at| (0, at)));
    path.extend(known.iter().map(|(i, at)| (i + 1, *at)));
    let confirm = if ended { config.confirm_at_end } else { config.confirm };
    for (k, &(n, at)) in path.iter().enumerate().skip(1) {
        if path.len() - k < confirm {
            return None;
        }
        if n <= least {
            continue;
        }
        let (last, from) = path[k - 1];
        if from - at > config.back_seconds {
            return Some(Loss { fault: Fault::Back, last_good: last.checked_sub(1), from, to: at });
        }
        // A skip may touch down once or twice on its way.
        let mut worst: Option<(f64, usize, f64)> = None;
        for &(m, earlier) in
            path[..k].iter().rev().take_while(|(m, _)| *m >= least && n - m <= config.skip_tokens)
        {
            if earlier > at {
                break;
            }
            let unwritten = loudness.between(earlier, at) - config.token_seconds * (n - m) as f64;
            if unwritten > config.skip_seconds && worst.is_none_or(|w| unwritten > w.0) {
                worst = Some((unwritten, m, earlier));
            }
        }
        if let Some((_, last, from)) = worst {
            return Some(Loss { fault: Fault::Skip, last_good: last.checked_sub(1), from, to: at });
        }
    }
    None
}

/// A stand-still at the end of `places`: many tokens without a move, of which most were written before (`repeated`,
/// by token).
pub(crate) fn still(places: &[Option<f64>], repeated: &[bool], config: &RecoveryConfig) -> Option<Loss> {
    let front = front(places)?;
    let rest = places.len() - 1 - front.0;
    let again = repeated[repeated.len().saturating_sub(rest)..].iter().filter(|r| **r).count();
    if rest < config.still_tokens || again * 2 < rest {
        return None;
    }
    Some(Loss { fault: Fault::Still, last_good: Some(front.0), from: front.1, to: front.1 })
}

/// The token that first came as far as any, give or take half a second, and its place.
pub(crate) fn front(places: &[Option<f64>]) -> Option<(usize, f64)> {
    let farthest = places.iter().flatten().copied().max_by(f64::total_cmp)?;
    places.iter().enumerate().find_map(|(i, p)| p.filter(|p| *p >= farthest - 0.5).map(|p| (i, p)))
}

/// Speech after the last place, once the model ended.
pub(crate) fn early_end(
    places: &[Option<f64>],
    loudness: &Loudness,
    config: &RecoveryConfig,
) -> Option<Loss> {
    let last = places.iter().rposition(Option::is_some);
    let from = last.and_then(|i| places[i]).unwrap_or(0.0);
    let to = loudness.seconds();
    let left = loudness.between(from, to) - config.token_seconds;
    (left > config.end_seconds).then_some(Loss { fault: Fault::End, last_good: last, from, to })
}

/// Where to end the text and where to begin again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cut {
    /// Tokens that stay.
    pub tokens: usize,
    /// Seconds of the window at which the next one begins.
    pub at: f64,
}

/// What a token begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Begins {
    /// It goes on with the word before it.
    Nothing,
    Word,
    Sentence,
}

/// Going back from a lost place, the latest pause between sentences, or else between words, or else the quietest place
/// between words; not behind what was passed on (`least` tokens, which end where a word does). The word that the place
/// was lost in is not kept, since it may be of two halves.
pub(crate) fn cut(
    loss: &Loss,
    places: &[Option<f64>],
    begins: &[Begins],
    least: usize,
    loudness: &Loudness,
) -> Cut {
    let Some(last) = loss.last_good else { return Cut { tokens: 0, at: 0.0 } };
    if loss.fault == Fault::End {
        let at = loudness.first_pause(loss.from, loss.from + 1.0);
        return Cut { tokens: places.len(), at };
    }
    let word = (0..=last).rev().find(|t| begins[*t] >= Begins::Word).unwrap_or(0);
    let mut best: Option<(Rank, Cut)> = None;
    for tokens in (least..=word).rev().filter(|t| *t == least || begins[*t] >= Begins::Word) {
        let before = places[..tokens].iter().rev().flatten().next().copied();
        let (at, level) = match before {
            // The window's first word: everything is said again.
            None if tokens == 0 => (0.0, f64::NEG_INFINITY),
            None => continue,
            Some(before) => {
                let after = places[tokens..=last].iter().flatten().next().copied().unwrap_or(loss.from);
                loudness.pause(before, after.max(before))
            }
        };
        let pause = tokens == 0 || loudness.is_pause(at);
        let rank = Rank { sentence: pause && begins[tokens] == Begins::Sentence, pause, level };
        if best.is_none_or(|(other, _)| rank.is_above(&other)) {
            best = Some((rank, Cut { tokens, at }));
        }
        if rank.sentence {
            break;
        }
    }
    // Without any, everything that could be taken back is passed on.
    best.map_or(Cut { tokens: least, at: loss.from }, |b| b.1)
}

/// How good a place is to cut.
#[derive(Clone, Copy, Debug)]
struct Rank {
    sentence: bool,
    pause: bool,
    level: f64,
}

impl Rank {
    /// Whether this is better than one farther on.
    fn is_above(&self, later: &Self) -> bool {
        let kinds = (self.sentence, self.pause).cmp(&(later.sentence, later.pause));
        kinds.is_gt() || (!self.pause && !later.pause && self.level < later.level)
    }
}
