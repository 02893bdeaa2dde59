//! Reads SentencePiece's `ModelProto` from an untrusted protocol buffer.
//!
//! Field numbers follow `sentencepiece_model.proto`. The reader skips unknown fields, as the protocol buffer
//! format requires.

use super::vocabulary::{self, Token};
use crate::error::{FormatError, Quoted, TokenizerError};

/// The parsed model. Missing fields have the defaults that `sentencepiece_model.proto` defines.
#[derive(Debug)]
pub(super) struct ModelProto<'a> {
    pieces: Vec<Piece<'a>>,
    pub(super) model_type: u64,
    pub(super) spaces_as_suffix: bool,
    pub(super) bos: i32,
    pub(super) eos: i32,
    pub(super) character_map: &'a [u8],
    pub(super) add_dummy_prefix: bool,
    pub(super) remove_extra_whitespaces: bool,
    pub(super) escape_whitespaces: bool,
}

#[derive(Debug)]
struct Piece<'a> {
    text: &'a str,
    score: f32,
    kind: i32,
}

impl<'a> ModelProto<'a> {
    /// Value of `model_type` for Unigram, the default.
    pub(super) const UNIGRAM: u64 = 1;
    /// Value of `model_type` for byte-pair encoding.
    pub(super) const BPE: u64 = 2;

    /// Parses `bytes`, the contents of `file`.
    pub(super) fn parse(file: &'a str, bytes: &'a [u8]) -> Result<Self, FormatError> {
        let mut model = ModelProto {
            pieces: Vec::new(),
            model_type: Self::UNIGRAM,
            spaces_as_suffix: false,
            bos: 1,
            eos: 2,
            character_map: &[],
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        };
        let mut message = Message { file, base: 0, bytes, next: 0 };
        while let Some((field, value)) = message.field()? {
            match field {
                1 => model.pieces.push(piece(message.nested(value)?)?),
                2 => model.trainer(message.nested(value)?)?,
                3 => model.normaliser(message.nested(value)?)?,
                _ => {}
            }
        }
        Ok(model)
    }

    fn trainer(&mut self, mut message: Message<'a>) -> Result<(), FormatError> {
        while let Some((field, value)) = message.field()? {
            match field {
                3 => self.model_type = message.number(value)?,
                24 => self.spaces_as_suffix = message.number(value)? != 0,
                // The format stores negative numbers in 64 bits. Truncation drops only copies of the sign
                // bit.
                41 => self.bos = message.number(value)? as i32,
                42 => self.eos = message.number(value)? as i32,
                _ => {}
            }
        }
        Ok(())
    }

    fn normaliser(&mut self, mut message: Message<'a>) -> Result<(), FormatError> {
        while let Some((field, value)) = message.field()? {
            match field {
                2 => self.character_map = message.bytes(value)?,
                3 => self.add_dummy_prefix = message.number(value)? != 0,
                4 => self.remove_extra_whitespaces = message.number(value)? != 0,
                5 => self.escape_whitespaces = message.number(value)? != 0,
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the tokens of the vocabulary, in the order of their ids.
    pub(super) fn tokens(&self, file: &str) -> Result<Vec<Token<'a>>, TokenizerError> {
        let token = |(id, piece): (usize, &Piece<'a>)| {
            vocabulary::token(file, id, piece.text, piece.score, piece.kind)
        };
        self.pieces.iter().enumerate().map(token).collect()
    }
}

fn piece(mut message: Message<'_>) -> Result<Piece<'_>, FormatError> {
    let mut piece = Piece { text: "", score: 0.0, kind: 1 };
    while let Some((field, value)) = message.field()? {
        match field {
            1 => {
                let bytes = message.bytes(value)?;
                piece.text = std::str::from_utf8(bytes).map_err(|_| message.wrong("a piece is not UTF-8"))?;
            }
            2 => piece.score = message.float(value)?,
            3 => piece.kind = i32::try_from(message.number(value)?).unwrap_or(-1),
            _ => {}
        }
    }
    Ok(piece)
}

/// Value of a field. Each variant is one wire type of the protocol buffer format.
#[derive(Clone, Copy)]
enum Value<'a> {
    Number(u64),
    Fixed64,
    /// Position of the bytes in the file, and the bytes.
    Bytes(u64, &'a [u8]),
    Fixed32([u8; 4]),
}

/// Cursor over the fields of one message.
struct Message<'a> {
    file: &'a str,
    /// Position of `bytes` in the file.
    base: u64,
    bytes: &'a [u8],
    next: usize,
}

impl<'a> Message<'a> {
    fn wrong(&self, cause: &str) -> FormatError {
        FormatError::Invalid {
            file: self.file.to_owned(),
            at: self.base + self.next as u64,
            what: "the SentencePiece model".to_owned(),
            cause: Quoted(cause).to_string(),
        }
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], FormatError> {
        let end = usize::try_from(count).ok().and_then(|count| self.next.checked_add(count));
        let Some((end, taken)) = end.and_then(|end| Some((end, self.bytes.get(self.next..end)?))) else {
            return Err(FormatError::Truncated {
                file: self.file.to_owned(),
                what: "a field of the SentencePiece model".to_owned(),
                at: self.base + self.next as u64,
                wanted: count,
                bytes: self.base + self.bytes.len() as u64,
            });
        };
        self.next = end;
        Ok(taken)
    }

    /// Reads a varint: seven bits per byte, lowest bits first.
    fn varint(&mut self) -> Result<u64, FormatError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(self.wrong("a number has more than ten bytes"))
    }

    /// Reads the number and the value of the next field. Returns `None` at the end of the message.
    fn field(&mut self) -> Result<Option<(u64, Value<'a>)>, FormatError> {
        if self.next >= self.bytes.len() {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let length = self.varint()?;
                let at = self.base + self.next as u64;
                Value::Bytes(at, self.take(length)?)
            }
            5 => {
                let mut four = [0; 4];
                four.copy_from_slice(self.take(4)?);
                Value::Fixed32(four)
            }
            _ => return Err(self.wrong("is malformed: a field has an unknown wire type")),
        };
        match key >> 3 {
            0 => Err(self.wrong("is malformed: a field has the number 0")),
            field => Ok(Some((field, value))),
        }
    }

    fn number(&self, value: Value<'a>) -> Result<u64, FormatError> {
        match value {
            Value::Number(number) => Ok(number),
            _ => Err(self.wrong("a field that should be a number is something else")),
        }
    }

    fn float(&self, value: Value<'a>) -> Result<f32, FormatError> {
        match value {
            Value::Fixed32(bytes) => Ok(f32::from_le_bytes(bytes)),
            _ => Err(self.wrong("a score is not a number of four bytes")),
        }
    }

    fn bytes(&self, value: Value<'a>) -> Result<&'a [u8], FormatError> {
        match value {
            Value::Bytes(_, bytes) => Ok(bytes),
            _ => Err(self.wrong("a field that should be text is something else")),
        }
    }

    fn nested(&self, value: Value<'a>) -> Result<Message<'a>, FormatError> {
        match value {
            Value::Bytes(base, bytes) => Ok(Message { file: self.file, base, bytes, next: 0 }),
            _ => Err(self.wrong("a field that should be a message is something else")),
        }
    }
}
