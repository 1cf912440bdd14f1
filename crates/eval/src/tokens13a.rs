//! The tokeniser "13a", which mteval-v13a made the standard of machine translation: ASCII punctuation apart from words,
//! full stops and commas kept within numbers. Only ASCII: guillemets, dashes and typographic apostrophes stay attached.

use std::sync::LazyLock;

use regex::Regex;

use crate::text::split;

static RULES: LazyLock<[(Regex, &str); 4]> = LazyLock::new(|| {
    let regex = |pattern: &str| Regex::new(pattern).expect("the pattern is constant");
    [
        // ASCII punctuation and symbols but ' , - . ; the space, which is in the reference's class, changes nothing.
        (regex(r"([\x7B-\x7E\x5B-\x60\x20-\x26\x28-\x2B\x3A-\x40/])"), " ${1} "),
        (regex(r"([^0-9])([.,])"), "${1} ${2} "),
        (regex(r"([.,])([^0-9])"), " ${1} ${2}"),
        (regex(r"([0-9])(-)"), "${1} ${2} "),
    ]
});

/// The tokens of a line.
pub(crate) fn tokenise(line: &str) -> Vec<String> {
    let line = line.trim_end_matches(crate::text::is_space);
    let mut text = line.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    // In this order, so that "&amp;lt;" becomes "<", as in the reference.
    for (entity, character) in [("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")] {
        text = text.replace(entity, character);
    }
    text = format!(" {text} ");
    for (pattern, replacement) in &*RULES {
        text = pattern.replace_all(&text, *replacement).into_owned();
    }
    split(&text).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::tokenise;

    #[test]
    fn vectors() {
        let joined = |line: &str| tokenise(line).join(" ");
        assert_eq!(joined("U.S. 1,000.5-10 end."), "U . S . 1,000.5 - 10 end .");
        assert_eq!(joined("«Bonjour» — dit-il… l’eau"), "«Bonjour» — dit-il… l’eau");
        assert_eq!(joined("C'est (vrai) &amp;lt; 50%\n"), "C'est ( vrai ) < 50 %");
        assert_eq!(joined("a<skipped>b c-\nd\ne"), "ab cd e");
        assert_eq!(joined(" \n"), "");
    }
}
