//! Reads the byte-pair encoding in a `tokenizer.json`.

use super::parts::{Document, Model};
use super::reader::Reader;
use crate::error::{Quoted, TokenizerError};
use crate::tokenizer::merging::{self, Fallback, Order};
use crate::tokenizer::texts::{Index, Texts};
use crate::tokenizer::words::Algorithm;
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

#[derive(Deserialize)]
pub(super) struct Merging {
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
}

/// A merge of two tokens. Older files store both tokens as one string, separated by a space.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Joined(String),
}

impl Model for Merging {
    fn tokens(&self) -> Vec<(&str, u32)> {
        self.vocab.iter().map(|(text, id)| (text.as_str(), *id)).collect()
    }

    fn build(
        reader: &Reader<'_>,
        document: &Document<Self>,
        texts: Arc<Texts>,
    ) -> Result<Algorithm, TokenizerError> {
        merging(reader, document, texts).map(|merging| Algorithm::Merging(merging.into()))
    }
}

fn merging<'m>(
    reader: &Reader<'_>,
    document: &'m Document<Merging>,
    texts: Arc<Texts>,
) -> Result<merging::Merging, TokenizerError> {
    let model = &document.model;
    let affix = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if affix(&model.continuing_subword_prefix) || affix(&model.end_of_word_suffix) {
        return Err(reader.unsupported("affixes of subwords"));
    }
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(reader.unsupported("dropout, which makes tokenization random"));
    }
    let whole_words = model.ignore_merges.unwrap_or(false);
    // A word that equals the text of a control token must not become that token.
    let control = document.added_tokens.iter().filter(|token| token.special && whole_words);
    let control = control.filter(|token| Some(&token.content) != model.unk_token.as_ref());
    let control: HashSet<u32> = control.map(|token| token.id).collect();
    let index = Index::new(texts, model.vocab.values().copied().filter(|id| !control.contains(id)));
    let fallback = Fallback {
        bytes: match model.byte_fallback {
            Some(true) => {
                (0..=255).filter_map(|byte| Some((byte, index.find(&format!("<0x{byte:02X}>"))?))).collect()
            }
            _ => HashMap::new(),
        },
        unknown: match &model.unk_token {
            Some(text) => Some(index.find(text).ok_or_else(|| {
                reader.wrong(format!("has no token \"{}\", which unk_token names", Quoted(text)))
            })?),
            None => None,
        },
        fuse: model.fuse_unk.unwrap_or(false),
    };
    let pair = |merge: &'m Merge| match merge {
        Merge::Pair(left, right) => Ok((left.as_str(), right.as_str())),
        Merge::Joined(text) => merging::pair(text),
    };
    let pairs: Result<Vec<_>, String> = model.merges.iter().map(pair).collect();
    let order = pairs.and_then(|pairs| Order::by_list(&index, pairs.into_iter()));
    let order = order.map_err(|cause| reader.wrong(cause))?;
    Ok(merging::Merging { index, order, fallback, whole_words })
}
