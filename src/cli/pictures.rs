//! Writes the pictures that `--html`, `--svg` and `--dot` request, and draws the bars below the plan table.

use super::args::PictureArgs;
use super::error::{Error, Result};
use super::files::{self, is_standard, write_file};
use super::output::print;
use crate::pictures::{self, BarStyle, Report};
use std::path::Path;

type Draw = fn(&Report) -> String;

/// Pictures that the user requested. Ragtag checks their paths before planning starts.
#[derive(Debug)]
pub(super) struct Pictures<'a> {
    wanted: Vec<(&'a Path, Draw)>,
}

impl<'a> Pictures<'a> {
    /// Collects the requested pictures and checks that all of them can be written. `json` must be true if
    /// JSON goes to standard output. `inputs` are the files that the command reads.
    pub(super) fn new(
        args: &'a PictureArgs,
        json: bool,
        inputs: impl IntoIterator<Item = &'a Path>,
    ) -> Result<Self> {
        let all =
            [(&args.html, pictures::html as Draw), (&args.svg, pictures::svg), (&args.dot, pictures::dot)];
        let wanted: Vec<_> =
            all.into_iter().filter_map(|(path, draw)| Some((path.as_deref()?, draw))).collect();
        let (printed, files): (Vec<_>, Vec<_>) = wanted.iter().partition(|(path, _)| is_standard(path));
        if printed.len() + usize::from(json) > 1 {
            return Err(Error::Usage(
                "only one of --json, --html, --svg and --dot can go to standard output".into(),
            ));
        }
        files::check(files.iter().map(|(path, _)| *path), inputs)?;
        Ok(Self { wanted })
    }

    /// Returns whether the user requested a picture.
    pub(super) fn are_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Returns whether a picture goes to standard output. If it does, the command must write nothing else to
    /// standard output.
    pub(super) fn take_standard_output(&self) -> bool {
        self.wanted.iter().any(|(path, _)| is_standard(path))
    }

    pub(super) fn write(&self, report: &Report) -> Result<()> {
        let write = |(path, draw): &(&Path, Draw)| match is_standard(path) {
            true => print(&draw(report)),
            false => write_file(path, draw(report).as_bytes()),
        };
        // A failed write does not affect the other outputs.
        self.wanted.iter().map(write).fold(Ok(()), Result::and)
    }
}

/// Draws the bars of a plan in `width` and in the style of this terminal.
pub(super) fn bars(report: &Report, width: Option<u16>) -> String {
    let columns = width.map_or(usize::MAX, usize::from);
    pictures::bars(report, columns, style(|name| std::env::var(name).ok()))
}

/// Returns the style of bars. Selects block characters if the locale is UTF-8 and the terminal is neither
/// dumb nor the Linux console. `variable` returns the value of an environment variable. Output to a file has
/// the same style as output to the terminal.
fn style(variable: impl Fn(&str) -> Option<String>) -> BarStyle {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    // The first variable that is set takes precedence (POSIX, "Internationalization Variables").
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default().to_lowercase();
    let utf8 = cfg!(windows) || locale.contains("utf-8") || locale.contains("utf8");
    match set("TERM").as_deref() {
        Some("dumb" | "linux") => BarStyle::Ascii,
        _ if utf8 => BarStyle::Blocks,
        _ => BarStyle::Ascii,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(windows))]
    fn blocks_need_a_utf8_locale_and_a_capable_terminal() {
        let with = |set: &[(&str, &str)]| {
            style(|name| set.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).into()))
        };
        assert_eq!(with(&[]), BarStyle::Ascii);
        assert_eq!(with(&[("LANG", "en_GB.UTF-8"), ("TERM", "xterm-256color")]), BarStyle::Blocks);
        assert_eq!(with(&[("LANG", "C.utf8")]), BarStyle::Blocks);
        assert_eq!(with(&[("LC_ALL", "C"), ("LANG", "en_GB.UTF-8")]), BarStyle::Ascii);
        assert_eq!(with(&[("LC_ALL", ""), ("LANG", "en_GB.UTF-8")]), BarStyle::Blocks);
        for term in ["dumb", "linux"] {
            assert_eq!(with(&[("LANG", "en_GB.UTF-8"), ("TERM", term)]), BarStyle::Ascii, "{term}");
        }
    }

    #[test]
    fn standard_output_takes_one_thing() {
        let args = |html: Option<&str>, svg: Option<&str>| PictureArgs {
            html: html.map(Into::into),
            svg: svg.map(Into::into),
            dot: None,
        };
        let usage = |args: &PictureArgs, json| matches!(Pictures::new(args, json, []), Err(Error::Usage(_)));
        assert!(!usage(&args(Some("-"), None), false));
        assert!(usage(&args(Some("-"), None), true));
        assert!(usage(&args(Some("-"), Some("-")), false));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plan.svg");
        assert!(!usage(&args(Some("-"), file.to_str()), false));
        let nowhere = folder.path().join("missing/plan.svg");
        assert!(matches!(
            Pictures::new(&args(None, nowhere.to_str()), false, []),
            Err(Error::Library(crate::Error::File { .. }))
        ));
    }
}
