//! Memory-mapped files as [`Source`]s. Loading weights copies each byte once, so it reads the file instead of
//! the mapping: the faults that map the pages take longer than the copy.
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

    #[cfg(unix)]
    fn read(&self, start: u64, out: &mut [u8]) -> Result<(), SourceError> {
        use std::os::unix::fs::FileExt;
        self.file.read_exact_at(out, start).or_else(|cause| {
            // Reports a range outside the file, and a file that has shrunk.
            self.range(start..start.saturating_add(out.len() as u64))?;
            Err(SourceError::Unreadable { name: self.name.clone(), cause: cause.to_string() })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn reads_copy_what_the_mapping_shows_and_report_a_shrunk_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        let mapped = MappedFile::open(file.path()).unwrap();
        for (start, end) in [(0, 10_000), (4095, 4098), (9_999, 10_000), (10_000, 10_000)] {
            let mut out = vec![0xff; end - start];
            mapped.read(start as u64, &mut out).unwrap();
            assert_eq!(out, bytes[start..end]);
            assert_eq!(out, mapped.range(start as u64..end as u64).unwrap());
        }
        let outside = mapped.read(9_999, &mut [0; 2]);
        assert!(matches!(outside, Err(SourceError::OutOfRange { end: 10_001, .. })), "{outside:?}");
        file.as_file().set_len(5_000).unwrap();
        let shrunk = mapped.read(4_999, &mut [0; 2]);
        assert!(matches!(shrunk, Err(SourceError::Shrank { has: 5_000, .. })), "{shrunk:?}");
    }
}
