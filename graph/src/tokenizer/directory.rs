//! Loads the tokenizer from a model directory. Selects the tokenizer file, and combines the BOS and EOS
//! settings from several files.

use super::document::AddedToken;
use super::ends::{self, Special};
use super::{Tokenizer, document, sentencepiece};
use crate::checkpoint::{
    ADDED_TOKENS, CONFIG, Fields, GENERATION_CONFIG, SENTENCEPIECE, SPECIAL_TOKENS, TOKENIZER,
    TOKENIZER_CONFIG,
};
use crate::error::{Quoted, TokenizerError};
use crate::source::{Directory, Source};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Tokenizer {
    /// Builds the tokenizer from `tokenizer.json` in a model directory, or from `tokenizer.model` if there is
    /// no `tokenizer.json`. Also reads BOS and EOS settings from `tokenizer_config.json`,
    /// `special_tokens_map.json`, `generation_config.json` and `config.json`.
    ///
    /// # Errors
    /// Fails if the directory has no tokenizer, or if its tokenizer is unsupported or invalid.
    pub fn from_directory(directory: &Directory) -> Result<Tokenizer, TokenizerError> {
        let config =
            directory.file(TOKENIZER_CONFIG).map(|source| Fields::read(source.as_ref())).transpose()?;
        let mut tokenizer = match find(directory)? {
            TokenizerFile::Document(source) => document::read(source.as_ref())?,
            TokenizerFile::SentencePiece(source) => {
                let mut added = added_tokens(directory, config.as_ref())?;
                document::mark_ends(&mut added);
                let mut tokenizer = sentencepiece::from_model(source.as_ref(), &added)?;
                let legacy = config.as_ref().map(|config| config.flag("legacy")).transpose()?.flatten();
                tokenizer.normaliser.prefix_once = legacy == Some(false);
                tokenizer
            }
        };
        let count = tokenizer.vocabulary_size();
        let Tokenizer { special, pieces, .. } = &mut tokenizer;
        special.retain(directory.name(), count);
        if let Some(config) = &config {
            settle(special, config, |text| pieces.find(text))?;
        }
        if let Some(source) = directory.file(SPECIAL_TOKENS) {
            let names = Fields::read(source.as_ref())?.special_tokens();
            let id = |name: &str| names.get(name).and_then(|text| pieces.find(text));
            special.ends.extend(id("eos_token"));
            special.bos = special.bos.or_else(|| id("bos_token"));
        }
        for source in [CONFIG, GENERATION_CONFIG].into_iter().filter_map(|name| directory.file(name)) {
            let config = Fields::read(source.as_ref())?;
            let ids = |key: &str| -> Result<Vec<u32>, TokenizerError> {
                let id = |id: i128| {
                    let token = u32::try_from(id).ok().filter(|id| (*id as usize) < count);
                    if token.is_none() {
                        ends::warn_of_id(source.name(), key, id, count);
                    }
                    token
                };
                Ok(config.ids(key)?.into_iter().filter_map(id).collect())
            };
            special.ends.extend(ids("eos_token_id")?);
            special.bos = special.bos.or(ids("bos_token_id")?.first().copied());
        }
        let by_text = std::mem::take(&mut special.ends_by_text);
        special.ends.extend(by_text);
        Ok(tokenizer)
    }
}

/// File that contains the tokenizer of a directory.
pub(crate) enum TokenizerFile<'a> {
    /// `tokenizer.json`.
    Document(&'a Arc<dyn Source>),
    /// `tokenizer.model`.
    SentencePiece(&'a Arc<dyn Source>),
}

/// Returns the file that contains the tokenizer.
///
/// # Errors
/// Fails if the directory has no tokenizer.
pub(crate) fn find(directory: &Directory) -> Result<TokenizerFile<'_>, TokenizerError> {
    let document = directory.file(TOKENIZER).map(TokenizerFile::Document);
    let found = document.or_else(|| directory.file(SENTENCEPIECE).map(TokenizerFile::SentencePiece));
    found.ok_or_else(|| directory.missing(format!("{TOKENIZER} and no {SENTENCEPIECE}")).into())
}

