//! Prompts and answers of Qwen3-ASR. The system text holds context words, the user's message the audio alone. An answer
//! begins with a header, `language X<asr_text>`; to force a language, the prompt ends with it.

use crate::chatml::{AudioNames, ChatMl};
use crate::families::{Dialogue, Header};
use crate::model::ModelError;
use crate::prompt::{LANGUAGES, Part, Prompt, Task, language_name};
use crate::tokenizer::{Tokenizer, TokenizerError};

pub(super) const AUDIO: AudioNames =
    AudioNames { begin: "<|audio_start|>", pad: "<|audio_pad|>", end: "<|audio_end|>" };

pub(super) struct Qwen3AsrDialogue {
    chat: ChatMl,
    /// Ends the header.
    text: u32,
}

impl Qwen3AsrDialogue {
    pub fn resolve(tokenizer: &dyn Tokenizer) -> Result<Self, TokenizerError> {
        let chat = ChatMl::resolve(tokenizer, &AUDIO)?;
        Ok(Self { chat, text: tokenizer.require_special("<asr_text>")? })
    }
}

impl Dialogue for Qwen3AsrDialogue {
    fn prompt(
        &self,
        tokenizer: &dyn Tokenizer,
        task: &Task,
        audio_tokens: usize,
    ) -> Result<Prompt, ModelError> {
        let (language, context) = match task {
            Task::Transcribe { language, context } => (language.as_deref(), context.as_str()),
            Task::Translate { .. } | Task::Chat { .. } => (None, ""), // `check_task` has refused them
        };
        let header = language.map(|code| language_name(code).map(|name| format!("language {name}")));
        let header = header.transpose()?;
        let user = [Part::Audio { tokens: audio_tokens }];
        let mut prompt =
            self.chat.prompt(tokenizer, context, &user, header.as_deref().unwrap_or_default())?;
        if header.is_some() {
            prompt.ids.push(self.text);
        }
        Ok(prompt.with_layout())
    }

    fn stops(&self) -> &[u32] {
        &self.chat.stops
    }

    fn header_end(&self, task: &Task) -> Option<u32> {
        task.language().is_none().then_some(self.text)
    }

    fn read_header(&self, header: &str) -> Header {
        // The first line with anything in it counts, with or without the word "language".
        let line = header.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let name = match line.get(..9) {
            Some(word) if word.eq_ignore_ascii_case("language ") => line[9..].trim(),
            _ => line,
        };
        if name.eq_ignore_ascii_case("none") {
            return Header { language: None, no_speech: true };
        }
        let code =
            LANGUAGES.iter().find(|(_, known)| known.eq_ignore_ascii_case(name)).map(|(code, _)| *code);
        let language = Some(code.unwrap_or(name).to_owned()).filter(|name| !name.is_empty());
        Header { language, no_speech: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_the_reference_does() {
        let chat = ChatMl::for_tests();
        let dialogue = Qwen3AsrDialogue { chat, text: 9 };
        for (header, language, no_speech) in [
            ("language English", Some("en"), false),
            ("\n Language chinese\nmore", Some("zh"), false),
            ("language Klingon", Some("Klingon"), false),
            ("Cantonese", Some("yue"), false),
            ("language None", None, true),
            ("  ", None, false),
        ] {
            let want = Header { language: language.map(str::to_owned), no_speech };
            assert_eq!(dialogue.read_header(header), want, "{header}");
        }
    }
}
