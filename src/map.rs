//! Memory-mapped files as [`Source`]s. Reading a tensor accesses the page cache directly, without a copy.
//!
//! This module contains `unsafe` code, because a mapping is sound only as long as no process changes the
//! file.

use ragtag_graph::{Source, SourceError};
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// A file that is mapped into memory.
#[derive(Debug)]
pub(crate) struct MappedFile {
    name: String,
    file: File,
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps the file at `path` for reading.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, or is a directory.
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(std::io::Error::new(std::io::ErrorKind::IsADirectory, "is a directory"));
        }
        // SAFETY: the map is only read. Before each use, `range` checks that no other process has shrunk the
        // file. If another process rewrites the file in place, reads return other numbers but never values of
        // other types.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { name: path.display().to_string(), file, map })
    }
}

impl Source for MappedFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    fn range(&self, range: Range<u64>) -> Result<&[u8], SourceError> {
        let mapped = self.bytes();
        let now = self.file.metadata().map_or(0, |m| m.len());
        if now < mapped {
            return Err(SourceError::Shrank { name: self.name.clone(), had: mapped, has: now });
        }
        let outside = || SourceError::OutOfRange {
            name: self.name.clone(),
            start: range.start,
            end: range.end,
            bytes: mapped,
        };
        let start = usize::try_from(range.start).map_err(|_| outside())?;
        let end = usize::try_from(range.end).map_err(|_| outside())?;
        self.map.get(start..end).ok_or_else(outside)
    }
}
