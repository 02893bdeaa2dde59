//! Builds tokenizers with SentencePiece-style vocabularies, from the metadata of a GGUF file or from a
//! `tokenizer.model`. These tokenizers merge pieces by score or by a list of merges, or find the tokens with the largest
//! sum of scores (Unigram). They encode unknown characters as byte tokens.

use super::Tokenizer;
use super::byte_level;
use super::character_map::CharacterMap;
use super::document::AddedToken;
use super::ends::{self, Special};
use super::merging::{self, Fallback, Merging, Order};
use super::normaliser::Normaliser;
use super::proto::ModelProto;
use super::special::{Added, Finder};
use super::stream::{Form, Pieces};
use super::texts::{Index, Texts};
use super::unigram::Unigram;
use super::vocabulary::{self, Kind, Token};
use super::words::{Algorithm, Words};
use crate::error::{Quoted, TokenizerError};
use crate::gguf::{Array, Metadata};
use crate::source::Source;
use std::sync::Arc;

/// Settings of a tokenizer, except its vocabulary.
struct Settings<'a> {
    method: Method<'a>,
    map: Option<CharacterMap>,
    squeeze: bool,
    add_space_prefix: bool,
    /// Tokens that are cut out of the text before it is normalised. Each rest gets its own leading space.
    raw: Vec<Added>,
    /// Tokens that are cut out of the normalised text.
    normalised: Vec<Added>,
    unknown: Option<u32>,
    special: Special,
}

/// Way to split a text into tokens.
#[derive(Clone, Copy)]
enum Method<'a> {
    Scores,
    /// Merges by the list in a GGUF file.
    List(&'a Metadata),
    Unigram,
}

/// Builds the tokenizer from the metadata of a GGUF file in which `tokenizer.ggml.model` is `model`: `llama`, `t5` or
/// `gemma4`.
pub(super) fn from_metadata(metadata: &Metadata, model: &str) -> Result<Tokenizer, TokenizerError> {
    let (method, tokens) = match model {
        "gemma4" => (Method::List(metadata), vocabulary::read_unscored(metadata)?),
        "t5" => (Method::Unigram, vocabulary::read(metadata)?),
        _ => (Method::Scores, vocabulary::read(metadata)?),
    };
    let unigram = matches!(method, Method::Unigram);
    let map = match metadata.find::<Array<'_>>("tokenizer.ggml.precompiled_charsmap")?.filter(|_| unigram) {
        Some(map) => character_map(metadata.file(), &map.list::<u8>().collect::<Result<Vec<u8>, _>>()?)?,
        None => None,
    };
    let mut raw: Vec<Added> =
        vocabulary::added(&tokens).map(|(id, token, control)| Added::new(id, token.text, control)).collect();
    if is_phi3(metadata)? {
        raw.iter_mut()
            .for_each(|token| token.strips_right = !PHI3_KEEPS_SPACE.contains(&token.text.as_str()));
    }
    let settings = Settings {
        method,
        map,
        squeeze: unigram
            && metadata.find::<bool>("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false),
        add_space_prefix: metadata.find("tokenizer.ggml.add_space_prefix")?.unwrap_or(model != "gemma4"),
        raw,
        normalised: Vec::new(),
        unknown: vocabulary::id(metadata, &tokens, "tokenizer.ggml.unknown_token_id")?,
        special: vocabulary::special(metadata, &tokens, !unigram, unigram)?,
    };
    build(metadata.file(), &tokens, settings)
}

/// Special tokens of Phi-3 that do not remove the white space behind them.
const PHI3_KEEPS_SPACE: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// Returns whether the model is a Phi-3 by its name. Its special tokens remove the white space behind them, which a
/// GGUF file cannot say.
fn is_phi3(metadata: &Metadata) -> Result<bool, TokenizerError> {
    let name = metadata.find::<&str>("general.name")?.unwrap_or_default();
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    Ok(name.to_ascii_lowercase().contains("phi3"))
}

/// Parses a character map. Without bytes, there is none.
fn character_map(file: &str, bytes: &[u8]) -> Result<Option<CharacterMap>, TokenizerError> {
    let wrong = |cause| TokenizerError::Vocabulary {
        file: file.to_owned(),
        cause: format!("has a character map that {cause}"),
    };
    if bytes.is_empty() { Ok(None) } else { CharacterMap::parse(bytes).map(Some).map_err(wrong) }
}

