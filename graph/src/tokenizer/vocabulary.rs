//! The vocabulary as the file's metadata tells it: texts, scores and kinds of tokens, checked.

use crate::error::{Quoted, TokenizerError};
use crate::gguf::Metadata;

/// SentencePiece's visible space.
pub(super) const SPACE: char = '▁';

/// What a token is, by the numbers of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A piece of text that merges make.
    Normal,
    /// Stands for text that nothing else expresses.
    Unknown,
    /// Means something to the model and has no text.
    Control,
    /// Text that is always one token, before any merge.
    UserDefined,
    /// Never made from text.
    Unused,
    /// One byte.
    Byte(u8),
}

/// A token of the vocabulary.
#[derive(Clone, Debug)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) score: f32,
    pub(super) kind: Kind,
}

/// Reads the tokens of a SentencePiece-style vocabulary.
pub(super) fn read(metadata: &Metadata) -> Result<Vec<Token<'_>>, TokenizerError> {
    let wrong = |cause: String| TokenizerError::Vocabulary { file: metadata.file().to_owned(), cause };
    let texts = metadata.list::<&str>("tokenizer.ggml.tokens")?;
    let mut scores = metadata.list::<f32>("tokenizer.ggml.scores")?;
    let mut types = metadata.list::<i32>("tokenizer.ggml.token_type")?;
    let counts = [texts.count_all(), scores.count_all(), types.count_all()];
    if counts.iter().any(|count| *count != counts[0]) {
        return Err(wrong(format!(
            "has {} tokens, {} scores and {} token types",
            counts[0], counts[1], counts[2]
        )));
    }
    let mut tokens = Vec::new();
    for (id, text) in texts.enumerate() {
        // The counts agree, so that there is a score and a type.
        let (text, score, kind) = (text?, scores.next().transpose()?, types.next().transpose()?);
        let score = score.unwrap_or(f32::NAN);
        if score.is_nan() {
            return Err(wrong(format!("gives token {id} ({}) no score", Quoted(text))));
        }
        let kind = kind_of(kind.unwrap_or_default(), text)
            .map_err(|cause| wrong(format!("has a token {id} ({}) {cause}", Quoted(text))))?;
        tokens.push(Token { text, score, kind });
    }
    // Byte tokens would express `▁` as well, but come back as `▁` and not as the space that it stands for.
    let space = SPACE.to_string();
    if !tokens
        .iter()
        .any(|token| matches!(token.kind, Kind::Normal | Kind::UserDefined) && token.text == space)
    {
        return Err(wrong(format!("has no token for the space ({SPACE})")));
    }
    Ok(tokens)
}

fn kind_of(number: i32, text: &str) -> Result<Kind, String> {
    match number {
        // 0 is "undefined": such tokens are plain text wherever they occur.
        0 | 1 => Ok(Kind::Normal),
        2 => Ok(Kind::Unknown),
        3 => Ok(Kind::Control),
        4 => Ok(Kind::UserDefined),
        5 => Ok(Kind::Unused),
        6 => text
            .strip_prefix("<0x")
            .and_then(|rest| rest.strip_suffix('>'))
            .filter(|digits| {
                digits.len() == 2 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F'))
            })
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .map(Kind::Byte)
            .ok_or_else(|| "that should be a byte such as <0x0A>".to_owned()),
        other => Err(format!("of the unknown type {other}")),
    }
}
