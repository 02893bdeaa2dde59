//! Reads the lines of a chat: from an editor on a terminal, or from a pipe.

use super::error::{Error, Result};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper};
use std::cell::Cell;

/// Prompt of the editor.
const PROMPT: &str = "> ";

/// A line of the user, or what the user pressed instead.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Text(String),
    /// Ctrl-C with text on the line.
    Cleared,
    /// Ctrl-C on an empty line.
    Interrupted,
    /// Ctrl-D, or the end of a pipe.
    End,
}

/// Source of lines.
pub(super) struct Lines(Editor<Observer, MemHistory>);

impl Lines {
    pub(super) fn open() -> Result<Self> {
        let config = Config::builder().auto_add_history(true).build();
        let mut editor = Editor::with_history(config, MemHistory::new()).map_err(failed)?;
        editor.set_helper(Some(Observer { is_empty: Cell::new(true) }));
        Ok(Self(editor))
    }

    /// Waits for the next line.
    pub(super) fn next(&mut self) -> Result<Line> {
        match self.0.readline(PROMPT) {
            Ok(line) => Ok(Line::Text(joined(&line))),
            Err(ReadlineError::Interrupted) => {
                let is_empty = self.0.helper().is_some_and(|helper| helper.is_empty.get());
                Ok(if is_empty { Line::Interrupted } else { Line::Cleared })
            }
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(cause) => Err(failed(cause)),
        }
    }
}

fn failed(cause: ReadlineError) -> Error {
    Error::Usage(format!("cannot read from the terminal: {cause}"))
}

/// Reads further lines while a line ends with a backslash, and observes whether the line is empty.
struct Observer {
    is_empty: Cell<bool>,
}

impl Completer for Observer {
    type Candidate = String;
}

impl Hinter for Observer {
    type Hint = String;

    /// Gives no hint. The editor calls this function after each change of the line.
    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        None
    }
}

impl Highlighter for Observer {}

impl Helper for Observer {}

impl Validator for Observer {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let continues = context.input().ends_with('\\');
        Ok(if continues { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

/// Returns the line without the backslashes that continue it.
fn joined(line: &str) -> String {
    line.replace("\\\r\n", "\n").replace("\\\n", "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backslash_joins_lines() {
        assert_eq!(joined("a\\\nb\\\\\nc"), "a\nb\\\nc");
    }
}
