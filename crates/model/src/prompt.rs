//! Tasks, and prompts: token ids with placeholders where audio embeddings go.

use std::ops::Range;

use thiserror::Error;
use wnw_kv::PromptLayout;

/// Languages by ISO 639 code, with the names that instructions use: all that any family here is documented to know.
pub const LANGUAGES: [(&str, &str); 30] = [
    ("ar", "Arabic"),
    ("cs", "Czech"),
    ("da", "Danish"),
    ("de", "German"),
    ("el", "Greek"),
    ("en", "English"),
    ("es", "Spanish"),
    ("fa", "Persian"),
    ("fi", "Finnish"),
    ("fil", "Filipino"),
    ("fr", "French"),
    ("hi", "Hindi"),
    ("hu", "Hungarian"),
    ("id", "Indonesian"),
    ("it", "Italian"),
    ("ja", "Japanese"),
    ("ko", "Korean"),
    ("mk", "Macedonian"),
    ("ms", "Malay"),
    ("nl", "Dutch"),
    ("pl", "Polish"),
    ("pt", "Portuguese"),
    ("ro", "Romanian"),
    ("ru", "Russian"),
    ("sv", "Swedish"),
    ("th", "Thai"),
    ("tr", "Turkish"),
    ("vi", "Vietnamese"),
    ("yue", "Cantonese"),
    ("zh", "Chinese"),
];

/// Why no prompt can be built.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PromptError {
    /// A code that is not in [`LANGUAGES`].
    #[error("'{0}' is no language that a model here knows; use one of {list}", list = codes(LANGUAGES.iter().map(|(c, _)| *c)))]
    Unknown(String),
    /// A language that the model was not trained for.
    #[error("'{code}' is no language of {family}; use one of {known}")]
    Language {
        /// The code asked for.
        code: String,
        /// The model's family.
        family: &'static str,
        /// The codes that it knows.
        known: String,
    },
    /// A task that the model was not trained for.
    #[error("{family} {can}: it cannot {task}")]
    Task {
        /// The model's family.
        family: &'static str,
        /// What it does.
        can: &'static str,
        /// What it was asked for.
        task: &'static str,
    },
    /// Context words for a model that has no place for them.
    #[error("{0} takes no context words")]
    Context(&'static str),
}

fn codes<'a>(codes: impl Iterator<Item = &'a str>) -> String {
    codes.collect::<Vec<_>>().join(", ")
}

impl PromptError {
    /// Checks that `code` is among the languages of a family.
    pub(crate) fn check_language(code: &str, family: &'static str, known: &[&str]) -> Result<(), Self> {
        if known.contains(&code) {
            return Ok(());
        }
        Err(Self::Language { code: code.into(), family, known: codes(known.iter().copied()) })
    }

    /// Refuses context words, for a family that has no place for them.
    pub(crate) fn check_context(task: &Task, family: &'static str) -> Result<(), Self> {
        match task {
            Task::Transcribe { context, .. } if !context.is_empty() => Err(Self::Context(family)),
            _ => Ok(()),
        }
    }
}

/// What the model is asked to do with one recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Write down what is said, in the language given or in the one that the model hears.
    Transcribe {
        /// ISO 639 code.
        language: Option<String>,
        /// Words that may come up, such as names; empty for none. Not every family has a place for them.
        context: String,
    },
    /// Write down what is said in another language.
    Translate {
        /// ISO 639 code.
        to: String,
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
        let language = language.map(|l| language_name(l).map(|_| l.to_owned())).transpose()?;
        Ok(Self::Transcribe { language, context: String::new() })
    }

    /// Translation to a language; the code is checked.
    pub fn translate(to: &str) -> Result<Self, PromptError> {
        language_name(to).map(|_| Self::Translate { to: to.to_owned() })
    }

    /// The same with words that may come up, if it is a transcription.
    pub fn with_context(self, words: String) -> Self {
        match self {
            Self::Transcribe { language, .. } => Self::Transcribe { language, context: words },
            other => other,
        }
    }

    /// Whether words of the caller are in the prompt: an instruction, or context.
    pub fn has_own_words(&self) -> bool {
        match self {
            Self::Transcribe { context, .. } => !context.is_empty(),
            Self::Translate { .. } => false,
            Self::Chat { .. } => true,
        }
    }

    /// The language that the text will be in, when the task says it.
    pub fn language(&self) -> Option<&str> {
        match self {
            Self::Transcribe { language, .. } => language.as_deref(),
            Self::Translate { to } => Some(to),
            Self::Chat { .. } => None,
        }
    }
}

/// English name of a language code of [`LANGUAGES`].
pub fn language_name(code: &str) -> Result<&'static str, PromptError> {
    LANGUAGES
        .iter()
        .find(|(c, _)| *c == code)
        .map(|(_, name)| *name)
        .ok_or_else(|| PromptError::Unknown(code.to_owned()))
}

/// One part of a user's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A recording of this many audio tokens.
    Audio {
        /// Audio tokens.
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

impl Prompt {
    /// A prompt whose `audio` stretches were made in order.
    pub(crate) fn new(ids: Vec<u32>, audio: Vec<Range<usize>>) -> Self {
        let layout =
            PromptLayout::new(ids.len(), audio).expect("stretches are made in order and inside the prompt");
        Self { ids, layout }
    }

    /// The same prompt with a layout that covers tokens appended since.
    pub(crate) fn with_layout(self) -> Self {
        let audio = self.layout.audio().to_vec();
        Self::new(self.ids, audio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_checked() {
        assert_eq!(Task::translate("fr"), Ok(Task::Translate { to: "fr".into() }));
        assert_eq!(Task::transcribe(Some("xx")), Err(PromptError::Unknown("xx".into())));
        assert_eq!(
            Task::transcribe(None).unwrap(),
            Task::Transcribe { language: None, context: String::new() }
        );
        assert!(LANGUAGES.is_sorted());
        let error = PromptError::check_language("ja", "Voxtral", &["en", "fr"]).unwrap_err();
        assert_eq!(error.to_string(), "'ja' is no language of Voxtral; use one of en, fr");
    }
}
