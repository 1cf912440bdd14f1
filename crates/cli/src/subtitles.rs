//! Subtitles: SubRip (SRT) and WebVTT.
//!
//! Both get the same cues: in order, without overlap, each at least a millisecond long and none without text. Seconds
//! are rounded to whole milliseconds once, so that no `,1000` can arise. A text has one line, or two of as equal length
//! as its words allow if it has more than 42 columns.

use std::fmt::Write;

use wnw_engine::times::{Cue, Word, columns, is_wide};

/// Columns that a line should have at most; wide characters count two.
const LINE_COLUMNS: usize = 42;
/// A shorter cue stays on the screen for this long if no other one needs the place, in milliseconds.
const SHORTEST_MS: u64 = 700;

/// Each word as a cue of its own.
pub fn word_cues(words: &[Word]) -> Vec<Cue> {
    let cue = |w: &Word| Cue { start: w.start, end: w.end, text: w.word.clone(), confidence: w.confidence };
    words.iter().map(cue).collect()
}

/// SubRip text. The format has no escapes: `-->` inside a text, which would be read as a time line, becomes `→`.
///
/// `duration` of the recording in seconds: no cue is shown past it.
pub fn srt(cues: &[Cue], duration: f64) -> String {
    let mut out = String::new();
    for (i, shown) in schedule(cues, duration).iter().enumerate() {
        let text = shown.lines.join("\n").replace("-->", "→");
        let (start, end) = (clock(shown.start, ','), clock(shown.end, ','));
        // Writing to a string cannot fail.
        let _ = write!(out, "{}\n{start} --> {end}\n{text}\n\n", i + 1);
    }
    out
}

/// WebVTT text, otherwise as [`srt`].
pub fn vtt(cues: &[Cue], duration: f64) -> String {
    let mut out = String::from("WEBVTT\n\n");
    for shown in schedule(cues, duration) {
        let text = shown.lines.join("\n").replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let (start, end) = (clock(shown.start, '.'), clock(shown.end, '.'));
        let _ = write!(out, "{start} --> {end}\n{text}\n\n");
    }
    out
}

/// A cue as it is shown.
struct Shown {
    /// Milliseconds.
    start: u64,
    end: u64,
    lines: Vec<String>,
}

fn schedule(cues: &[Cue], duration: f64) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::with_capacity(cues.len());
    for cue in cues {
        let lines = lines(&plain(&cue.text));
        if lines.is_empty() {
            continue;
        }
        let mut start = milliseconds(cue.start);
        if let Some(last) = shown.last_mut() {
            start = start.max(last.start + 1);
            last.end = last.end.max(last.start + SHORTEST_MS).min(start);
        }
        shown.push(Shown { start, end: milliseconds(cue.end).max(start + 1), lines });
    }
    if let Some(last) = shown.last_mut() {
        // The end of the recording is the end of the film; what starts there is shown for an instant.
        last.end = last.end.max(last.start + SHORTEST_MS).min(milliseconds(duration)).max(last.start + 1);
    }
    shown
}

/// Whole milliseconds; what is no time is 0.
fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}

/// `HH:MM:SS,mmm`, with more digits for more hours.
fn clock(ms: u64, point: char) -> String {
    let (h, m, s) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{h:02}:{m:02}:{s:02}{point}{:03}", ms % 1000)
}

