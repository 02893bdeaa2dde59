//! Metadata of a model file. The values stay in the bytes of the header and are parsed on demand, because a
//! vocabulary can take megabytes.

use super::reader::Reader;
use super::types::ValueType;
use super::value::{Array, FromValue, List, Value};
use crate::error::{FormatError, Quoted};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Type and byte range of a metadata value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) kind: ValueType,
    pub(super) range: Range<u64>,
}

/// Metadata of a model file, or of the first file of a split model.
#[derive(Clone)]
pub struct Metadata {
    file: String,
    /// First bytes of the file. They contain all values.
    header: Arc<Vec<u8>>,
    entries: BTreeMap<String, Entry>,
}

impl Metadata {
    /// Creates the metadata of `file`. `header` starts with the first byte of the file and contains the ranges
    /// of all entries.
    pub(super) fn new(file: &str, header: Vec<u8>, entries: BTreeMap<String, Entry>) -> Self {
        Metadata { file: file.to_owned(), header: Arc::new(header), entries }
    }

    /// Returns the file's name.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the value of `key`, converted to `T`: `u32`, `u64`, `i32`, `f32`, `bool`, `&str` or [`Array`].
    ///
    /// # Errors
    /// Fails if the key is missing, or if the value has a different type or does not fit into `T`.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, FormatError> {
        self.find(key)?.ok_or_else(|| FormatError::MissingKey {
            file: self.file().to_owned(),
            key: Quoted(key).to_string(),
        })
    }

    /// Returns the value of `key`, converted to `T`, or `None` if the key is missing.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Metadata::get`], except that a missing key is not an error.
    pub fn find<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, FormatError> {
        find(&self.file, &self.header, &self.entries, key)
    }

    /// Returns an iterator over the array `key` that converts each element to `T`.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Metadata::get`]. If an element has a different type, the iterator
    /// returns an error.
    pub fn list<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<List<'a, T>, FormatError> {
        Ok(self.get::<Array<'a>>(key)?.list())
    }

    /// Returns all keys with their values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Result<Value<'_>, FormatError>)> {
        self.entries.iter().map(|(key, entry)| (key.as_str(), read(&self.file, &self.header, key, entry)))
    }
}

/// Returns the value of `key`, like [`Metadata::find`].
pub(super) fn find<'a, T: FromValue<'a>>(
    file: &'a str,
    header: &'a [u8],
    entries: &'a BTreeMap<String, Entry>,
    key: &str,
) -> Result<Option<T>, FormatError> {
    let Some((key, entry)) = entries.get_key_value(key) else { return Ok(None) };
    let value = read(file, header, key, entry)?;
    match T::from_value(value.clone()) {
        Some(value) => Ok(Some(value)),
        None => Err(FormatError::WrongType {
            file: file.to_owned(),
            key: Quoted(key).to_string(),
            expected: T::EXPECTED,
            found: value.to_string(),
        }),
    }
}

fn read<'a>(file: &'a str, header: &'a [u8], key: &'a str, entry: &Entry) -> Result<Value<'a>, FormatError> {
    let Range { start, end } = entry.range;
    Reader::new(file, start, &header[start as usize..end as usize]).value(entry.kind, key)
}

impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metadata").field("file", &self.file()).field("entries", &self.entries).finish()
    }
}
