//! A prompt with its answer behind it, for teacher-forced passes.

use std::ops::{ControlFlow, Range};

use wnw_kv::{KvDtype, KvStore, Policy, PromptLayout, StoreOptions};
use wnw_model::prompt::{Prompt, Task};
use wnw_model::{ModelError, SpeechModel};

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

/// Runs prompt and `answer` through the model once, layer by layer, and gives back the probe that saw them. `probe` makes
/// it from the prompt and the positions of the queries that predict the answer's tokens (the end of sequence left out).
/// `samples` are 16 kHz mono, no longer than the model takes in one pass.
///
/// `progress` is told the share that is done, 0 to 1; when it breaks, [`CalibrateError::Cancelled`].
pub(crate) fn observe<P: Policy>(
    model: &SpeechModel,
    samples: &[f32],
    task: &Task,
    answer: &[u32],
    probe: impl FnOnce(&Prompt, Range<usize>) -> Result<P, CalibrateError>,
    progress: &mut dyn FnMut(f64) -> ControlFlow<()>,
) -> Result<P, CalibrateError> {
    let decoder = model.decoder();
    let prompt = model.prompt(task, samples.len())?;
    let forced = ForcedAnswer::new(&prompt, answer, model.eos())?;
    let (positions, max) = (forced.sequence.ids.len(), decoder.config().max_positions);
    if positions > max {
        return Err(ModelError::TooLong { positions, max }.into());
    }
    let cancelled = |error: ModelError| match error {
        ModelError::Cancelled => CalibrateError::Cancelled,
        other => other.into(),
    };
    let share = |done: usize, all: usize| done as f64 / all.max(1) as f64;
    let audio = model.embed_audio(samples, &mut |done, all| progress(0.4 * share(done, all)));
    let x = decoder.embed_prompt(&forced.sequence, &audio.map_err(cancelled)?)?;
    let queries = forced.queries();
    let mut probe = probe(&prompt, queries.start..queries.end - 1)?;
    let layout = forced.sequence.layout.clone();
    // Probes keep no audio, and the type of the little text that stays has no effect on what they see.
    let options = StoreOptions { dtype: KvDtype::Bf16, ..StoreOptions::default() };
    let mut store = KvStore::new(decoder.kv_shape(), layout, &options);
    decoder
        .prefill(x, 1, &mut store, &mut probe, &mut |p| progress(0.4 + 0.6 * share(p.done, p.total)))
        .map_err(cancelled)?;
    Ok(probe)
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
