//! Reads a model's JSON files: bounded in size, and with errors that name the file and are safe for a
//! terminal.
//!
//! Knows nothing about the meaning of the files.

use crate::error::{FormatError, Quoted};
use crate::source::Source;
use serde::de::DeserializeOwned;

/// Reads a file of at most `most_bytes`.
///
/// # Errors
/// The file is larger, is not JSON, or does not have the form of `T`.
pub(crate) fn parse<T: DeserializeOwned>(source: &dyn Source, most_bytes: u64) -> Result<T, FormatError> {
    let bytes = source.bytes();
    if bytes > most_bytes {
        return Err(FormatError::TooLarge { file: source.name().to_owned(), bytes, most: most_bytes });
    }
    parse_slice(source.name(), source.range(0..bytes)?)
}

/// Parses a part of a file. Messages count lines and columns from its start.
pub(crate) fn parse_slice<T: DeserializeOwned>(file: &str, json: &[u8]) -> Result<T, FormatError> {
    serde_json::from_slice(json)
        .map_err(|error| FormatError::Json { file: file.to_owned(), cause: shown(&error) })
}

/// Formats the parser's message, which may quote the file at any length.
fn shown(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    let what = text.strip_suffix(&position).unwrap_or(&text);
    format!("{}{position}", Quoted(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;

    #[test]
    fn messages_are_short_and_escaped() {
        let message = |json: String| {
            let source = MemorySource::new("c.json", json.into_bytes());
            parse::<u32>(&source, 1000).unwrap_err().to_string()
        };
        assert_eq!(message("{".into()), "c.json: invalid type: map, expected u32 at line 1 column 0");
        let long = message(format!("\"\u{1b}{}\"", "x".repeat(500)));
        assert!(long.len() < 200 && !long.contains('\u{1b}'), "{long}");
        assert_eq!(message(" ".repeat(1001)), "c.json has 1001 bytes; at most 1000 are read");
    }
}
