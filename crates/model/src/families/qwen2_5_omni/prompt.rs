//! Prompts of Qwen2.5-Omni in the words of its cookbook: a system text for the task, then the audio and an instruction.

use crate::chatml::{AudioNames, ChatMl};
use crate::families::Dialogue;
use crate::model::ModelError;
use crate::prompt::{Part, Prompt, Task, language_name};
use crate::tokenizer::{Tokenizer, TokenizerError};

pub(super) const AUDIO: AudioNames =
    AudioNames { begin: "<|audio_bos|>", pad: "<|AUDIO|>", end: "<|audio_eos|>" };

pub(super) struct Qwen2_5OmniDialogue(ChatMl);

impl Qwen2_5OmniDialogue {
    pub fn resolve(tokenizer: &dyn Tokenizer) -> Result<Self, TokenizerError> {
        ChatMl::resolve(tokenizer, &AUDIO).map(Self)
    }
}

impl Dialogue for Qwen2_5OmniDialogue {
    fn prompt(
        &self,
        tokenizer: &dyn Tokenizer,
        task: &Task,
        audio_tokens: usize,
    ) -> Result<Prompt, ModelError> {
        let (system, instruction) = match task {
            Task::Transcribe { language, .. } => {
                let name = language.as_deref().map(language_name).transpose()?;
                let which = name.map_or_else(String::new, |name| format!("{name} "));
                let text = format!("Transcribe the {which}audio into text without any punctuation marks.");
                ("You are a speech recognition model.", text)
            }
            Task::Translate { to } => {
                let name = language_name(to)?;
                let text = format!("Listen to the provided speech and produce a translation in {name} text.");
                ("You are a speech translation model.", text)
            }
            Task::Chat { instruction } => ("You are a helpful assistant.", instruction.clone()),
        };
        let user = [Part::Audio { tokens: audio_tokens }, Part::Text(instruction)];
        Ok(self.0.prompt(tokenizer, system, &user, "")?)
    }

    fn stops(&self) -> &[u32] {
        &self.0.stops
    }
}
