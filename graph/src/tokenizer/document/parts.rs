//! Parts of a `tokenizer.json`, generic over the type of its model.

use super::cuts::PreTokenizer;
use super::frame::{Decoder, PostProcessor};
use super::normalizer::Normalizer;
use super::reader::Reader;
use crate::error::TokenizerError;
use crate::tokenizer::words::Algorithm;
use serde::Deserialize;
use serde::de::DeserializeOwned;

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

    /// Builds the algorithm that splits words into tokens.
    fn build(reader: &Reader<'_>, document: &Document<Self>) -> Result<Algorithm, TokenizerError>;
}

#[derive(Deserialize)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(super) normalized: bool,
    #[serde(default)]
    pub(super) special: bool,
}
