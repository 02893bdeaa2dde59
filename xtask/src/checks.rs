//! Runs the checks of `cargo xtask test` and `cargo xtask ci` in order, and the tests last. The run ends at
//! the first failed check, but a failed test does not stop the other tests.
//!
//! Rules about source text are in the module `tidy`.

use crate::packages::Depth;
use crate::run_tests::{self, TestArgs};
use crate::{aarch64, packages, support, tidy, turns};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use test_support::Skip;

/// Completed steps, for the report at the end of the run.
#[derive(Default)]
pub(crate) struct Done {
    pub times: Vec<(Duration, String)>,
    pub skips: Vec<Skip>,
}

impl Done {
    /// Runs cargo with `arguments` and `variables` as a step, and records its duration.
    pub(crate) fn cargo(
        &mut self,
        root: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<(), String> {
        let line = format!("cargo {}", arguments.join(" "));
        self.timed(&line, || {
            let mut command = Command::new(cargo());
            let status = command.args(arguments).envs(variables.iter().copied()).current_dir(root).status();
            let status = status.map_err(|e| format!("{line}: {e}"))?;
            if status.success() { Ok(()) } else { Err(format!("{line} failed ({status})")) }
        })
    }

    /// Runs a named step and records its duration.
    pub(crate) fn timed(
        &mut self,
        name: &str,
        step: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        println!("== {name}");
        let start = Instant::now();
        step()?;
        println!("== done in {:.0} s", start.elapsed().as_secs_f64());
        self.times.push((start.elapsed(), name.into()));
        Ok(())
    }

    /// Records a step that cannot run on this machine.
    pub(crate) fn skip(&mut self, step: &str, missing: &str, why: &str) {
        println!("== SKIPPED {step}: {missing}: {why}");
        let [missing, package, test, why] = [missing, "xtask", step, why].map(str::to_owned);
        self.skips.push(Skip { missing, package, test, why });
    }
}

/// Number of turns that the longer checks take, by seed.
pub(crate) const TURNS: u64 = 9;
/// Turns of the checks that need the tools for AArch64. `.ci/run` installs the tools in these turns only.
const AARCH64_TEST: u64 = 0;
const AARCH64_CHECK: u64 = 5;

/// Packages with backend features, and the feature sets with which they must compile, for each turn: each backend
/// alone, no backend, and the library without the command. HIP is the only backend feature that the command's code
/// checks.
const FEATURES: [(u64, &str, &[&str]); 4] = [
    (2, "ragtag-devices", &["", "cpu", "cuda", "hip", "level-zero", "opencl"]),
    (3, "ragtag", &["", "cli"]),
    (7, "ragtag", &["cli,cpu", "cli,hip"]),
    (8, "ragtag-devices", &["vulkan", "wgpu"]),
];

/// Runs the checks that the README describes. The workspace's tests run last, so that their output ends the
/// log.
pub fn test(root: &Path, args: &TestArgs) -> Result<(), String> {
    test_after(root, args, true, Done::default())
}

/// Lints everything, builds the documentation if `documents` is set, and runs the tests.
fn test_after(root: &Path, args: &TestArgs, documents: bool, mut done: Done) -> Result<(), String> {
    done.cargo(root, &["fmt", "--all", "--check"], &[])?;
    done.timed("tidy", || tidy::run(root))?;
    done.timed("support table", || support::run(root, true))?;
    // Clippy denies compiler warnings along with its own, in every target. The tests therefore need no
    // RUSTFLAGS, which would recompile everything.
    done.cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], &[])?;
    if documents {
        done.cargo(
            root,
            &["doc", "--workspace", "--no-deps", "--locked"],
            &[("RUSTDOCFLAGS", "-D warnings")],
        )?;
    }
    run_tests::run(root, args, done)
}

/// Runs the checks for other feature sets, dependencies and fuzz targets, and those of AArch64 and of packages.
/// Then runs the checks of `cargo xtask test`. Some of them take turns by seed.
pub fn ci(root: &Path, args: &TestArgs) -> Result<(), String> {
    let mut done = Done::default();
    // The complete run takes all turns, and also runs an example of the packages.
    let is_complete = std::env::var_os("RAGTAG_TEST_ALL").is_some();
    let is_turn = |turn| is_complete || test_support::seed() % TURNS == turn;
    deny(root, &mut done)?;
    for (_, package, sets) in FEATURES.into_iter().filter(|(turn, ..)| is_turn(*turn)) {
        sets.iter().try_for_each(|features| lint(root, package, features, &mut done))?;
    }
    if is_turn(AARCH64_TEST) {
        aarch64::test(root, &mut done)?;
    }
    if is_turn(1) {
        fuzz_targets(root, &mut done)?;
    }
    if is_turn(AARCH64_CHECK) {
        aarch64::check(root, &mut done)?;
    }
    if is_turn(6) {
        packages::run(root, if is_complete { Depth::Run } else { Depth::Check }, &mut done)?;
    }
    let others = if is_complete { Vec::new() } else { turns::others(test_support::seed()) };
    test_after(root, &args.clone().overlapping(others), is_turn(4), done)
}

/// Lints a package with a feature set.
fn lint(root: &Path, package: &str, features: &str, done: &mut Done) -> Result<(), String> {
    let arguments = ["clippy", "-p", package, "--no-default-features", "--features", features, "--locked"];
    done.cargo(root, &[&arguments[..], &["--", "-D", "warnings"]].concat(), &[])
}

/// Checks the licences, the sources and the security advisories of all dependencies.
fn deny(root: &Path, done: &mut Done) -> Result<(), String> {
    if !output(root, &["deny", "--version"])?.status.success() {
        done.skip("cargo deny", "cargo-deny", "not installed");
        return Ok(());
    }
    let mut check = vec![
        "deny",
        "--workspace",
        "--locked",
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ];
    let fetch = output(root, &["deny", "fetch", "db"])?;
    if fetch.status.success() {
        check.push("advisories");
    } else {
        let said = String::from_utf8_lossy(&fetch.stderr);
        done.skip(
            "cargo deny check advisories",
            "advisory database",
            said.lines().last().unwrap_or_default(),
        );
    }
    done.cargo(root, &check, &[])
}

/// Checks that the fuzz targets compile. An integration test runs the targets on the seeds.
fn fuzz_targets(root: &Path, done: &mut Done) -> Result<(), String> {
    let arguments = ["check", "--manifest-path", "fuzz/Cargo.toml", "--locked"];
    // If this variable is set, cargo does not build libFuzzer's C++ code. `cargo check` links nothing, so the
    // file may be missing.
    done.cargo(root, &arguments, &[("CUSTOM_LIBFUZZER_PATH", "target/libfuzzer.a")])
}

/// Runs cargo with `arguments` and returns its output.
fn output(root: &Path, arguments: &[&str]) -> Result<Output, String> {
    let output = Command::new(cargo()).args(arguments).current_dir(root).output();
    output.map_err(|e| format!("cargo {}: {e}", arguments.join(" ")))
}

/// Returns the path of the cargo executable that runs this program.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_for_aarch64_are_installed_in_its_turns() {
        let turn = format!("turn=$((RAGTAG_TEST_SEED % {TURNS}))");
        let case = format!("ci-{AARCH64_TEST} | ci-{AARCH64_CHECK} | nightly-*) .ci/install-aarch64");
        for line in [turn, case] {
            assert!(include_str!("../../.ci/run").contains(&line), "{line}");
        }
    }
}
