//! Reads text files up to a maximum size, because a path may lead to an endless source, such as a device.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Maximum size in bytes of fleet files and of the JSON files that Ragtag writes. A file that describes 64
/// devices and all their links takes a tenth of this size.
pub const MAX_JSON_BYTES: u64 = 16 << 20;

/// Reads a text file of at most `most_bytes` bytes.
///
/// # Errors
/// Fails if the file cannot be read, is too large, or is not UTF-8.
pub fn read_text(path: &Path, most_bytes: u64) -> Result<String> {
    text_of(File::open(path)?, most_bytes)
}

/// Reads UTF-8 text of at most `most_bytes` bytes from `source`.
///
/// # Errors
/// Fails if the source cannot be read, is too long, or is not UTF-8.
pub fn text_of(source: impl Read, most_bytes: u64) -> Result<String> {
    let mut bytes = Vec::new();
    // Reads one extra byte to detect a text that is too long.
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
    fn texts_are_read_up_to_the_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "abcé").unwrap();
        assert_eq!(read_text(file.path(), 5).unwrap(), "abcé");
        // The limit is inside a character.
        let error = read_text(file.path(), 3).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string()),
            (ErrorKind::FileTooLarge, "has more than 3 bytes".into())
        );
        std::fs::write(file.path(), [0xff]).unwrap();
        assert_eq!(read_text(file.path(), 3).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn an_endless_text_is_too_large() {
        let error = text_of(std::io::repeat(b'a'), 1 << 10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    }
}
