//! Reads the byte-pair encoding in a `tokenizer.json`.

use super::cuts::PreTokenizer;
use super::parts::{Document, Model};
use super::reader::Reader;
use crate::error::{Quoted, TokenizerError};
use crate::tokenizer::words::Algorithm;
use crate::tokenizer::{byte_level, merges};
use serde::Deserialize;
use std::collections::HashMap;
use tokenizers::models::bpe::{BPE, Vocab};

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

    fn build(reader: &Reader<'_>, document: &Document<Self>) -> Result<Algorithm, TokenizerError> {
        merging(reader, document).map(|merging| Algorithm::Merging(merging.into()))
    }
}

fn merging(reader: &Reader<'_>, document: &Document<Merging>) -> Result<BPE, TokenizerError> {
    let model = &document.model;
    let affix = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if affix(&model.continuing_subword_prefix) || affix(&model.end_of_word_suffix) {
        return Err(reader.unsupported("affixes of subwords"));
    }
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(reader.unsupported("dropout, which makes tokenization random"));
    }
    let whole_words = model.ignore_merges.unwrap_or(false);
    let byte_fallback = model.byte_fallback.unwrap_or(false);
    let mut vocabulary = model.vocab.clone();
    if whole_words {
        // A word that equals the text of a control token must not become that token.
        let control = document.added_tokens.iter().filter(|token| token.special);
        let control = control.filter(|token| Some(&token.content) != model.unk_token.as_ref());
        control.for_each(|token| _ = vocabulary.remove(&token.content));
    }
    let has = |text: &str| vocabulary.contains_key(text);
    match &model.unk_token {
        Some(unknown) if !has(unknown) => {
            let cause = format!("has no token \"{}\", which unk_token names", Quoted(unknown));
            return Err(reader.wrong(cause));
        }
        Some(_) => {}
        None if byte_fallback => {
            if let Some(byte) = (0..=255u8).find(|byte| !has(&format!("<0x{byte:02X}>"))) {
                return Err(reader.wrong(format!("has neither a token <0x{byte:02X}> nor unk_token")));
            }
        }
        None if document.pre_tokenizer.as_ref().is_some_and(PreTokenizer::makes_letters) => {
            byte_level::require_all_bytes(has).map_err(|cause| reader.wrong(cause))?;
        }
        None => return Err(reader.unsupported("a vocabulary without bytes and without unk_token")),
    }
    let mut builder = BPE::builder()
        .cache_capacity(0)
        .ignore_merges(whole_words)
        .byte_fallback(byte_fallback)
        .fuse_unk(model.fuse_unk.unwrap_or(false));
    if let Some(unknown) = &model.unk_token {
        builder = builder.unk_token(unknown.clone());
    }
    let pair = |merge: &Merge| match merge {
        Merge::Pair(left, right) => Ok((left.clone(), right.clone())),
        Merge::Joined(text) => merges::pair(text),
    };
    let merges = model.merges.iter().map(pair).collect::<Result<_, _>>();
    let builder =
        merges.map(|merges| builder.vocab_and_merges(vocabulary.into_iter().collect::<Vocab>(), merges));
    builder.and_then(merges::build).map_err(|cause| reader.wrong(cause))
}
