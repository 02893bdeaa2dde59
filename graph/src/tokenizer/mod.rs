//! Text to tokens and back, as the vocabulary in a model file says.
//!
//! Supported is SentencePiece-style byte-pair encoding with byte fallback (`tokenizer.ggml.model = llama`): spaces
//! become `▁`, neighbouring tokens are merged by score, characters outside of the vocabulary become byte tokens. The
//! merging is that of the `tokenizers` crate; see `merges` for how scores become its ranks.
//!
//! This module must not know any architecture.

mod merges;
mod special;
mod stream;
mod vocabulary;

#[cfg(test)]
mod tests;

pub use stream::TextStream;

use crate::error::TokenizerError;
use crate::gguf::Metadata;
use special::{Finder, Part};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use stream::Piece;
use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab};
use vocabulary::{Kind, SPACE, Token};

/// Where end tokens are named: end of text, of turn, of message.
const END_KEYS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// A model's tokenizer.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    merging: BPE,
    user_defined: Finder,
    control: Finder,
    pieces: Arc<[Piece]>,
    bos: Option<u32>,
    eos: BTreeSet<u32>,
    /// The end token that is added to a text, if any is.
    add_eos: Option<u32>,
    add_bos: bool,
    add_space_prefix: bool,
}

impl Tokenizer {
    /// The tokenizer of a model file.
    ///
    /// # Errors
    /// The file has no vocabulary, one of another kind (named), or one that breaks a rule.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
        let file = || metadata.file().to_owned();
        match metadata.get::<&str>("tokenizer.ggml.model")? {
            "llama" => {}
            other => {
                let model = crate::error::Quoted(other).to_string();
                return Err(TokenizerError::UnsupportedModel { file: file(), model });
            }
        }
        let wrong = |cause: String| TokenizerError::Vocabulary { file: file(), cause };
        let tokens = vocabulary::read(metadata)?;
        let id = |key: &str| match metadata.find::<u32>(key)? {
            Some(id) if usize::try_from(id).map_or(true, |id| id >= tokens.len()) => {
                Err(wrong(format!("has {} tokens, but {key} is {id}", tokens.len())))
            }
            id => Ok(id),
        };
        let flag = |key: &str, default: bool| {
            Ok::<_, TokenizerError>(metadata.find::<bool>(key)?.unwrap_or(default))
        };
        // Both are looked for in what they are compared with: user-defined tokens where spaces are already `▁`.
        let finder = |kind: Kind, text: &dyn Fn(&str) -> String| {
            let of_kind = (0u32..).zip(&tokens).filter(move |(_, token)| token.kind == kind);
            Finder::new(of_kind.map(|(id, token)| (id, text(token.text))))
                .map_err(|error| wrong(format!("has special tokens that cannot be searched for: {error}")))
        };
        let add_eos = flag("tokenizer.ggml.add_eos_token", false)?;
        Ok(Tokenizer {
            merging: merging(&tokens).map_err(wrong)?,
            user_defined: finder(Kind::UserDefined, &escape)?,
            control: finder(Kind::Control, &str::to_owned)?,
            pieces: tokens.iter().map(piece).collect(),
            bos: id("tokenizer.ggml.bos_token_id")?,
            eos: END_KEYS.iter().filter_map(|key| id(key).transpose()).collect::<Result<_, _>>()?,
            add_eos: if add_eos { id(END_KEYS[0])? } else { None },
            add_bos: flag("tokenizer.ggml.add_bos_token", true)?,
            add_space_prefix: flag("tokenizer.ggml.add_space_prefix", true)?,
        })
    }

    /// The tokens of a text. `add_special` adds begin and end tokens where the model wants them. What looks like a
    /// control token in the text is text.
    ///
    /// # Errors
    /// The vocabulary cannot express the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_parts(&[Part::Text(text)], add_special)
    }

    /// As [`Tokenizer::encode`], but control tokens in the text become what they name. Never for untrusted text.
    ///
    /// # Errors
    /// The vocabulary cannot express the text.
    pub fn encode_with_control(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_parts(&self.control.parts(text), add_special)
    }

    fn encode_parts(&self, parts: &[Part<'_>], add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        if add_special && self.add_bos {
            ids.extend(self.bos);
        }
        for part in parts {
            match part {
                // Text begins anew behind a control token, and takes a space again.
                Part::Text(text) => self.encode_text(text, &mut ids)?,
                Part::Token(id) => ids.push(*id),
            }
        }
        if add_special {
            ids.extend(self.add_eos);
        }
        Ok(ids)
    }

    fn encode_text(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        if text.is_empty() {
            return Ok(());
        }
        let mut escaped = escape(text);
        if self.add_space_prefix {
            escaped.insert(0, SPACE);
        }
        for part in self.user_defined.parts(&escaped) {
            match part {
                Part::Text(text) => {
                    let tokens = self
                        .merging
                        .tokenize(text)
                        .map_err(|e| TokenizerError::Text { cause: e.to_string() })?;
                    ids.extend(tokens.iter().map(|token| token.id));
                }
                Part::Token(id) => ids.push(id),
            }
        }
        Ok(())
    }

    /// The text of tokens; control tokens have none.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut stream = self.stream();
        let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// Decodes token by token. The stream starts at the beginning of a text, where the space that the tokenizer has
    /// added is taken off again: to continue a prompt, push the tokens of the prompt first.
    pub fn stream(&self) -> TextStream {
        TextStream::new(self.pieces.clone(), self.add_space_prefix)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The tokens that end a text, a turn or a message: generation stops at them.
    pub fn eos(&self) -> &BTreeSet<u32> {
        &self.eos
    }

    /// Number of tokens.
    pub fn vocabulary_size(&self) -> usize {
        self.pieces.len()
    }
}

