//! Reads the tokenizer from the metadata of a GGUF file.

use super::{Tokenizer, byte_level, sentencepiece, word_piece};
use crate::error::{Quoted, TokenizerError};
use crate::gguf::{Array, Metadata};

/// Supported values of `tokenizer.ggml.model`.
const MODELS: [&str; 5] = ["llama", "gpt2", "t5", "gemma4", "bert"];

impl Tokenizer {
    /// Builds the tokenizer from the metadata of a GGUF file.
    ///
    /// # Errors
    /// Fails if the file has no vocabulary, or if its vocabulary is unsupported or invalid.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
        match model(metadata)? {
            "gpt2" => byte_level::from_metadata(metadata),
            "bert" => word_piece::from_metadata(metadata),
            model => sentencepiece::from_metadata(metadata, model),
        }
    }
}

/// Returns the number of tokens in a GGUF file without building the tokenizer.
pub(crate) fn count_tokens(metadata: &Metadata) -> Result<usize, TokenizerError> {
    model(metadata)?;
    let count = metadata.get::<Array<'_>>("tokenizer.ggml.tokens")?.count();
    Ok(usize::try_from(count).expect("the tokens are in memory"))
}

/// Returns the type of the file's tokenizer, which is one of [`MODELS`].
fn model(metadata: &Metadata) -> Result<&str, TokenizerError> {
    let model = metadata.get::<&str>("tokenizer.ggml.model")?;
    match MODELS.contains(&model) {
        true => Ok(model),
        false => Err(TokenizerError::UnsupportedModel {
            file: metadata.file().to_owned(),
            model: Quoted(model).to_string(),
            known: MODELS.map(|model| format!("\"{model}\"")).join(", "),
        }),
    }
}
