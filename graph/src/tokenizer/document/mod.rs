//! Reads `tokenizer.json`, the format of the `tokenizers` library. Checks every component before passing it
//! to the library.
//!
//! Supports byte-pair encoding and Unigram, with the normalizers, pre-tokenizers and decoders that supported
//! models use. Any other component is an error, because ignoring it could change the tokens of a text.

use super::normaliser::Normaliser;
use super::special::{Added, Finder};
use super::stream::{Form, Pieces};
use super::texts::Texts;
use super::words::Words;
use super::{Tokenizer, ends};
use crate::error::{Quoted, TokenizerError};
use crate::json;
use crate::source::Source;
use merging::Merging;
use normalizer::normaliser;
pub(super) use parts::AddedToken;
use parts::{Document, Model};
use reader::Reader;
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::Arc;
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

/// Reads the tokenizer from `source`.
pub(super) fn read(source: &dyn Source) -> Result<Tokenizer, TokenizerError> {
    let reader = Reader { file: source.name() };
    let head: Head = json::parse(source, MAX_BYTES)?;
    match head.model.kind.as_deref() {
        None | Some("BPE") => read_as::<Merging>(&reader, source),
        Some("Unigram") => read_as::<Unigram>(&reader, source),
        Some(other) => Err(reader.unsupported(format!("a tokenizer of type \"{}\"", Quoted(other)))),
    }
}

fn read_as<M: Model>(reader: &Reader<'_>, source: &dyn Source) -> Result<Tokenizer, TokenizerError> {
    let mut document: Document<M> = json::parse(source, MAX_BYTES)?;
    mark_ends(&mut document.added_tokens);
    let normaliser = normaliser(reader, document.normalizer.as_ref())?;
    let decoding = frame::Decoding::of(reader, document.decoder.as_ref())?;
    let pieces = pieces(reader, &document, &decoding)?;
    let texts = Texts::new(pieces.iter().map(|(_, text)| *text)).map_err(|cause| reader.wrong(cause))?;
    let texts = Arc::new(texts);
    let mut special = frame::special(reader, document.post_processor.as_ref())?;
    let control = document.added_tokens.iter().filter(|token| token.special);
    special.ends_by_text = ends::by_text(control.map(|token| (token.id, token.content.as_str()))).0;
    let (raw, normalised) =
        finders(&document.added_tokens, &normaliser).map_err(|cause| reader.wrong(cause))?;
    let (first, later) = match &document.pre_tokenizer {
        Some(cuts) => cuts.build(reader).map(|(first, later)| (Some(first), Some(later)))?,
        None => (None, None),
    };
    Ok(Tokenizer {
        raw,
        normaliser,
        normalised,
        words: Words { first, later, algorithm: M::build(reader, &document, texts.clone())? },
        pieces: Pieces::new(texts, pieces.into_iter().map(|(form, _)| form).collect()).into(),
        strip_space: decoding.strip_space,
        special,
    })
}

/// Marks the end tokens that the file does not call special.
pub(super) fn mark_ends(tokens: &mut [AddedToken]) {
    let named = ends::control_names(tokens.iter().map(|token| token.content.as_str()));
    let named: Vec<usize> =
        named.into_iter().filter(|(_, text)| ends::is_end(text)).map(|(at, _)| at).collect();
    for at in named {
        tokens[at].special = true;
    }
}

/// Returns what each token decodes to, and its text, by id. Rejects vocabularies in which most ids are unused.
fn pieces<'d, M: Model>(
    reader: &Reader<'_>,
    document: &'d Document<M>,
    decoding: &frame::Decoding,
) -> Result<Vec<(Form, &'d str)>, TokenizerError> {
    let tokens = document.model.tokens();
    let most = 2 * (tokens.len() + document.added_tokens.len());
    let mut pieces = vec![(Form::Missing, ""); tokens.len()];
    let place = |pieces: &mut Vec<(Form, &str)>, id: u32, text: &str| match usize::try_from(id) {
        Ok(place) if place < most => {
            pieces.resize(pieces.len().max(place + 1), (Form::Missing, ""));
            Ok(place)
        }
        _ => Err(reader.wrong(format!("has the id {id} for \"{}\", but far fewer tokens", Quoted(text)))),
    };
    let twice = |place: usize, text: &str| {
        reader.wrong(format!("gives the id {place} to \"{}\" and another", Quoted(text)))
    };
    let added: HashMap<&str, u32> =
        document.added_tokens.iter().map(|token| (token.content.as_str(), token.id)).collect();
    for (text, id) in tokens {
        let place = place(&mut pieces, id, text)?;
        if let Some(id) = added.get(text).filter(|added| **added != id) {
            return Err(twice(*id as usize, text));
        }
        if pieces[place].0 != Form::Missing {
            return Err(twice(place, text));
        }
        pieces[place] = (decoding.form(text), text);
    }
    for token in &document.added_tokens {
        let place = place(&mut pieces, token.id, &token.content)?;
        let (form, text) = pieces[place];
        if form != Form::Missing && text != token.content {
            return Err(twice(place, &token.content));
        }
        pieces[place] = match token.special {
            true => (Form::Silent, &token.content),
            // Decoders apply to these tokens, too: those of Gemma for several spaces are written with `▁`.
            false => (decoding.form(&token.content), &token.content),
        };
    }
    pieces.truncate(pieces.iter().rposition(|(form, _)| *form != Form::Missing).map_or(0, |last| last + 1));
    Ok(pieces)
}

/// Builds the finders for added tokens. One searches the raw text, and the other searches the normalised
/// text. An error completes the sentence "The vocabulary …".
fn finders(tokens: &[AddedToken], normaliser: &Normaliser) -> Result<(Finder, Finder), String> {
    let finder = |normalised: bool| {
        let of_kind = tokens.iter().filter(|token| token.normalized == normalised);
        let added = of_kind.map(|token| Added {
            text: match normalised {
                true => normaliser.apply(&token.content, true).into_owned(),
                false => token.content.clone(),
            },
            ..token.added()
        });
        Finder::new(added.collect())
    };
    Ok((finder(false)?, finder(true)?))
}
