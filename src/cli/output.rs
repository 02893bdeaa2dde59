//! What the command prints: tables that fit the terminal, JSON, figures with units. Standard output carries results
//! only; all else goes to standard error.

use crate::error::{Error, Result};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Writes to standard output. A reader that has gone away (`| head`) is not an error.
pub(crate) fn print(text: &str) -> Result<()> {
    offer(text).map(|_| ())
}

/// Writes to standard output, and says whether anybody still reads it.
pub(crate) fn offer(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    // Tokens appear as they come, not line by line.
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(cause) if cause.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(cause) => Err(Error::Output(cause)),
    }
}

/// Writes a line to standard error.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Prints a value as indented JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&to_json(value))
}

/// A value as indented JSON, with a line break at the end.
pub(crate) fn to_json(value: &impl Serialize) -> String {
    match serde_json::to_string_pretty(value) {
        Ok(json) => json + "\n",
        Err(error) => format!("{{\"error\": {:?}}}\n", error.to_string()),
    }
}

/// A table with these columns, in Markdown so that it can be pasted into a report; those marked with `>` hold figures and are aligned to the right.
pub(crate) fn table(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(columns.iter().map(|c| c.trim_start_matches('>')));
    for (index, column) in columns.iter().enumerate() {
        if let Some(cells) = table.column_mut(index).filter(|_| column.starts_with('>')) {
            cells.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Bytes with a binary unit: `1.5 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// A count with a decimal unit: `1.1 G`.
pub(crate) fn count(value: u64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(size, _)| value as f64 >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", value as f64 / size),
        None => value.to_string(),
    }
}

/// Whether a path leads to a device or a pipe, as `/dev/stdout` does. Such things are written to, never replaced.
fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir())
}

/// Writes a whole file or none: to a temporary file beside it, then renamed.
pub(crate) fn write_file(path: &Path, content: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        if is_special(path) {
            return std::fs::OpenOptions::new().write(true).open(path)?.write_all(content);
        }
        // A link stays a link.
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let mut name = target.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.part", std::process::id()));
        let part = target.with_file_name(name);
        let written = std::fs::File::create(&part).and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()?;
            std::fs::rename(&part, &target)
        });
        if written.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        written
    };
    write().map_err(|cause| Error::File { action: "write", path: path.into(), cause })
}

/// Fails early if a file cannot be written, so that no long run ends in nothing.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    if is_special(path) {
        return Ok(());
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let probe = folder.join(format!(".ragtag-{}.probe", std::process::id()));
    let cause = if path.is_dir() {
        Some(std::io::Error::from(ErrorKind::IsADirectory))
    } else {
        std::fs::File::create(&probe).err()
    };
    let _ = std::fs::remove_file(&probe);
    match cause {
        Some(cause) => Err(Error::File { action: "write", path: path.into(), cause }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.json");
        check_writable(&path).unwrap();
        write_file(&path, b"all of it").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"all of it");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
        let nowhere = folder.path().join("missing/out.json");
        assert!(matches!(check_writable(&nowhere), Err(Error::File { action: "write", .. })));
        assert!(matches!(write_file(&nowhere, b""), Err(Error::File { action: "write", .. })));
        assert!(check_writable(folder.path()).is_err());
    }

    #[test]
    fn figures_have_units() {
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(count(1_100_000_000), "1.1 G");
        assert_eq!(count(999), "999");
    }
}
