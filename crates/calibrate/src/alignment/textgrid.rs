//! Praat's TextGrid in its text forms.
//!
//! Praat reads its text files as a sequence of free-standing numbers, strings and flags (`<exists>`); everything else
//! (`xmin =`, `intervals [3]:`) is a comment. Read that way, the long form and the short one are the same file. A value
//! is free-standing if white space, or the file's edge, is on both sides; a quote inside a string is doubled; `!`
//! starts a comment to the end of the line. Source: Praat's manual, "TextGrid file formats".

use super::{AlignedWord, AlignmentProblem, Located};

/// Whether a text, without leading space, is one of Praat's text files.
pub(super) fn recognise(head: &str) -> bool {
    let line = head.lines().next().unwrap_or_default();
    line.starts_with("File type") || line.starts_with("\"ooTextFile") || line.starts_with("\"Praat")
}

pub(super) fn parse(text: &str, tier: &str) -> Result<Vec<AlignedWord>, Located> {
    let mut values = Values { rest: text, line: 1, position: Some(1) };
    let kind = values.text("\"ooTextFile\"")?;
    if !kind.starts_with("ooTextFile") {
        return Err((values.position, AlignmentProblem::NotATextGrid(kind)));
    }
    let class = values.text("the class \"TextGrid\"")?;
    if class != "TextGrid" {
        return Err((values.position, AlignmentProblem::NotATextGrid(class)));
    }
    values.number("the start time")?;
    values.number("the end time")?;
    let flag = values.next("<exists>")?;
    let tiers = match flag {
        Value::Flag("exists") => values.count("the number of tiers")?,
        Value::Flag("absent") => 0,
        other => return Err(values.unexpected("<exists>", &other)),
    };
    let mut there = Vec::new();
    for _ in 0..tiers {
        let class = values.text("a tier's class")?;
        let intervals = match class.as_str() {
            "IntervalTier" => true,
            "TextTier" => false,
            _ => return Err(values.unexpected("\"IntervalTier\" or \"TextTier\"", &Value::Text(class))),
        };
        let name = values.text("a tier's name")?;
        values.number("a tier's start time")?;
        values.number("a tier's end time")?;
        let n = values.count("a tier's size")?;
        let wanted = intervals && name.to_lowercase() == tier.to_lowercase();
        let mut words = Vec::new();
        for _ in 0..n {
            let start = values.number("an interval's or point's time")?;
            let end = if intervals { values.number("an interval's end time")? } else { start };
            let text = values.text("an interval's or point's text")?;
            if wanted {
                // An interval without text is silence.
                words.extend(AlignedWord::new(&text, Some(start), Some(end), None));
            }
        }
        if wanted {
            return Ok(words);
        }
        there.push(format!("'{name}'{}", if intervals { "" } else { " (points)" }));
    }
    if there.is_empty() {
        there.push("no tiers".to_owned());
    }
    Err((None, AlignmentProblem::Tier { wanted: tier.to_owned(), there }))
}

enum Value<'a> {
    Number(f64),
    Text(String),
    Flag(&'a str),
}

/// The free-standing values of a text, in order.
struct Values<'a> {
    rest: &'a str,
    /// Line of the start of `rest`.
    line: usize,
    /// Line of the last value; none at the end of the file.
    position: Option<usize>,
}

