//! JSON that people wrote: errors name the path within the file, the line and the column, and may stand on a terminal.
//!
//! This module must not know what the files mean.

use serde::de::DeserializeOwned;

/// Most characters that a message quotes of a file.
const MOST: usize = 300;
/// Most characters of a path within it: keys may be as long as the file.
const MOST_PATH: usize = 100;

/// Reads a value.
///
/// # Errors
/// In words: `devices[2].count: invalid type: string "two", expected u32 at line 7 column 20`.
pub(crate) fn parse<T: DeserializeOwned>(json: &str) -> Result<T, String> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        match path.as_str() {
            // At the top: there is no path to speak of.
            "." => shown(error.inner()),
            path => format!("{}: {}", cut(path, MOST_PATH), shown(error.inner())),
        }
    })?;
    reader.end().map_err(|error| shown(&error))?;
    Ok(value)
}

/// What the reader says, with line and column. It may quote the file, at any length and with what a terminal obeys.
fn shown(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    quoted(text.strip_suffix(&position).unwrap_or(&text)) + &position
}

/// Text of a file as it may stand in a message: without control characters, and cut.
pub(crate) fn quoted(text: &str) -> String {
    cut(text, MOST)
}

/// Stops after `most` characters of what is shown, escapes included.
fn cut(text: &str, most: usize) -> String {
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
    }

    #[test]
    fn paths_are_short_and_without_control_characters() {
        let key = "\\u001b[2J".repeat(1000);
        let message =
            parse::<BTreeMap<String, u32>>(&format!("{{\"{key}\": \"x\"}}")).expect_err("a mistake");
        assert!(message.len() < 800 && !message.contains(char::is_control), "{message}");
    }
}
