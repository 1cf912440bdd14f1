//! Spoken English numbers to digits, as Whisper's normaliser does it.
//!
//! Words are read from left to right with one number pending. Each word makes the pending number larger, puts digits
//! behind it, or ends it. Whether a word adds ("twenty" "one") or is put behind ("one" "oh" "one") depends on whether
//! the number still has the zeros that would be filled.

mod decimal;

use std::sync::LazyLock;

use regex::Regex;

use super::number_words::{Role, role};
use crate::text::{SPACE, no_word_before, no_word_from, split};
use decimal::Pending;

struct Patterns {
    half: Regex,
    letter_digit: Regex,
    digit_letter: Regex,
    suffix: Regex,
    cents: Regex,
    only_cents: Regex,
    one: Regex,
    arabic: Regex,
}

static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| {
    let regex = |pattern: &str| Regex::new(pattern).expect("the pattern is constant");
    Patterns {
        half: regex(&format!("and{SPACE}+a{SPACE}+half")),
        letter_digit: regex("([a-z])([0-9])"),
        digit_letter: regex("([0-9])([a-z])"),
        suffix: regex(&format!("([0-9]){SPACE}+(st|nd|rd|th|s)")),
        cents: regex("([€£$])([0-9]+) (?:and )?¢([0-9]{1,2})"),
        only_cents: regex("[€£$]0.([0-9]{1,2})"),
        one: regex("1(s?)"),
        arabic: regex(r"^\d+(\.\d+)?$"),
    }
});

/// All numbers of a lower-case text without punctuation in digits; white space becomes single spaces.
pub(super) fn write_numbers(text: &str) -> String {
    let p = &*PATTERNS;
    let text = halves(text);
    let text = p.letter_digit.replace_all(&text, "${1} ${2}");
    let text = p.digit_letter.replace_all(&text, "${1} ${2}");
    let text = replace_to_word_end(&p.suffix, &text, false, |c| format!("{}{}", &c[1], &c[2]));

    let text = Reader::read(&split(&text).collect::<Vec<_>>()).join(" ");

    // At most two digits are captured, so they are a number.
    let cents = |digits: &str| digits.parse::<u32>().unwrap_or_default();
    let text =
        replace_to_word_end(&p.cents, &text, false, |c| format!("{}{}.{:02}", &c[1], &c[2], cents(&c[3])));
    let text = replace_to_word_end(&p.only_cents, &text, false, |c| format!("¢{}", cents(&c[1])));
    replace_to_word_end(&p.one, &text, true, |c| format!("one{}", &c[1]))
}

/// "… and a half" behind a number as "… point five".
fn halves(text: &str) -> String {
    let mut segments = Vec::new();
    let mut from = 0;
    for found in PATTERNS.half.find_iter(text) {
        if no_word_before(text, found.start()) && no_word_from(text, found.end()) {
            segments.push(&text[from..found.start()]);
            from = found.end();
        }
    }
    let mut out = Vec::new();
    for segment in segments {
        // What follows the last word decides; without one, the half is lost, as in Whisper's.
        if let Some(last) = split(segment).last() {
            let number =
                matches!(role(last), Some(Role::Zero | Role::One(_) | Role::Ten(_) | Role::Power(_)));
            out.extend([segment, if number { "point five" } else { "and a half" }]);
        }
    }
    if split(&text[from..]).next().is_some() {
        out.push(&text[from..]);
    }
    out.join(" ")
}

/// Replaces matches that end where no word goes on and, if `whole`, begin where none began before.
fn replace_to_word_end(
    regex: &Regex,
    text: &str,
    whole: bool,
    replacement: impl Fn(&regex::Captures<'_>) -> String,
) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut copied, mut from) = (0, 0);
    while let Some(captures) = regex.captures_at(text, from)
        && let Some(found) = captures.get(0)
    {
        if no_word_from(text, found.end()) && (!whole || no_word_before(text, found.start())) {
            out.push_str(&text[copied..found.start()]);
            out.push_str(&replacement(&captures));
            (copied, from) = (found.end(), found.end());
        } else {
            let first = found.as_str().chars().next();
            from = found.start() + first.map_or(1, char::len_utf8);
        }
    }
    out.push_str(&text[copied..]);
    out
}

/// The state while words are read.
#[derive(Default)]
struct Reader {
    out: Vec<String>,
    prefix: Option<char>,
    pending: Option<Pending>,
}

impl Reader {
    fn read(words: &[&str]) -> Vec<String> {
        let mut reader = Self::default();
        let mut skip = false;
        for (i, word) in words.iter().enumerate() {
            if skip {
                skip = false;
                continue;
            }
            let before = i.checked_sub(1).and_then(|i| words.get(i)).and_then(|w| role(w));
            skip = reader.word(word, before, words.get(i + 1).copied());
        }
        reader.end_number();
        reader.out
    }