fn escape(text: &str) -> String {
    text.replace(' ', SPACE.encode_utf8(&mut [0; 4]))
}

/// The merging, over normal tokens, bytes and the unknown token.
fn merging(tokens: &[Token<'_>]) -> Result<BPE, String> {
    let normal = merges::ids_by_text(tokens);
    let merges = merges::by_score(tokens, &normal)?;
    let mut bytes: HashMap<u8, u32> = HashMap::new();
    let mut unknown = None;
    for (id, token) in (0u32..).zip(tokens) {
        match token.kind {
            Kind::Byte(byte) => _ = bytes.entry(byte).or_insert(id),
            Kind::Unknown => _ = unknown.get_or_insert(id),
            _ => {}
        }
    }
    // With some bytes only, the fallback would depend on the character; such a vocabulary has none.
    let byte_fallback = bytes.len() == 256;
    let mut builder = BPE::builder().byte_fallback(byte_fallback).fuse_unk(true).cache_capacity(0);
    let mut vocabulary: Vocab = normal.iter().map(|(text, id)| ((*text).to_owned(), *id)).collect();
    // `tokenizers` finds bytes and the unknown token by text. A normal token with such a text would take their place.
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
        // No character of a text is ever this one.
        let text = "\0unknown";
        reserve(text.to_owned(), id)?;
        builder = builder.unk_token(text.to_owned());
    }
    builder.vocab_and_merges(vocabulary, merges).build().map_err(|e| format!("cannot be merged: {e}"))
}

/// What a token adds to a text.
fn piece(token: &Token<'_>) -> Piece {
    match token.kind {
        Kind::Byte(byte) => Piece::Byte(byte),
        Kind::Control => Piece::Silent,
        // SentencePiece's rendering.
        Kind::Unknown => Piece::Text(" \u{2047} ".into()),
        Kind::Normal | Kind::UserDefined | Kind::Unused => {
            Piece::Text(token.text.replace(SPACE, " ").into_boxed_str())
        }
    }
}
