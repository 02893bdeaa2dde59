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
        let (mut text, pending) = (String::new(), std::mem::take(&mut self.pending));
        let mut chunks = pending.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            match std::str::from_utf8(chunk.invalid()) {
                Ok(_) => {}
                Err(error) if error.error_len().is_none() && chunks.peek().is_none() => {
                    self.pending = chunk.invalid().to_vec();
                }
                Err(_) => text.push('\u{fffd}'),
            }
        }
        text
    }
}
