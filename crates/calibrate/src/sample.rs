//! One calibration recording: its answer with times, and the scores that come of it.

use std::ops::{ControlFlow, Range};

use wnw_kv::{KvDtype, KvStore, Policy, StoreOptions};
use wnw_model::Tokenizer;
use wnw_model::prompt::Task;
use wnw_model::{ModelError, ModelFiles, SpeechModel};

use crate::alignment::AlignedWord;
use crate::forced::ForcedAnswer;
use crate::journal::SampleScores;
use crate::mapping::{TokenTime, token_times};
use crate::sensitivity::Sensitivity;
use crate::voice::{VOXTRAL_TOP_K, VoiceProbe, audio_span};
use crate::{CalibrateError, sensitivity};

/// What a sample's scores depend on beside model and recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleOptions {
    /// K of the voice score.
    pub top_k: usize,
    /// Least alignment confidence of a token that the voice score counts.
    pub min_confidence: f32,
}

impl Default for SampleOptions {
    /// The paper's values for Voxtral.
    fn default() -> Self {
        Self { top_k: VOXTRAL_TOP_K, min_confidence: 0.85 }
    }
}

/// A recording with the answer that is forced on the model.
pub struct Sample<'a> {
    /// Name, unique in the calibration set.
    pub id: &'a str,
    /// The recording, 16 kHz mono; no longer than the model takes in one pass.
    pub samples: &'a [f32],
    /// What the model is asked.
    pub task: &'a Task,
    /// The answer's tokens, without the end of sequence.
    pub answer: Vec<u32>,
    /// When each of them is said, `(answer)`.
    pub times: Vec<Option<TokenTime>>,
}

impl<'a> Sample<'a> {
    /// A recording with its reference and a word alignment of it.
    pub fn labelled(
        id: &'a str,
        samples: &'a [f32],
        task: &'a Task,
        tokenizer: &dyn Tokenizer,
        reference: &str,
        words: &[AlignedWord],
    ) -> Result<Self, CalibrateError> {
        let answer = tokenizer.encode(reference.trim()).map_err(ModelError::from)?;
        let times = token_times(tokenizer, &answer, words);
        Ok(Self { id, samples, task, answer, times })
    }
}

/// What is being done with a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplePhase {
    /// Audio embeddings.
    Encode,
    /// Voice score.
    Listen,
    /// Head sensitivity, by far the longest.
    Differentiate,
}

/// Measures one sample. `files` are those that `model` was loaded from; gradients are taken in f32 from its checkpoint.
///
/// `progress` is told the phase and the share of it that is done, 0 to 1; when it breaks, [`CalibrateError::Cancelled`].
pub fn measure(
    model: &SpeechModel,
    files: &ModelFiles,
    sample: &Sample<'_>,
    options: &SampleOptions,
    progress: &mut dyn FnMut(SamplePhase, f64) -> ControlFlow<()>,
) -> Result<SampleScores, CalibrateError> {
    if sample.times.len() != sample.answer.len() {
        let (times, tokens) = (sample.times.len(), sample.answer.len());
        return Err(CalibrateError::Input(format!("{times} times for {tokens} answer tokens")));
    }
    let lesson = Lesson::new(model, sample.task, sample.samples, &sample.answer, progress)?;
    let spans = lesson.spans(model, &sample.times, options.min_confidence);
    let counted = lesson.forced.queries().zip(spans).filter_map(|(position, span)| Some((position, span?)));
    let counted: Vec<_> = counted.collect();
    let mut probe = VoiceProbe::new(model.decoder().kv_shape(), options.top_k, &counted);
    lesson.listen(model, &mut probe, progress)?;
    let gradients = lesson.differentiate(files, progress)?;
    Ok(SampleScores {
        id: sample.id.to_owned(),
        answer_tokens: sample.answer.len() as u64,
        voice_tokens: probe.count.tokens,
        hits: probe.count.hits,
        sensitivity: gradients.per_head(),
        loss: gradients.loss,
    })
}

/// A recording's prompt and answer as the decoder takes them, for teacher-forced passes.
pub(crate) struct Lesson {
    /// The sequence.
    pub forced: ForcedAnswer,
    /// Its embeddings, `(len, hidden_size)`, audio in place.
    x: Vec<f32>,
}

type Listen<'a> = &'a mut dyn FnMut(SamplePhase, f64) -> ControlFlow<()>;

impl Lesson {
    /// Encodes the recording.
    pub fn new(
        model: &SpeechModel,
        task: &Task,
        samples: &[f32],
        answer: &[u32],
        progress: Listen<'_>,
    ) -> Result<Self, CalibrateError> {
        let forced = ForcedAnswer::new(&model.prompt(task, samples.len())?, answer, model.eos())?;
        let (positions, max) = (forced.sequence.ids.len(), model.decoder().config().max_positions);
        if positions > max {
            return Err(ModelError::TooLong { positions, max }.into());
        }
        let encoded =
            model.embed_audio(samples, &mut |done, all| progress(SamplePhase::Encode, share(done, all)));
        let x = model.decoder().embed_prompt(&forced.sequence, &encoded.map_err(cancelled)?)?;
        Ok(Self { forced, x })
    }

    /// The audio ordinals in which each answer token is said, `(times)`; none where its time is unknown, not confident,
    /// or after the audio's end.
    pub fn spans(
        &self,
        model: &SpeechModel,
        times: &[Option<TokenTime>],
        min_confidence: f32,
    ) -> Vec<Option<Range<usize>>> {
        let (rate, n_audio) = (model.audio_tokens_per_second(), self.forced.sequence.layout.n_audio());
        let confident = |time: &TokenTime| time.is_confident(min_confidence);
        let span =
            |time: &Option<TokenTime>| audio_span(time.as_ref().filter(|t| confident(t))?, rate, n_audio);
        times.iter().map(span).collect()
    }

    /// One pass through the layers, which `probe` watches; it should keep no audio.
    pub fn listen(
        &self,
        model: &SpeechModel,
        probe: &mut dyn Policy,
        progress: Listen<'_>,
    ) -> Result<(), CalibrateError> {
        let decoder = model.decoder();
        // The type of the little text that stays has no effect on what a probe sees.
        let options = StoreOptions { dtype: KvDtype::Bf16, ..StoreOptions::default() };
        let mut store = KvStore::new(decoder.kv_shape(), self.forced.sequence.layout.clone(), &options);
        let prefilled = decoder.prefill(self.x.clone(), 1, &mut store, probe, &mut |p| {
            progress(SamplePhase::Listen, share(p.done, p.total))
        });
        prefilled.map(|_| ()).map_err(cancelled)
    }

    /// The gradient norms of the answer's loss.
    pub fn differentiate(
        self,
        files: &ModelFiles,
        progress: Listen<'_>,
    ) -> Result<Sensitivity, CalibrateError> {
        let config = &files.decoder;
        sensitivity::measure(config, &files.checkpoint, &self.forced, self.x, &mut |done, all| {
            progress(SamplePhase::Differentiate, share(done, all))
        })
    }
}

fn share(done: usize, all: usize) -> f64 {
    done as f64 / all.max(1) as f64
}

/// One name for a stop that the caller asked for.
fn cancelled(error: ModelError) -> CalibrateError {
    match error {
        ModelError::Cancelled => CalibrateError::Cancelled,
        other => other.into(),
    }
}
