//! Prompts in Voxtral's instruct format.
//!
//! Transcription is `<s> [INST] [BEGIN_AUDIO] [AUDIO]×375N [/INST] lang:xx [TRANSCRIBE]`; without a language the three
//! or so tokens of `lang:xx` are left out and the model decides. Chat is `<s> [INST] part… [/INST]`, where an audio part
//! is `[BEGIN_AUDIO] [AUDIO]×375N` and a text part its tokens, in the user's order.

use thiserror::Error;
use wnw_kv::PromptLayout;

use crate::tekken::{Tekken, TekkenError};

/// Languages of Voxtral, with the names that instructions use: the eight of the 2507 release's model card, and Arabic,
/// which vLLM lists too.
pub const LANGUAGES: [(&str, &str); 9] = [
    ("en", "English"),
    ("fr", "French"),
    ("de", "German"),
    ("es", "Spanish"),
    ("it", "Italian"),
    ("pt", "Portuguese"),
    ("nl", "Dutch"),
    ("hi", "Hindi"),
    ("ar", "Arabic"),
];

/// Why no prompt can be built.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PromptError {
    /// A code that is not in [`LANGUAGES`].
    #[error("'{0}' is no language of Voxtral; use one of en, fr, de, es, it, pt, nl, hi, ar")]
    Language(String),
}

/// What the model is asked to do with one recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Write down what is said, in the language given or in the one that the model hears.
    Transcribe {
        /// ISO 639-1 code.
        language: Option<String>,
    },
    /// Follow an instruction about the recording.
    Chat {
        /// The user's text, placed after the audio.
        instruction: String,
    },
}

impl Task {
    /// Transcription; the code is checked.
    pub fn transcribe(language: Option<&str>) -> Result<Self, PromptError> {
        Ok(Self::Transcribe {
            language: language.map(|l| language_name(l).map(|_| l.to_owned())).transpose()?,
        })
    }

    /// Translation to a language, which Voxtral does on instruction.
    pub fn translate(to: &str) -> Result<Self, PromptError> {
        Ok(Self::Chat { instruction: format!("Translate to {}.", language_name(to)?) })
    }
}

/// English name of a language code of [`LANGUAGES`].
pub fn language_name(code: &str) -> Result<&'static str, PromptError> {
    LANGUAGES
        .iter()
        .find(|(c, _)| *c == code)
        .map(|(_, name)| *name)
        .ok_or_else(|| PromptError::Language(code.to_owned()))
}

/// One part of a user's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A recording of this many audio tokens.
    Audio {
        /// Audio tokens, 375 per 30 s chunk.
        tokens: usize,
    },
    /// Text.
    Text(String),
}

/// Token ids of a prompt, with placeholders where audio embeddings go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Which positions are audio.
    pub layout: PromptLayout,
}

/// Ids of the control tokens that prompts use, resolved by name: the numbers differ between tokenizer versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlTokens {
    bos: u32,
    /// End of the answer; the only stop token.
    pub eos: u32,
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
            eos: tokenizer.require_special("</s>")?,
            inst: tokenizer.require_special("[INST]")?,
            inst_end: tokenizer.require_special("[/INST]")?,
            audio: tokenizer.require_special("[AUDIO]")?,
            begin_audio: tokenizer.require_special("[BEGIN_AUDIO]")?,
            transcribe: tokenizer.require_special("[TRANSCRIBE]")?,
        })
    }

    /// The prompt of `task` for a recording of `audio_tokens`; an error when its text cannot be encoded.
    pub fn prompt(
        &self,
        tokenizer: &Tekken,
        task: &Task,
        audio_tokens: usize,
    ) -> Result<Prompt, TekkenError> {
        let audio = Part::Audio { tokens: audio_tokens };
        match task {
            Task::Transcribe { language } => {
                let mut prompt = self.chat(tokenizer, &[audio])?;
                if let Some(language) = language {
                    // As one string: the tokenizer merges ':' with the letters of some languages.
                    prompt.ids.extend(tokenizer.encode(&format!("lang:{language}"))?);
                }
                prompt.ids.push(self.transcribe);
                Ok(prompt.with_layout())
            }
            Task::Chat { instruction } => self.chat(tokenizer, &[audio, Part::Text(instruction.clone())]),
        }
    }

    /// A chat prompt of one user message; an error when a text of it cannot be encoded.
    pub fn chat(&self, tokenizer: &Tekken, parts: &[Part]) -> Result<Prompt, TekkenError> {
        let mut prompt = Prompt { ids: vec![self.bos, self.inst], layout: PromptLayout::default() };
        let mut audio = Vec::new();
        for part in parts {
            match part {
                Part::Audio { tokens } => {
                    prompt.ids.push(self.begin_audio);
                    let start = prompt.ids.len();
                    prompt.ids.extend(std::iter::repeat_n(self.audio, *tokens));
                    audio.push(start..start + tokens);
                }
                Part::Text(text) => prompt.ids.extend(tokenizer.encode(text)?),
            }
        }
        prompt.ids.push(self.inst_end);
        prompt.layout = layout(prompt.ids.len(), audio);
        Ok(prompt)
    }
}

/// A layout of stretches that were made in order.
fn layout(len: usize, audio: Vec<std::ops::Range<usize>>) -> PromptLayout {
    PromptLayout::new(len, audio).expect("stretches are made in order and inside the prompt")
}

impl Prompt {
    /// The same prompt with a layout that covers tokens appended since.
    fn with_layout(mut self) -> Self {
        self.layout = layout(self.ids.len(), self.layout.audio().to_vec());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_checked() {
        assert_eq!(Task::translate("fr").unwrap(), Task::Chat { instruction: "Translate to French.".into() });
        assert_eq!(Task::transcribe(Some("xx")), Err(PromptError::Language("xx".into())));
        assert_eq!(Task::transcribe(None).unwrap(), Task::Transcribe { language: None });
    }
}
