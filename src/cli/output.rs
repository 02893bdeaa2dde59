//! Output of the `ragtag` command: tables that fit the terminal, JSON, and figures with units. Results go to
//! standard output. Everything else goes to standard error.

use super::error::{Error, Result};
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
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

/// Whether `--wide` is set.
static WIDE: AtomicBool = AtomicBool::new(false);

/// Sets whether tables show all columns at full width.
pub(crate) fn set_wide(wide: bool) {
    WIDE.store(wide, Ordering::Relaxed);
}

/// Returns whether `--wide` is set.
pub(crate) fn is_wide() -> bool {
    WIDE.load(Ordering::Relaxed)
}

/// Width of a terminal that reports none, in characters.
const WIDTH: u16 = 80;

/// Returns the width of standard output in characters, or `None` if it is no terminal or `--wide` is set. Text of any
/// width then fits.
pub(crate) fn out_width() -> Option<u16> {
    width(&Table::new())
}

/// Returns the width of standard error, like [`out_width`].
pub(crate) fn error_width() -> Option<u16> {
    width(Table::new().use_stderr())
}

fn width(table: &Table) -> Option<u16> {
    (table.is_tty() && !is_wide()).then(|| table.width().filter(|width| *width > 0).unwrap_or(WIDTH))
}

/// A column of a table.
struct Column<'a> {
    title: &'a str,
    is_right: bool,
    /// Whether the column is shown only if all columns fit.
    is_detail: bool,
}

/// A table in Markdown that fits into a width.
pub(crate) struct TextTable<'a> {
    columns: Vec<Column<'a>>,
    rows: Vec<Vec<String>>,
    width: Option<u16>,
}

/// Creates a table with the given column names, for a terminal that is `width` characters wide. A `+` before a name
/// hides the column unless all columns fit. A `>` before a name, or after the `+`, right-aligns the column.
pub(crate) fn table<'a>(columns: &[&'a str], width: Option<u16>) -> TextTable<'a> {
    let column = |name: &&'a str| {
        let (is_detail, name) = name.strip_prefix('+').map_or((false, *name), |name| (true, name));
        let (is_right, title) = name.strip_prefix('>').map_or((false, name), |name| (true, name));
        Column { title, is_right, is_detail }
    };
    TextTable { columns: columns.iter().map(column).collect(), rows: Vec::new(), width }
}

impl TextTable<'_> {
    /// Adds a row. `cells` must have one cell for each column, including hidden columns.
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Lays out the table. With a width, leaves out details and wraps cells, except those of columns that are `rigid`.
    fn laid_out(&self, width: Option<u16>, rigid: impl Fn(usize, &Column<'_>) -> bool) -> String {
        let shown: Vec<_> = self.columns.iter().map(|column| width.is_none() || !column.is_detail).collect();
        let mut table = Table::new();
        let columns =
            || self.columns.iter().zip(&shown).filter(|(_, shown)| **shown).map(|(column, _)| column);
        table.load_preset(presets::ASCII_MARKDOWN).set_header(columns().map(|column| column.title));
        for row in &self.rows {
            table.add_row(row.iter().zip(&shown).filter(|(_, shown)| **shown).map(|(cell, _)| cell));
        }
        if let Some(width) = width {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        for (index, column) in columns().enumerate() {
            let Some(cells) = table.column_mut(index) else { continue };
            if column.is_right {
                cells.set_cell_alignment(CellAlignment::Right);
            }
            cells.set_constraint(match rigid(index, column) {
                true => ColumnConstraint::ContentWidth,
                false => {
                    let least = u16::try_from(column.title.chars().count() + 2).unwrap_or(WIDTH);
                    ColumnConstraint::LowerBoundary(Width::Fixed(least))
                }
            });
        }
        table.to_string()
    }

    /// Lays out the table for a terminal. Figures are not wrapped. Labels in the first column are not wrapped either,
    /// because users copy them. If the table does not fit then, they are wrapped.
    fn fitted(&self, width: u16) -> String {
        let labels_and_figures = self.laid_out(Some(width), |index, column| index == 0 || column.is_right);
        if line_width(&labels_and_figures) <= usize::from(width) {
            return labels_and_figures;
        }
        let figures = self.laid_out(Some(width), |_, column| column.is_right);
        if line_width(&figures) <= usize::from(width) {
            figures
        } else {
            self.laid_out(Some(width), |_, _| false)
        }
    }
}

/// Returns the width of a table, which is that of the line below its header.
fn line_width(table: &str) -> usize {
    let is_rule = |line: &&str| line.bytes().all(|byte| b"|-".contains(&byte));
    table.lines().find(is_rule).map_or(0, str::len)
}

impl fmt::Display for TextTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.laid_out(None, |_, _| true);
        match self.width {
            Some(width) if line_width(&whole) > usize::from(width) => f.write_str(&self.fitted(width)),
            _ => f.write_str(&whole),
        }
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

    /// Checks that details are hidden only if the table would not fit, and that only then cells are wrapped.
    #[test]
    fn tables_fit_their_width() {
        let lines = |width| {
            let mut table = table(&["device", "+>detail", "text", ">figure"], width);
            table.add_row(["cpu:0", "17", "several words in a cell", "1.5"]);
            table.to_string().lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let whole = [
            "| device | detail | text                    | figure |",
            "|--------|--------|-------------------------|--------|",
            "| cpu:0  |     17 | several words in a cell |    1.5 |",
        ];
        assert_eq!(lines(None), whole);
        assert_eq!(lines(Some(54)), whole);
        let narrower = [
            "| device | text                    | figure |",
            "|--------|-------------------------|--------|",
            "| cpu:0  | several words in a cell |    1.5 |",
        ];
        assert_eq!(lines(Some(53)), narrower);
        let wrapped = lines(Some(40));
        assert!(wrapped.iter().all(|line| line.chars().count() <= 40), "{wrapped:?}");
        assert!(
            wrapped[2].starts_with("| cpu:0  | several") && wrapped[2].ends_with("|    1.5 |"),
            "{wrapped:?}"
        );
        // Labels wrap rather than exceed the width.
        let mut labels = table(&["device", ">figure"], Some(24));
        labels.add_row(["cuda:0 = opencl:0", "12345.6"]);
        let labels = labels.to_string();
        assert!(
            labels.lines().all(|line| line.chars().count() <= 24) && labels.contains("12345.6"),
            "{labels}"
        );
    }

    #[test]
    fn figures_have_units() {
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(count(1_100_000_000), "1.1 G");
        assert_eq!(count(999), "999");
    }
}
