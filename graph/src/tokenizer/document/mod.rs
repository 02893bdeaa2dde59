//! Reads `tokenizer.json`, the format of the `tokenizers` library. Checks every component before passing it
//! to the library.
//!
//! Supports byte-pair encoding with the normalizers, pre-tokenizers and decoders that supported models use.
//! Any other component is an error, because ignoring it could change the tokens of a text.

use super::normaliser::{Normaliser, TextChange};
use super::special::{Added, Finder};
use super::stream::Piece;
use super::vocabulary::SPACE;
use super::words::Words;
use super::{Tokenizer, byte_level, ends};
use crate::error::{Quoted, TokenizerError};
use crate::json;
use crate::source::Source;
use cuts::PreTokenizer;
use serde::Deserialize;
use std::collections::HashMap;
use tokenizers::models::bpe::{BPE, Vocab};

mod cuts;
mod frame;

/// Size limit of the file in bytes. The largest vocabularies take tens of megabytes.
const MOST_BYTES: u64 = 256 << 20;
/// Maximum number of normalizers. Each normalizer may lengthen a text up to fourfold.
const MOST_STEPS: usize = 4;
/// Maximum length, in bytes, of a text that a normalizer prepends.
const MOST_PREFIX_BYTES: usize = 16;

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
struct Document {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Normalizer>,
    pre_tokenizer: Option<PreTokenizer>,
    post_processor: Option<frame::PostProcessor>,
    decoder: Option<frame::Decoder>,
    model: Model,
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
    #[serde(rename = "NFC")]
    Nfc,
}

/// Pattern at which text is split, or whose matches are replaced.
#[derive(Deserialize)]
enum Pattern {
    String(String),
    Regex(String),
}

#[derive(Deserialize)]
struct Model {
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
    let head: Head = json::parse(source, MOST_BYTES)?;
    if let Some(other) = head.model.kind.filter(|kind| kind != "BPE") {
        return Err(reader.unsupported(format!("a tokenizer of type \"{}\"", Quoted(&other))));
    }
    let document: Document = json::parse(source, MOST_BYTES)?;
    let normaliser = normaliser(&reader, document.normalizer.as_ref())?;
    let decoding = frame::Decoding::of(&reader, document.decoder.as_ref())?;
    let pieces = pieces(&reader, &document, &decoding)?;
    let mut special = frame::special(&reader, document.post_processor.as_ref())?;
    let control = document.added_tokens.iter().filter(|token| token.special);
    special.ends_by_text = ends::by_text(control.map(|token| (token.id, token.content.as_str())));
    let (raw, normalised) = finders(&reader, &document.added_tokens, &normaliser)?;
    let mut ids = document.model.vocab.clone();
    ids.extend(document.added_tokens.iter().map(|token| (token.content.clone(), token.id)));
    let (first, later) = match &document.pre_tokenizer {
        Some(cuts) => cuts.build(&reader).map(|(first, later)| (Some(first), Some(later)))?,
        None => (None, None),
    };
    let tokenizer = Tokenizer {
        raw,
        normaliser,
        normalised,
        words: Words { first, later, merging: merging(&reader, &document)? },
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
            Normalizer::Prepend { prepend } if prepend.len() <= MOST_PREFIX_BYTES => {
                TextChange::Prepend(prepend.clone())
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
            Normalizer::Nfc => TextChange::Nfc,
        });
        if steps.len() > MOST_STEPS {
            return Err(reader.unsupported(format!("more than {MOST_STEPS} normalisers")));
        }
    }
    Ok(Normaliser { steps })
}

/// Returns the text or bytes that each token decodes to, by id. Rejects vocabularies in which most ids are
/// unused.
fn pieces(
    reader: &Reader<'_>,
    document: &Document,
    decoding: &frame::Decoding,
) -> Result<Vec<Piece>, TokenizerError> {
    let vocabulary = &document.model.vocab;
    let most = 2 * (vocabulary.len() + document.added_tokens.len());
    let mut pieces: Vec<Option<Piece>> = Vec::new();
    let mut place = |id: u32, text: &str| match usize::try_from(id) {
        Ok(place) if place < most => {
            pieces.resize(pieces.len().max(place + 1), None);
            Ok(place)
        }
        _ => Err(reader.wrong(format!("has the id {id} for \"{}\", but far fewer tokens", Quoted(text)))),
    };
    let places: Vec<(usize, &str)> = vocabulary
        .iter()
        .map(|(text, id)| Ok((place(*id, text)?, text.as_str())))
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
        let own = vocabulary.get(&token.content);
        if own.is_some_and(|id| *id != token.id) || own.is_none() && pieces[place].is_some() {
            let text = Quoted(&token.content);
            return Err(reader.wrong(format!("gives the id {place} to \"{text}\" and another")));
        }
        pieces[place] = Some(match token.special {
            true => Piece::Silent,
            false => Piece::Text(token.content.as_str().into()),
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

fn merging(reader: &Reader<'_>, document: &Document) -> Result<BPE, TokenizerError> {
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
    let merges = model.merges.iter().map(|merge| pair(reader, merge)).collect::<Result<_, _>>()?;
    builder
        .vocab_and_merges(vocabulary.into_iter().collect::<Vocab>(), merges)
        .build()
        .map_err(|error| reader.wrong(format!("has invalid merges: {}", Quoted(&error.to_string()))))
}

fn pair(reader: &Reader<'_>, merge: &Merge) -> Result<(String, String), TokenizerError> {
    let joined = match merge {
        Merge::Pair(left, right) => return Ok((left.clone(), right.clone())),
        Merge::Joined(text) => text,
    };
    match joined.split_once(' ').filter(|(_, right)| !right.contains(' ')) {
        Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
        None => Err(reader.wrong(format!("has the merge \"{}\", which is not two tokens", Quoted(joined)))),
    }
}

/// Returns whether the text is `▁`, which stands for a space in SentencePiece vocabularies.
fn is_space(text: &str) -> bool {
    text.chars().eq([SPACE])
}
