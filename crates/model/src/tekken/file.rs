//! Reading and checking `tekken.json`.

use std::borrow::Cow;
use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fancy_regex::Regex;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Tekken, TekkenProblem};
use crate::bpe::Ranks;

/// Largest file read; the real ones have 15 to 20 MB.
pub(super) const MAX_FILE_BYTES: u64 = 512 << 20;
/// Largest vocabulary; the real one has 131,072 entries.
const MAX_VOCAB: u64 = 1 << 22;
/// The first version of the format that lists its special tokens.
const FIRST_VERSION: u32 = 7;

#[derive(Deserialize)]
struct TekkenJson<'a> {
    config: ConfigJson<'a>,
    #[serde(borrow)]
    vocab: Vec<TokenJson<'a>>,
    #[serde(borrow)]
    special_tokens: Option<Vec<SpecialJson<'a>>>,
    audio: Option<AudioConfig>,
}

#[derive(Deserialize)]
struct ConfigJson<'a> {
    #[serde(borrow)]
    pattern: Cow<'a, str>,
    default_vocab_size: u64,
    default_num_special_tokens: u64,
    #[serde(borrow)]
    version: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct TokenJson<'a> {
    rank: u64,
    #[serde(borrow)]
    token_bytes: Cow<'a, str>,
    #[serde(rename = "token_str")]
    _token_str: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct SpecialJson<'a> {
    rank: u64,
    #[serde(borrow)]
    token_str: Cow<'a, str>,
}

/// The `audio` section: how a recording becomes audio tokens.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct AudioConfig {
    /// Samples per second.
    pub sampling_rate: u32,
    /// Audio tokens per second; 12.5 for Voxtral.
    pub frame_rate: f64,
    /// Mel features.
    #[serde(alias = "encoding_config")]
    pub audio_encoding_config: SpectrogramConfig,
    /// Audio is padded to multiples of this many seconds: 30 in the 2507 release. None: no padding.
    pub chunk_length_s: Option<f64>,
    /// Whole recordings or a stream.
    #[serde(default)]
    pub transcription_format: TranscriptionFormat,
    /// How far the text lags behind a stream.
    pub transcription_delay_ms: Option<f64>,
    /// Voices of a text-to-speech model, with the length of each reference recording in tokens.
    pub voice_num_audio_tokens: Option<HashMap<String, u64>>,
}

/// Mel features, as the tokenizer file describes them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SpectrogramConfig {
    /// Mel bands.
    pub num_mel_bins: u32,
    /// Samples from one frame to the next.
    pub hop_length: u32,
    /// Samples of one frame.
    pub window_size: u32,
    /// A fixed maximum for the dynamic range, where it cannot be taken from the recording.
    pub global_log_mel_max: Option<f64>,
}

/// How a transcription is prompted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TranscriptionFormat {
    /// The whole recording, then the text.
    #[default]
    Instruct,
    /// One text token for each audio token, with a delay.
    Streaming,
}

/// The kind of model that a tokenizer file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AudioUse {
    /// Text only.
    None,
    /// Recordings within an instruction: the 2507 release.
    Instruct,
    /// Voxtral Realtime, which writes along with a stream and has another architecture.
    Realtime,
    /// Text to speech.
    Speech,
}

impl AudioUse {
    /// Why a model of this kind cannot be used to transcribe recordings by instruction; none if it can.
    pub fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Instruct => None,
            Self::None => Some("a text model: its tokenizer has no audio section"),
            Self::Realtime => Some(
                "a Voxtral Realtime model: it transcribes a stream with another architecture (causal encoder, \
                 audio added to the text); use a 2507 model such as mistralai/Voxtral-Mini-3B-2507",
            ),
            Self::Speech => Some("a text-to-speech model: it speaks and does not listen"),
        }
    }
}

impl AudioConfig {
    /// The kind of model.
    pub fn purpose(&self) -> AudioUse {
        if self.voice_num_audio_tokens.is_some() {
            AudioUse::Speech
        } else if self.transcription_format == TranscriptionFormat::Streaming {
            AudioUse::Realtime
        } else {
            AudioUse::Instruct
        }
    }

    fn check(&self) -> Result<(), TekkenProblem> {
        let spectrogram = &self.audio_encoding_config;
        let positive = [
            ("sampling_rate", f64::from(self.sampling_rate)),
            ("frame_rate", self.frame_rate),
            ("num_mel_bins", f64::from(spectrogram.num_mel_bins)),
            ("hop_length", f64::from(spectrogram.hop_length)),
            ("window_size", f64::from(spectrogram.window_size)),
            ("chunk_length_s", self.chunk_length_s.unwrap_or(1.0)),
        ];
        match positive.iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
            Some((name, _)) => Err(TekkenProblem::Audio(name)),
            None => Ok(()),
        }
    }
}

