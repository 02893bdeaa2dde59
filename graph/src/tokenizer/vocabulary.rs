//! Reads and checks the vocabulary in the metadata of a GGUF file.

use super::ends::{self, Special};
use crate::error::{Quoted, TokenizerError};
use crate::gguf::{Array, Metadata};
use std::collections::BTreeSet;

/// Character that stands for a space in SentencePiece vocabularies.
pub(super) const SPACE: char = '▁';

/// Kind of a token, as in `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Token that merges produce.
    Normal,
    /// Token for text that no other token can represent.
    Unknown,
    /// Token that has a meaning for the model but no text.
    Control,
    /// Token that always replaces its text, before any merge.
    UserDefined,
    /// Token that encoding never produces.
    Unused,
    /// Token for a single byte.
    Byte(u8),
}

/// A token of the vocabulary.
#[derive(Clone, Debug)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) score: f32,
    pub(super) kind: Kind,
}

/// Metadata keys of the tokens that end a text, a turn, a message, and a completion of code.
const END_KEYS: [&str; 6] = [
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";

/// Reads the tokens of a SentencePiece-style vocabulary.
pub(super) fn read(metadata: &Metadata) -> Result<Vec<Token<'_>>, TokenizerError> {
    let texts = metadata.list::<&str>(TOKENS)?;
    let mut scores = metadata.list::<f32>(SCORES)?;
    let mut types = metadata.list::<i32>(TYPES)?;
    let counts = [texts.count_all(), scores.count_all(), types.count_all()];
    if counts.iter().any(|count| *count != counts[0]) {
        let cause = format!("has {} tokens, {} scores and {} token types", counts[0], counts[1], counts[2]);
        return Err(TokenizerError::Vocabulary { file: metadata.file().to_owned(), cause });
    }
    let mut tokens = Vec::new();
    for (id, text) in texts.enumerate() {
        // The three lists have the same length, so every token has a score and a type.
        let (text, score, kind) = (text?, scores.next().transpose()?, types.next().transpose()?);
        let score = score.unwrap_or(f32::NAN);
        tokens.push(token(metadata.file(), id, text, score, kind.unwrap_or_default())?);
    }
    check(metadata.file(), &tokens)?;
    settle_kinds(&mut tokens, |_| Ok(false))?;
    Ok(tokens)
}

/// Reads the tokens of a vocabulary that has merges instead of scores. If the file has no token types, all
/// tokens are normal.
pub(super) fn read_unscored(metadata: &Metadata) -> Result<Vec<Token<'_>>, TokenizerError> {
    let texts = metadata.list::<&str>(TOKENS)?;
    let mut types = metadata.find::<Array<'_>>(TYPES)?.map(Array::list::<i32>);
    if let Some(types) = types.as_ref().filter(|types| types.count_all() != texts.count_all()) {
        let cause = format!("has {} tokens and {} token types", texts.count_all(), types.count_all());
        return Err(TokenizerError::Vocabulary { file: metadata.file().to_owned(), cause });
    }
    let mut tokens = Vec::new();
    for (id, text) in texts.enumerate() {
        let kind = types.as_mut().and_then(Iterator::next).transpose()?;
        tokens.push(token(metadata.file(), id, text?, 0.0, kind.unwrap_or_default())?);
    }
    // A token that merges produce is ordinary text, such as `</s>` in the vocabulary of Qwen 2.
    settle_kinds(&mut tokens, |text| {
        let merges = metadata.find::<Array<'_>>("tokenizer.ggml.merges")?.map(Array::list::<&str>);
        for merge in merges.into_iter().flatten() {
            let merge = merge?;
            if merge.len() == text.len() + 1
                && merge.split_once(' ').is_some_and(|(a, b)| text.strip_prefix(a) == Some(b))
            {
                return Ok(true);
            }
        }
        Ok(false)
    })?;
    Ok(tokens)
}

/// Makes control tokens of normal and user-defined tokens whose texts are those of control tokens.
/// `is_ordinary` returns whether a normal token stands for ordinary text.
pub(super) fn settle_kinds(
    tokens: &mut [Token<'_>],
    is_ordinary: impl Fn(&str) -> Result<bool, TokenizerError>,
) -> Result<(), TokenizerError> {
    for (at, text) in ends::control_names(tokens.iter().map(|token| token.text)) {
        let kind = &mut tokens[at].kind;
        if *kind == Kind::UserDefined || *kind == Kind::Normal && !is_ordinary(text)? {
            *kind = Kind::Control;
        }
    }
    Ok(())
}

/// Creates a token after checking its score and its type number.
pub(super) fn token<'a>(
    file: &str,
    id: usize,
    text: &'a str,
    score: f32,
    kind: i32,
) -> Result<Token<'a>, TokenizerError> {
    let wrong = |cause: String| TokenizerError::Vocabulary { file: file.to_owned(), cause };
    if score.is_nan() {
        return Err(wrong(format!("has no score for token {id} ({})", Quoted(text))));
    }
    let kind =
        kind_of(kind, text).map_err(|cause| wrong(format!("has a token {id} ({}) {cause}", Quoted(text))))?;
    Ok(Token { text, score, kind })
}

