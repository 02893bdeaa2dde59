//! Reads the tokenizer from the metadata of a GGUF file.

use super::{Tokenizer, byte_level, sentencepiece};
use crate::error::{Quoted, TokenizerError};
use crate::gguf::Metadata;

impl Tokenizer {
    /// Builds the tokenizer from the metadata of a GGUF file.
    ///
    /// # Errors
    /// Fails if the file has no vocabulary, or if its vocabulary is unsupported or invalid.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
        match metadata.get::<&str>("tokenizer.ggml.model")? {
            "llama" => sentencepiece::from_metadata(metadata, false),
            "t5" => sentencepiece::from_metadata(metadata, true),
            "gpt2" => byte_level::from_metadata(metadata),
            other => Err(TokenizerError::UnsupportedModel {
                file: metadata.file().to_owned(),
                model: Quoted(other).to_string(),
                known: "\"llama\", \"gpt2\", \"t5\"",
            }),
        }
    }
}
