//! Decodes tokens one at a time, and returns only complete characters.

use super::alphabet;
use super::texts::Texts;
use super::vocabulary::SPACE;
use std::borrow::Cow;
use std::sync::Arc;

/// Output of the decoder for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Nothing.
    Silent,
    /// One byte, which may be part of a longer character.
    Byte(u8),
    /// Its text.
    Plain,
    /// Its text, in which `▁` stands for a space.
    Spaced,
    /// The bytes that its characters represent in a byte-level vocabulary. If some character represents no byte, its
    /// text.
    Letters,
    /// SentencePiece's sign for unknown text.
    Unknown,
    /// U+FFFD, because no token has this id.
    Missing,
}

/// Texts of all tokens and the forms in which they are decoded, by id.
#[derive(Debug)]
pub(super) struct Pieces {
    texts: Arc<Texts>,
    forms: Vec<Form>,
}

impl Pieces {
    /// Combines the texts of all tokens with their forms.
    pub(super) fn new(texts: Arc<Texts>, forms: Vec<Form>) -> Self {
        assert_eq!(texts.len(), forms.len(), "each token has a text and a form");
        Pieces { texts, forms }
    }

    pub(super) fn len(&self) -> usize {
        self.forms.len()
    }

    /// Returns the first token with the text `text`.
    pub(super) fn find(&self, text: &str) -> Option<u32> {
        (0..).zip(&self.forms).find(|(id, _)| self.texts.get(*id) == Some(text)).map(|(id, _)| id)
    }

    /// Returns the text of the token `id`, or `None` if no token has this id.
    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(id)
    }

    /// Returns the bytes of the token `id`, unless it is silent, unknown or missing.
    pub(super) fn bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        let (form, text) = self.get(id);
        match form {
            Form::Silent | Form::Unknown | Form::Missing => None,
            Form::Byte(byte) => Some(Cow::Owned(vec![byte])),
            Form::Letters => Some(alphabet::bytes(text).map_or(text.as_bytes().into(), Cow::Owned)),
            Form::Plain => Some(text.as_bytes().into()),
            Form::Spaced => Some(Cow::Owned(text.replace(SPACE, " ").into_bytes())),
        }
    }

    /// Returns the form and the text of the token `id`.
    fn get(&self, id: u32) -> (Form, &str) {
        let form = usize::try_from(id).ok().and_then(|id| self.forms.get(id)).copied();
        (form.unwrap_or(Form::Missing), self.texts.get(id).unwrap_or_default())
    }
}

/// Decoder that receives one token at a time. See [`Tokenizer::stream`](super::Tokenizer::stream).
#[derive(Clone, Debug)]
pub struct TextStream {
    pieces: Arc<Pieces>,
    /// Whether to remove the leading space of the next text. This is the space that the tokenizer added.
    strip_space: bool,
    /// Bytes of a character that is still incomplete.
    pending: Vec<u8>,
}

impl TextStream {
    pub(super) fn new(pieces: Arc<Pieces>, strip_space: bool) -> Self {
        TextStream { pieces, strip_space, pending: Vec::new() }
    }

    /// Adds a token and returns all text that is now complete, which may be empty. Invalid UTF-8 and tokens
    /// outside the vocabulary become U+FFFD.
    pub fn push(&mut self, id: u32) -> String {
        let (form, text) = self.pieces.get(id);
        let spaced;
        let text = match form {
            Form::Silent => return String::new(),
            Form::Byte(byte) => {
                self.pending.push(byte);
                ""
            }
            Form::Letters => match alphabet::bytes(text) {
                Some(bytes) => {
                    self.pending.extend(bytes);
                    ""
                }
                None => text,
            },
            Form::Plain => text,
            Form::Spaced => {
                spaced = text.replace(SPACE, " ");
                &spaced
            }
            Form::Unknown => " \u{2047} ",
            Form::Missing => "\u{fffd}",
        };
        let text = if self.strip_space { text.strip_prefix(' ').unwrap_or(text) } else { text };
        self.pending.extend_from_slice(text.as_bytes());
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