pub(super) fn parse(bytes: &[u8], name: &str) -> Result<Tekken, TekkenProblem> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(TekkenProblem::Empty);
    }
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(TekkenProblem::LfsPointer);
    }
    let json: TekkenJson = serde_json::from_slice(bytes).map_err(TekkenProblem::Json)?;
    let (version, version_text) = version(json.config.version.as_deref())?;
    let specials_json = json.special_tokens.ok_or(TekkenProblem::NoSpecialTokens(version_text))?;

    let (total, special) = (json.config.default_vocab_size, json.config.default_num_special_tokens);
    if total > MAX_VOCAB || total.checked_sub(special).is_none_or(|ordinary| ordinary < 256) {
        return Err(TekkenProblem::Sizes { total, special, limit: MAX_VOCAB });
    }
    let (special, ordinary) = (special as usize, (total - special) as usize);

    let ranks = ranks(&json.vocab, ordinary)?;
    let (specials, special_ids) = specials(&specials_json, special)?;
    let pattern = Regex::new(&json.config.pattern).map_err(|e| TekkenProblem::Pattern(Box::new(e)))?;
    if let Some(audio) = &json.audio {
        audio.check()?;
    }
    Ok(Tekken { file: name.to_owned(), version, pattern, ranks, specials, special_ids, audio: json.audio })
}

fn version(text: Option<&str>) -> Result<(u32, String), TekkenProblem> {
    let text = text.unwrap_or("(none)").to_owned();
    // Later versions may carry a suffix, as v7m1 does for its image format.
    let digits = text.strip_prefix('v').map(|t| t.split(|c: char| !c.is_ascii_digit()).next().unwrap_or(""));
    match digits.and_then(|d| d.parse::<u32>().ok()) {
        None => Err(TekkenProblem::Version(text)),
        Some(number) if number < FIRST_VERSION => Err(TekkenProblem::VersionTooOld(text)),
        Some(number) => Ok((number, text)),
    }
}

fn ranks(vocab: &[TokenJson], needed: usize) -> Result<Ranks, TekkenProblem> {
    if vocab.len() < needed {
        return Err(TekkenProblem::TooFewEntries { listed: vocab.len(), needed });
    }
    let mut ranks = Ranks::with_capacity(needed);
    let mut bytes = Vec::new();
    // Entries beyond the vocabulary size are in the file but not in the model.
    for (index, token) in vocab[..needed].iter().enumerate() {
        if token.rank != index as u64 {
            return Err(TekkenProblem::RankOrder { index, rank: token.rank });
        }
        bytes.clear();
        STANDARD
            .decode_vec(token.token_bytes.as_bytes(), &mut bytes)
            .map_err(|source| TekkenProblem::Base64 { rank: index, source })?;
        if bytes.is_empty() {
            return Err(TekkenProblem::EmptyToken(index));
        }
        if index < 256 && bytes != [index as u8] {
            return Err(TekkenProblem::ByteToken(index));
        }
        ranks.push(&bytes).map_err(|first| TekkenProblem::DuplicateToken { first, second: index as u32 })?;
    }
    Ok(ranks)
}

type Specials = (Vec<String>, HashMap<String, u32>);

fn specials(listed: &[SpecialJson], count: usize) -> Result<Specials, TekkenProblem> {
    let mut names: Vec<Option<String>> = vec![None; count];
    for token in listed {
        let name = token.token_str.clone().into_owned();
        let Some(slot) = usize::try_from(token.rank).ok().and_then(|rank| names.get_mut(rank)) else {
            return Err(TekkenProblem::SpecialRank { name, rank: token.rank, special: count });
        };
        if let Some(first) = slot.replace(name.clone()) {
            return Err(TekkenProblem::SpecialRankTwice { first, second: name, rank: token.rank });
        }
    }
    // Ids that the file does not name get the names that Mistral's own reader gives them.
    let names: Vec<String> = names
        .into_iter()
        .enumerate()
        .map(|(id, name)| name.unwrap_or_else(|| format!("<SPECIAL_{id}>")))
        .collect();
    let mut ids = HashMap::with_capacity(count);
    for (id, name) in names.iter().enumerate() {
        if ids.insert(name.clone(), id as u32).is_some() {
            return Err(TekkenProblem::SpecialNameTwice(name.clone()));
        }
    }
    Ok((names, ids))
}
