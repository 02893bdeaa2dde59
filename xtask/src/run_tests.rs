//! Runs the workspace's tests with a seed, then reports the failures, the skips and the seed.

use crate::checks::{Done, cargo};
use crate::skips;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::SystemTime;

/// File to which tests append their skips, relative to the root of the workspace.
const SKIPS: &str = "target/skips.txt";

/// Options of the tests.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// Fail if a skipped test is not in this list. Lines are `MISSING<TAB>PACKAGE<TAB>TEST`, sorted; `#`
    /// starts a comment.
    #[arg(long, value_name = "FILE")]
    skips: Option<PathBuf>,
    /// Write the skips of this run to this file, in the format of such a list.
    #[arg(long, value_name = "FILE")]
    write_skips: Option<PathBuf>,
    /// Print the names of all tests instead of running the checks and the tests.
    #[arg(long)]
    list: bool,
    /// Run only these tests, and no other checks: arguments for `cargo test`, such as `--test integration --
    /// gpus::`.
    #[arg(last = true, value_name = "TESTS")]
    tests: Vec<String>,
}

impl TestArgs {
    /// Returns whether only the selected tests run, or no test.
    pub(crate) fn selects(&self) -> bool {
        self.list || !self.tests.is_empty()
    }
}

/// Builds and runs the tests, then prints the report.
///
/// # Errors
/// Returns an error if a test failed, or if the list of allowed skips lacks a skipped test.
pub(crate) fn run(root: &Path, args: &TestArgs, done: Done) -> Result<(), String> {
    let file = root.join(SKIPS);
    match std::fs::remove_file(&file) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(format!("{}: {e}", file.display())),
        _ => {}
    }
    let seed = std::env::var("RAGTAG_TEST_SEED").unwrap_or_else(|_| clock().to_string());
    let mut command = Command::new(cargo());
    command.args(["test", "--workspace", "--locked", "--no-fail-fast", "--color=never"]).args(&args.tests);
    command.args(args.list.then_some(["--", "--list"]).into_iter().flatten());
    command.env("RAGTAG_TEST_SKIPS", &file).env("RAGTAG_TEST_SEED", &seed).current_dir(root);
    let (failed, status) = stream(command).map_err(|e| format!("cargo test: {e}"))?;
    if args.list {
        return if status.success() { Ok(()) } else { Err(format!("cannot list the tests ({status})")) };
    }

    let mut skips = done.skips;
    skips.extend(test_support::recorded(&file).map_err(|e| format!("{}: {e}", file.display()))?);
    println!("== skips\n{}", skips::sum(&skips));
    if let Some(to) = &args.write_skips {
        std::fs::write(to, skips::list(&skips)).map_err(|e| format!("{}: {e}", to.display()))?;
    }
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    println!("to repeat this run: RAGTAG_TEST_SEED={seed} cargo xtask {}", arguments.join(" "));
    let mut errors = Vec::new();
    if !status.success() {
        let names: String = failed.iter().map(|name| format!("\n  {name}")).collect();
        errors.push(format!("tests failed ({status}):{names}"));
    }
    match args.skips.as_ref().map_or(Ok(String::new()), |list| skips::check(&skips, list)) {
        Ok(notes) if args.tests.is_empty() => print!("{notes}"),
        Ok(_) => {}
        Err(error) => errors.push(error),
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

/// Returns the number of seconds since 1970.
fn clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Runs `cargo test` and prints its output. Returns the names of the failed tests, and the exit status.
fn stream(mut command: Command) -> std::io::Result<(Vec<String>, ExitStatus)> {
    // Both streams share one pipe, so that cargo's lines stay in order with libtest's.
    let (reader, writer) = std::io::pipe()?;
    let mut child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // The command holds the write ends, which would keep the pipe open.
    drop(command);
    let mut names = Vec::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        names.extend(failed(&line).map(str::to_owned));
    }
    Ok((names, child.wait()?))
}

/// Returns the name of the test that failed according to a line of libtest.
fn failed(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_named() {
        let mut command = Command::new("printf");
        command.arg("test a::b ... ok\ntest c - should panic ... FAILED\ntest d::e ... FAILED\n");
        let (names, status) = stream(command).unwrap();
        assert!(status.success());
        assert_eq!(names, ["c - should panic", "d::e"]);
    }
}
