//! The checks of `cargo xtask test` and `cargo xtask ci`, in order. The first failure stops them, except that all tests run
//! after a failed one. The tests come last.
//!
//! This module must not know rules about source text; those are `tidy`'s.

use crate::run_tests::{self, TestArgs};
use crate::{support, tidy};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Times of the steps so far, for the report at the end.
pub(crate) type Times = Vec<(Duration, String)>;

/// One run of cargo.
struct Step {
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

const fn step(arguments: &'static [&'static str]) -> Step {
    Step { arguments, environment: &[] }
}

const FORMAT: Step = step(&["fmt", "--all", "--check"]);
// Denies the compiler's warnings along with clippy's, in every target; so the tests below need no RUSTFLAGS, which would
// have everything compiled once more.
const LINTS: Step = step(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]);
const DOCUMENTATION: Step = Step {
    arguments: &["doc", "--workspace", "--no-deps", "--locked"],
    environment: &[("RUSTDOCFLAGS", "-D warnings")],
};

/// Feature combinations that must compile besides the default.
const FEATURES: &[Step] = &[
    step(&["check", "-p", "ragtag-devices", "--no-default-features", "--locked"]),
    step(&["check", "-p", "ragtag", "--no-default-features", "--locked"]),
];

/// What the README calls the tests. The workspace's tests come last: a log ends with what they say.
pub fn test(root: &Path, args: &TestArgs) -> Result<(), String> {
    test_after(root, args, Times::new())
}

fn test_after(root: &Path, args: &TestArgs, mut times: Times) -> Result<(), String> {
    times.push(run(root, &FORMAT)?);
    times.push(timed("tidy", || tidy::run(root))?);
    times.push(timed("support table", || support::run(root, true))?);
    times.push(run(root, &LINTS)?);
    times.push(run(root, &DOCUMENTATION)?);
    run_tests::run(root, args, times)
}

/// The tests, the feature combinations and the dependencies' licences and advisories.
pub fn ci(root: &Path, args: &TestArgs) -> Result<(), String> {
    let mut times = FEATURES.iter().map(|step| run(root, step)).collect::<Result<Times, _>>()?;
    let deny = Command::new(cargo())
        .args(["deny", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if deny {
        times.push(run(root, &step(&["deny", "--locked", "check"]))?);
    } else {
        println!("== SKIPPED cargo deny: cargo-deny is not installed");
    }
    test_after(root, args, times)
}

/// The cargo that runs this program.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

fn run(root: &Path, step: &Step) -> Result<(Duration, String), String> {
    let line = format!("cargo {}", step.arguments.join(" "));
    timed(&line, || {
        let mut command = Command::new(cargo());
        command.args(step.arguments).envs(step.environment.iter().copied()).current_dir(root);
        let status = command.status().map_err(|e| format!("{line}: {e}"))?;
        if status.success() { Ok(()) } else { Err(format!("{line} failed ({status})")) }
    })
}

/// Runs a step under its name, and returns how long it took.
pub(crate) fn timed(
    name: &str,
    step: impl FnOnce() -> Result<(), String>,
) -> Result<(Duration, String), String> {
    println!("== {name}");
    let start = Instant::now();
    step()?;
    println!("== done in {:.0} s", start.elapsed().as_secs_f64());
    Ok((start.elapsed(), name.into()))
}
