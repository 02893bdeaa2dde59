//! Output of the `ragtag` command: tables that fit the terminal, JSON, and figures with units. Results go to
//! standard output. Everything else goes to standard error.

use crate::error::{Error, Result};
use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use serde::Serialize;
use std::fmt;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes `text` to standard output. A closed pipe (`| head`) is not an error.
pub(crate) fn print(text: &str) -> Result<()> {
    offer(text).map(|_| ())
}

/// Writes `text` to standard output. Returns false if standard output is a closed pipe.
pub(crate) fn offer(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    // Flushes so that every token appears at once. Otherwise output is buffered by line.
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(cause) if cause.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(cause) => Err(Error::Output(cause)),
    }
}

/// Writes `text` to standard output for a human reader. Escapes control characters, so that names from files
/// and drivers cannot control the terminal.
pub(crate) fn show(text: &str) -> Result<()> {
    print(&escaped(text))
}

/// Escapes control characters in the text of a model, except line breaks and tabs.
pub(crate) fn shown(text: &str) -> String {
    let parts: Vec<String> = text.split('\t').map(escaped).collect();
    parts.join("\t")
}

/// Returns the width of the terminal on standard output, in columns. Returns `None` if standard output is no
/// terminal, or one that cannot move its cursor.
pub(crate) fn terminal_width() -> Option<usize> {
    let out = std::io::stdout();
    if !out.is_terminal() || std::env::var_os("TERM").is_some_and(|name| name == "dumb") {
        return None;
    }
    let size = terminal_size::terminal_size_of(out).filter(|(width, _)| width.0 > 0);
    Some(size.map_or(WIDTH, |(width, _)| width.0).into())
}

/// Whether `--quiet` is set. Only errors and warnings then go to standard error.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Silences [`inform`] if `quiet` is true.
pub(crate) fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Returns whether `--quiet` is set.
pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Writes `text` and a line break to standard error, unless `--quiet` is set.
pub(crate) fn inform(text: &str) {
    if !is_quiet() {
        note(text);
    }
}

/// Writes an error or a warning to standard error, even if `--quiet` is set.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", escaped(text));
}

/// Escapes all control characters in `text` except line breaks.
fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() && c != '\n' {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// Prints a value as indented JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&to_json(value))
}

/// Formats a value as indented JSON with a trailing line break.
pub(crate) fn to_json(value: &impl Serialize) -> String {
    match serde_json::to_string_pretty(value) {
        Ok(json) => json + "\n",
        Err(error) => format!("{{\"error\": {:?}}}\n", error.to_string()),
    }
}

/// Whether tables show all columns at full width.
static WIDE: AtomicBool = AtomicBool::new(false);

/// Sets whether tables show all columns at full width.
pub(crate) fn set_wide(wide: bool) {
    WIDE.store(wide, Ordering::Relaxed);
}

/// Width of an unknown terminal, and maximum width of tables if standard output is not a terminal, in characters.
const WIDTH: u16 = 80;

/// A table in Markdown. It fits into the width of the terminal, unless `--wide` is set.
pub(crate) struct TextTable {
    table: Table,
    /// Whether each column is shown.
    shown: Vec<bool>,
}

/// Creates a table with the given column names. A `+` before a name hides the column unless `--wide` is set.
/// A `>` before a name, or after the `+`, right-aligns the column.
pub(crate) fn table(columns: &[&str]) -> TextTable {
    let wide = WIDE.load(Ordering::Relaxed);
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    if !wide {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        if !std::io::stdout().is_terminal() {
            table.set_width(WIDTH);
        }
    }
    let shown: Vec<bool> = columns.iter().map(|column| wide || !column.starts_with('+')).collect();
    let columns = columns.iter().zip(&shown).filter(|(_, shown)| **shown);
    let columns: Vec<_> = columns.map(|(column, _)| column.trim_start_matches('+')).collect();
    table.set_header(columns.iter().map(|column| column.trim_start_matches('>')));
    for (index, column) in columns.iter().enumerate() {
        let Some(cells) = table.column_mut(index) else { continue };
        let title = column.trim_start_matches('>');
        // Figures are never wrapped. Labels in the first column are never wrapped either, because users copy
        // them.
        if index == 0 || column.starts_with('>') {
            cells.set_constraint(ColumnConstraint::ContentWidth);
        } else {
            let least = u16::try_from(title.chars().count() + 2).unwrap_or(WIDTH);
            cells.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
        }
        if title != *column {
            cells.set_cell_alignment(CellAlignment::Right);
        }
    }
    TextTable { table, shown }
}

impl TextTable {
    /// Adds a row. `cells` must have one cell for each column, including hidden columns.
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = impl Into<Cell>>) {
        let cells = cells.into_iter().zip(&self.shown).filter(|(_, shown)| **shown);
        self.table.add_row(cells.map(|(cell, _)| cell));
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(f)
    }
}

/// Formats a number of bytes with a binary unit: `1.50 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// Formats a count with a decimal unit: `1.1 G`.
pub(crate) fn count(value: u64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(size, _)| value as f64 >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", value as f64 / size),
        None => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escaped("a\u{1b}[2Jb\u{7}\u{9b}\r\n– c"), "a\\u{1b}[2Jb\\u{7}\\u{9b}\\r\n– c");
    }

    #[test]
    fn figures_have_units() {
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(count(1_100_000_000), "1.1 G");
        assert_eq!(count(999), "999");
    }
}
