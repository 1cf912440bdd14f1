//! Prompts in Voxtral's instruct format.
//!
//! Transcription is `<s> [INST] [BEGIN_AUDIO] [AUDIO]×375N [/INST] lang:xx [TRANSCRIBE]`; without a language the three
//! or so tokens of `lang:xx` are left out and the model decides. Chat is `<s> [INST] part… [/INST]`, where an audio part
//! is `[BEGIN_AUDIO] [AUDIO]×375N` and a text part its tokens, in the user's order. Translation is a chat.

use crate::families::Dialogue;
use crate::model::ModelError;
use crate::prompt::{Part, Prompt, Task, language_name};
use crate::tekken::{Tekken, TekkenError};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// Ids of the control tokens that prompts use, resolved by name: the numbers differ between tokenizer versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlTokens {
    bos: u32,
    /// End of the answer; the only stop token.
    eos: [u32; 1],
    inst: u32,
    inst_end: u32,
    audio: u32,
    begin_audio: u32,
    transcribe: u32,
}

impl ControlTokens {
    /// Looks the tokens up; an absent one is an error that names it.
    pub fn resolve(tokenizer: &Tekken) -> Result<Self, TekkenError> {
        Ok(Self {
            bos: tokenizer.require_special("<s>")?,
            eos: [tokenizer.require_special("</s>")?],
            inst: tokenizer.require_special("[INST]")?,
            inst_end: tokenizer.require_special("[/INST]")?,
            audio: tokenizer.require_special("[AUDIO]")?,
            begin_audio: tokenizer.require_special("[BEGIN_AUDIO]")?,
            transcribe: tokenizer.require_special("[TRANSCRIBE]")?,
        })
    }

    /// A chat prompt of one user message; an error when a text of it cannot be encoded.
    pub fn chat(&self, tokenizer: &dyn Tokenizer, parts: &[Part]) -> Result<Prompt, TokenizerError> {
        let mut ids = vec![self.bos, self.inst];
        let mut audio = Vec::new();
        for part in parts {
            match part {
                Part::Audio { tokens } => {
                    ids.push(self.begin_audio);
                    let start = ids.len();
                    ids.extend(std::iter::repeat_n(self.audio, *tokens));
                    audio.push(start..start + tokens);
                }
                Part::Text(text) => ids.extend(tokenizer.encode(text)?),
            }
        }
        ids.push(self.inst_end);
        Ok(Prompt::new(ids, audio))
    }
}

impl Dialogue for ControlTokens {
    fn prompt(
        &self,
        tokenizer: &dyn Tokenizer,
        task: &Task,
        audio_tokens: usize,
    ) -> Result<Prompt, ModelError> {
        let audio = Part::Audio { tokens: audio_tokens };
        let instruction = match task {
            Task::Transcribe { language, .. } => {
                let mut prompt = self.chat(tokenizer, &[audio])?;
                if let Some(language) = language {
                    // As one string: the tokenizer merges ':' with the letters of some languages.
                    prompt.ids.extend(tokenizer.encode(&format!("lang:{language}"))?);
                }
                prompt.ids.push(self.transcribe);
                return Ok(prompt.with_layout());
            }
            Task::Translate { to } => format!("Translate to {}.", language_name(to)?),
            Task::Chat { instruction } => instruction.clone(),
        };
        Ok(self.chat(tokenizer, &[audio, Part::Text(instruction)])?)
    }

    fn stops(&self) -> &[u32] {
        &self.eos
    }
}