    /// Writes a word or number, behind the sign or currency that waits for one.
    fn write(&mut self, text: &str) {
        let mut out = String::from_iter(self.prefix.take());
        out.push_str(text);
        self.out.push(out);
        self.pending = None;
    }

    fn end_number(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.write(pending.as_str());
        }
    }

    /// Writes the pending number with a suffix.
    fn end_with(&mut self, number: Pending, suffix: &str) {
        self.write(&format!("{}{suffix}", number.as_str()));
    }

    /// Takes one word, given what the one before means and the one after; true if that one is used up as well.
    fn word(&mut self, word: &str, before: Option<Role>, next: Option<&str>) -> bool {
        let arabic = |w: &str| PATTERNS.arabic.is_match(w);
        let unsigned = word.strip_prefix(['-', '+', '£', '€', '$', '¢']);
        if arabic(unsigned.unwrap_or(word)) {
            self.arabic(word, unsigned);
            return false;
        }
        let Some(part) = role(word) else {
            self.end_number();
            self.write(word);
            return false;
        };
        let next_role = next.and_then(role);
        let number_follows = next_role.is_some() || next.is_some_and(arabic);
        match part {
            Role::Zero => self.pending = Some(Pending::behind(self.pending.take(), "0")),
            Role::One(value) => self.pending = Some(Pending::with_one(self.pending.take(), value, before)),
            Role::LastOne(value, suffix) => {
                let number = Pending::with_one(self.pending.take(), value, before);
                self.end_with(number, suffix);
            }
            Role::Ten(value) => self.pending = Some(Pending::with_ten(self.pending.take(), value)),
            Role::LastTen(value, suffix) => {
                let number = Pending::with_ten(self.pending.take(), value);
                self.end_with(number, suffix);
            }
            Role::Power(exponent) => match Pending::times_power(self.pending.take(), exponent) {
                Ok(number) => self.pending = Some(number),
                Err(number) => {
                    self.write(number.as_str());
                    self.pending = Some(Pending::power(exponent));
                }
            },
            Role::LastPower(exponent, suffix) => {
                // Unlike above a pending zero is multiplied as a number here; the product is the same.
                let number = Pending::times_power(self.pending.take(), exponent).unwrap_or_else(|number| {
                    self.write(number.as_str());
                    Pending::power(exponent)
                });
                self.end_with(number, suffix);
            }
            Role::Sign(sign) => {
                self.end_number();
                if number_follows {
                    self.prefix = Some(sign);
                } else {
                    self.write(word);
                }
            }
            Role::Currency(symbol) => match self.pending.take() {
                Some(number) => {
                    self.prefix = Some(symbol);
                    self.write(number.as_str());
                }
                None => self.write(word),
            },
            Role::Percent => match self.pending.take() {
                Some(number) => self.end_with(number, "%"),
                None => self.write(word),
            },
            Role::Per => match self.pending.take() {
                Some(number) if next == Some("cent") => {
                    self.end_with(number, "%");
                    return true;
                }
                Some(number) => {
                    self.write(number.as_str());
                    self.write(word);
                }
                None => self.write(word),
            },
            Role::And if number_follows && matches!(before, Some(Role::Power(_))) => {}
            Role::Times(count) if matches!(next_role, Some(Role::Zero | Role::One(_))) => {
                let digits = if let Some(Role::One(value)) = next_role { value } else { 0 };
                let digits = digits.to_string().repeat(count);
                self.pending = Some(Pending::behind(self.pending.take(), &digits));
                return true;
            }
            Role::Point if number_follows => {
                let digits = matches!(next_role, Some(Role::Zero | Role::One(_) | Role::Ten(_)));
                if digits || next.is_some_and(arabic) {
                    self.pending = Some(Pending::behind(self.pending.take(), "."));
                }
            }
            Role::And | Role::Times(_) | Role::Point => {
                self.end_number();
                self.write(word);
            }
        }
        false
    }

    /// A number in digits, perhaps behind a currency symbol.
    fn arabic(&mut self, word: &str, unsigned: Option<&str>) {
        match self.pending.take() {
            // The fraction of "three point 14".
            Some(number) if number.as_str().ends_with('.') => {
                self.pending = Some(Pending::behind(Some(number), word));
                return;
            }
            Some(number) => self.write(number.as_str()),
            None => {}
        }
        if unsigned.is_some() {
            self.prefix = word.chars().next();
        }
        self.pending = Some(Pending::arabic(unsigned.unwrap_or(word)));
    }
}
