//! JSON of WhisperX, and our own.
//!
//! WhisperX writes `segments`, each with `words`, and the same words flat in `word_segments`; our own format (and
//! OpenAI's verbose one) has `words` at the top; the shipped samples have `prompts` in place of `segments`. All are read.
//! Python's `json` writes `NaN` and `Infinity`, which are not JSON: they are taken as null.

use std::borrow::Cow;

use serde::Deserialize;

use super::{AlignedWord, AlignmentProblem, Located};

#[derive(Deserialize)]
struct File {
    words: Option<Vec<Word>>,
    word_segments: Option<Vec<Word>>,
    #[serde(alias = "prompts")]
    segments: Option<Vec<Segment>>,
}

#[derive(Deserialize)]
struct Segment {
    words: Option<Vec<Word>>,
}

#[derive(Deserialize)]
struct Word {
    word: String,
    start: Option<f64>,
    end: Option<f64>,
    /// Ours.
    confidence: Option<f64>,
    /// WhisperX's.
    score: Option<f64>,
    /// faster-whisper's.
    probability: Option<f64>,
}

impl Word {
    fn confidence(&self) -> Option<f64> {
        self.confidence.or(self.score).or(self.probability)
    }
}

pub(super) fn parse(text: &str) -> Result<Vec<AlignedWord>, Located> {
    if text.trim_start().starts_with('[') {
        return Err((None, AlignmentProblem::NoWords));
    }
    let file: File = serde_json::from_str(&without_nan(text)).map_err(|e| {
        // The reader's message ends with the place, which is told apart.
        let message = e.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        (Some(e.line()).filter(|line| *line > 0), AlignmentProblem::Json(message.to_owned()))
    })?;
    let flat = file.word_segments.filter(|words| !words.is_empty());
    let nested = || {
        let lists: Vec<_> = file.segments?.into_iter().filter_map(|s| s.words).collect();
        (!lists.is_empty()).then(|| lists.into_iter().flatten().collect())
    };
    let words: Vec<Word> = file.words.or(flat).or_else(nested).ok_or((None, AlignmentProblem::NoWords))?;
    let scored = words.iter().any(|w| w.confidence().is_some());
    let unscored = if scored { Some(0.0) } else { None };
    Ok(words
        .iter()
        .filter_map(|w| AlignedWord::new(&w.word, w.start, w.end, w.confidence().or(unscored)))
        .collect())
}

/// Replaces `NaN`, `Infinity` and `-Infinity` outside strings by `null`; lines stay where they are.
fn without_nan(text: &str) -> Cow<'_, str> {
    if !text.contains("NaN") && !text.contains("Infinity") {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut in_string = false;
    while let Some(c) = rest.chars().next() {
        let literal =
            ["NaN", "-Infinity", "Infinity"].into_iter().find(|l| !in_string && rest.starts_with(l));
        if let Some(literal) = literal {
            out.push_str("null");
            rest = &rest[literal.len()..];
            continue;
        }
        let mut taken = c.len_utf8();
        if in_string && c == '\\' {
            taken += rest[1..].chars().next().map_or(0, char::len_utf8);
        } else if c == '"' {
            in_string = !in_string;
        }
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Flat = (String, Option<(f64, f64)>, Option<f32>);

    fn words(text: &str) -> Vec<Flat> {
        let words = parse(text).unwrap();
        words.into_iter().map(|w| (w.text, w.start.zip(w.end), w.confidence)).collect()
    }

    #[test]
    fn the_shipped_sample_is_read() {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/prompts-en.words.json");
        let words = words(&std::fs::read_to_string(path).unwrap());
        assert_eq!((words[0].0.as_str(), words[0].2), ("Your", None));
        assert!(words.len() > 300 && words.iter().all(|w| w.1.is_some()), "{}", words.len());
    }

    #[test]
    fn whisperx_with_its_oddities() {
        let text = r#"{"segments": [
            {"start": 0.1, "end": 2.0, "text": " Well, \"NaN\" 3 okay.", "chars": null, "avg_logprob": -0.2, "words": [
                {"word": " Well, ", "start": 0.1, "end": 0.4, "score": 0.91, "speaker": "SPEAKER_00"},
                {"word": "\"NaN\\", "start": 0.5, "end": 0.75, "score": NaN},
                {"word": "3"},
                {"word": "okay.", "start": NaN, "end": 1.9, "score": 0.5},
                {"word": "  "},
                {"word": "so", "start": 2.5, "end": 2.1, "score": 0.7},
                {"word": "oh", "start": null, "end": Infinity, "score": null}
            ]},
            {"start": 2.0, "end": 9.0, "text": "(not aligned)"}
        ], "language": "en"}"#;
        let expected = [
            ("Well,", Some((0.1, 0.4)), Some(0.91)),
            ("\"NaN\\", Some((0.5, 0.75)), Some(0.0)),
            ("3", None, Some(0.0)),
            ("okay.", None, Some(0.5)),
            ("so", None, Some(0.7)),
            ("oh", None, Some(0.0)),
        ];
        assert_eq!(words(text), expected.map(|(w, t, c)| (w.to_owned(), t, c)));
    }

    #[test]
    fn flat_lists_come_before_nested_ones_and_ours_before_both() {
        let nested = r#""segments":[{"words":[{"word":"n","start":0,"end":1}]}]"#;
        let flat = r#""word_segments":[{"word":"f","start":0,"end":1}]"#;
        let ours = r#""words":[{"word":"o","start":0,"end":1,"confidence":0.5}]"#;
        assert_eq!(words(&format!("{{{nested},{flat},{ours}}}"))[0], ("o".into(), Some((0., 1.)), Some(0.5)));
        assert_eq!(words(&format!("{{{nested},{flat}}}"))[0], ("f".into(), Some((0., 1.)), None));
        assert_eq!(words(&format!("{{{nested},\"word_segments\":[]}}"))[0].0, "n");
        assert_eq!(words(&format!("{{{nested},\"word_segments\":null}}"))[0].0, "n");
        assert_eq!(words(r#"{"words":[]}"#), []);
    }

    #[test]
    fn a_language_without_spaces_has_a_word_a_character() {
        let text = r#"{"word_segments":[{"word":"你","start":0.1,"end":0.2,"score":0.9},{"word":"好","start":0.2,"end":0.4,"score":0.8}],"language":"zh"}"#;
        assert_eq!(words(text).iter().map(|w| w.0.as_str()).collect::<Vec<_>>(), ["你", "好"]);
    }

    #[test]
    fn errors_say_what_and_where() {
        let error = |text: &str| {
            let (line, problem) = parse(text).unwrap_err();
            format!("{line:?} {problem}")
        };
        let mistyped =
            error("{\"words\":[\n{\"word\":\"a\",\"start\":NaN},\n{\"word\":\"a\",\"start\":\"1\"}]}");
        assert!(mistyped.starts_with("Some(3) invalid type: string \"1\", expected f64"), "{mistyped}");
        let wordless = error("{\"words\":[\n{\"start\":1}]}");
        assert_eq!(wordless, "Some(2) missing field `word`");
        assert!(error("{\"words\":[\n").starts_with("Some(2) EOF"));
        assert!(error(r#"{"segments":[{"start":0,"text":"a"}]}"#).contains("no word times"));
        assert!(error("{}").contains("no word times"));
        assert!(error("[1]").contains("no word times"));
        for deep in ["[".repeat(1 << 20), format!("{{\"x\":{}", "[".repeat(1 << 20))] {
            assert!(parse(&deep).is_err());
        }
    }
}
