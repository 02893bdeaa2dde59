//! Reads the post-processors and the decoders in a `tokenizer.json`. A post-processor adds tokens before and
//! after a text.

use super::cuts;
use super::reader::{Pattern, Reader, is_space};
use crate::error::TokenizerError;
use crate::tokenizer::ends::Special;
use crate::tokenizer::stream::Form;
use serde::Deserialize;
use std::collections::HashMap;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;

/// Maximum number of tokens that post-processors add to a text.
const MAX_ADDED: usize = 64;

/// A post-processor, which adds tokens before and after a text.
#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum PostProcessor {
    Sequence {
        processors: Vec<PostProcessor>,
    },
    TemplateProcessing {
        single: Vec<Slot>,
        special_tokens: HashMap<String, Ids>,
    },
    /// A post-processor that changes only offsets, which Ragtag does not use.
    ByteLevel,
}

#[derive(Deserialize)]
pub(super) enum Slot {
    SpecialToken { id: String },
    Sequence {},
}

#[derive(Deserialize)]
pub(super) struct Ids {
    ids: Vec<u32>,
}

/// Returns the tokens that the post-processors add before and after a text.
pub(super) fn special(
    reader: &Reader<'_>,
    processor: Option<&PostProcessor>,
) -> Result<Special, TokenizerError> {
    let mut special = Special::default();
    if let Some(processor) = processor {
        apply(reader, processor, &mut special)?;
    }
    Ok(special)
}

fn apply(
    reader: &Reader<'_>,
    processor: &PostProcessor,
    special: &mut Special,
) -> Result<(), TokenizerError> {
    match processor {
        PostProcessor::ByteLevel => Ok(()),
        PostProcessor::Sequence { processors } => {
            processors.iter().try_for_each(|processor| apply(reader, processor, special))
        }
        PostProcessor::TemplateProcessing { single, special_tokens } => {
            let (mut before, mut behind, mut texts) = (Vec::new(), Vec::new(), 0);
            for slot in single {
                match slot {
                    Slot::Sequence {} => texts += 1,
                    Slot::SpecialToken { id } => {
                        let ids = special_tokens.get(id);
                        let ids = ids.ok_or_else(|| reader.wrong("has a template with an unknown token"))?;
                        if texts == 0 { &mut before } else { &mut behind }.extend(&ids.ids);
                    }
                }
            }
            // The tokens of a later processor enclose those of earlier processors.
            before.append(&mut special.before);
            special.before = before;
            special.behind.append(&mut behind);
            match texts {
                1 if special.before.len() + special.behind.len() <= MAX_ADDED => Ok(()),
                1 => Err(reader.unsupported(format!("a template of more than {MAX_ADDED} tokens"))),
                _ => Err(reader.unsupported(format!("a template with {texts} texts"))),
            }
        }
    }
}

/// A decoder, which converts tokens to text.
#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum Decoder {
    Sequence {
        decoders: Vec<Decoder>,
    },
    ByteLevel,
    ByteFallback,
    Fuse,
    Replace {
        pattern: Pattern,
        content: String,
    },
    Strip {
        content: String,
        start: usize,
        stop: usize,
    },
    Metaspace {
        replacement: String,
        #[serde(default)]
        prepend_scheme: Option<PrependScheme>,
        #[serde(default)]
        add_prefix_space: Option<bool>,
    },
}

/// Combined effect of all decoders in the document.
#[derive(Debug, Default)]
pub(super) struct Decoding {
    /// Whether token texts use the characters that represent bytes in byte-level vocabularies.
    letters: bool,
    /// Whether decoding replaces `▁` with a space.
    spaces: bool,
    /// Whether decoding converts a token such as `<0x41>` to a byte.
    bytes: bool,
    /// Whether decoding removes the space at the start of a text.
    pub(super) strip_space: bool,
}

impl Decoding {
    pub(super) fn of(reader: &Reader<'_>, decoder: Option<&Decoder>) -> Result<Self, TokenizerError> {
        let mut decoding = Decoding::default();
        let decoder = decoder.ok_or_else(|| reader.unsupported("a tokenizer without a decoder"))?;
        decoding.add(reader, decoder)?;
        match decoding {
            Decoding { letters: true, spaces, bytes, .. } if spaces || bytes => {
                Err(reader.unsupported("a byte-level decoder combined with others"))
            }
            decoding => Ok(decoding),
        }
    }

    fn add(&mut self, reader: &Reader<'_>, decoder: &Decoder) -> Result<(), TokenizerError> {
        match decoder {
            Decoder::Sequence { decoders } => {
                return decoders.iter().try_for_each(|decoder| self.add(reader, decoder));
            }
            Decoder::ByteLevel => self.letters = true,
            Decoder::ByteFallback => self.bytes = true,
            Decoder::Fuse => {}
            Decoder::Replace { pattern: Pattern::String(from), content }
                if is_space(from) && content == " " =>
            {
                self.spaces = true;
            }
            Decoder::Strip { content, start: start @ (0 | 1), stop: 0 } if content == " " => {
                self.strip_space |= *start == 1;
            }
            Decoder::Metaspace { replacement, prepend_scheme, add_prefix_space } if is_space(replacement) => {
                self.spaces = true;
                self.strip_space |= cuts::scheme(*prepend_scheme, *add_prefix_space) != PrependScheme::Never;
            }
            Decoder::Replace { .. } => return Err(reader.unsupported("a decoder that replaces other than ▁")),
            Decoder::Strip { .. } => {
                return Err(reader.unsupported("a decoder that strips other than a space"));
            }
            Decoder::Metaspace { .. } => {
                return Err(reader.unsupported("a decoder that does not use ▁ for the space"));
            }
        }
        Ok(())
    }

    /// Returns what a token with the text `text` decodes to.
    pub(super) fn form(&self, text: &str) -> Form {
        if self.letters {
            return Form::Letters;
        }
        let byte = || {
            let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
            let hexadecimal = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
            u8::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)
        };
        match byte().filter(|_| self.bytes) {
            Some(byte) => Form::Byte(byte),
            None if self.spaces => Form::Spaced,
            None => Form::Plain,
        }
    }
}
