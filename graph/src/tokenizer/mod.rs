//! Text to tokens and back, as the vocabulary in a model's files says.
//!
//! Supported are, from the metadata of GGUF files, SentencePiece-style byte-pair encoding with byte fallback
//! (`tokenizer.ggml.model = llama`) and byte-level byte-pair encoding (`gpt2`); from a model's directory,
//! `tokenizer.json` with byte-pair encoding and `tokenizer.model`. All come down to the same steps: tokens that stand in
//! the text as they are, a normalised text, words, merges. Cutting into words and merging are the `tokenizers` crate's;
//! see `merges` for how scores become its ranks.
//!
//! This module must not know any architecture.

mod alphabet;
mod byte_level;
mod directory;
mod document;
mod merges;
mod normaliser;
mod pre;
mod proto;
mod sentencepiece;
mod special;
mod stream;
mod vocabulary;
mod words;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

pub use stream::TextStream;

use crate::error::{Quoted, TokenizerError};
use crate::gguf::Metadata;
use crate::source::Directory;
use normaliser::Normaliser;
use special::{Finder, Part};
use std::collections::BTreeSet;
use std::sync::Arc;
use stream::Piece;
use words::Words;

/// A model's tokenizer.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    /// Looked for in the text as it is.
    raw: Finder,
    normaliser: Normaliser,
    /// Looked for in the normalised text.
    normalised: Finder,
    words: Words,
    pieces: Arc<[Piece]>,
    /// A space that the normaliser has put before a text is taken off again.
    strip_space: bool,
    special: Special,
}

/// The tokens that begin and end a text.
#[derive(Clone, Debug, Default)]
struct Special {
    bos: Option<u32>,
    /// Generation stops at them.
    ends: BTreeSet<u32>,
    /// Added before a text.
    before: Vec<u32>,
    /// Added behind a text.
    behind: Vec<u32>,
}

impl Tokenizer {
    /// The tokenizer of a GGUF file.
    ///
    /// # Errors
    /// The file has no vocabulary, one of another kind (named), or one that breaks a rule.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
        match metadata.get::<&str>("tokenizer.ggml.model")? {
            "llama" => sentencepiece::from_metadata(metadata),
            "gpt2" => byte_level::from_metadata(metadata),
            other => Err(TokenizerError::UnsupportedModel {
                file: metadata.file().to_owned(),
                model: Quoted(other).to_string(),
                known: "\"llama\", \"gpt2\"",
            }),
        }
    }

    /// The tokenizer of a model's directory: `tokenizer.json`, or `tokenizer.model` where there is none. What begins and
    /// ends a text may also stand in `tokenizer_config.json`, `generation_config.json` and `config.json`.
    ///
    /// # Errors
    /// As [`Tokenizer::from_metadata`].
    pub fn from_directory(directory: &Directory) -> Result<Tokenizer, TokenizerError> {
        directory::open(directory)
    }

    /// The tokens of a text. `add_special` adds begin and end tokens where the model wants them. What looks like a
    /// control token in the text is text.
    ///
    /// # Errors
    /// The vocabulary cannot express the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_all(text, add_special, false)
    }

    /// As [`Tokenizer::encode`], but control tokens in the text become what they name. Never for untrusted text.
    ///
    /// # Errors
    /// The vocabulary cannot express the text.
    pub fn encode_with_control(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_all(text, add_special, true)
    }

    fn encode_all(&self, text: &str, add_special: bool, control: bool) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        if add_special {
            ids.extend(&self.special.before);
        }
        for (number, part) in self.raw.parts(text, control).into_iter().enumerate() {
            match part {
                // Each is normalised by itself: behind a control token, text begins anew.
                Part::Text(text) => self.encode_text(text, number == 0, control, &mut ids)?,
                Part::Token(id) => ids.push(id),
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
        control: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let text = self.normaliser.apply(text);
        for (number, part) in self.normalised.parts(&text, control).into_iter().enumerate() {
            match part {
                Part::Text(text) => self.words.encode(text, at_start && number == 0, ids)?,
                Part::Token(id) => ids.push(id),
            }
        }
        Ok(())
    }

    /// The text of tokens; control tokens have none.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut stream = self.stream();
        let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// Decodes token by token. The stream starts at the beginning of a text, where the space that the tokenizer has
    /// added is taken off again: to continue a prompt, push the tokens of the prompt first.
    pub fn stream(&self) -> TextStream {
        TextStream::new(self.pieces.clone(), self.strip_space)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// The tokens that end a text, a turn or a message: generation stops at them.
    pub fn eos(&self) -> &BTreeSet<u32> {
        &self.special.ends
    }

    /// Number of tokens.
    pub fn vocabulary_size(&self) -> usize {
        self.pieces.len()
    }
}
