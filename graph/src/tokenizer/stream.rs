//! From tokens back to text, token by token, in whole characters.

use std::sync::Arc;

/// What a token adds to a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// This text.
    Text(Box<str>),
    /// One byte, perhaps of a longer character.
    Byte(u8),
    /// These bytes: characters, and perhaps the end of one and the beginning of another.
    Bytes(Box<[u8]>),
    /// Nothing.
    Silent,
}

impl Piece {
    /// The piece of a token that is written in the letters of byte-level vocabularies. One that is not is text.
    pub(super) fn byte_level(text: &str) -> Self {
        match super::alphabet::bytes(text) {
            Some(bytes) => Piece::Bytes(bytes.into_boxed_slice()),
            None => Piece::Text(text.into()),
        }
    }
}

/// Turns tokens into text as they come: see [`Tokenizer::stream`](super::Tokenizer::stream).
#[derive(Clone, Debug)]
pub struct TextStream {
    pieces: Arc<[Piece]>,
    /// The next text is the first one, whose leading space the tokenizer has added.
    strip_space: bool,
    /// The beginning of a character.
    pending: Vec<u8>,
}

impl TextStream {
    pub(super) fn new(pieces: Arc<[Piece]>, strip_space: bool) -> Self {
        TextStream { pieces, strip_space, pending: Vec::new() }
    }

    /// Takes a token; returns the text that is now certain, often none. Bytes that are not UTF-8 become U+FFFD, as does
    /// a token outside of the vocabulary.
    pub fn push(&mut self, id: u32) -> String {
        match usize::try_from(id).ok().and_then(|id| self.pieces.get(id)) {
            Some(Piece::Silent) => return String::new(),
            Some(Piece::Byte(byte)) => self.pending.push(*byte),
            Some(Piece::Bytes(bytes)) => self.pending.extend_from_slice(bytes),
            Some(Piece::Text(text)) => {
                let text = if self.strip_space { text.strip_prefix(' ').unwrap_or(text) } else { text };
                self.pending.extend_from_slice(text.as_bytes());
            }
            None => self.pending.extend_from_slice("\u{fffd}".as_bytes()),
        }
        self.strip_space = false;
        self.take_whole()
    }

    /// Ends the text; returns what was held back.
    pub fn finish(mut self) -> String {
        let mut text = self.take_whole();
        if !self.pending.is_empty() {
            text.push('\u{fffd}');
        }
        text
    }

    /// Moves all whole characters out of `pending`; what is left is the beginning of one.
    fn take_whole(&mut self) -> String {
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(wrong) = error.error_len() else {
                        self.pending = after.to_vec();
                        return text;
                    };
                    text.push('\u{fffd}');
                    rest = after.get(wrong..).unwrap_or_default();
                }
            }
        }
    }
}
