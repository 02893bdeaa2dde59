//! The checks of `cargo xtask test` and `cargo xtask ci`: what each runs, in order, stopping at the first failure.
//!
//! This module must not know rules about source text; those are `tidy`'s.

use crate::{support, tidy};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

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
// All crates run, so that one run names every failure.
const TESTS: Step = step(&["test", "--workspace", "--locked", "--no-fail-fast"]);
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
pub fn test(root: &Path) -> Result<(), String> {
    run(root, &FORMAT)?;
    println!("== tidy");
    tidy::run(root)?;
    println!("== support table");
    support::run(root, true)?;
    run(root, &LINTS)?;
    run(root, &DOCUMENTATION)?;
    run(root, &TESTS)
}

/// The tests, the feature combinations and the dependencies' licences and advisories.
pub fn ci(root: &Path) -> Result<(), String> {
    FEATURES.iter().try_for_each(|step| run(root, step))?;
    let deny = Command::new(cargo())
        .args(["deny", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if deny {
        run(root, &step(&["deny", "--locked", "check"]))?;
    } else {
        println!("== SKIPPED cargo deny: cargo-deny is not installed");
    }
    test(root)
}

/// The cargo that runs this program.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

fn run(root: &Path, step: &Step) -> Result<(), String> {
    let line = format!("cargo {}", step.arguments.join(" "));
    println!("== {line}");
    let start = Instant::now();
    let status = Command::new(cargo())
        .args(step.arguments)
        .envs(step.environment.iter().copied())
        .current_dir(root)
        .status()
        .map_err(|e| format!("{line}: {e}"))?;
    if !status.success() {
        return Err(format!("{line} failed ({status})"));
    }
    println!("== done in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
