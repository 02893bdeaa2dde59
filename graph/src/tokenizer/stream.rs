//! Decodes tokens one at a time, and returns only complete characters.

use std::sync::Arc;

/// Text or bytes that a token decodes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Complete UTF-8 text.
    Text(Box<str>),
    /// One byte, which may be part of a longer character.
    Byte(u8),
    /// Bytes that may start or end within a character.
    Bytes(Box<[u8]>),
    /// No text.
    Silent,
}

impl Piece {
    /// Converts the text of a token in a byte-level vocabulary to bytes. If some character does not represent
    /// a byte, returns the text unchanged.
    pub(super) fn byte_level(text: &str) -> Self {
        match super::alphabet::bytes(text) {
            Some(bytes) => Piece::Bytes(bytes.into_boxed_slice()),
            None => Piece::Text(text.into()),
        }
    }
}

/// Decoder that receives one token at a time. See [`Tokenizer::stream`](super::Tokenizer::stream).
#[derive(Clone, Debug)]
pub struct TextStream {
    pieces: Arc<[Piece]>,
    /// Whether to remove the leading space of the next text. This is the space that the tokenizer added.
    strip_space: bool,
    /// Bytes of a character that is still incomplete.
    pending: Vec<u8>,
}

impl TextStream {
    pub(super) fn new(pieces: Arc<[Piece]>, strip_space: bool) -> Self {
        TextStream { pieces, strip_space, pending: Vec::new() }
    }

    /// Adds a token and returns all text that is now complete, which may be empty. Invalid UTF-8 and tokens
    /// outside the vocabulary become U+FFFD.
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

    /// Ends the stream and returns the remaining text. An incomplete character becomes U+FFFD.
    pub fn finish(mut self) -> String {
        let mut text = self.take_whole();
        if !self.pending.is_empty() {
            text.push('\u{fffd}');
        }
        text
    }

    /// Removes all complete characters from `pending` and returns them. The bytes of an incomplete character
    /// stay in `pending`.
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