/// Checks that `▁` has a token. Byte tokens could also represent `▁`, but they would decode to `▁` instead of
/// a space.
pub(super) fn check(file: &str, tokens: &[Token<'_>]) -> Result<(), TokenizerError> {
    let space = SPACE.to_string();
    let is_space =
        |token: &Token<'_>| matches!(token.kind, Kind::Normal | Kind::UserDefined) && token.text == space;
    if tokens.iter().any(is_space) {
        return Ok(());
    }
    let cause = format!("has no token for the space ({SPACE})");
    Err(TokenizerError::Vocabulary { file: file.to_owned(), cause })
}

/// Returns the tokens that mark the beginning and the end of a text. Control tokens whose texts are those of
/// end tokens are also end tokens. An id outside the vocabulary `tokens` counts as missing. `add_bos` and `add_eos`
/// are the defaults for the keys `add_bos_token` and `add_eos_token`.
pub(super) fn special(
    metadata: &Metadata,
    tokens: &[Token<'_>],
    add_bos: bool,
    add_eos: bool,
) -> Result<Special, TokenizerError> {
    let (bos, eos) =
        (id(metadata, tokens, "tokenizer.ggml.bos_token_id")?, id(metadata, tokens, END_KEYS[0])?);
    let add_bos = metadata.find("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos);
    let add_eos = metadata.find("tokenizer.ggml.add_eos_token")?.unwrap_or(add_eos);
    let mut ends = BTreeSet::from_iter(eos);
    for key in &END_KEYS[1..] {
        ends.extend(id(metadata, tokens, key)?);
    }
    let (by_text, within) = ends::by_text(control(tokens));
    ends.extend(by_text);
    ends.retain(|id| !within.contains(id));
    Ok(Special {
        bos,
        ends,
        ends_by_text: Vec::new(),
        before: bos.into_iter().filter(|_| add_bos).collect(),
        behind: eos.into_iter().filter(|_| add_eos).collect(),
    })
}

/// Returns the token whose id is under `key`. Warns if no token has this id. Converters write -1 for "none".
pub(super) fn id(
    metadata: &Metadata,
    tokens: &[Token<'_>],
    key: &str,
) -> Result<Option<u32>, TokenizerError> {
    let Some(id) = metadata.find::<i128>(key)? else { return Ok(None) };
    let token = u32::try_from(id).ok().filter(|id| (*id as usize) < tokens.len());
    if token.is_none() {
        ends::warn_of_id(metadata.file(), key, id, tokens.len());
    }
    Ok(token)
}

/// Returns the tokens that text may become without merging: their ids, and whether only trusted text does.
pub(super) fn added<'t, 'a>(tokens: &'t [Token<'a>]) -> impl Iterator<Item = (u32, &'t Token<'a>, bool)> {
    (0..).zip(tokens).filter_map(|(id, token)| match token.kind {
        Kind::Control | Kind::Unknown => Some((id, token, true)),
        Kind::UserDefined => Some((id, token, false)),
        Kind::Normal | Kind::Unused | Kind::Byte(_) => None,
    })
}

/// Returns the tokens that merges may produce.
pub(super) fn mergeable(tokens: &[Token<'_>]) -> impl Iterator<Item = u32> {
    let kinds = (0..).zip(tokens).filter(|(_, token)| matches!(token.kind, Kind::Normal | Kind::UserDefined));
    kinds.map(|(id, _)| id)
}

/// Returns the ids and the texts of the control tokens.
pub(super) fn control<'a>(tokens: &'a [Token<'_>]) -> impl Iterator<Item = (u32, &'a str)> {
    (0..).zip(tokens).filter(|(_, token)| token.kind == Kind::Control).map(|(id, token)| (id, token.text))
}

fn kind_of(number: i32, text: &str) -> Result<Kind, String> {
    match number {
        // 0 means "undefined". Such tokens are treated as normal tokens.
        0 | 1 => Ok(Kind::Normal),
        2 => Ok(Kind::Unknown),
        3 => Ok(Kind::Control),
        4 => Ok(Kind::UserDefined),
        5 => Ok(Kind::Unused),
        6 => byte(text).map(Kind::Byte).ok_or_else(|| "that should be a byte such as <0x0A>".to_owned()),
        other => Err(format!("of the unknown type {other}")),
    }
}

/// Returns the byte that a token with the text `text` stands for. `<0x0A>` stands for a line feed.
pub(super) fn byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_digit = |b: u8| matches!(b, b'0'..=b'9' | b'A'..=b'F');
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2 && digits.bytes().all(is_digit))
}
