//! Builds tokenizers with SentencePiece-style vocabularies, from the metadata of a GGUF file or from a
//! `tokenizer.model`. These tokenizers merge pieces by score, or find the tokens with the largest sum of
//! scores (Unigram). They encode unknown characters as byte tokens.

use super::Tokenizer;
use super::character_map::CharacterMap;
use super::ends::{self, Special};
use super::merges;
use super::normaliser::Normaliser;
use super::proto::ModelProto;
use super::special::{Added, Finder};
use super::stream::Piece;
use super::unigram::Unigram;
use super::vocabulary::{self, Kind, SPACE, Token};
use super::words::{Algorithm, Words};
use crate::error::TokenizerError;
use crate::gguf::{Array, Metadata};
use crate::source::Source;
use std::collections::HashMap;
use tokenizers::models::bpe::{BPE, Vocab};

/// Settings of a tokenizer, except its vocabulary.
struct Settings {
    unigram: bool,
    map: Option<CharacterMap>,
    squeeze: bool,
    add_space_prefix: bool,
    special: Special,
}

/// Builds the tokenizer from the metadata of a GGUF file with `tokenizer.ggml.model = llama`, or with `t5` if
/// `unigram` is true.
pub(super) fn from_metadata(metadata: &Metadata, unigram: bool) -> Result<Tokenizer, TokenizerError> {
    let tokens = vocabulary::read(metadata)?;
    let map = match metadata.find::<Array<'_>>("tokenizer.ggml.precompiled_charsmap")?.filter(|_| unigram) {
        Some(map) => character_map(metadata.file(), &map.list::<u8>().collect::<Result<Vec<u8>, _>>()?)?,
        None => None,
    };
    let settings = Settings {
        unigram,
        map,
        squeeze: unigram
            && metadata.find::<bool>("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false),
        add_space_prefix: metadata.find("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
        special: vocabulary::special(metadata, &tokens, !unigram, unigram)?,
    };
    build(metadata.file(), &tokens, settings)
}

/// Parses a character map. Without bytes, there is none.
fn character_map(file: &str, bytes: &[u8]) -> Result<Option<CharacterMap>, TokenizerError> {
    let wrong = |cause| TokenizerError::Vocabulary {
        file: file.to_owned(),
        cause: format!("has a character map that {cause}"),
    };
    if bytes.is_empty() { Ok(None) } else { CharacterMap::parse(bytes).map(Some).map_err(wrong) }
}

/// Builds the tokenizer from a `tokenizer.model`. Also returns a map from token texts to ids. The tokenizer
/// puts the BOS token before each text.
pub(super) fn from_model(source: &dyn Source) -> Result<(Tokenizer, HashMap<String, u32>), TokenizerError> {
    let file = source.name();
    let unsupported = |what: &str| TokenizerError::Unsupported { file: file.into(), what: what.into() };
    let bytes = source.range(0..source.bytes()).map_err(crate::error::FormatError::from)?;
    let model = ModelProto::parse(file, bytes)?;
    let unigram = model.model_type == ModelProto::UNIGRAM;
    if !unigram && model.model_type != ModelProto::BPE {
        return Err(unsupported("a SentencePiece model that is neither of type BPE nor of type Unigram"));
    }
    if model.spaces_as_suffix || !model.escape_whitespaces {
        return Err(unsupported("a SentencePiece model that does not write spaces before words, as ▁"));
    }
    let tokens = model.tokens(file)?;
    vocabulary::check(file, &tokens)?;
    let id = |id: i32| u32::try_from(id).ok().filter(|id| (*id as usize) < tokens.len());
    let (bos, eos) = (id(model.bos), id(model.eos));
    let settings = Settings {
        unigram,
        map: character_map(file, model.character_map)?,
        squeeze: model.remove_extra_whitespaces,
        add_space_prefix: model.add_dummy_prefix,
        special: Special {
            bos,
            ends: eos.into_iter().collect(),
            ends_by_text: ends::by_text(vocabulary::control(&tokens)),
            before: bos.into_iter().collect(),
            behind: Vec::new(),
        },
    };
    let mut ids = HashMap::new();
    for (id, token) in (0u32..).zip(&tokens) {
        ids.entry(token.text.to_owned()).or_insert(id);
    }
    Ok((build(file, &tokens, settings)?, ids))
}

fn build(file: &str, tokens: &[Token<'_>], settings: Settings) -> Result<Tokenizer, TokenizerError> {
    let wrong = |cause: String| TokenizerError::Vocabulary { file: file.to_owned(), cause };
    let normaliser = Normaliser::visible_spaces(settings.map, settings.squeeze, settings.add_space_prefix);
    // Normalisation replaces spaces with `▁` before the search for user-defined tokens. So the texts of these
    // tokens need the same replacement.
    let finder = |kind: Kind, text: &dyn Fn(&str) -> String| {
        let of_kind = (0u32..).zip(tokens).filter(|(_, token)| token.kind == kind);
        let added = of_kind.map(|(id, token)| Added::new(id, text(token.text), kind == Kind::Control));
        Finder::new(added.collect()).map_err(wrong)
    };
    let algorithm = match settings.unigram {
        true => unigram(tokens).map(Algorithm::Unigram),
        false => merging(tokens).map(|merging| Algorithm::Merging(merging.into())),
    };
    Ok(Tokenizer {
        raw: finder(Kind::Control, &str::to_owned)?,
        normaliser,
        normalised: finder(Kind::UserDefined, &|text| text.replace(' ', "▁"))?,
        words: Words { first: None, later: None, algorithm: algorithm.map_err(wrong)? },
        pieces: tokens.iter().map(piece).collect(),
        strip_space: settings.add_space_prefix,
        special: settings.special,
    })
}

/// Builds the Unigram vocabulary from the normal tokens, the byte tokens and the unknown token.
fn unigram(tokens: &[Token<'_>]) -> Result<Unigram, String> {
    let normal = (0u32..).zip(tokens).filter(|(_, token)| token.kind == Kind::Normal);
    let normal: Vec<_> = normal.map(|(id, token)| (token.text, id, f64::from(token.score))).collect();
    let lowest = normal.iter().fold(f64::INFINITY, |lowest, (.., score)| lowest.min(*score));
    let (bytes, unknown) = fallbacks(tokens);
    Unigram::new(&normal, lowest, bytes, unknown)
}

/// Returns the first token of each byte, and the first unknown token.
fn fallbacks(tokens: &[Token<'_>]) -> (HashMap<u8, u32>, Option<u32>) {
    let (mut bytes, mut unknown) = (HashMap::new(), None);
    for (id, token) in (0u32..).zip(tokens) {
        match token.kind {
            Kind::Byte(byte) => _ = bytes.entry(byte).or_insert(id),
            Kind::Unknown => _ = unknown.get_or_insert(id),
            _ => {}
        }
    }
    (bytes, unknown)
}

/// Builds the byte-pair encoding from the normal tokens, the byte tokens and the unknown token.
fn merging(tokens: &[Token<'_>]) -> Result<BPE, String> {
    let normal = merges::ids_by_text(tokens);
    let merges = merges::by_score(tokens, &normal)?;
    let (bytes, unknown) = fallbacks(tokens);
    // Byte fallback needs a token for every byte.
    let byte_fallback = bytes.len() == 256;
    let mut builder = BPE::builder().byte_fallback(byte_fallback).fuse_unk(true).cache_capacity(0);
    let mut vocabulary: Vocab = normal.iter().map(|(text, id)| ((*text).to_owned(), *id)).collect();
    // `tokenizers` finds byte tokens and the unknown token by their texts, so no normal token may have such a
    // text.
    let mut reserve = |text: String, id: u32| match vocabulary.insert(text.clone(), id) {
        Some(normal) => Err(format!("has a normal token {normal} with the reserved text {text}")),
        None => Ok(()),
    };
    if byte_fallback {
        for (byte, id) in &bytes {
            reserve(format!("<0x{byte:02X}>"), *id)?;
        }
    } else {
        let id = unknown.ok_or("has neither all byte tokens nor an unknown token")?;
        // No part of a text ever equals this string.
        let text = "\0unknown";
        reserve(text.to_owned(), id)?;
        builder = builder.unk_token(text.to_owned());
    }
    merges::build(builder.vocab_and_merges(vocabulary, merges))
}

/// Returns the text or byte that a token decodes to.
fn piece(token: &Token<'_>) -> Piece {
    match token.kind {
        Kind::Byte(byte) => Piece::Byte(byte),
        Kind::Control => Piece::Silent,
        // SentencePiece decodes the unknown token to this text.
        Kind::Unknown => Piece::Text(" \u{2047} ".into()),
        Kind::Normal | Kind::UserDefined | Kind::Unused => {
            Piece::Text(token.text.replace(SPACE, " ").into_boxed_str())
        }
    }
}
