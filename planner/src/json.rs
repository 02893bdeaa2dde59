//! Parses JSON that people write. An error message contains the path in the file, the line and the column.
//! The message is safe to print on a terminal.
//!
//! This module knows nothing about the content.

mod objects;

use objects::Objects;
use serde::de::DeserializeOwned;

/// Maximum number of characters that an error message quotes from a file.
const MOST: usize = 300;
/// Maximum length of a path in an error message, in characters. A key in the path may be as long as the file.
const MAX_PATH: usize = 100;

/// Parses a value. Every struct must be a JSON object, not an array of field values.
///
/// # Errors
/// Returns a message such as
/// `devices[2].count: invalid type: string "two", expected u32 at line 7 column 20`.
pub fn parse<T: DeserializeOwned>(json: &str) -> Result<T, String> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let value = serde_path_to_error::deserialize(Objects(&mut reader)).map_err(|error| {
        let path = error.path().to_string();
        // At the end of the text and at the top level, the path is empty or `?`.
        match path.trim_end_matches('?').trim_end_matches('.') {
            "" => shown(error.inner()),
            path => format!("{}: {}", cut(path, MAX_PATH), shown(error.inner())),
        }
    })?;
    reader.end().map_err(|error| shown(&error))?;
    Ok(value)
}

/// Returns the format version in a field of a JSON object. Files are checked for it first, because a later
/// format may have fields that this build does not know.
pub fn version(json: &str, field: &str) -> Option<u32> {
    let value: serde_json::Value = serde_json::from_str(json).ok()?;
    value.get(field)?.as_u64()?.try_into().ok()
}

/// Returns the parser's message with line and column. Shortens quotes from the file and escapes control
/// characters.
fn shown(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    quoted(text.strip_suffix(&position).unwrap_or(&text)) + &position
}

/// Prepares text from a file for an error message: shortens the text and escapes control characters.
pub fn quoted(text: &str) -> String {
    cut(text, MOST)
}

/// Formats a number for an error message in decimal or exponent notation, whichever is shorter.
pub fn number(value: f64) -> String {
    let is_short = value == 0.0 || (1e-6..1e15).contains(&value.abs());
    if is_short { value.to_string() } else { format!("{value:e}") }
}

/// Escapes control characters in `text`. Stops after `most` characters of output, including escapes.
pub fn cut(text: &str, most: usize) -> String {
    let mut quoted = String::new();
    let mut shown = 0;
    for character in text.chars() {
        if shown >= most {
            quoted.push('…');
            break;
        }
        if character.is_control() {
            shown += character.escape_default().count();
            quoted.extend(character.escape_default());
        } else {
            shown += 1;
            quoted.push(character);
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    #[test]
    fn mistakes_are_named_with_their_path() {
        let fails = |json: &str| parse::<BTreeMap<String, Vec<u32>>>(json).expect_err("a mistake");
        let message = fails("{\"a\": [1, 2],\n \"b\": [3, \"x\"]}");
        assert!(
            message.starts_with("b[1]: invalid type: string \"x\", expected u32 at line 2 column "),
            "{message}"
        );
        assert!(fails("{} {}").contains("trailing characters at line 1"));
        assert!(fails("[]").starts_with("invalid type: sequence, expected a map at line 1 column "));
        assert!(fails("{").starts_with("EOF while parsing an object at line 1 column "), "{}", fails("{"));
        assert!(fails("{\"a").starts_with("EOF while parsing a string"), "{}", fails("{\"a"));
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        pair: (u32, f64),
        inner: Option<Inner>,
        list: Vec<Choice>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Inner {
        number: u8,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    enum Choice {
        One,
        Of(Inner),
        With { number: u8 },
    }

    #[test]
    fn structs_are_objects() {
        let good = r#"{"pair": [1, 2], "inner": {"number": 3}, "list": ["One", {"Of": {"number": 4}}, {"With": {"number": 5}}]}"#;
        let expected = Outer {
            pair: (1, 2.0),
            inner: Some(Inner { number: 3 }),
            list: vec![Choice::One, Choice::Of(Inner { number: 4 }), Choice::With { number: 5 }],
        };
        assert_eq!(parse::<Outer>(good), Ok(expected));
        for (from, to, path) in [
            (r#"{"number": 3}"#, "[3]", "inner: "),
            (r#"{"number": 4}"#, "[4]", "list[1].Of: "),
            (r#"{"number": 5}"#, "[5]", "list[2].With: "),
        ] {
            let bad = good.replace(from, to);
            let message = parse::<Outer>(&bad).expect_err(&bad);
            assert!(
                message.starts_with(&format!("{path}invalid type: sequence, expected struct")),
                "{message}"
            );
        }
        let message = parse::<Outer>("[[1, 2], null, []]").expect_err("an array");
        assert!(message.starts_with("invalid type: sequence, expected struct Outer"), "{message}");
        assert_eq!(
            parse::<Outer>(r#"{"pair": [1, 2], "inner": null, "list": []}"#).map(|o| o.inner),
            Ok(None)
        );
    }

    #[test]
    fn paths_are_short_and_without_control_characters() {
        let key = "\\u001b[2J".repeat(1000);
        let message =
            parse::<BTreeMap<String, u32>>(&format!("{{\"{key}\": \"x\"}}")).expect_err("a mistake");
        assert!(message.len() < 800 && !message.contains(char::is_control), "{message}");
    }
}
