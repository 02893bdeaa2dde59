//! Builds tokenizers with byte-level vocabularies from GGUF files (`tokenizer.ggml.model = gpt2`). Such a
//! tokenizer splits text into words and each word into bytes. It then merges the bytes by an explicit list of
//! merges.

use super::Tokenizer;
use super::alphabet;
use super::merges;
use super::normaliser::Normaliser;
use super::pre::PreTokenizer;
use super::special::{Added, Finder};
use super::stream::Piece;
use super::vocabulary::{self, Kind, Token};
use super::words::{Algorithm, Words};
use crate::error::TokenizerError;
use crate::gguf::Metadata;
use std::collections::HashMap;
use tokenizers::models::bpe::{BPE, Vocab};

/// Builds the tokenizer from the metadata of a GGUF file.
pub(super) fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
    let file = metadata.file();
    let wrong = |cause: String| TokenizerError::Vocabulary { file: file.to_owned(), cause };
    let pre = PreTokenizer::find(file, metadata.get("tokenizer.ggml.pre")?)?;
    let tokens = vocabulary::read_unscored(metadata)?;
    let vocabulary = normal(&tokens);
    require_all_bytes(|letter| vocabulary.contains_key(letter)).map_err(wrong)?;
    let algorithm = Algorithm::Merging(merging(metadata, vocabulary, pre.whole_words)?.into());
    let cuts = pre.build().map_err(|error| wrong(format!("cannot be cut into words: {error}")))?;
    let added = |kinds: &[Kind]| {
        let of_kind = (0u32..).zip(&tokens).filter(|(_, token)| kinds.contains(&token.kind));
        let added = of_kind.map(|(id, token)| Added::new(id, token.text, token.kind != Kind::UserDefined));
        Finder::new(added.collect()).map_err(wrong)
    };
    Ok(Tokenizer {
        raw: added(&[Kind::Control, Kind::Unknown, Kind::UserDefined])?,
        normaliser: Normaliser::default(),
        normalised: added(&[])?,
        words: Words { first: Some(cuts.clone()), later: Some(cuts), algorithm },
        pieces: tokens.iter().map(piece).collect(),
        strip_space: false,
        special: vocabulary::special(metadata, &tokens, pre.add_bos, false)?,
    })
}

/// Returns the id of each token text that merges can use. If several tokens have the same text, returns the
/// id of the first one.
fn normal(tokens: &[Token<'_>]) -> HashMap<String, u32> {
    let mut ids = HashMap::new();
    for (id, token) in (0u32..).zip(tokens).filter(|(_, token)| token.kind == Kind::Normal) {
        ids.entry(token.text.to_owned()).or_insert(id);
    }
    ids
}

/// Checks that every byte has a token, because encoding would otherwise drop characters.
pub(super) fn require_all_bytes(has: impl Fn(&str) -> bool) -> Result<(), String> {
    match (0..=255u8).find(|byte| !has(alphabet::letter(*byte).encode_utf8(&mut [0; 4]))) {
        Some(byte) => Err(format!("has no token for the byte {byte:#04x} ({})", alphabet::letter(byte))),
        None => Ok(()),
    }
}

/// Builds the byte-pair encoding from the list of merges, highest rank first. Each entry of the list contains
/// two tokens, separated by a space.
fn merging(metadata: &Metadata, ids: HashMap<String, u32>, whole_words: bool) -> Result<BPE, TokenizerError> {
    let wrong = |cause: String| TokenizerError::Vocabulary { file: metadata.file().to_owned(), cause };
    let pair = |merge: Result<&str, _>| merges::pair(merge?).map_err(wrong);
    let merges = metadata.list("tokenizer.ggml.merges")?.map(pair).collect::<Result<_, _>>()?;
    let builder = BPE::builder().cache_capacity(0).ignore_merges(whole_words);
    merges::build(builder.vocab_and_merges(ids.into_iter().collect::<Vocab>(), merges)).map_err(wrong)
}

/// Returns the text or bytes that a token decodes to.
fn piece(token: &Token<'_>) -> Piece {
    match token.kind {
        Kind::Normal => Piece::byte_level(token.text),
        Kind::Byte(byte) => Piece::Byte(byte),
        Kind::Control | Kind::Unknown => Piece::Silent,
        // These tokens are stored as plain text.
        Kind::UserDefined | Kind::Unused => Piece::Text(token.text.into()),
    }
}
