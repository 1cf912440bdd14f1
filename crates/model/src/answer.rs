//! Reading an answer: its text as it comes, and what the model says about the recording before it.

use crate::families::{Dialogue, Header};
use crate::prompt::Task;
use crate::tokenizer::{TextDecoder, Tokenizer};

/// Turns an answer's tokens into text as they come, less the header that some families begin with.
pub struct AnswerReader<'a> {
    text: TextDecoder<'a>,
    dialogue: &'a dyn Dialogue,
    /// The token that ends the header, while it has not come.
    header_end: Option<u32>,
    /// The header so far.
    held: String,
    header: Header,
    tokens: usize,
    header_tokens: usize,
}

impl<'a> AnswerReader<'a> {
    pub(crate) fn new(tokenizer: &'a dyn Tokenizer, dialogue: &'a dyn Dialogue, task: &Task) -> Self {
        Self {
            text: TextDecoder::new(tokenizer),
            dialogue,
            header_end: dialogue.header_end(task),
            held: String::new(),
            header: Header::default(),
            tokens: 0,
            header_tokens: 0,
        }
    }

    /// The text that this token completes.
    pub fn push(&mut self, id: u32) -> String {
        self.tokens += 1;
        match self.header_end {
            Some(end) if id == end => {
                self.header_end = None;
                self.header_tokens = self.tokens;
                self.held.push_str(&self.text.finish());
                self.header = self.dialogue.read_header(&std::mem::take(&mut self.held));
                String::new()
            }
            Some(_) => {
                self.held.push_str(&self.text.push(id));
                String::new()
            }
            None => self.text.push(id),
        }
    }

    /// What is held back at the end of the answer; all of it when no header ended.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held) + &self.text.finish()
    }

    /// What the header said, empty if there was none.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Tokens of the header, the one that ends it included; the answer's text begins after them.
    pub fn header_tokens(&self) -> usize {
        self.header_tokens
    }
}
