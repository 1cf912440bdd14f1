//! Making texts comparable before they are scored.

mod basic;
mod contractions;
mod english;
mod number_words;
mod numbers;
mod paper;
mod spelling;
mod symbols;

use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use basic::{Basic, Marks};

use crate::error::EvalError;

/// A way to normalise references and hypotheses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Normaliser {
    /// Leaves the text as it is.
    #[default]
    None,
    /// The paper's: lower case, no punctuation but apostrophe and full stop.
    ///
    /// Choices that the paper leaves open: punctuation is what Unicode calls so (categories P) and ASCII's symbols; it
    /// is deleted, not replaced by a space; the typographic apostrophe U+2019 becomes `'`; white space becomes single
    /// spaces.
    Paper,
    /// Whisper's normaliser of English (Radford et al. 2022, appendix C; `EnglishTextNormalizer`): no brackets and
    /// fillers, contractions written out, numbers in digits, American spelling, no punctuation and diacritics. Its
    /// oddities are kept, such as `$1.50` → `$one.50`.
    WhisperEn,
    /// Whisper's normaliser of other languages (`BasicTextNormalizer`) with its default options; see [`Basic`] for others.
    WhisperBasic,
}

impl Normaliser {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::None, Self::Paper, Self::WhisperEn, Self::WhisperBasic];

    /// Its name on a command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Paper => "paper",
            Self::WhisperEn => "whisper-en",
            Self::WhisperBasic => "whisper-basic",
        }
    }

    /// The normalised text.
    pub fn apply(self, text: &str) -> String {
        match self {
            Self::None => text.to_owned(),
            Self::Paper => paper::normalise(text),
            Self::WhisperEn => english::normalise(text),
            Self::WhisperBasic => Basic::default().apply(text),
        }
    }
}

impl FromStr for Normaliser {
    type Err = EvalError;

    fn from_str(name: &str) -> Result<Self, EvalError> {
        let found = Self::ALL.into_iter().find(|n| n.name() == name);
        found.ok_or_else(|| EvalError::Normaliser(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for n in Normaliser::ALL {
            assert_eq!(n.name().parse(), Ok(n));
        }
        assert_eq!("Whisper".parse::<Normaliser>(), Err(EvalError::Normaliser("Whisper".into())));
    }

    #[test]
    fn whisper_english() {
        for (text, expected) in [
            ("Mr. Park visited Assoc. Prof. Kim Jr.", "mister park visited associate professor kim junior"),
            ("He won't've gone, y'all; I'ma go.", "he will not have gone you all i am going to go"),
            ("[music] Um, (laughs) let's  'ave  it", "let us ave it"),
            ("twenty-one thousand and five", "21005"),
            ("two point five million dollars", "$2500000"),
            ("the colour of the nineteen eighties", "the color of the 1980s"),
            ("$2 and 7 cents", "$2.07"),
            ("", ""),
        ] {
            assert_eq!(Normaliser::WhisperEn.apply(text), expected, "{text}");
        }
    }
}
