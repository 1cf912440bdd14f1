//! ChatML, the prompt format of Qwen's models:
//! `<|im_start|>system\n…<|im_end|>\n<|im_start|>user\n…<|im_end|>\n<|im_start|>assistant\n`.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::config::{ConfigError, parse};
use crate::prompt::{Part, Prompt};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// Names of the three tokens around and for audio: before it, one for each audio embedding, after it.
pub(crate) struct AudioNames {
    pub begin: &'static str,
    pub pad: &'static str,
    pub end: &'static str,
}

/// Ids of the tokens for audio as a configuration states them, with its file. The tokenizer must have the same: a model
/// finds its audio by them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StatedTokens {
    path: PathBuf,
    ids: Vec<Stated>,
}

#[derive(Clone, Debug, PartialEq)]
struct Stated {
    field: String,
    token: &'static str,
    id: u64,
}

impl StatedTokens {
    /// Reads those that `config.json` states, in any spelling; in its `thinker_config` if it has one.
    pub fn read(json: &[u8], audio: &AudioNames, path: &Path) -> Result<Self, ConfigError> {
        let whole: Value = parse(json, path)?;
        let thinker = whole.get("thinker_config").filter(|part| !part.is_null());
        let mut ids = Vec::new();
        for (field, token) in [
            ("audio_token_index", audio.pad),
            ("audio_token_id", audio.pad),
            ("audio_start_token_id", audio.begin),
            ("audio_end_token_id", audio.end),
        ] {
            let Some(value) = thinker.unwrap_or(&whole).get(field).filter(|value| !value.is_null()) else {
                continue;
            };
            let field = thinker.map_or_else(|| field.to_owned(), |_| format!("thinker_config.{field}"));
            let Some(id) = value.as_u64() else {
                let reason = format!("{field} is {value}; it must be the id of {token}");
                return Err(ConfigError::Inconsistent { path: path.into(), reason });
            };
            ids.push(Stated { field, token, id });
        }
        Ok(Self { path: path.into(), ids })
    }

    /// How a tokenizer differs, if it does.
    pub fn mismatch(&self, tokenizer: &dyn Tokenizer) -> Option<String> {
        self.ids.iter().find_map(|Stated { field, token, id }| {
            let found = tokenizer.special(token).filter(|found| u64::from(*found) != *id)?;
            let path = self.path.display();
            Some(format!(
                "token '{token}' has id {found}, but {path} says {id} ({field}): the two files are not of one model; fetch both again"
            ))
        })
    }
}

/// Ids of the control tokens, resolved by name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChatMl {
    start: u32,
    end: u32,
    audio: [u32; 3],
    /// What ends an answer: the end of a message, and of a text.
    pub stops: [u32; 2],
}

impl ChatMl {
    /// Looks the tokens up; an absent one is an error that names it.
    pub fn resolve(tokenizer: &dyn Tokenizer, audio: &AudioNames) -> Result<Self, TokenizerError> {
        let end = tokenizer.require_special("<|im_end|>")?;
        Ok(Self {
            start: tokenizer.require_special("<|im_start|>")?,
            end,
            audio: [
                tokenizer.require_special(audio.begin)?,
                tokenizer.require_special(audio.pad)?,
                tokenizer.require_special(audio.end)?,
            ],
            stops: [end, tokenizer.require_special("<|endoftext|>")?],
        })
    }

    /// A prompt of a system text and one user message; `begun` is the beginning of the answer.
    pub fn prompt(
        &self,
        tokenizer: &dyn Tokenizer,
        system: &str,
        user: &[Part],
        begun: &str,
    ) -> Result<Prompt, TokenizerError> {
        let mut out = Writer { tokenizer, ids: Vec::new(), text: String::new(), audio: Vec::new() };
        out.control(self.start)?;
        out.text.push_str("system\n");
        out.text.push_str(system);
        out.control(self.end)?;
        out.text.push('\n');
        out.control(self.start)?;
        out.text.push_str("user\n");
        for part in user {
            match part {
                Part::Text(text) => out.text.push_str(text),
                Part::Audio { tokens } => {
                    out.control(self.audio[0])?;
                    let first = out.ids.len();
                    out.ids.extend(std::iter::repeat_n(self.audio[1], *tokens));
                    out.audio.push(first..out.ids.len());
                    out.control(self.audio[2])?;
                }
            }
        }
        out.control(self.end)?;
        out.text.push('\n');
        out.control(self.start)?;
        out.text.push_str("assistant\n");
        out.text.push_str(begun);
        out.flush()?;
        Ok(Prompt::new(out.ids, out.audio))
    }
}

#[cfg(test)]
impl ChatMl {
    pub fn for_tests() -> Self {
        Self { start: 1, end: 2, audio: [3, 4, 5], stops: [2, 0] }
    }
}

/// Collects ids; text between two control tokens is encoded as one string, as the reference does.
struct Writer<'a> {
    tokenizer: &'a dyn Tokenizer,
    ids: Vec<u32>,
    text: String,
    audio: Vec<Range<usize>>,
}

impl Writer<'_> {
    fn flush(&mut self) -> Result<(), TokenizerError> {
        if !self.text.is_empty() {
            self.ids.extend(self.tokenizer.encode(&self.text)?);
            self.text.clear();
        }
        Ok(())
    }

    fn control(&mut self, id: u32) -> Result<(), TokenizerError> {
        self.flush()?;
        self.ids.push(id);
        Ok(())
    }
}
