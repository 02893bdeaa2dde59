//! Cursor over the bytes of a GGUF file. It checks every length before use. It allocates nothing: all
//! returned values borrow from the source.

use super::types::ValueType;
use super::value::{Array, Value};
use crate::error::{FormatError, Quoted};
use std::fmt::Arguments;

/// Maximum nesting depth of arrays.
const MAX_NESTING: u32 = 4;

/// Reader for the values of a GGUF file, in file order.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    file: &'a str,
    /// Position of `bytes` in the file.
    base: u64,
    bytes: &'a [u8],
    next: usize,
}

impl<'a> Reader<'a> {
    /// Creates a reader for `bytes`, which start at byte `base` of `file`.
    pub(crate) fn new(file: &'a str, base: u64, bytes: &'a [u8]) -> Self {
        Reader { file, base, bytes, next: 0 }
    }

    /// Returns the name of the file.
    pub(crate) fn file(&self) -> &'a str {
        self.file
    }

    /// Returns the file position of the next byte.
    pub(crate) fn at(&self) -> u64 {
        self.base.saturating_add(self.next as u64)
    }

    /// Returns a [`FormatError::Invalid`] for the item at `at`.
    pub(crate) fn invalid(&self, at: u64, what: Arguments<'_>, cause: impl Into<String>) -> FormatError {
        FormatError::Invalid { file: self.file.to_owned(), at, what: what.to_string(), cause: cause.into() }
    }

    /// Returns the next `count` bytes and moves past them.
    pub(crate) fn take(&mut self, count: u64, what: Arguments<'_>) -> Result<&'a [u8], FormatError> {
        let taken = usize::try_from(count)
            .ok()
            .and_then(|count| self.next.checked_add(count))
            .and_then(|end| Some((end, self.bytes.get(self.next..end)?)));
        match taken {
            Some((end, bytes)) => {
                self.next = end;
                Ok(bytes)
            }
            None => Err(FormatError::Truncated {
                file: self.file.to_owned(),
                what: what.to_string(),
                at: self.at(),
                wanted: count,
                bytes: self.base.saturating_add(self.bytes.len() as u64),
            }),
        }
    }

    fn fixed<const N: usize>(&mut self, what: Arguments<'_>) -> Result<[u8; N], FormatError> {
        let mut value = [0; N];
        value.copy_from_slice(self.take(N as u64, what)?);
        Ok(value)
    }

    /// Reads the next four bytes as a little-endian number.
    pub(crate) fn u32(&mut self, what: Arguments<'_>) -> Result<u32, FormatError> {
        self.fixed(what).map(u32::from_le_bytes)
    }

    /// Reads the next eight bytes as a little-endian number.
    pub(crate) fn u64(&mut self, what: Arguments<'_>) -> Result<u64, FormatError> {
        self.fixed(what).map(u64::from_le_bytes)
    }

    /// Reads a string: an eight-byte length, followed by UTF-8.
    pub(crate) fn string(&mut self, what: Arguments<'_>) -> Result<&'a str, FormatError> {
        let bytes = self.u64(format_args!("the length of {what}"))?;
        let at = self.at();
        let text = self.take(bytes, what)?;
        std::str::from_utf8(text).map_err(|error| {
            self.invalid(at.saturating_add(error.valid_up_to() as u64), what, "is not UTF-8".to_owned())
        })
    }

    /// Reads the number of a value type and returns the type.
    pub(crate) fn value_type(&mut self, what: Arguments<'_>) -> Result<ValueType, FormatError> {
        let at = self.at();
        let id = self.u32(what)?;
        ValueType::from_gguf_id(id)
            .ok_or_else(|| self.invalid(at, what, format!("there is no value type {id}")))
    }

    /// Reads a metadata value of type `kind`. `label` is the key of the value, for messages.
    pub(crate) fn value(&mut self, kind: ValueType, label: &'a str) -> Result<Value<'a>, FormatError> {
        self.nested_value(kind, label, 0, format_args!("the value of metadata {}", Quoted(label)))
    }

    /// Reads a value that is nested in `nesting` arrays.
    pub(crate) fn nested_value(
        &mut self,
        kind: ValueType,
        label: &'a str,
        nesting: u32,
        what: Arguments<'_>,
    ) -> Result<Value<'a>, FormatError> {
        Ok(match kind {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.fixed(what)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.fixed(what)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.fixed(what)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.fixed(what)?)),
            ValueType::U32 => Value::U32(self.u32(what)?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.fixed(what)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.fixed(what)?)),
            ValueType::Bool => {
                let at = self.at();
                match self.fixed::<1>(what)? {
                    [0] => Value::Bool(false),
                    [1] => Value::Bool(true),
                    [other] => return Err(self.invalid(at, what, format!("a bool is 0 or 1, not {other}"))),
                }
            }
            ValueType::Str => Value::Str(self.string(what)?),
            ValueType::Array => Value::Array(self.array(label, nesting, what)?),
            ValueType::U64 => Value::U64(self.u64(what)?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.fixed(what)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.fixed(what)?)),
        })
    }

    /// Checks an array and all its elements. Returns an [`Array`] that reads the elements on demand.
    fn array(&mut self, label: &'a str, nesting: u32, what: Arguments<'_>) -> Result<Array<'a>, FormatError> {
        let start = self.at();
        if nesting >= MAX_NESTING {
            return Err(self.invalid(start, what, format!("arrays are nested deeper than {MAX_NESTING}")));
        }
        let element = self.value_type(format_args!("the element type of {what}"))?;
        let count = self.u64(format_args!("the count of {what}"))?;
        let (base, first) = (self.at(), self.next);
        match element.fixed_bytes() {
            // All byte patterns are valid numbers, so only the count needs a check.
            Some(bytes) if element != ValueType::Bool => {
                let all = count.checked_mul(bytes).ok_or_else(|| {
                    self.invalid(
                        start,
                        what,
                        format!("{count} elements of {bytes} bytes are more than a file can hold"),
                    )
                })?;
                self.take(all, format_args!("{count} elements of {what}"))?;
            }
            // Elements of the other types take at least one byte each, so the size of the file bounds this
            // loop.
            _ => {
                for number in 0..count {
                    let what = format_args!("element {number} of {count} of {what}");
                    self.nested_value(element, label, nesting + 1, what)?;
                }
            }
        }
        let elements = Reader::new(self.file, base, self.bytes.get(first..self.next).unwrap_or_default());
        Ok(Array { element, count, label, nesting: nesting + 1, elements })
    }
}
