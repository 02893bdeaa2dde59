//! Model files as [`Source`]s. Reads copy the bytes. A mapping would end the process with SIGBUS if another
//! process truncated the file, or if the file's network share went away.

use ragtag_graph::{Source, SourceError};
use std::fs::{File, Metadata};
use std::path::Path;
use std::time::SystemTime;

/// An open file. Its bytes stay the same if the file is replaced, renamed or deleted. If another process
/// changes them in place, reads fail.
#[derive(Debug)]
pub(crate) struct FileSource {
    name: String,
    file: File,
    bytes: u64,
    /// Time of the last change before the file was opened. `None` if the file system records none.
    modified: Option<SystemTime>,
}

impl FileSource {
    /// Opens the file at `path` for reading.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, or is a directory.
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(std::io::Error::new(std::io::ErrorKind::IsADirectory, "is a directory"));
        }
        let (bytes, modified) = (metadata.len(), metadata.modified().ok());
        Ok(Self { name: path.display().to_string(), file, bytes, modified })
    }

    /// Checks that the file is still as it was when it was opened. Systems record a change before they write
    /// the first byte, so bytes that were read before a successful check belong to the opened file.
    fn check_unchanged(&self) -> Result<(), SourceError> {
        let now: Metadata = self.file.metadata().map_err(|cause| self.unreadable(&cause))?;
        match (now.len(), now.modified().ok()) {
            (has, _) if has < self.bytes => {
                Err(SourceError::Shrank { name: self.name.clone(), had: self.bytes, has })
            }
            unchanged if unchanged == (self.bytes, self.modified) => Ok(()),
            _ => Err(SourceError::Changed { name: self.name.clone() }),
        }
    }

    fn unreadable(&self, cause: &std::io::Error) -> SourceError {
        SourceError::Unreadable { name: self.name.clone(), cause: cause.to_string() }
    }
}

impl Source for FileSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, start: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let end = start.saturating_add(out.len() as u64);
        if end > self.bytes {
            return Err(SourceError::OutOfRange { name: self.name.clone(), start, end, bytes: self.bytes });
        }
        let read = read_exact_at(&self.file, out, start);
        self.check_unchanged()?;
        read.map_err(|cause| self.unreadable(&cause))
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, out: &mut [u8], start: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, start)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut out: &mut [u8], mut start: u64) -> std::io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !out.is_empty() {
        match file.seek_read(out, start) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => (out, start) = (&mut out[count..], start + count as u64),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom, Write};
    use std::time::Duration;

    /// Writes a file that was changed long ago, and opens it.
    fn opened() -> (tempfile::NamedTempFile, FileSource) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        file.as_file().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30)).unwrap();
        let source = FileSource::open(file.path()).unwrap();
        (file, source)
    }

    #[test]
    fn reads_copy_the_bytes_of_the_file() {
        let (_file, source) = opened();
        for (start, end) in [(0, 10_000), (4095, 4098), (9_999, 10_000), (10_000, 10_000)] {
            let expected: Vec<u8> = (start..end).map(|i| (i % 251) as u8).collect();
            assert_eq!(source.range(start..end).unwrap(), expected);
        }
        for outside in [source.read(9_999, &mut [0; 2]), source.range(9_999..10_001).map(|_| ())] {
            assert!(matches!(outside, Err(SourceError::OutOfRange { end: 10_001, .. })), "{outside:?}");
        }
    }

    #[test]
    fn a_file_that_changes_in_place_is_reported() {
        let (file, source) = opened();
        file.as_file().set_len(5_000).unwrap();
        for start in [0, 4_999, 5_000] {
            let shrunk = source.read(start, &mut [0; 2]);
            assert!(matches!(shrunk, Err(SourceError::Shrank { has: 5_000, .. })), "{shrunk:?}");
        }
        // A download that starts again truncates the file first.
        file.as_file().set_len(10_000).unwrap();
        let changed = source.read(0, &mut [0; 2]);
        assert!(matches!(changed, Err(SourceError::Changed { .. })), "{changed:?}");

        let (mut file, source) = opened();
        file.seek(SeekFrom::Start(100)).unwrap();
        file.write_all(&[7]).unwrap();
        let changed = source.read(0, &mut [0; 2]).unwrap_err().to_string();
        assert!(changed.contains("changed while in use"), "{changed}");

        let (mut file, source) = opened();
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(&[7]).unwrap();
        assert!(matches!(source.read(0, &mut [0; 2]), Err(SourceError::Changed { .. })));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_is_replaced_or_deleted_stays_readable() {
        let (file, source) = opened();
        let other = tempfile::NamedTempFile::new().unwrap();
        std::fs::rename(other.path(), file.path()).unwrap();
        assert_eq!(source.range(249..253).unwrap(), [249, 250, 0, 1].as_slice());
        std::fs::remove_file(file.path()).unwrap();
        assert_eq!(source.range(249..253).unwrap(), [249, 250, 0, 1].as_slice());
    }
}
