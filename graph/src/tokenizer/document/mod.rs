//! Reads `tokenizer.json`, the format of the `tokenizers` library. Checks every component before passing it
//! to the library.
//!
//! Supports byte-pair encoding and Unigram, with the normalizers, pre-tokenizers and decoders that supported
//! models use. Any other component is an error, because ignoring it could change the tokens of a text.

use super::normaliser::Normaliser;
use super::special::{Added, Finder};
use super::stream::Piece;
use super::words::Words;
use super::{Tokenizer, ends};
use crate::error::{Quoted, TokenizerError};
use crate::json;
use crate::source::Source;
use merging::Merging;
use normalizer::normaliser;
use parts::{AddedToken, Document, Model};
use reader::Reader;
use serde::Deserialize;
use std::collections::HashMap;
use unigram::Unigram;

mod cuts;
mod frame;
mod merging;
mod normalizer;
mod parts;
mod reader;
mod unigram;

/// Size limit of the file in bytes. The largest vocabularies take tens of megabytes.
const MAX_BYTES: u64 = 256 << 20;
/// The document's model type. It is read first, because the fields of the document depend on it.
#[derive(Deserialize)]
struct Head {
    model: Kind,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// Reads the tokenizer from `source`. Also returns a map from token texts to ids.
pub(super) fn read(source: &dyn Source) -> Result<(Tokenizer, HashMap<String, u32>), TokenizerError> {
    let reader = Reader { file: source.name() };
    let head: Head = json::parse(source, MAX_BYTES)?;
    match head.model.kind.as_deref() {
        None | Some("BPE") => read_as::<Merging>(&reader, source),
        Some("Unigram") => read_as::<Unigram>(&reader, source),
        Some(other) => Err(reader.unsupported(format!("a tokenizer of type \"{}\"", Quoted(other)))),
    }
}

fn read_as<M: Model>(
    reader: &Reader<'_>,
    source: &dyn Source,
) -> Result<(Tokenizer, HashMap<String, u32>), TokenizerError> {
    let document: Document<M> = json::parse(source, MAX_BYTES)?;
    let normaliser = normaliser(reader, document.normalizer.as_ref())?;
    let decoding = frame::Decoding::of(reader, document.decoder.as_ref())?;
    let pieces = pieces(reader, &document, &decoding)?;
    let mut special = frame::special(reader, document.post_processor.as_ref())?;
    let control = document.added_tokens.iter().filter(|token| token.special);
    special.ends_by_text = ends::by_text(control.map(|token| (token.id, token.content.as_str())));
    let (raw, normalised) = finders(reader, &document.added_tokens, &normaliser)?;
    let mut ids: HashMap<String, u32> =
        document.model.tokens().into_iter().map(|(text, id)| (text.to_owned(), id)).collect();
    ids.extend(document.added_tokens.iter().map(|token| (token.content.clone(), token.id)));
    let (first, later) = match &document.pre_tokenizer {
        Some(cuts) => cuts.build(reader).map(|(first, later)| (Some(first), Some(later)))?,
        None => (None, None),
    };
    let tokenizer = Tokenizer {
        raw,
        normaliser,
        normalised,
        words: Words { first, later, algorithm: M::build(reader, &document)? },
        pieces: pieces.into(),
        strip_space: decoding.strip_space,
        special,
    };
    Ok((tokenizer, ids))
}

/// Returns the text or bytes that each token decodes to, by id. Rejects vocabularies in which most ids are
/// unused.
fn pieces<M: Model>(
    reader: &Reader<'_>,
    document: &Document<M>,
    decoding: &frame::Decoding,
) -> Result<Vec<Piece>, TokenizerError> {
    let tokens = document.model.tokens();
    let vocabulary: HashMap<&str, u32> = tokens.iter().copied().collect();
    let most = 2 * (tokens.len() + document.added_tokens.len());
    let mut pieces: Vec<Option<Piece>> = Vec::new();
    let mut place = |id: u32, text: &str| match usize::try_from(id) {
        Ok(place) if place < most => {
            pieces.resize(pieces.len().max(place + 1), None);
            Ok(place)
        }
        _ => Err(reader.wrong(format!("has the id {id} for \"{}\", but far fewer tokens", Quoted(text)))),
    };
    let places: Vec<(usize, &str)> = tokens
        .iter()
        .map(|(text, id)| Ok((place(*id, text)?, *text)))
        .collect::<Result<_, TokenizerError>>()?;
    let added: Vec<(usize, &AddedToken)> = document
        .added_tokens
        .iter()
        .map(|token| Ok((place(token.id, &token.content)?, token)))
        .collect::<Result<_, TokenizerError>>()?;
    for (place, text) in places {
        if pieces[place].replace(decoding.piece(text)).is_some() {
            return Err(reader.wrong(format!("gives the id {place} to \"{}\" and another", Quoted(text))));
        }
    }
    for (place, token) in added {
        let own = vocabulary.get(token.content.as_str());
        if own.is_some_and(|id| *id != token.id) || own.is_none() && pieces[place].is_some() {
            let text = Quoted(&token.content);
            return Err(reader.wrong(format!("gives the id {place} to \"{text}\" and another")));
        }
        pieces[place] = Some(match token.special {
            true => Piece::Silent,
            // Decoders apply to these tokens, too: those of Gemma for several spaces are written with `▁`.
            false => decoding.piece(&token.content),
        });
    }
    Ok(pieces.into_iter().map(|piece| piece.unwrap_or(Piece::Text("\u{fffd}".into()))).collect())
}

/// Builds the finders for added tokens. One searches the raw text, and the other searches the normalised
/// text.
fn finders(
    reader: &Reader<'_>,
    tokens: &[AddedToken],
    normaliser: &Normaliser,
) -> Result<(Finder, Finder), TokenizerError> {
    if let Some(token) = tokens.iter().find(|token| token.single_word) {
        let text = Quoted(&token.content);
        return Err(reader.unsupported(format!("the added token \"{text}\" with single_word set")));
    }
    let finder = |normalised: bool| {
        let of_kind = tokens.iter().filter(|token| token.normalized == normalised);
        let added = of_kind.map(|token| Added {
            id: token.id,
            text: match normalised {
                true => normaliser.apply(&token.content).into_owned(),
                false => token.content.clone(),
            },
            control: token.special,
            strips_left: token.lstrip,
            strips_right: token.rstrip,
        });
        Finder::new(added.collect()).map_err(|cause| reader.wrong(cause))
    };
    Ok((finder(false)?, finder(true)?))
}
