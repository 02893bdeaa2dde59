//! Loads the tokenizer from a model directory. Selects the tokenizer file, and combines the BOS and EOS
//! settings from several files.

use super::ends::Special;
use super::{Tokenizer, document, sentencepiece};
use crate::checkpoint::{CONFIG, Fields, GENERATION_CONFIG, SENTENCEPIECE, TOKENIZER, TOKENIZER_CONFIG};
use crate::error::{Quoted, TokenizerError};
use crate::source::Directory;
use serde_json::Value;
use std::collections::HashMap;

impl Tokenizer {
    /// Builds the tokenizer from `tokenizer.json` in a model directory, or from `tokenizer.model` if there is
    /// no `tokenizer.json`. Also reads BOS and EOS settings from `tokenizer_config.json`,
    /// `generation_config.json` and `config.json`.
    ///
    /// # Errors
    /// Fails if the directory has no tokenizer, or if its tokenizer is unsupported or invalid.
    pub fn from_directory(directory: &Directory) -> Result<Tokenizer, TokenizerError> {
        let (mut tokenizer, ids) = match (directory.file(TOKENIZER), directory.file(SENTENCEPIECE)) {
            (Some(source), _) => document::read(source.as_ref())?,
            (None, Some(source)) => sentencepiece::from_model(source.as_ref())?,
            (None, None) => {
                return Err(directory.missing(format!("{TOKENIZER} and no {SENTENCEPIECE}")).into());
            }
        };
        let special = &mut tokenizer.special;
        if let Some(source) = directory.file(TOKENIZER_CONFIG) {
            settle(special, source.name(), &Fields::read(source.as_ref())?, &ids)?;
        }
        for source in [CONFIG, GENERATION_CONFIG].into_iter().filter_map(|name| directory.file(name)) {
            let config = Fields::read(source.as_ref())?;
            special.ends.extend(config.ids("eos_token_id")?);
            special.bos = special.bos.or(config.ids("bos_token_id")?.first().copied());
        }
        let by_text = std::mem::take(&mut special.ends_by_text);
        special.ends.extend(by_text);
        check_ids(directory, &tokenizer)?;
        Ok(tokenizer)
    }
}

/// Applies the settings in `tokenizer_config.json`, which override those of the tokenizer file.
fn settle(
    special: &mut Special,
    file: &str,
    config: &Fields,
    ids: &HashMap<String, u32>,
) -> Result<(), TokenizerError> {
    let wrong = |cause: &str| TokenizerError::Vocabulary { file: file.to_owned(), cause: cause.to_owned() };
    if let Some(bos) = named(file, config, "bos_token", ids)? {
        let old = special.bos.replace(bos);
        special.before.iter_mut().filter(|id| Some(**id) == old).for_each(|id| *id = bos);
    }
    let eos = named(file, config, "eos_token", ids)?;
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
/// contains the text.
fn named(
    file: &str,
    config: &Fields,
    key: &str,
    ids: &HashMap<String, u32>,
) -> Result<Option<u32>, TokenizerError> {
    let text = match config.find(key) {
        None => return Ok(None),
        Some(Value::Object(token)) => token.get("content").and_then(Value::as_str),
        Some(other) => other.as_str(),
    };
    let wrong = |cause: String| TokenizerError::Vocabulary { file: file.to_owned(), cause };
    let text = text.ok_or_else(|| wrong(format!("has a {key} without a text")))?;
    let id = ids.get(text).copied();
    id.map(Some).ok_or_else(|| wrong(format!("has no token \"{}\", which {key} names", Quoted(text))))
}

/// Checks that all special ids are in the vocabulary. The ids come from several files, which may belong to
/// different models.
fn check_ids(directory: &Directory, tokenizer: &Tokenizer) -> Result<(), TokenizerError> {
    let special = &tokenizer.special;
    let all = special.ends.iter().chain(&special.bos).chain(&special.before).chain(&special.behind);
    let count = tokenizer.vocabulary_size();
    match all.copied().find(|id| usize::try_from(*id).map_or(true, |id| id >= count)) {
        Some(id) => {
            let cause = format!("has {count} tokens, but {id} is named as a begin or end token");
            Err(TokenizerError::Vocabulary { file: directory.name().to_owned(), cause })
        }
        None => Ok(()),
    }
}
