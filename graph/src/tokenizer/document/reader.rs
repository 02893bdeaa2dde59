//! Parts that all components of a `tokenizer.json` share: errors, and patterns of texts.

use crate::error::TokenizerError;
use crate::tokenizer::vocabulary::SPACE;
use serde::Deserialize;

/// Pattern at which text is split, or whose matches are replaced.
#[derive(Deserialize)]
pub(super) enum Pattern {
    String(String),
    Regex(String),
}

/// Context for reading the document. It adds the file's name to errors.
pub(super) struct Reader<'a> {
    pub(super) file: &'a str,
}

impl Reader<'_> {
    pub(super) fn wrong(&self, cause: impl Into<String>) -> TokenizerError {
        TokenizerError::Vocabulary { file: self.file.to_owned(), cause: cause.into() }
    }

    pub(super) fn unsupported(&self, what: impl Into<String>) -> TokenizerError {
        TokenizerError::Unsupported { file: self.file.to_owned(), what: what.into() }
    }
}

/// Returns whether the text is `▁`, which stands for a space in SentencePiece vocabularies.
pub(super) fn is_space(text: &str) -> bool {
    text.chars().eq([SPACE])
}
