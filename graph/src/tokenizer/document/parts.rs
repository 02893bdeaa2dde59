//! Parts of a `tokenizer.json`, generic over the type of its model.

use super::cuts::PreTokenizer;
use super::frame::{Decoder, PostProcessor};
use super::normalizer::Normalizer;
use super::reader::Reader;
use crate::error::TokenizerError;
use crate::tokenizer::special::Added;
use crate::tokenizer::texts::Texts;
use crate::tokenizer::words::Algorithm;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

#[derive(Deserialize)]
pub(super) struct Document<M> {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    pub(super) normalizer: Option<Normalizer>,
    pub(super) pre_tokenizer: Option<PreTokenizer>,
    pub(super) post_processor: Option<PostProcessor>,
    pub(super) decoder: Option<Decoder>,
    pub(super) model: M,
}

/// A model of the document, by type.
pub(super) trait Model: DeserializeOwned {
    /// Returns the text and the id of each token.
    fn tokens(&self) -> Vec<(&str, u32)>;

    /// Builds the algorithm that splits words into tokens. `texts` has the texts of all tokens of the document.
    fn build(
        reader: &Reader<'_>,
        document: &Document<Self>,
        texts: Arc<Texts>,
    ) -> Result<Algorithm, TokenizerError>;
}

/// A token that is found in a text before merging.
#[derive(Deserialize)]
pub(in crate::tokenizer) struct AddedToken {
    /// Id. The settings of a tokenizer give it elsewhere.
    #[serde(default)]
    pub(in crate::tokenizer) id: u32,
    pub(in crate::tokenizer) content: String,
    #[serde(default)]
    pub(in crate::tokenizer) single_word: bool,
    #[serde(default)]
    pub(in crate::tokenizer) lstrip: bool,
    #[serde(default)]
    pub(in crate::tokenizer) rstrip: bool,
    #[serde(default)]
    pub(in crate::tokenizer) normalized: bool,
    #[serde(default)]
    pub(in crate::tokenizer) special: bool,
}

impl AddedToken {
    /// Creates a token that no flag changes.
    pub(in crate::tokenizer) fn new(content: &str) -> Self {
        AddedToken {
            id: 0,
            content: content.to_owned(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: false,
        }
    }

    /// Returns the rule that finds the token.
    pub(in crate::tokenizer) fn added(&self) -> Added {
        Added {
            id: self.id,
            text: self.content.clone(),
            control: self.special,
            strips_left: self.lstrip,
            strips_right: self.rstrip,
            single_word: self.single_word,
        }
    }
}
