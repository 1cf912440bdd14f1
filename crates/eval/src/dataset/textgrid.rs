//! Praat's TextGrid files, long and short form, as far as labelled intervals go.
//!
//! Both forms are the same sequence of numbers and quoted strings; the long one puts names around them, which are skipped
//! here. A quote inside a string is doubled. Files are UTF-8 or, with a byte order mark, UTF-16.

use std::path::Path;

use super::DatasetError;

/// A labelled stretch of a tier.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Interval {
    /// In seconds.
    pub start: f64,
    /// In seconds.
    pub end: f64,
    pub text: String,
}

/// What remains of a file without the names of the long form.
#[derive(Debug, PartialEq)]
enum Token {
    Number(f64),
    Text(String),
    Flag(String),
}

/// The intervals of all interval tiers, in the file's order.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Interval>, DatasetError> {
    let text = decode(path, bytes)?;
    let cut_off = || DatasetError::Truncated {
        path: path.to_owned(),
        detail: "a TextGrid's tiers are incomplete".into(),
    };
    let mut tokens = tokens(&text).ok_or_else(cut_off)?.into_iter();
    let (kind, class) = (tokens.next(), tokens.next());
    if kind != Some(Token::Text("ooTextFile".into())) || class != Some(Token::Text("TextGrid".into())) {
        return Err(DatasetError::malformed(path, "is no TextGrid file"));
    }
    let mut number = || -> Option<f64> {
        match tokens.next()? {
            Token::Number(x) => Some(x),
            _ => None,
        }
    };
    let _whole = (number(), number());
    let mut out = Vec::new();
    match tokens.next() {
        Some(Token::Flag(flag)) if flag == "<exists>" => {}
        Some(Token::Flag(flag)) if flag == "<absent>" => return Ok(out),
        _ => return Err(cut_off()),
    }
    let tiers = match tokens.next() {
        Some(Token::Number(n)) => n,
        _ => return Err(cut_off()),
    };
    let mut next = || tokens.next().ok_or_else(cut_off);
    let malformed = || DatasetError::malformed(path, "a tier of this TextGrid is malformed");
    let number = |token: Token| match token {
        Token::Number(x) if x.is_finite() => Ok(x),
        _ => Err(malformed()),
    };
    let string = |token: Token| match token {
        Token::Text(text) => Ok(text),
        _ => Err(malformed()),
    };
    let mut tier = 0.0;
    while tier < tiers {
        tier += 1.0;
        let class = string(next()?)?;
        string(next()?)?;
        number(next()?)?;
        number(next()?)?;
        let items = number(next()?)?;
        let mut item = 0.0;
        while item < items {
            item += 1.0;
            let start = number(next()?)?;
            let end = if class == "IntervalTier" { number(next()?)? } else { start };
            let text = string(next()?)?;
            if class == "IntervalTier" {
                out.push(Interval { start, end, text });
            }
        }
    }
    Ok(out)
}

fn decode(path: &Path, bytes: &[u8]) -> Result<String, DatasetError> {
    let wide = |unit: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes[2..].chunks_exact(2).map(|pair| unit([pair[0], pair[1]])).collect();
        String::from_utf16(&units).map_err(|_| DatasetError::malformed(path, "is damaged UTF-16"))
    };
    match bytes {
        [0xff, 0xfe, ..] => wide(u16::from_le_bytes),
        [0xfe, 0xff, ..] => wide(u16::from_be_bytes),
        _ => super::text::decode(bytes.to_vec(), &path.display().to_string()),
    }
}

/// Numbers, strings and flags; none where a string does not end. Words such as `xmin` and indices such as `[3]` belong to
/// the long form's names.
fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut out = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else { return Some(out) };
        if first == '"' {
            let mut string = String::new();
            rest = &rest[1..];
            loop {
                let end = rest.find('"')?;
                string.push_str(&rest[..end]);
                rest = &rest[end + 1..];
                match rest.strip_prefix('"') {
                    Some(more) => {
                        string.push('"');
                        rest = more;
                    }
                    None => break,
                }
            }
            out.push(Token::Text(string));
            continue;
        }
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        if first == '!' {
            rest = rest.split_once('\n').map_or("", |(_, next)| next);
        } else if word.starts_with('<') {
            out.push(Token::Flag(word.to_owned()));
        } else if first.is_ascii_digit() || first == '-' {
            out.extend(word.parse().ok().map(Token::Number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "File type = \"ooTextFile\"\r\nObject class = \"TextGrid\"\r\n\r\nxmin = 0\r\nxmax = 3.5\r\n\
        tiers? <exists>\r\nsize = 2\r\nitem []:\r\n    item [1]:\r\n        class = \"IntervalTier\"\r\n        name = \"A 1\"\r\n\
        \x20       xmin = 0\r\n        xmax = 3.5\r\n        intervals: size = 2\r\n        intervals [1]:\r\n            xmin = 0\r\n\
        \x20           xmax = 1.25\r\n            text = \"\"\r\n        intervals [2]:\r\n            xmin = 1.25\r\n            xmax = 3.5\r\n\
        \x20           text = \"say \"\"7\"\" <UNIN/>\r\nmore\"\r\n    item [2]:\r\n        class = \"TextTier\"\r\n        name = \"B\"\r\n\
        \x20       xmin = 0\r\n        xmax = 3.5\r\n        points: size = 1\r\n        points [1]:\r\n            number = 2\r\n            mark = \"x\"\r\n";
    const SHORT: &str = "File type = \"ooTextFile\"\nObject class = \"TextGrid\"\n\n0\n3.5\n<exists>\n2\n\"IntervalTier\"\n\"A 1\"\n\
        0\n3.5\n2\n0\n1.25\n\"\"\n1.25\n3.5\n\"say \"\"7\"\" <UNIN/>\r\nmore\"\n\"TextTier\"\n\"B\"\n0\n3.5\n1\n2\n\"x\"\n";

    fn expected() -> Vec<Interval> {
        vec![
            Interval { start: 0.0, end: 1.25, text: String::new() },
            Interval { start: 1.25, end: 3.5, text: "say \"7\" <UNIN/>\r\nmore".into() },
        ]
    }

    #[test]
    fn both_forms_in_all_encodings() {
        let path = Path::new("a.TextGrid");
        for text in [LONG, SHORT] {
            assert_eq!(parse(path, text.as_bytes()).unwrap(), expected());
            let units = || std::iter::once(0xfeff_u16).chain(text.encode_utf16());
            let little: Vec<u8> = units().flat_map(u16::to_le_bytes).collect();
            let big: Vec<u8> = units().flat_map(u16::to_be_bytes).collect();
            assert_eq!(parse(path, &little).unwrap(), expected());
            assert_eq!(parse(path, &big).unwrap(), expected());
            assert_eq!(parse(path, format!("\u{feff}{text}").as_bytes()).unwrap(), expected());
        }
    }

    #[test]
    fn whatever_is_cut_off_is_an_error() {
        let path = Path::new("a.TextGrid");
        // What follows the last string is only a line end.
        for end in 0..SHORT.len() - 1 {
            assert!(parse(path, &SHORT.as_bytes()[..end]).is_err(), "{end}");
        }
        for end in 0..LONG.len() - 2 {
            assert!(parse(path, &LONG.as_bytes()[..end]).is_err(), "{end}");
        }
        let huge = SHORT.replace("\n2\n0\n1.25", "\n1e18\n0\n1.25");
        assert!(parse(path, huge.as_bytes()).is_err());
    }
}
