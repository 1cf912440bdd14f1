//! Token ids to text, one at a time.

use super::Tokenizer;

/// Turns token ids into text as they come.
///
/// A token may end inside a character: its bytes are held back until the character is complete. Bytes that can no
/// longer become one are replaced by U+FFFD, and a special token, which stands between two texts, ends a character too.
#[derive(Clone, Debug)]
pub struct TextDecoder<'a> {
    tokenizer: &'a dyn Tokenizer,
    keep_specials: bool,
    /// The beginning of a character, at most three bytes.
    held: Vec<u8>,
}

impl<'a> TextDecoder<'a> {
    /// A decoder that leaves control tokens out.
    pub fn new(tokenizer: &'a dyn Tokenizer) -> Self {
        Self { tokenizer, keep_specials: false, held: Vec::new() }
    }

    /// Writes control tokens as their names if `keep` is set.
    pub fn keep_specials(mut self, keep: bool) -> Self {
        self.keep_specials = keep;
        self
    }

    /// The text that this token completes; empty if it only begins a character. An id beyond the vocabulary becomes
    /// U+FFFD.
    pub fn push(&mut self, id: u32) -> String {
        if let Some(bytes) = self.tokenizer.token_bytes(id) {
            self.held.extend_from_slice(bytes);
            return self.take_complete();
        }
        let mut text = self.finish();
        match self.tokenizer.special_name(id) {
            Some(name) if self.keep_specials => text.push_str(name),
            Some(_) => {}
            None => text.push(char::REPLACEMENT_CHARACTER),
        }
        text
    }

    /// What is held back, as U+FFFD; empty after a complete character. The decoder can be used again.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }

    fn take_complete(&mut self) -> String {
        let mut text = String::with_capacity(self.held.len());
        let mut rest = self.held.as_slice();
        while !rest.is_empty() {
            let (valid, after) = match std::str::from_utf8(rest) {
                Ok(all) => (all.len(), None),
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            text.push_str(&String::from_utf8_lossy(&rest[..valid]));
            rest = &rest[valid..];
            match after {
                Some(bad) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[bad..];
                }
                // Either nothing is left or a character has begun.
                None => break,
            }
        }
        let kept = self.held.len() - rest.len();
        self.held.drain(..kept);
        text
    }
}