/// Builds the tokenizer from a `tokenizer.model` and the tokens that the model adds. The tokenizer puts the BOS token
/// before each text.
pub(super) fn from_model(source: &dyn Source, added: &[AddedToken]) -> Result<Tokenizer, TokenizerError> {
    let file = source.name();
    let unsupported = |what: &str| TokenizerError::Unsupported { file: file.into(), what: what.into() };
    let bytes = source.range(0..source.bytes()).map_err(crate::error::FormatError::from)?;
    let model = ModelProto::parse(file, &bytes)?;
    let unigram = model.model_type == ModelProto::UNIGRAM;
    if !unigram && model.model_type != ModelProto::BPE {
        return Err(unsupported("a SentencePiece model that is neither of type BPE nor of type Unigram"));
    }
    if model.spaces_as_suffix || !model.escape_whitespaces {
        return Err(unsupported("a SentencePiece model that does not write spaces before words, as ▁"));
    }
    let mut tokens = model.tokens(file)?;
    vocabulary::check(file, &tokens)?;
    add(&mut tokens, added).map_err(|cause| TokenizerError::Vocabulary { file: file.into(), cause })?;
    vocabulary::settle_kinds(&mut tokens, |_| Ok(false))?;
    let id = |id: i32| u32::try_from(id).ok().filter(|id| (*id as usize) < tokens.len());
    let (bos, eos) = (id(model.bos), id(model.eos));
    let (user_defined, raw): (Vec<_>, Vec<_>) =
        vocabulary::added(&tokens).partition(|(_, token, _)| token.kind == Kind::UserDefined);
    let raw = raw.into_iter().map(|(id, token, control)| Added::new(id, token.text, control));
    let is_own = |found: &Added| added.iter().all(|token| token.id != found.id);
    // Normalisation replaces spaces with `▁` before the search for user-defined tokens. So the texts of these
    // tokens need the same replacement.
    let user_defined = user_defined.into_iter();
    let user_defined = user_defined.map(|(id, token, _)| Added::new(id, token.text.replace(' ', "▁"), false));
    let settings = Settings {
        method: if unigram { Method::Unigram } else { Method::Scores },
        map: character_map(file, model.character_map)?,
        squeeze: model.remove_extra_whitespaces,
        add_space_prefix: model.add_dummy_prefix,
        raw: raw.filter(is_own).chain(added.iter().map(AddedToken::added)).collect(),
        normalised: user_defined.filter(is_own).collect(),
        unknown: None,
        special: Special {
            bos,
            ends: eos.into_iter().collect(),
            ends_by_text: ends::by_text(vocabulary::control(&tokens)).0,
            before: bos.into_iter().collect(),
            behind: Vec::new(),
        },
    };
    build(file, &tokens, settings)
}

/// Adds the tokens of a model to those of its `tokenizer.model`. Merges do not produce added tokens. An error
/// completes the sentence "The vocabulary …".
fn add<'a>(tokens: &mut Vec<Token<'a>>, added: &'a [AddedToken]) -> Result<(), String> {
    let most = 2 * (tokens.len() + added.len());
    for token in added {
        let (place, text) = (token.id as usize, token.content.as_str());
        if place >= most {
            return Err(format!("has the id {place} for \"{}\", but far fewer tokens", Quoted(text)));
        }
        let none = Token { text: "", score: 0.0, kind: Kind::Unused };
        tokens.resize(tokens.len().max(place + 1), none);
        let old = &mut tokens[place];
        let kind = match old.kind {
            _ if token.special && old.kind != Kind::Unknown => Kind::Control,
            kind if old.text == text => kind,
            _ => Kind::Unused,
        };
        *old = Token { text, kind, ..*old };
    }
    Ok(())
}

fn build(file: &str, tokens: &[Token<'_>], settings: Settings<'_>) -> Result<Tokenizer, TokenizerError> {
    let wrong = |cause: String| TokenizerError::Vocabulary { file: file.to_owned(), cause };
    let texts = Arc::new(Texts::new(tokens.iter().map(|token| token.text)).map_err(wrong)?);
    let normaliser = Normaliser::visible_spaces(settings.map, settings.squeeze, settings.add_space_prefix);
    let fallback = fallback(tokens, settings.unknown);
    let algorithm = match settings.method {
        Method::Unigram => Algorithm::Unigram(unigram(tokens, fallback).map_err(wrong)?),
        Method::Scores | Method::List(_) => {
            let normal = |id: &u32| tokens.get(*id as usize).map(|token| token.text);
            merging::check_lengths(vocabulary::mergeable(tokens).filter_map(|id| normal(&id)))
                .map_err(wrong)?;
            let index = Index::new(texts.clone(), vocabulary::mergeable(tokens));
            let order = match settings.method {
                Method::List(metadata) => byte_level::merges(metadata, &index)?,
                _ => Order::by_score(tokens.iter().map(|token| token.score)),
            };
            Algorithm::Merging(Merging { index, order, fallback, whole_words: false }.into())
        }
    };
    Ok(Tokenizer {
        raw: Finder::new(settings.raw).map_err(wrong)?,
        normaliser,
        normalised: Finder::new(settings.normalised).map_err(wrong)?,
        words: Words { first: None, later: None, algorithm },
        pieces: Pieces::new(texts, tokens.iter().map(form).collect()).into(),
        strip_space: settings.add_space_prefix,
        special: settings.special,
    })
}

/// Builds the Unigram vocabulary from the normal tokens.
fn unigram(tokens: &[Token<'_>], fallback: Fallback) -> Result<Unigram, String> {
    let normal = (0u32..).zip(tokens).filter(|(_, token)| token.kind == Kind::Normal);
    let normal: Vec<_> = normal.map(|(id, token)| (token.text, id, f64::from(token.score))).collect();
    let lowest = normal.iter().fold(f64::INFINITY, |lowest, (.., score)| lowest.min(*score));
    Unigram::new(&normal, lowest, fallback.bytes, fallback.unknown)
}

/// Returns the first token of each byte, and the unknown token: `unknown`, or the first token of this kind.
fn fallback(tokens: &[Token<'_>], unknown: Option<u32>) -> Fallback {
    let mut fallback = Fallback { fuse: true, unknown, ..Fallback::default() };
    for (id, token) in (0u32..).zip(tokens) {
        match token.kind {
            Kind::Byte(byte) => _ = fallback.bytes.entry(byte).or_insert(id),
            Kind::Unknown => _ = fallback.unknown.get_or_insert(id),
            _ => {}
        }
    }
    fallback
}

/// Returns what a token decodes to.
fn form(token: &Token<'_>) -> Form {
    match token.kind {
        Kind::Byte(byte) => Form::Byte(byte),
        Kind::Control => Form::Silent,
        Kind::Unknown => Form::Unknown,
        Kind::Normal | Kind::UserDefined | Kind::Unused => Form::Spaced,
    }
}
