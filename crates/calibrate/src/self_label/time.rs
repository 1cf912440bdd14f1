//! Word times from the attention of some heads.

use wnw_engine::times::{self, AttentionTrace, TimeOptions};
use wnw_kv::{HeadSelection, LayerView, Policy, PromptLayout};
use wnw_model::Tokenizer;

use crate::alignment::AlignedWord;
use crate::mapping::{TokenTime, token_times};
use crate::monotone::head_trace;
use crate::voice::top_positions;

/// When each token of an answer is said, from a trace of the attention while it was written; `step` is the length of an
/// audio position and `seconds` that of the recording. None for a token whose word has no attention near the path.
pub fn attention_times(
    tokenizer: &dyn Tokenizer,
    answer: &[u32],
    trace: &AttentionTrace,
    step: f64,
    seconds: f64,
) -> Vec<Option<TokenTime>> {
    let words = times::words(trace, answer, tokenizer, &TimeOptions::default(), step, 0.0, seconds);
    let words: Vec<AlignedWord> = words
        .into_iter()
        .map(|word| {
            let known = word.confidence > 0.0;
            AlignedWord {
                text: word.word,
                start: known.then_some(word.start),
                end: known.then_some(word.end),
                confidence: Some(word.confidence as f32),
            }
        })
        .collect();
    token_times(tokenizer, answer, &words)
}

/// Takes the traces of some heads and the positions that every query head attends to most; keeps no audio.
pub(super) struct TimeProbe {
    /// Layer and KV head, ascending.
    pub heads: Vec<(usize, usize)>,
    /// K.
    pub top_k: usize,
    /// The queries that predict the answer's tokens, ascending.
    pub positions: Vec<usize>,
    /// By head, when its layer has run.
    pub traces: Vec<AttentionTrace>,
    /// By layer, as `top_positions` gives them.
    pub top: Vec<Vec<u32>>,
}

impl Policy for TimeProbe {
    fn name(&self) -> &'static str {
        "time-probe"
    }

    fn observes(&self, _layout: &PromptLayout) -> Vec<usize> {
        self.positions.clone()
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let here = self.heads.iter().filter(|(layer, _)| *layer == view.layer);
        self.traces.extend(here.map(|(_, head)| head_trace(view, *head)));
        self.top.push(top_positions(view, self.top_k));
        vec![HeadSelection::Only(Vec::new()); view.shape.n_kv_heads]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wnw_model::tekken::Tekken;

    #[test]
    fn only_supported_words_have_times() {
        let tokenizer = Tekken::from_bytes(wnw_tiny::TEKKEN, "tiny").unwrap();
        let answer = tokenizer.encode("Press one, please.").unwrap();
        let mut trace = AttentionTrace::new();
        let n = answer.len();
        for t in 0..n {
            let mut a = vec![0f32; 100];
            a[10 + 5 * t] = 1.0;
            // The last word's tokens look nowhere.
            if t + 3 < n { trace.push(&a) } else { trace.push_unknown() }
        }
        let times = attention_times(&tokenizer, &answer, &trace, 0.08, 8.0);
        assert_eq!(times.len(), n);
        let first = times[0].unwrap();
        assert!((0.7..1.3).contains(&first.start) && first.confidence.is_some_and(|c| c > 0.0), "{first:?}");
        assert_eq!(times[n - 1], None);
    }
}
