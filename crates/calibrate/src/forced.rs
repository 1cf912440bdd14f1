//! A prompt with its answer behind it, for teacher-forced passes.

use std::ops::Range;

use wnw_kv::PromptLayout;
use wnw_model::prompt::Prompt;

use crate::CalibrateError;

/// One sequence: the prompt, then the answer's tokens. The end-of-sequence token is the last target, and no input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForcedAnswer {
    /// Prompt and answer as one prompt, which `Decoder::embed_prompt` and `Decoder::prefill` take.
    pub sequence: Prompt,
    /// What the last positions predict, in order: the answer's tokens, then the end of sequence.
    pub targets: Vec<u32>,
}

impl ForcedAnswer {
    /// Puts `answer`, which must not be empty, behind `prompt`.
    pub fn new(prompt: &Prompt, answer: &[u32], eos: u32) -> Result<Self, CalibrateError> {
        if answer.is_empty() {
            return Err(CalibrateError::EmptyAnswer);
        }
        if prompt.ids.is_empty() {
            return Err(CalibrateError::Input("an empty prompt".into()));
        }
        let ids = [&prompt.ids[..], answer].concat();
        let layout = PromptLayout::new(ids.len(), prompt.layout.audio().to_vec())
            .map_err(|e| CalibrateError::Input(e.to_string()))?;
        Ok(Self { sequence: Prompt { ids, layout }, targets: answer.iter().copied().chain([eos]).collect() })
    }

    /// Positions of the queries that predict the targets: the prompt's last and the answer's own.
    pub fn queries(&self) -> Range<usize> {
        let len = self.sequence.ids.len();
        len - self.targets.len()..len
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    #[test]
    fn the_last_prompt_position_predicts_the_first_token() {
        let layout = PromptLayout::new(5, vec![2..4]).unwrap();
        let prompt = Prompt { ids: vec![1, 3, 24, 24, 4], layout };
        let forced = ForcedAnswer::new(&prompt, &[50, 51], 2).unwrap();
        assert_eq!(forced.sequence.ids, [1, 3, 24, 24, 4, 50, 51]);
        assert_eq!(forced.sequence.layout, PromptLayout::new(7, vec![2..4]).unwrap());
        assert_eq!((forced.queries(), &forced.targets[..]), (4..7, &[50, 51, 2][..]));
        assert!(matches!(ForcedAnswer::new(&prompt, &[], 2), Err(CalibrateError::EmptyAnswer)));
    }
}
