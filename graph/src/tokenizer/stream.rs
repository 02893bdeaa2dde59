//! Decodes tokens to text, one by one, in whole characters.

use std::sync::Arc;

/// Contribution of a token to a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A text.
    Text(Box<str>),
    /// One byte, possibly part of a longer character.
    Byte(u8),
    /// Bytes: characters, possibly with the end of one and the start of another.
    Bytes(Box<[u8]>),
    /// No text.
    Silent,
}

impl Piece {
    /// Returns the piece of a token written with the characters of byte-level vocabularies, or else its
    /// literal text.
    pub(super) fn byte_level(text: &str) -> Self {
        match super::alphabet::bytes(text) {
            Some(bytes) => Piece::Bytes(bytes.into_boxed_slice()),
            None => Piece::Text(text.into()),
        }
    }
}

/// Decodes tokens as they arrive. See [`Tokenizer::stream`](super::Tokenizer::stream).
#[derive(Clone, Debug)]
pub struct TextStream {
    pieces: Arc<[Piece]>,
    /// The next text is the first one, and its leading space was added by the tokenizer.
    strip_space: bool,
    /// Start of an incomplete character.
    pending: Vec<u8>,
}

impl TextStream {
    pub(super) fn new(pieces: Arc<[Piece]>, strip_space: bool) -> Self {
        TextStream { pieces, strip_space, pending: Vec::new() }
    }

    /// Adds a token and returns the text that is now complete, often empty. Bytes that are not UTF-8 and
    /// tokens outside the vocabulary become U+FFFD.
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

    /// Ends the text and returns the remainder.
    pub fn finish(mut self) -> String {
        let mut text = self.take_whole();
        if !self.pending.is_empty() {
            text.push('\u{fffd}');
        }
        text
    }

    /// Moves all complete characters out of `pending`, and leaves the start of an incomplete one.
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
