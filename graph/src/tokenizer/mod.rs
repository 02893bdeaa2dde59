//! Converts text to tokens and back, using the vocabulary from a model's files.
//!
//! GGUF files may contain a vocabulary for SentencePiece-style byte-pair encoding with byte fallback
//! (`tokenizer.ggml.model = llama`, `gemma4`), for byte-level byte-pair encoding (`gpt2`), of SentencePiece's type
//! Unigram (`t5`), or of type WordPiece (`bert`). Model directories may contain a `tokenizer.json` that describes byte-pair encoding or
//! Unigram, or a `tokenizer.model`.
//!
//! Every tokenizer finds special tokens in the text, normalises the text between them, splits it into words,
//! and splits each word into tokens. The `tokenizers` crate cuts out the words.

mod alphabet;
mod byte_level;
mod character_map;
mod directory;
mod document;
mod ends;
mod merging;
mod metadata;
mod normaliser;
mod pre;
mod proto;
mod sentencepiece;
mod special;
mod stream;
mod texts;
mod unigram;
mod vocabulary;
mod word_piece;
mod words;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

pub(crate) use directory::find;
pub(crate) use metadata::count_tokens;
pub use stream::TextStream;

use crate::error::TokenizerError;
use ends::Special;
use normaliser::Normaliser;
use special::{Finder, TextPart};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use stream::Pieces;
use vocabulary::SPACE;
use words::Words;

/// Treatment of the texts of control tokens in a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Control {
    /// They are text.
    Text,
    /// They are control tokens.
    Tokens,
    /// Those that contain this character are text, without the character. The others are control tokens.
    Unmarked(char),
}

/// A model's tokenizer.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    /// Finder for special tokens in the raw text.
    raw: Finder,
    normaliser: Normaliser,
    /// Finder for special tokens in the normalised text.
    normalised: Finder,
    words: Words,
    pieces: Arc<Pieces>,
    /// Whether decoding removes the leading space that the normaliser adds to a text.
    strip_space: bool,
    special: Special,
}

impl Tokenizer {
    /// Returns the tokens of `text`. If `add_special` is true, adds the special tokens that the model expects
    /// before and after a text. Control tokens in `text` are encoded as plain text.
    ///
    /// # Errors
    /// Fails if the vocabulary cannot represent the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_all(text, add_special, Control::Text)
    }

    /// Returns the tokens of `text` like [`Tokenizer::encode`], but recognizes control tokens in `text`.
    /// Never use this function for untrusted text.
    ///
    /// # Errors
    /// Fails if the vocabulary cannot represent the text.
    pub fn encode_with_control(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_all(text, add_special, Control::Tokens)
    }

    /// Returns the tokens of `text` like [`Tokenizer::encode_with_control`], but does not recognize control tokens
    /// that [`Tokenizer::mark_control`] has marked. Removes the marks.
    ///
    /// # Errors
    /// Fails if the vocabulary cannot represent the text.
    pub fn encode_marked(
        &self,
        text: &str,
        add_special: bool,
        mark: char,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.encode_all(text, add_special, Control::Unmarked(mark))
    }

    /// Inserts `mark` into each control token in the untrusted text `text`, and into the beginning of a control
    /// token at its end. `mark` is a character that occurs neither in `text` nor in the text around it.
    pub fn mark_control<'a>(&self, text: &'a str, mark: char) -> Cow<'a, str> {
        let mut places = self.raw.control_places(text);
        // The texts of these tokens are normalised, so they have `▁` instead of spaces.
        for token in self.normalised.control() {
            let token = token.replace(SPACE, " ");
            let first = token.trim_start().chars().next().map_or(0, char::len_utf8);
            places.extend(text.match_indices(token.trim_start()).map(|(at, _)| at + first));
        }
        if places.is_empty() {
            return text.into();
        }
        let mut marked = String::with_capacity(text.len() + places.len() * mark.len_utf8());
        let mut rest = 0;
        for place in places {
            marked.push_str(&text[rest..place]);
            marked.push(mark);
            rest = place;
        }
        marked.push_str(&text[rest..]);
        marked.into()
    }

    fn encode_all(
        &self,
        text: &str,
        add_special: bool,
        control: Control,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        if add_special {
            ids.extend(&self.special.before);
        }
        for (number, part) in self.raw.parts(text, control != Control::Text).into_iter().enumerate() {
            match part {
                // Each part is normalised separately, because a control token starts a new text.
                TextPart::Text(text) => self.encode_text(text, number == 0, control, &mut ids)?,
                TextPart::Token(id) => ids.push(id),
            }
        }
        if add_special {
            ids.extend(&self.special.behind);
        }
        Ok(ids)
    }

    fn encode_text(
        &self,
        text: &str,
        at_start: bool,
        control: Control,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let text = self.normaliser.apply(text, at_start);
        for (number, part) in self.normalised.parts(&text, control != Control::Text).into_iter().enumerate() {
            match part {
                TextPart::Text(text) => {
                    let text = match control {
                        Control::Unmarked(mark) if text.contains(mark) => Cow::from(text.replace(mark, "")),
                        _ => text.into(),
                    };
                    self.words.encode(&text, at_start && number == 0, ids)?;
                }
                TextPart::Token(id) => ids.push(id),
            }
        }
        Ok(())
    }

    /// Returns the text of the tokens `ids`. Omits control tokens, which have no text.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut stream = self.stream();
        let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// Returns a stream that decodes token by token. Like [`Tokenizer::decode`], it removes the space that
    /// the tokenizer adds at the start of a text. To continue a prompt, push the prompt's tokens first.
    pub fn stream(&self) -> TextStream {
        TextStream::new(self.pieces.clone(), self.strip_space)
    }

    /// Returns the BOS token, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// Returns the BOS token if the tokenizer adds it before a text.
    pub fn added_bos(&self) -> Option<u32> {
        self.special.bos.filter(|bos| self.special.before.first() == Some(bos))
    }

    /// Returns the tokens that stop generation: those that end a text, a turn or a message.
    pub fn eos(&self) -> &BTreeSet<u32> {
        &self.special.ends
    }

    /// Returns the text of the token `id` in the vocabulary, or `None` if no token has this id.
    pub fn piece(&self, id: u32) -> Option<&str> {
        self.pieces.text(id)
    }

    /// Returns the bytes that the token `id` adds within a text. Control tokens and unknown ones have none.
    pub fn bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        self.pieces.bytes(id)
    }

    /// Returns the token whose text is `text`, if it has no text within a text, as control tokens do.
    pub fn control(&self, text: &str) -> Option<u32> {
        self.pieces.find(text).filter(|id| self.bytes(*id).is_none())
    }

    /// Returns the number of tokens in the vocabulary.
    pub fn vocabulary_size(&self) -> usize {
        self.pieces.len()
    }
}
