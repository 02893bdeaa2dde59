//! Byte sources for model files, and directories of such sources. The root package implements a source that
//! reads a file.

use crate::error::{FormatError, SourceError};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Read-only bytes, such as those of a file, which callers read by range.
pub trait Source: Send + Sync {
    /// Returns the source's name for messages, such as the path of a file.
    fn name(&self) -> &str;

    /// Returns the size, in bytes, that the source had when it was opened.
    fn bytes(&self) -> u64;

    /// Copies bytes to `out`. The first one is the byte `start`.
    ///
    /// # Errors
    /// Fails if the range is outside the source, if the source has changed since it was opened, if the
    /// operating system cannot read the bytes, or if they cannot be converted.
    fn read(&self, start: u64, out: &mut [u8]) -> Result<(), SourceError>;

    /// Returns the bytes of `range`. Only a source in memory returns them without copying, so callers limit
    /// the range.
    ///
    /// # Errors
    /// Fails like [`Source::read`].
    fn range(&self, range: Range<u64>) -> Result<Cow<'_, [u8]>, SourceError> {
        let Range { start, end } = indices(self.name(), range.clone(), self.bytes())?;
        let mut out = vec![0; end - start];
        self.read(range.start, &mut out)?;
        Ok(out.into())
    }

    /// Returns the factor by which products with the weights in this source are multiplied. It is 1 for all
    /// sources except conversions whose blocks cannot hold the scale of their tensor.
    fn factor(&self) -> f32 {
        1.0
    }
}

/// Converts a range of a source with `bytes` bytes to indices.
fn indices(name: &str, Range { start, end }: Range<u64>, bytes: u64) -> Result<Range<usize>, SourceError> {
    match (usize::try_from(start), usize::try_from(end)) {
        (Ok(from), Ok(to)) if start <= end && end <= bytes => Ok(from..to),
        _ => Err(SourceError::OutOfRange { name: name.to_owned(), start, end, bytes }),
    }
}

/// Source over bytes in memory, for a model that is embedded in the binary or built by a test.
#[derive(Clone, Debug)]
pub struct MemorySource {
    name: String,
    bytes: Cow<'static, [u8]>,
}

impl MemorySource {
    /// Creates a source over `bytes`.
    pub fn new(name: impl Into<String>, bytes: impl Into<Cow<'static, [u8]>>) -> Self {
        MemorySource { name: name.into(), bytes: bytes.into() }
    }
}

impl Source for MemorySource {
    fn name(&self) -> &str {
        &self.name
    }

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, start: u64, out: &mut [u8]) -> Result<(), SourceError> {
        out.copy_from_slice(&self.range(start..start.saturating_add(out.len() as u64))?);
        Ok(())
    }

    fn range(&self, range: Range<u64>) -> Result<Cow<'_, [u8]>, SourceError> {
        Ok(self.bytes[indices(&self.name, range, self.bytes())?].into())
    }
}

/// Open files of a model directory, by name. [`checkpoint`](crate::checkpoint) lists the files to open.
#[derive(Clone, Default)]
pub struct Directory {
    name: String,
    files: BTreeMap<String, Arc<dyn Source>>,
}

impl Directory {
    /// Creates a directory without files. Error messages contain `name`, which is usually the path.
    pub fn new(name: impl Into<String>) -> Self {
        Directory { name: name.into(), files: BTreeMap::new() }
    }

    /// Adds a file under its name within the directory.
    pub fn insert(&mut self, name: impl Into<String>, source: Arc<dyn Source>) {
        self.files.insert(name.into(), source);
    }

    /// Returns the directory's name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file called `name`, if the directory contains it.
    pub fn file(&self, name: &str) -> Option<&Arc<dyn Source>> {
        self.files.get(name)
    }

    /// Returns the file called `name`.
    ///
    /// # Errors
    /// [`FormatError::MissingFile`] if the directory does not contain it.
    pub(crate) fn required(&self, name: &str) -> Result<&Arc<dyn Source>, FormatError> {
        self.file(name).ok_or_else(|| self.missing(name))
    }

    /// Returns the error for a missing file. `file` is its name, or several names if any one of them suffices.
    pub(crate) fn missing(&self, file: impl Into<String>) -> FormatError {
        FormatError::MissingFile { directory: self.name.clone(), file: file.into() }
    }

    /// Returns all files with their names, sorted by name.
    pub fn files(&self) -> impl Iterator<Item = (&str, &Arc<dyn Source>)> {
        self.files.iter().map(|(name, source)| (name.as_str(), source))
    }
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: Vec<&str> = self.files.keys().map(String::as_str).collect();
        f.debug_struct("Directory").field("name", &self.name).field("files", &files).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        let source = MemorySource::new("m", vec![1, 2, 3]);
        assert_eq!(source.range(1..3).unwrap(), [2, 3].as_slice());
        assert!(source.range(3..3).unwrap().is_empty());
        #[allow(clippy::reversed_empty_ranges)] // A careless caller may pass this.
        for bad in [0..4, 4..4, 2..1, u64::MAX - 1..u64::MAX] {
            let error = source.range(bad.clone()).unwrap_err();
            assert!(matches!(error, SourceError::OutOfRange { start, .. } if start == bad.start), "{error}");
        }
    }
}
