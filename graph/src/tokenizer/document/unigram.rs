//! Reads the Unigram vocabulary in a `tokenizer.json`.

use super::parts::{Document, Model};
use super::reader::Reader;
use crate::error::TokenizerError;
use crate::tokenizer::texts::Texts;
use crate::tokenizer::words::Algorithm;
use crate::tokenizer::{unigram, vocabulary};
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

#[derive(Deserialize)]
pub(super) struct Unigram {
    unk_id: Option<u32>,
    /// Texts and scores. The position of a token is its id.
    vocab: Vec<(String, f64)>,
    #[serde(default)]
    byte_fallback: bool,
}

impl Model for Unigram {
    fn tokens(&self) -> Vec<(&str, u32)> {
        self.vocab.iter().map(|(text, _)| text.as_str()).zip(0..).collect()
    }

    fn build(
        reader: &Reader<'_>,
        document: &Document<Self>,
        _: Arc<Texts>,
    ) -> Result<Algorithm, TokenizerError> {
        let model = &document.model;
        let count = model.vocab.len();
        if let Some(id) = model.unk_id.filter(|id| usize::try_from(*id).map_or(true, |id| id >= count)) {
            return Err(reader.wrong(format!("has {count} tokens, but unk_id is {id}")));
        }
        let lowest = model.vocab.iter().fold(f64::INFINITY, |lowest, (_, score)| lowest.min(*score));
        let bytes: HashMap<u8, u32> = match model.byte_fallback {
            true => model
                .tokens()
                .into_iter()
                .filter_map(|(text, id)| Some((vocabulary::byte(text)?, id)))
                .collect(),
            false => HashMap::new(),
        };
        // Text that equals a control token, a byte token or the unknown token must not become that token.
        let control = document.added_tokens.iter().filter(|token| token.special);
        let control: HashSet<&str> = control.map(|token| token.content.as_str()).collect();
        let is_byte: HashSet<u32> = bytes.values().copied().collect();
        let tokens: Vec<(&str, u32, f64)> = model
            .tokens()
            .into_iter()
            .zip(&model.vocab)
            .filter(|((text, id), _)| {
                !control.contains(text) && !is_byte.contains(id) && Some(*id) != model.unk_id
            })
            .map(|((text, id), (_, score))| (text, id, *score))
            .collect();
        unigram::Unigram::new(&tokens, lowest, bytes, model.unk_id)
            .map(Algorithm::Unigram)
            .map_err(|cause| reader.wrong(cause))
    }
}
