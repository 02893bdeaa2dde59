//! Reads a model's JSON files. Limits their size, and escapes file contents in error messages.

use crate::error::{FormatError, Quoted};
use crate::source::Source;
use serde::de::DeserializeOwned;
use std::borrow::Cow;

/// Parses a JSON file of at most `most_bytes` bytes.
///
/// # Errors
/// Fails if the file exceeds `most_bytes`, is not JSON, or does not match `T`.
pub(crate) fn parse<T: DeserializeOwned>(source: &dyn Source, most_bytes: u64) -> Result<T, FormatError> {
    parse_slice(source.name(), &whole_file(source, most_bytes)?)
}

/// Returns the bytes of a file of at most `most_bytes` bytes.
pub(crate) fn whole_file(source: &dyn Source, most_bytes: u64) -> Result<Cow<'_, [u8]>, FormatError> {
    let bytes = source.bytes();
    if bytes > most_bytes {
        return Err(FormatError::TooLarge { file: source.name().to_owned(), bytes, most: most_bytes });
    }
    Ok(source.range(0..bytes)?)
}

/// Parses JSON that is part of a file. Line and column numbers in errors count from the start of that part.
pub(crate) fn parse_slice<T: DeserializeOwned>(file: &str, json: &[u8]) -> Result<T, FormatError> {
    serde_json::from_slice(json)
        .map_err(|error| FormatError::Json { file: file.to_owned(), cause: shown(&error) })
}

/// Returns `json` with strings instead of the bare words for infinities and NaN that Python writes. JSON has no such
/// numbers.
pub(crate) fn quote_words(json: &[u8]) -> Cow<'_, [u8]> {
    const WORDS: [&[u8]; 3] = [b"Infinity", b"-Infinity", b"NaN"];
    let (mut out, mut copied, mut at, mut is_text) = (Vec::new(), 0, 0, false);
    while let Some(rest) = json.get(at..).filter(|rest| !rest.is_empty()) {
        let word = WORDS.into_iter().find(|word| !is_text && rest.starts_with(word));
        if let Some(word) = word {
            out.extend([&json[copied..at], b"\"", word, b"\""].concat());
            copied = at + word.len();
        }
        is_text ^= rest[0] == b'"';
        at += match word {
            Some(word) => word.len(),
            None if is_text && rest[0] == b'\\' => 2,
            None => 1,
        };
    }
    if copied == 0 { json.into() } else { [&out, &json[copied..]].concat().into() }
}

/// Escapes and truncates the parser's message, because it may quote a long part of the file.
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
    fn bare_words_become_strings() {
        let quoted = |json: &str| String::from_utf8(quote_words(json.as_bytes()).into_owned()).unwrap();
        for plain in ["", "{}", r#"{"NaN": "-Infinity \" NaN"}"#, r#"["\\", "Infinity"]"#, "\"\\", "\"NaN"] {
            assert!(matches!(quote_words(plain.as_bytes()), Cow::Borrowed(_)), "{plain}");
        }
        assert_eq!(quoted(r#"[0.0, Infinity, "\\", -Infinity]"#), r#"[0.0, "Infinity", "\\", "-Infinity"]"#);
        assert_eq!(quoted(r#"{"a": NaN}"#), r#"{"a": "NaN"}"#);
    }

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
