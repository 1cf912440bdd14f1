//! What an English word means in a number.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The part that a word plays in a spoken number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Zero, also as "oh".
    Zero,
    /// 1 to 19.
    One(u32),
    /// 0 to 19 that end a number: "fives", "fifth".
    LastOne(u32, &'static str),
    /// 20, 30 … 90.
    Ten(u32),
    /// 20, 30 … 90 that end a number.
    LastTen(u32, &'static str),
    /// A power of ten, by its exponent.
    Power(usize),
    /// A power of ten that ends a number.
    LastPower(usize, &'static str),
    /// "minus" and the like, as the sign.
    Sign(char),
    /// A currency, as its symbol.
    Currency(char),
    /// "per", which "cent" may follow.
    Per,
    /// "percent".
    Percent,
    /// "and", silent behind a power of ten.
    And,
    /// "double" or "triple": how often the next digit is said.
    Times(usize),
    /// "point".
    Point,
}

const ONES: [&str; 19] = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 8] = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const POWERS: [(&str, usize); 12] = [
    ("hundred", 2),
    ("thousand", 3),
    ("million", 6),
    ("billion", 9),
    ("trillion", 12),
    ("quadrillion", 15),
    ("quintillion", 18),
    ("sextillion", 21),
    ("septillion", 24),
    ("octillion", 27),
    ("nonillion", 30),
    ("decillion", 33),
];
/// Words that are not made by a rule.
const OTHERS: [(&str, Role); 28] = [
    ("o", Role::Zero),
    ("oh", Role::Zero),
    ("zero", Role::Zero),
    ("zeroth", Role::LastOne(0, "th")),
    ("first", Role::LastOne(1, "st")),
    ("second", Role::LastOne(2, "nd")),
    ("third", Role::LastOne(3, "rd")),
    ("fifth", Role::LastOne(5, "th")),
    ("twelfth", Role::LastOne(12, "th")),
    ("minus", Role::Sign('-')),
    ("negative", Role::Sign('-')),
    ("plus", Role::Sign('+')),
    ("positive", Role::Sign('+')),
    ("pound", Role::Currency('£')),
    ("pounds", Role::Currency('£')),
    ("euro", Role::Currency('€')),
    ("euros", Role::Currency('€')),
    ("dollar", Role::Currency('$')),
    ("dollars", Role::Currency('$')),
    ("cent", Role::Currency('¢')),
    ("cents", Role::Currency('¢')),
    ("per", Role::Per),
    ("percent", Role::Percent),
    ("and", Role::And),
    ("double", Role::Times(2)),
    ("triple", Role::Times(3)),
    ("point", Role::Point),
    // The only plural of 1 to 19 that takes more than an s.
    ("sixes", Role::LastOne(6, "s")),
];

static ROLES: LazyLock<HashMap<String, Role>> = LazyLock::new(|| {
    let mut roles: HashMap<String, Role> = OTHERS.iter().map(|(w, r)| ((*w).to_owned(), *r)).collect();
    for (name, value) in ONES.iter().zip(1..) {
        roles.insert((*name).to_owned(), Role::One(value));
        if value != 6 {
            roles.insert(format!("{name}s"), Role::LastOne(value, "s"));
        }
        // By Whisper's rule the ninth is the "nineth"; "ninth" stays a word.
        if value > 3 && value != 5 && value != 12 {
            let ending = if name.ends_with('t') { "h" } else { "th" };
            roles.insert(format!("{name}{ending}"), Role::LastOne(value, "th"));
        }
    }
    for (name, value) in TENS.iter().zip((20..).step_by(10)) {
        let stem = name.trim_end_matches('y');
        roles.insert((*name).to_owned(), Role::Ten(value));
        roles.insert(format!("{stem}ies"), Role::LastTen(value, "s"));
        roles.insert(format!("{stem}ieth"), Role::LastTen(value, "th"));
    }
    for (name, exponent) in POWERS {
        roles.insert(name.to_owned(), Role::Power(exponent));
        roles.insert(format!("{name}s"), Role::LastPower(exponent, "s"));
        roles.insert(format!("{name}th"), Role::LastPower(exponent, "th"));
    }
    roles
});

/// The part of a word, `None` for one that has none in numbers.
pub(super) fn role(word: &str) -> Option<Role> {
    ROLES.get(word).copied()
}