/// Reads the tokens that a model adds to those of its `tokenizer.model`: from the settings, or from the older
/// `added_tokens.json`, which has only their ids.
fn added_tokens(directory: &Directory, config: Option<&Fields>) -> Result<Vec<AddedToken>, TokenizerError> {
    let invalid = |file: &str, key: &str| TokenizerError::Vocabulary {
        file: file.to_owned(),
        cause: format!("has an invalid added token \"{}\"", Quoted(key)),
    };
    if let Some(listed) = config.map(|config| config.object("added_tokens_decoder")).transpose()?.flatten() {
        let token = |(id, token): (&String, &Value)| {
            let parsed = AddedToken::deserialize(token).ok().zip(id.parse().ok());
            let (token, id) = parsed.ok_or_else(|| invalid(TOKENIZER_CONFIG, id))?;
            Ok(AddedToken { id, ..token })
        };
        return listed.iter().map(token).collect();
    }
    let Some(source) = directory.file(ADDED_TOKENS) else { return Ok(Vec::new()) };
    let special: BTreeSet<String> = config.map(Fields::special_texts).unwrap_or_default();
    let token = |(text, id): (&String, &Value)| {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| invalid(source.name(), text))?;
        Ok(AddedToken { id, special: special.contains(text), ..AddedToken::new(text) })
    };
    Fields::read(source.as_ref())?.iter().map(token).collect()
}

/// Applies the settings in `tokenizer_config.json`, which override those of the tokenizer file.
fn settle(
    special: &mut Special,
    config: &Fields,
    find: impl Fn(&str) -> Option<u32>,
) -> Result<(), TokenizerError> {
    let wrong =
        |cause: &str| TokenizerError::Vocabulary { file: config.file().to_owned(), cause: cause.to_owned() };
    if let Some(bos) = named(config, "bos_token", &find)? {
        let old = special.bos.replace(bos);
        special.before.iter_mut().filter(|id| Some(**id) == old).for_each(|id| *id = bos);
    }
    let eos = named(config, "eos_token", &find)?;
    special.ends.extend(eos);
    let eos = eos.or(special.ends.first().copied());
    match (config.flag("add_bos_token")?, special.bos) {
        (Some(true), None) => return Err(wrong("has no begin token to add")),
        (Some(true), Some(bos)) if special.before.first() != Some(&bos) => special.before.insert(0, bos),
        (Some(false), Some(bos)) if special.before.first() == Some(&bos) => _ = special.before.remove(0),
        _ => {}
    }
    match (config.flag("add_eos_token")?, eos) {
        (Some(true), None) => return Err(wrong("has no end token to add")),
        (Some(true), Some(eos)) if special.behind.last() != Some(&eos) => special.behind.push(eos),
        (Some(false), Some(eos)) if special.behind.last() == Some(&eos) => _ = special.behind.pop(),
        _ => {}
    }
    Ok(())
}

/// Returns the id of the token under `key`. The value of `key` is the token's text, or an object that
/// contains the text. A text that is no token counts as missing.
fn named(
    config: &Fields,
    key: &str,
    find: impl Fn(&str) -> Option<u32>,
) -> Result<Option<u32>, TokenizerError> {
    let text = match config.find(key) {
        None => return Ok(None),
        Some(Value::Object(token)) => token.get("content").and_then(Value::as_str),
        Some(other) => other.as_str(),
    };
    let cause = || format!("has a {key} without a text");
    let text =
        text.ok_or_else(|| TokenizerError::Vocabulary { file: config.file().to_owned(), cause: cause() })?;
    let id = find(text);
    if id.is_none() {
        tracing::warn!(file = config.file(), key, text = %Quoted(text), "ignoring a special token that is no token");
    }
    Ok(id)
}
