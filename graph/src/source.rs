//! Where the bytes of a model come from: a mapped file in the root package, or memory.
//!
//! This module must not know any file system.

use crate::error::SourceError;
use std::borrow::Cow;
use std::ops::Range;

/// Bytes by range.
pub trait Source: Send + Sync {
    /// How messages name it; for a file its path.
    fn name(&self) -> &str;

    /// Bytes in all, as they were when it was opened.
    fn bytes(&self) -> u64;

    /// The bytes of `range`, without a copy.
    ///
    /// # Errors
    /// The range lies outside, or the source has shrunk since it was opened.
    fn range(&self, range: Range<u64>) -> Result<&[u8], SourceError>;
}

/// A model held in memory: embedded in the binary, or made by a test.
#[derive(Clone, Debug)]
pub struct MemorySource {
    name: String,
    bytes: Cow<'static, [u8]>,
}

impl MemorySource {
    /// A source of these bytes.
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

    fn range(&self, range: Range<u64>) -> Result<&[u8], SourceError> {
        let outside = || SourceError::OutOfRange {
            name: self.name.clone(),
            start: range.start,
            end: range.end,
            bytes: self.bytes.len() as u64,
        };
        let start = usize::try_from(range.start).map_err(|_| outside())?;
        let end = usize::try_from(range.end).map_err(|_| outside())?;
        self.bytes.get(start..end).ok_or_else(outside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        let source = MemorySource::new("m", vec![1, 2, 3]);
        assert_eq!(source.range(1..3), Ok(&[2, 3][..]));
        assert_eq!(source.range(3..3), Ok(&[][..]));
        #[allow(clippy::reversed_empty_ranges)] // what a careless caller may pass
        for bad in [0..4, 4..4, 2..1, u64::MAX - 1..u64::MAX] {
            let error = source.range(bad.clone()).unwrap_err();
            assert!(matches!(error, SourceError::OutOfRange { start, .. } if start == bad.start), "{error}");
        }
    }
}
