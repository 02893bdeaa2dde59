//! Texts from files, read no further than they may be long: what is named as a file may have no end.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Most bytes of what Ragtag writes as JSON and reads again, and of a fleet: 64 devices with all their links take a tenth.
pub(crate) const MOST_JSON_BYTES: u64 = 16 << 20;

/// Reads a file's text of at most so many bytes.
///
/// # Errors
/// If it cannot be read, is longer, or is not UTF-8.
pub(crate) fn read_text(path: &Path, most_bytes: u64) -> Result<String> {
    text_of(File::open(path)?, most_bytes)
}

/// Reads a text of at most so many bytes.
///
/// # Errors
/// If it cannot be read, is longer, or is not UTF-8.
pub(crate) fn text_of(source: impl Read, most_bytes: u64) -> Result<String> {
    let mut bytes = Vec::new();
    // One byte more than may be there tells a text that is too large.
    source.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("has more than {most_bytes} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| Error::new(ErrorKind::InvalidData, "is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_up_to_their_bound() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "abcé").unwrap();
        assert_eq!(read_text(file.path(), 5).unwrap(), "abcé");
        // The bound may lie within a character.
        let error = read_text(file.path(), 3).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string()),
            (ErrorKind::FileTooLarge, "has more than 3 bytes".into())
        );
        std::fs::write(file.path(), [0xff]).unwrap();
        assert_eq!(read_text(file.path(), 3).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_text_without_end_is_too_large() {
        let error = text_of(std::io::repeat(b'a'), 1 << 10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    }
}
