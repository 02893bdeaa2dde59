//! Records skips. A test that cannot run reports the missing requirement, and the test run counts the skips.
//!
//! `cargo xtask test` sets `RAGTAG_TEST_SKIPS` to the path of a file. Each skip appends a line with four
//! fields separated by tabs: the package, the test, the missing requirement and the reason. If the variable
//! is not set, a skip is only printed.

use std::io::Write as _;
use std::path::Path;

/// One skip. [`record`] writes it, and `cargo xtask test` reads it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skip {
    /// Missing requirement, such as `OpenCL driver`. The report counts skips with the same requirement
    /// together.
    pub missing: String,
    /// Package of the test.
    pub package: String,
    /// Name of the test in its binary.
    pub test: String,
    /// Reason, as reported by the driver or the system.
    pub why: String,
}

/// Records that the current test, or a part of it, cannot run. For example: `skip!("OpenCL driver",
/// "{error}")`.
#[macro_export]
macro_rules! skip {
    ($missing:expr, $($why:tt)+) => {
        $crate::record(env!("CARGO_PKG_NAME"), $missing, &format!($($why)+))
    };
}

/// Returns the requirement to report as missing if `backend` has no device. On Linux, wgpu runs on Vulkan's
/// drivers.
///
/// # Panics
/// Panics if no missing requirement is defined for the backend.
pub fn driver(backend: &str) -> &'static str {
    match backend {
        "cuda" => "CUDA driver",
        "hip" => "AMD device",
        "level-zero" => "Level Zero driver",
        "opencl" => "OpenCL driver",
        "vulkan" | "wgpu" => "Vulkan driver",
        other => panic!("the vocabulary of skips does not know {other}"),
    }
}

/// Prints a skip and appends it to the file that `RAGTAG_TEST_SKIPS` names. Tests call [`skip!`](crate::skip)
/// instead.
///
/// # Panics
/// Panics if the file cannot be written.
#[track_caller]
pub fn record(package: &str, missing: &str, why: &str) {
    // libtest names the thread of each test after the test.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a thread of a test").to_string();
    println!("skipped: {missing}: {why}");
    if let Some(file) = std::env::var_os("RAGTAG_TEST_SKIPS") {
        let skip = Skip { missing: missing.into(), package: package.into(), test, why: why.into() };
        append(Path::new(&file), &skip).unwrap_or_else(|e| panic!("cannot write {}: {e}", file.display()));
    }
}

/// Appends a line with a single write, so that the lines of concurrent processes do not mix.
fn append(file: &Path, skip: &Skip) -> std::io::Result<()> {
    let fields = [&skip.package, &skip.test, &skip.missing, &skip.why];
    let line = fields.map(|field| field.replace(['\t', '\n', '\r'], " ")).join("\t") + "\n";
    std::fs::OpenOptions::new().create(true).append(true).open(file)?.write_all(line.as_bytes())
}

/// Reads the skips from a file, sorted and without duplicates. A missing file contains no skips.
///
/// # Errors
/// Returns an error if the file cannot be read, or if a line is not a skip.
pub fn recorded(file: &Path) -> std::io::Result<Vec<Skip>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut skips = text.lines().map(parse).collect::<std::io::Result<Vec<_>>>()?;
    skips.sort();
    skips.dedup();
    Ok(skips)
}

fn parse(line: &str) -> std::io::Result<Skip> {
    let [package, test, missing, why] = line.split('\t').collect::<Vec<_>>()[..] else {
        return Err(std::io::Error::other(format!("not a skip: {line:?}")));
    };
    Ok(Skip { missing: missing.into(), package: package.into(), test: test.into(), why: why.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_read_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skips");
        assert_eq!(recorded(&file).unwrap(), []);
        let skip = |test: &str, why: &str| Skip {
            missing: "OpenCL driver".into(),
            package: "ragtag-opencl".into(),
            test: test.into(),
            why: why.into(),
        };
        for (test, why) in [("b", "two\nlines\tand a tab"), ("a", "none"), ("a", "none")] {
            append(&file, &skip(test, why)).unwrap();
        }
        assert_eq!(recorded(&file).unwrap(), [skip("a", "none"), skip("b", "two lines and a tab")]);
    }
}
