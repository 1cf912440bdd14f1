//! A number while it is being read, in decimal digits of any length.

use crate::normalise::number_words::Role;

/// Digits that are either one whole number, which can grow, or were put behind each other, as in "one oh one".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    /// ASCII digits without leading zeros if whole; else as they came, perhaps with points.
    digits: String,
    whole: bool,
}

impl Pending {
    fn whole(digits: &str) -> Self {
        let digits = digits.trim_start_matches('0');
        Self { digits: if digits.is_empty() { "0" } else { digits }.to_owned(), whole: true }
    }

    /// A power of ten.
    pub(super) fn power(exponent: usize) -> Self {
        Self { digits: format!("1{}", "0".repeat(exponent)), whole: true }
    }

    /// A number that was written in digits of any script: whole if it has no fraction but zeros, else left as it is.
    pub(super) fn arabic(word: &str) -> Self {
        let ascii: String = word.chars().map(ascii_digit).collect();
        match ascii.split_once('.') {
            Some((_, fraction)) if fraction.contains(|c| c != '0') => {
                Self { digits: word.to_owned(), whole: false }
            }
            Some((digits, _)) => Self::whole(digits),
            None => Self::whole(&ascii),
        }
    }

    /// Its digits.
    pub(super) fn as_str(&self) -> &str {
        &self.digits
    }

    fn is_zero(&self) -> bool {
        self.whole && self.digits == "0"
    }

    /// `digits` behind what is there; a whole 0 counts as nothing.
    pub(super) fn behind(number: Option<Self>, digits: &str) -> Self {
        let mut all = number.filter(|n| !n.is_zero()).map(|n| n.digits).unwrap_or_default();
        all.push_str(digits);
        Self { digits: all, whole: false }
    }

    /// With 1 to 19 (or 0, at the end of a number) added where zeros wait for it, else behind.
    pub(super) fn with_one(number: Option<Self>, value: u32, before: Option<Role>) -> Self {
        let Some(mut number) = number else { return Self::whole(&value.to_string()) };
        let digits = value.to_string();
        if !number.whole || matches!(before, Some(Role::One(_))) {
            // "… twenty one" behind other digits: the one takes the place of the zero.
            if matches!(before, Some(Role::Ten(_))) && value < 10 && number.digits.ends_with('0') {
                number.digits.pop();
            }
            number.digits.push_str(&digits);
            number.whole = false;
            return number;
        }
        number.filled(&digits, if value < 10 { 1 } else { 2 })
    }

    /// With 20 to 90 added where zeros wait for it, else behind.
    pub(super) fn with_ten(number: Option<Self>, value: u32) -> Self {
        let Some(mut number) = number else { return Self::whole(&value.to_string()) };
        if number.whole {
            return number.filled(&value.to_string(), 2);
        }
        number.digits.push_str(&value.to_string());
        number
    }

    /// With `digits`, at most `places` of them, instead of as many zeros at the end; behind them if there are not as many.
    fn filled(mut self, digits: &str, places: usize) -> Self {
        if self.is_zero() {
            return Self::whole(digits);
        }
        let kept = self.digits.len().saturating_sub(places);
        if kept > 0 && self.digits[kept..].bytes().all(|b| b == b'0') {
            self.digits.truncate(self.digits.len() - digits.len());
            self.digits.push_str(digits);
            return self;
        }
        Self::behind(Some(self), digits)
    }

    /// Times a power of ten: of a whole number only what is below a thousand, so that "two thousand three hundred" is
    /// 2,300. A number with a fraction must come out whole, else it is given back.
    pub(super) fn times_power(number: Option<Self>, exponent: usize) -> Result<Self, Self> {
        let Some(number) = number else { return Ok(Self::power(exponent)) };
        if !number.whole {
            return number.shifted(exponent).ok_or(number);
        }
        let split = number.digits.len().saturating_sub(3);
        let (thousands, rest) = number.digits.split_at(split);
        let product = format!("{rest}{}", "0".repeat(exponent));
        Ok(Self::whole(&add(&format!("{thousands}000"), &product)))
    }