impl<'a> Values<'a> {
    fn next(&mut self, expected: &'static str) -> Result<Value<'a>, Located> {
        loop {
            let start = self.rest.trim_start();
            self.advance(self.rest.len() - start.len());
            self.position = Some(self.line);
            let missing = |position, found: &str| {
                (position, AlignmentProblem::TextGrid { expected, found: found.to_owned() })
            };
            match start.chars().next() {
                None => return Err(missing(self.position, "the end of the file")),
                Some('!') => self.advance(start.find('\n').unwrap_or(start.len())),
                Some('"') => {
                    let (text, length) = quoted(start)
                        .ok_or_else(|| missing(self.position, "a string that is never closed"))?;
                    self.advance(length);
                    return Ok(Value::Text(text));
                }
                Some(_) => {
                    let word = &start[..start.find(char::is_whitespace).unwrap_or(start.len())];
                    self.advance(word.len());
                    if let Some(flag) = word.strip_prefix('<').and_then(|w| w.strip_suffix('>')) {
                        return Ok(Value::Flag(flag));
                    }
                    let numeric = word.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
                    if let Some(number) = word.parse::<f64>().ok().filter(|x| numeric && x.is_finite()) {
                        return Ok(Value::Number(number));
                    }
                }
            }
        }
    }

    fn advance(&mut self, bytes: usize) {
        let (passed, rest) = self.rest.split_at(bytes);
        self.line += passed.bytes().filter(|b| *b == b'\n').count();
        self.rest = rest;
    }

    fn number(&mut self, expected: &'static str) -> Result<f64, Located> {
        match self.next(expected)? {
            Value::Number(x) => Ok(x),
            other => Err(self.unexpected(expected, &other)),
        }
    }

    fn count(&mut self, expected: &'static str) -> Result<u64, Located> {
        match self.next(expected)? {
            Value::Number(x) if x >= 0.0 && x.fract() == 0.0 && x < 1e15 => Ok(x as u64),
            other => Err(self.unexpected(expected, &other)),
        }
    }

    fn text(&mut self, expected: &'static str) -> Result<String, Located> {
        match self.next(expected)? {
            Value::Text(text) => Ok(text),
            other => Err(self.unexpected(expected, &other)),
        }
    }

    fn unexpected(&self, expected: &'static str, found: &Value<'_>) -> Located {
        let found = match found {
            Value::Number(x) => x.to_string(),
            Value::Text(text) => format!("\"{}\"", text.chars().take(40).collect::<String>()),
            Value::Flag(flag) => format!("<{flag}>"),
        };
        (self.position, AlignmentProblem::TextGrid { expected, found })
    }
}

/// The string that `text` starts with, and its length in bytes with quotes; none if it is never closed.
fn quoted(text: &str) -> Option<(String, usize)> {
    let mut out = String::new();
    let mut at = 1;
    loop {
        let end = at + text[at..].find('"')?;
        out.push_str(&text[at..end]);
        if !text[end + 1..].starts_with('"') {
            return Some((out, end + 1));
        }
        out.push('"');
        at = end + 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "File type = \"ooTextFile\"\r\nObject class = \"TextGrid\"\r\n\r\nxmin = 0 \r\nxmax = 3.5 \r\ntiers? <exists> \r\nsize = 3 \r\nitem []: \r\n\
        \titem [1]:\r\n\t\tclass = \"IntervalTier\" \r\n\t\tname = \"phones\" \r\n\t\txmin = 0 \r\n\t\txmax = 3.5 \r\n\t\tintervals: size = 1 \r\n\
        \t\tintervals [1]:\r\n\t\t\txmin = 0\r\n\t\t\txmax = 3.5\r\n\t\t\ttext = \"HH 12 <exists> ! no\"\r\n\
        \titem [2]:\r\n\t\tclass = \"TextTier\"\r\n\t\tname = \"marks\"\r\n\t\txmin = 0\r\n\t\txmax = 3.5\r\n\t\tpoints: size = 1\r\n\
        \t\tpoints [1]:\r\n\t\t\tnumber = 1.5\r\n\t\t\tmark = \"p\"\r\n\
        \titem [3]:\r\n\t\tclass = \"IntervalTier\"\r\n\t\tname = \"Words\"\r\n\t\txmin = 0\r\n\t\txmax = 3.5\r\n\t\tintervals: size = 3\r\n\
        \t\tintervals [1]:\r\n\t\t\txmin = 0\r\n\t\t\txmax = 0.25\r\n\t\t\ttext = \"\"\r\n\
        \t\tintervals [2]:\r\n\t\t\txmin = 0.25\r\n\t\t\txmax = 1\r\n\t\t\ttext = \"say \"\"hi\"\"\"\r\n\
        \t\tintervals [3]:\r\n\t\t\txmin = 1\r\n\t\t\txmax = 3.5\r\n\t\t\ttext = \"été\nzwei\"\r\n";
    const SHORT: &str = "File type = \"ooTextFile short\"\n\"TextGrid\"\n\n0\n3.5\n<exists>\n1\n\"IntervalTier\"\n\"words\"\n0\n3.5\n2\n0\n0.25\n\"\" ! silence 7\n0.25\n1\n\"say \"\"hi\"\"\"\n";

    fn words(text: &str, tier: &str) -> Vec<(String, f64, f64)> {
        let words = parse(text, tier).unwrap();
        words.into_iter().map(|w| (w.text, w.start.unwrap(), w.end.unwrap())).collect()
    }

    #[test]
    fn long_and_short_forms() {
        let hi = ("say \"hi\"".to_owned(), 0.25, 1.0);
        assert!(recognise(LONG) && recognise(SHORT));
        assert_eq!(words(LONG, "words"), [hi.clone(), ("été\nzwei".to_owned(), 1.0, 3.5)]);
        assert_eq!(words(SHORT, "WORDS"), [hi]);
        assert_eq!(words(LONG, "phones").len(), 1);
    }

    #[test]
    fn damage_is_named_with_its_line() {
        for (text, tier, line, says) in [
            (LONG, "speaker", None, "'speaker'; the file has 'phones', 'marks' (points), 'Words'"),
            (LONG, "marks", None, "no interval tier named 'marks'"),
            (&LONG[..LONG.len() - 4], "words", Some(45), "a string that is never closed"),
            (
                &SHORT[..SHORT.len() - 13],
                "words",
                Some(18),
                "expected an interval's or point's text, found the end",
            ),
            ("File type = \"ooTextFile\"\nObject class = \"Pitch 1\"\n", "words", Some(2), "class 'Pitch 1'"),
            ("\"Praat chronological TextGrid text file\"\n", "words", Some(1), "not a TextGrid"),
            (
                "\"ooTextFile\"\n\"TextGrid\"\n0\n\"x\"\n",
                "words",
                Some(4),
                "expected the end time, found \"x\"",
            ),
            ("\"ooTextFile\"\n\"TextGrid\"\n0\n1\n<absent>\n", "words", None, "the file has no tiers"),
            (
                "\"ooTextFile\"\n\"TextGrid\"\n0\n1\n<exists>\n-1\n",
                "words",
                Some(6),
                "number of tiers, found -1",
            ),
            (
                "\"ooTextFile\"\n\"TextGrid\"\n0\n1\n<exists>\n1\n\"Tier\"\n",
                "words",
                Some(7),
                "\"IntervalTier\"",
            ),
            ("\"ooTextFile\"\n\"TextGrid\"\n0\n1\n<exists>\n9e14\n", "words", Some(7), "a tier's class"),
        ] {
            let (at, problem) = parse(text, tier).unwrap_err();
            assert!(problem.to_string().contains(says), "{problem}");
            assert_eq!(at, line, "{problem}");
        }
    }
}
