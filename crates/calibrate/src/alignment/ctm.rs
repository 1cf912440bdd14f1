//! CTM, NIST's time-marked words: `recording channel start duration word [confidence [type [speaker]]]`, one a line.
//!
//! Comments start with `;;`. Of alternatives (`<ALT_BEGIN>` … `<ALT>` … `<ALT_END>`, their times written `*`) the first
//! counts. Channels are merged by start time.

use super::{AlignedWord, AlignmentProblem, Located};

pub(super) fn parse(text: &str, recording: Option<&str>) -> Result<Vec<AlignedWord>, Located> {
    let mut recordings: Vec<&str> = Vec::new();
    let mut words = Vec::new();
    let mut in_later_alternative = false;
    let mut any = false;
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(";;") {
            continue;
        }
        let at = |problem| (Some(i + 1), problem);
        let mut fields = line.split_whitespace();
        let mut field = || fields.next().ok_or_else(|| at(AlignmentProblem::Ctm));
        let (name, _channel, start, duration, word) = (field()?, field()?, field()?, field()?, field()?);
        let confidence = fields.next();
        if start == "*" {
            in_later_alternative = word.eq_ignore_ascii_case("<ALT>");
            continue;
        }
        let number = |text: &str, field: &'static str| {
            let number = text.parse::<f64>().ok().filter(|x| x.is_finite());
            number.ok_or_else(|| {
                // A first line of words is no CTM at all.
                let problem = AlignmentProblem::CtmNumber { text: text.to_owned(), field };
                at(if any { problem } else { AlignmentProblem::Ctm })
            })
        };
        let start = number(start, "start time in seconds")?;
        let duration = number(duration, "duration in seconds")?;
        let confidence = match confidence {
            None => None,
            Some(text) if text.eq_ignore_ascii_case("NA") => None,
            Some(text) => Some(number(text, "confidence")?),
        };
        any = true;
        if in_later_alternative {
            continue;
        }
        if !recordings.contains(&name) {
            recordings.push(name);
        }
        if let Some(word) = AlignedWord::new(word, Some(start), Some(start + duration), confidence) {
            words.push((start, name, word));
        }
    }
    let there = || recordings.iter().take(8).map(|r| (*r).to_owned()).collect();
    match recording {
        None if recordings.len() > 1 => return Err((None, AlignmentProblem::CtmRecordings(there()))),
        // A file about one recording is about this one, whatever it calls it.
        Some(wanted) if recordings.len() > 1 && !recordings.contains(&wanted) => {
            let wanted = wanted.to_owned();
            return Err((None, AlignmentProblem::CtmNoSuchRecording { wanted, there: there() }));
        }
        _ => {}
    }
    if let Some(wanted) = recording.filter(|_| recordings.len() > 1) {
        words.retain(|(_, name, _)| *name == wanted);
    }
    words.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(words.into_iter().map(|(_, _, word)| word).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str, recording: Option<&str>) -> Vec<(String, f64, f64, Option<f32>)> {
        let words = parse(text, recording).unwrap();
        words.into_iter().map(|w| (w.text, w.start.unwrap(), w.end.unwrap(), w.confidence)).collect()
    }

    #[test]
    fn comments_confidence_channels_and_alternatives() {
        let text = ";; made by hand\r\n\r\nrec A 0.25 0.5 hello 0.9 lex S1\nrec B 0.5 0.25 hi NA\nrec A 1e0 0.5 world\n\
                    rec A * * <ALT_BEGIN>\nrec A 2 0.5 um 0.4\nrec A * * <ALT>\nrec A 2 0.5 uh 0.3\nrec A * * <ALT_END>\nrec A 3 0 end\n";
        let expected = [
            ("hello", 0.25, 0.75, Some(0.9)),
            ("hi", 0.5, 0.75, None),
            ("world", 1.0, 1.5, None),
            ("um", 2.0, 2.5, Some(0.4)),
            ("end", 3.0, 3.0, None),
        ];
        assert_eq!(words(text, None), expected.map(|(w, a, b, c)| (w.to_owned(), a, b, c)));
    }

    #[test]
    fn several_recordings_need_a_choice() {
        let text = "a 1 0 1 x\nb 1 0 1 y\n";
        assert_eq!(words(text, Some("b"))[0].0, "y");
        assert!(parse(text, None).unwrap_err().1.to_string().contains("several recordings (a, b)"));
        assert!(parse(text, Some("c")).unwrap_err().1.to_string().contains("'c'; the file has a, b"));
    }

    #[test]
    fn damage_is_named_with_its_line() {
        for (text, line, says) in [
            ("Once upon a time there was\n", 1, "neither JSON nor TextGrid"),
            ("two words\n", 1, "neither JSON"),
            ("r 1 0 1 ok\nr 1 0\n", 2, "no CTM line"),
            ("r 1 0 1 ok\n\nr 1 inf 1 x\n", 3, "'inf' is no start time"),
            ("r 1 0 1 ok\nr 1 0 one x\n", 2, "'one' is no duration"),
            ("r 1 0 1 ok\nr 1 0 1 x high\n", 2, "'high' is no confidence"),
        ] {
            let (at, problem) = parse(text, None).unwrap_err();
            assert_eq!(at, Some(line), "{text}");
            assert!(problem.to_string().contains(says), "{problem}");
        }
        // A word that ends before it starts has no time.
        assert_eq!(parse("r 1 1 -0.5 x\n", None).unwrap()[0].start, None);
    }
}