/// Without control characters, and all white space one space: an empty line would end a cue.
fn plain(text: &str) -> String {
    let text = text.replace(|c: char| c.is_control(), " ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// One line, or two.
fn lines(text: &str) -> Vec<String> {
    if text.is_empty() {
        return Vec::new();
    }
    let all = columns(text);
    let mut left = 0;
    // The break with the shortest longer line; of equal ones the later, which makes the first line the longer one.
    let mut best: Option<(usize, usize)> = None;
    let mut previous = None;
    for (at, c) in text.char_indices() {
        if breaks(previous, c) {
            let right = all - left - usize::from(c == ' ');
            let longer = left.max(right);
            if best.is_none_or(|(least, _)| longer <= least) {
                best = Some((longer, at));
            }
        }
        left += if is_wide(c) { 2 } else { 1 };
        previous = Some(c);
    }
    match best {
        Some((_, at)) if all > LINE_COLUMNS => {
            vec![text[..at].trim_end().into(), text[at..].trim_start().into()]
        }
        _ => vec![text.into()],
    }
}

/// A line may end before `c`: at a space, and between wide characters that are letters.
fn breaks(previous: Option<char>, c: char) -> bool {
    let letter = |c: char| is_wide(c) && c.is_alphanumeric();
    previous.is_some_and(|p| c == ' ' || (is_wide(p) && letter(c) && !"（「『【《〈〔［｛".contains(p)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cue(start: f64, end: f64, text: &str) -> Cue {
        Cue { start, end, text: text.into(), confidence: 1.0 }
    }

    #[test]
    fn srt_to_the_letter() {
        let cues = [
            cue(0.0, 1.9996, "Hello, world."),
            cue(2.5, 6.25, "Please press one to continue, or hold the line for help."),
            cue(359_999.999_5, 360_001.0, "a --> b"),
        ];
        assert_eq!(
            srt(&cues, 1e9),
            "1\n00:00:00,000 --> 00:00:02,000\nHello, world.\n\n\
             2\n00:00:02,500 --> 00:00:06,250\nPlease press one to continue,\nor hold the line for help.\n\n\
             3\n100:00:00,000 --> 100:00:01,000\na → b\n\n"
        );
        assert_eq!(srt(&[], 0.0), "");
        let end = [cue(0.0, 0.2, "a"), cue(0.3, 0.4, "b")];
        assert!(
            srt(&end, 0.6).ends_with("00:00:00,300 --> 00:00:00,600\nb\n\n"),
            "not past the recording's end"
        );
    }

    #[test]
    fn vtt_to_the_letter() {
        let cues = [cue(61.001, 62.5, "Q & A: <i>x</i> --> y\u{0}"), cue(3723.0, 3724.0, "two\n\nlines")];
        assert_eq!(
            vtt(&cues, 1e9),
            "WEBVTT\n\n\
             00:01:01.001 --> 00:01:02.500\nQ &amp; A: &lt;i&gt;x&lt;/i&gt; --&gt; y\n\n\
             01:02:03.000 --> 01:02:04.000\ntwo lines\n\n"
        );
        assert_eq!(vtt(&[], 0.0), "WEBVTT\n\n");
    }

    #[test]
    fn empty_cues_are_not_numbered_and_none_is_without_length() {
        let cues = [
            cue(1.0, 1.0, "a"),
            cue(1.0, 1.0, " \n"),
            cue(1.0, 1.0, "b"),
            cue(5.0, 4.0, "c"),
            cue(f64::NAN, f64::NEG_INFINITY, "d"),
        ];
        assert_eq!(
            srt(&cues, 1e9),
            "1\n00:00:01,000 --> 00:00:01,001\na\n\n\
             2\n00:00:01,001 --> 00:00:01,701\nb\n\n\
             3\n00:00:05,000 --> 00:00:05,001\nc\n\n\
             4\n00:00:05,001 --> 00:00:05,701\nd\n\n"
        );
    }

    #[test]
    fn words_can_be_cues() {
        let word =
            |word: &str, start, end| Word { word: word.into(), start, end, confidence: 0.5, spaced: true };
        let cues = word_cues(&[word("To", 5.0, 5.16), word("reset.", 5.22, 5.9)]);
        assert_eq!(
            srt(&cues, 1e9),
            "1\n00:00:05,000 --> 00:00:05,220\nTo\n\n2\n00:00:05,220 --> 00:00:05,920\nreset.\n\n"
        );
    }

    #[test]
    fn long_texts_have_two_lines() {
        assert_eq!(lines("one two"), ["one two"]);
        let text = "aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii";
        assert_eq!(lines(text), ["aaaa bbbb cccc dddd eeee", "ffff gggg hhhh iiii"]);
        let long = "x".repeat(50);
        assert_eq!(lines(&long), [long.as_str()]);
        assert_eq!(lines(&format!("{long} y")), [long.as_str(), "y"]);
        let chinese = "我们今天在这里讨论的是如何把很长的录音转写成文字。好";
        let split = lines(chinese);
        assert_eq!(split.concat(), chinese);
        assert!(split.len() == 2 && split.iter().all(|l| columns(l) <= LINE_COLUMNS), "{split:?}");
    }
}
