//! Builds tokenizers with byte-level vocabularies from GGUF files (`tokenizer.ggml.model = gpt2`). Such a
//! tokenizer splits text into words and each word into bytes. It then merges the bytes by an explicit list of
//! merges. It drops a byte without a token.

use super::Tokenizer;
use super::alphabet;
use super::merging::{self, Fallback, Merging, Order};
use super::normaliser::Normaliser;
use super::pre::PreTokenizer;
use super::special::{Added, Finder};
use super::stream::{Form, Pieces};
use super::texts::{Index, Texts};
use super::vocabulary::{self, Kind, Token};
use super::words::{Algorithm, Words};
use crate::error::TokenizerError;
use crate::gguf::Metadata;
use std::sync::Arc;

/// Builds the tokenizer from the metadata of a GGUF file.
pub(super) fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
    let file = metadata.file();
    let wrong = |cause: String| TokenizerError::Vocabulary { file: file.to_owned(), cause };
    let pre = PreTokenizer::find(file, metadata.find("tokenizer.ggml.pre")?)?;
    let tokens = vocabulary::read_unscored(metadata)?;
    let texts = Arc::new(Texts::new(tokens.iter().map(|token| token.text)).map_err(wrong)?);
    let index = Index::new(texts.clone(), vocabulary::mergeable(&tokens));
    let has = |byte: &u8| index.find(alphabet::letter(*byte).encode_utf8(&mut [0; 4])).is_some();
    // UTF-8 never contains the bytes C0, C1, and F5 and above.
    let missing: Vec<u8> = (0..0xF5).filter(|byte| !matches!(byte, 0xC0 | 0xC1) && !has(byte)).collect();
    if !missing.is_empty() {
        tracing::debug!(file, ?missing, "the vocabulary has no tokens for some bytes; text loses them");
    }
    let order = merges(metadata, &index)?;
    let merging = Merging { index, order, fallback: Fallback::default(), whole_words: pre.whole_words };
    let cuts = pre.build().map_err(|error| wrong(format!("cannot be cut into words: {error}")))?;
    let raw = vocabulary::added(&tokens).map(|(id, token, control)| Added::new(id, token.text, control));
    Ok(Tokenizer {
        raw: Finder::new(raw.collect()).map_err(wrong)?,
        normaliser: Normaliser::default(),
        normalised: Finder::new(Vec::new()).map_err(wrong)?,
        words: Words {
            first: Some(cuts.clone()),
            later: Some(cuts),
            algorithm: Algorithm::Merging(merging.into()),
        },
        pieces: Pieces::new(texts, tokens.iter().map(form).collect()).into(),
        strip_space: false,
        special: vocabulary::special(metadata, &tokens, pre.add_bos, false)?,
    })
}

/// Reads the list of merges, highest rank first. Each entry of the list contains two tokens, separated by a space.
pub(super) fn merges(metadata: &Metadata, index: &Index) -> Result<Order, TokenizerError> {
    let wrong = |cause: String| TokenizerError::Vocabulary { file: metadata.file().to_owned(), cause };
    let texts = metadata.list::<&str>("tokenizer.ggml.merges")?;
    let mut pairs = Vec::new();
    for text in texts {
        pairs.push(merging::pair(text?).map_err(wrong)?);
    }
    Order::by_list(index, pairs.into_iter()).map_err(wrong)
}

/// Returns what a token decodes to.
fn form(token: &Token<'_>) -> Form {
    match token.kind {
        Kind::Normal => Form::Letters,
        Kind::Byte(byte) => Form::Byte(byte),
        Kind::Control | Kind::Unknown => Form::Silent,
        // These tokens are stored as plain text.
        Kind::UserDefined | Kind::Unused => Form::Plain,
    }
}
