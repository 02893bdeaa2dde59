//! Cursor over the bytes of a GGUF file. It checks every length before use. It allocates nothing: all
//! returned values borrow from these bytes.

use super::types::ValueType;
use crate::error::FormatError;
use std::fmt::Arguments;

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

    pub(super) fn fixed<const N: usize>(&mut self, what: Arguments<'_>) -> Result<[u8; N], FormatError> {
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
}