    /// Times a power of ten; `None` unless it is a number and the product is whole.
    fn shifted(&self, exponent: usize) -> Option<Self> {
        let ascii: String = self.digits.chars().map(ascii_digit).collect();
        let (digits, fraction) = ascii.split_once('.').unwrap_or((&ascii, ""));
        let is_number = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        let fraction = fraction.trim_end_matches('0');
        if !is_number(digits) || !is_number(fraction) || fraction.len() > exponent {
            return None;
        }
        Some(Self::whole(&format!("{digits}{fraction}{}", "0".repeat(exponent - fraction.len()))))
    }
}

/// The sum of two numbers in ASCII digits.
fn add(a: &str, b: &str) -> String {
    let mut sum = Vec::with_capacity(a.len().max(b.len()) + 1);
    let (mut a, mut b) = (a.bytes().rev(), b.bytes().rev());
    let mut carry = 0;
    loop {
        let (x, y) = (a.next(), b.next());
        if x.is_none() && y.is_none() {
            break;
        }
        let digit = |d: Option<u8>| d.map_or(0, |d| d - b'0');
        let total = digit(x) + digit(y) + carry;
        sum.push(char::from(b'0' + total % 10));
        carry = total / 10;
    }
    sum.push(char::from(b'0' + carry));
    sum.into_iter().rev().collect()
}

/// A decimal digit of any script as the ASCII one; other characters as they are. Unicode numbers the digits of a script
/// without a gap, from 0.
fn ascii_digit(c: char) -> char {
    use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};
    let is_digit =
        |c: u32| char::from_u32(c).is_some_and(|c| c.general_category() == GeneralCategory::DecimalNumber);
    if c.is_ascii() || !is_digit(c.into()) {
        return c;
    }
    let before = (1..).take_while(|n| u32::from(c).checked_sub(*n).is_some_and(is_digit)).count();
    char::from(b'0' + (before % 10) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(n: &str) -> Pending {
        Pending { digits: n.into(), whole: true }
    }

    #[test]
    fn zeros_are_filled() {
        assert_eq!(Pending::with_one(Some(whole("20")), 1, None), whole("21"));
        assert_eq!(Pending::with_one(Some(whole("100")), 12, None), whole("112"));
        assert_eq!(Pending::with_one(Some(whole("20")), 12, None).as_str(), "2012");
        assert_eq!(Pending::with_ten(Some(whole("1900")), 80), whole("1980"));
        assert_eq!(Pending::with_ten(Some(whole("19")), 80).as_str(), "1980");
        assert_eq!(Pending::with_one(Some(whole("0")), 5, None), whole("5"));
    }

    #[test]
    fn powers_of_ten() {
        let times = |n: Pending, e| Pending::times_power(Some(n), e);
        assert_eq!(times(whole("2003"), 2), Ok(whole("2300")));
        assert_eq!(times(whole("999999"), 33), Ok(whole(&format!("999{}999000", "0".repeat(27)))));
        let half = Pending { digits: "2.5".into(), whole: false };
        assert_eq!(times(half.clone(), 3), Ok(whole("2500")));
        let fine = Pending { digits: "2.505".into(), whole: false };
        assert_eq!(times(fine.clone(), 2), Err(fine));
        let address = Pending { digits: "1.2.3".into(), whole: false };
        assert_eq!(times(address.clone(), 6), Err(address));
    }

    #[test]
    fn digits_of_other_scripts() {
        assert_eq!(Pending::arabic("٣٤"), whole("34"));
        assert_eq!(Pending::arabic("𝟘𝟙𝟡"), whole("19"));
        assert_eq!(Pending::arabic("007.00"), whole("7"));
        assert_eq!(Pending::arabic("٣.٥").as_str(), "٣.٥");
    }
}
