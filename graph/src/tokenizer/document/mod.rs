//! Reads `tokenizer.json`, the format of the `tokenizers` library. Checks every component before passing it
//! to the library.
//!
//! Supports byte-pair encoding and Unigram, with the normalizers, pre-tokenizers and decoders that supported
//! models use. Any other component is an error, because ignoring it could change the tokens of a text.

use super::character_map::CharacterMap;
use super::normaliser::{Normaliser, TextChange};
use super::special::{Added, Finder};
use super::stream::Piece;
use super::vocabulary::SPACE;
use super::words::{Algorithm, Words};
use super::{Tokenizer, ends};
use crate::error::{Quoted, TokenizerError};
use crate::json;
use crate::source::Source;
use cuts::PreTokenizer;
use merging::Merging;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::sync::Arc;
use unigram::Unigram;

mod cuts;
mod frame;
mod merging;
mod unigram;

/// Size limit of the file in bytes. The largest vocabularies take tens of megabytes.
const MAX_BYTES: u64 = 256 << 20;
/// Maximum number of normalizers. Each normalizer may lengthen a text up to fourfold.
const MAX_STEPS: usize = 4;
/// Maximum length, in bytes, of a text that a normalizer prepends.
const MAX_PREFIX_BYTES: usize = 16;

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

#[derive(Deserialize)]
struct Document<M> {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Normalizer>,
    pre_tokenizer: Option<PreTokenizer>,
    post_processor: Option<frame::PostProcessor>,
    decoder: Option<frame::Decoder>,
    model: M,
}

/// A model of the document, by type.
trait Model: DeserializeOwned {
    /// Returns the text and the id of each token.
    fn tokens(&self) -> Vec<(&str, u32)>;

    /// Builds the algorithm that splits words into tokens.
    fn build(reader: &Reader<'_>, document: &Document<Self>) -> Result<Algorithm, TokenizerError>;
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Normalizer {
    Sequence {
        normalizers: Vec<Normalizer>,
    },
    Prepend {
        prepend: String,
    },
    Replace {
        pattern: Pattern,
        content: String,
    },
    Strip {
        strip_left: bool,
        strip_right: bool,
    },
    Precompiled {
        precompiled_charsmap: String,
    },
    #[serde(rename = "NFC")]
    Nfc,
    #[serde(rename = "NFKC")]
    Nfkc,
}

/// Pattern at which text is split, or whose matches are replaced.
#[derive(Deserialize)]
enum Pattern {
    String(String),
    Regex(String),
}

/// Context for reading the document. It adds the file's name to errors.
struct Reader<'a> {
    file: &'a str,
}

impl Reader<'_> {
    fn wrong(&self, cause: impl Into<String>) -> TokenizerError {
        TokenizerError::Vocabulary { file: self.file.to_owned(), cause: cause.into() }
    }

    fn unsupported(&self, what: impl Into<String>) -> TokenizerError {
        TokenizerError::Unsupported { file: self.file.to_owned(), what: what.into() }
    }
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

fn normaliser(reader: &Reader<'_>, normalizer: Option<&Normalizer>) -> Result<Normaliser, TokenizerError> {
    let mut steps = Vec::new();
    let mut left: Vec<&Normalizer> = normalizer.into_iter().collect();
    while let Some(next) = left.pop() {
        steps.push(match next {
            Normalizer::Sequence { normalizers } => {
                left.extend(normalizers.iter().rev());
                continue;
            }
            Normalizer::Prepend { prepend } if prepend.len() <= MAX_PREFIX_BYTES => {
                TextChange::Prepend(prepend.clone())
            }
            Normalizer::Replace { pattern: Pattern::Regex(from), content: to }
                if from == " {2,}" && to.len() <= 8 =>
            {
                TextChange::Runs(to.clone())
            }
            Normalizer::Replace { pattern: Pattern::String(from), content: to }
                if !from.is_empty() && to.len() <= 4 * from.len() =>
            {
                TextChange::Replace(from.clone(), to.clone())
            }
            Normalizer::Prepend { .. } => {
                return Err(reader.unsupported("a normalizer that prepends a long text"));
            }
            Normalizer::Replace { .. } => {
                return Err(
                    reader.unsupported("a normalizer that replaces by expressions or by much longer texts")
                );
            }
            Normalizer::Strip { strip_left, strip_right } => {
                TextChange::Strip { left: *strip_left, right: *strip_right }
            }
            Normalizer::Precompiled { precompiled_charsmap } => {
                let bytes = base64::decode(precompiled_charsmap).map_err(|error| error.to_string());
                let map = bytes.and_then(|bytes| CharacterMap::parse(&bytes));
                let wrong = |cause| reader.wrong(format!("has a character map: {cause}"));
                TextChange::MapByCluster(Arc::new(map.map_err(wrong)?))
            }
            Normalizer::Nfc => TextChange::Nfc,
            Normalizer::Nfkc => TextChange::Nfkc,
        });
        if steps.len() > MAX_STEPS {
            return Err(reader.unsupported(format!("more than {MAX_STEPS} normalisers")));
        }
    }
    Ok(Normaliser { steps })
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
        Finder::new(added.collect())
            .map_err(|error| reader.wrong(format!("has added tokens that cannot be searched for: {error}")))
    };
    Ok((finder(false)?, finder(true)?))
}

/// Returns whether the text is `▁`, which stands for a space in SentencePiece vocabularies.
fn is_space(text: &str) -> bool {
    text.chars().eq([SPACE])
}
