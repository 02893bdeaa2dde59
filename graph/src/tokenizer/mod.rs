//! Converts text to tokens and back, with the vocabulary from a model's files.
//!
//! Supported in the metadata of GGUF files: SentencePiece-style byte-pair encoding with byte fallback
//! (`tokenizer.ggml.model = llama`) and byte-level byte-pair encoding (`gpt2`). Supported in a model's
//! directory: `tokenizer.json` with byte-pair encoding, and `tokenizer.model`. All use the same steps: find
//! special tokens in the text, normalise the rest, split it into words, and merge. The `tokenizers` crate
//! splits and merges; `merges` derives its ranks from scores.
//!
//! Knows nothing about architectures.

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
    /// Finds tokens in the raw text.
    raw: Finder,
    normaliser: Normaliser,
    /// Finds tokens in the normalised text.
    normalised: Finder,
    words: Words,
    pieces: Arc<[Piece]>,
    /// Decoding removes the space that the normaliser prepends to a text.
    strip_space: bool,
    special: Special,
}

/// Tokens that begin and end a text.
#[derive(Clone, Debug, Default)]
struct Special {
    bos: Option<u32>,
    /// Tokens that stop generation.
    ends: BTreeSet<u32>,
    /// Tokens added before a text.
    before: Vec<u32>,
    /// Tokens added after a text.
    behind: Vec<u32>,
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file.
    ///
    /// # Errors
    /// The file has no vocabulary, an unsupported kind of vocabulary, or an invalid one.
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

    /// Builds the tokenizer of a model's directory from `tokenizer.json`, or else from `tokenizer.model`.
    /// `tokenizer_config.json`, `generation_config.json` and `config.json` may name the tokens that begin and
    /// end a text.
    ///
    /// # Errors
    /// As for [`Tokenizer::from_metadata`].
    pub fn from_directory(directory: &Directory) -> Result<Tokenizer, TokenizerError> {
        directory::open(directory)
    }

    /// Returns the tokens of a text. `add_special` adds the begin and end tokens that the model wants.
    /// Control tokens that occur in the text are treated as text.
    ///
    /// # Errors
    /// The vocabulary cannot express the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_all(text, add_special, false)
    }

    /// Like [`Tokenizer::encode`], but recognizes control tokens in the text. Never use it for untrusted
    /// text.
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
                // Each part is normalised separately: after a control token, text starts anew.
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

    /// Returns the text of tokens. Control tokens have none.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut stream = self.stream();
        let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// Decodes token by token. The stream starts at the beginning of a text, where it removes the space that
    /// the tokenizer added. To continue a prompt, push the prompt's tokens first.
    pub fn stream(&self) -> TextStream {
        TextStream::new(self.pieces.clone(), self.strip_space)
    }

    /// Returns the token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// Returns the tokens that end a text, a turn or a message and so stop generation.
    pub fn eos(&self) -> &BTreeSet<u32> {
        &self.special.ends
    }

    /// Returns the number of tokens.
    pub fn vocabulary_size(&self) -> usize {
        self.pieces.len()
    }
}
