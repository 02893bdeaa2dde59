//! The checks of `cargo xtask test` and `cargo xtask ci`, in order. The first failure stops them, except that all tests run
//! after a failed one. The tests come last.
//!
//! This module must not know rules about source text; those are `tidy`'s.

use crate::run_tests::{self, TestArgs};
use crate::{aarch64, packages, support, tidy};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use test_support::Skip;

/// Steps so far, for the report at the end.
#[derive(Default)]
pub(crate) struct Done {
    pub times: Vec<(Duration, String)>,
    pub skips: Vec<Skip>,
}

impl Done {
    /// Runs cargo with these arguments and variables.
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

    /// Runs a step under its name, and notes how long it took.
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

    /// Notes a step that cannot run here.
    pub(crate) fn skip(&mut self, step: &str, missing: &str, why: &str) {
        println!("== SKIPPED {step}: {missing}: {why}");
        let [missing, package, test, why] = [missing, "xtask", step, why].map(str::to_owned);
        self.skips.push(Skip { missing, package, test, why });
    }
}

/// Backends that must compile without the others.
const BACKENDS: [&str; 6] = ["cpu", "cuda", "hip", "opencl", "vulkan", "wgpu"];

/// What the README calls the tests. The workspace's tests come last: a log ends with what they say.
pub fn test(root: &Path, args: &TestArgs) -> Result<(), String> {
    test_after(root, args, Done::default())
}

fn test_after(root: &Path, args: &TestArgs, mut done: Done) -> Result<(), String> {
    done.cargo(root, &["fmt", "--all", "--check"], &[])?;
    done.timed("tidy", || tidy::run(root))?;
    done.timed("support table", || support::run(root, true))?;
    // Clippy denies the compiler's warnings along with its own, in every target. So the tests need no RUSTFLAGS, which would
    // have everything compiled once more.
    done.cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], &[])?;
    done.cargo(root, &["doc", "--workspace", "--no-deps", "--locked"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    run_tests::run(root, args, done)
}

/// The tests, and what users of other features, processors and tools get.
pub fn ci(root: &Path, args: &TestArgs) -> Result<(), String> {
    let mut done = Done::default();
    features(root, &mut done)?;
    deny(root, &mut done)?;
    fuzz_targets(root, &mut done)?;
    packages::run(root, &mut done)?;
    aarch64::run(root, &mut done)?;
    test_after(root, args, done)
}

/// Lints the crates that look at features, for each backend alone and for none, and the library without the command.
fn features(root: &Path, done: &mut Done) -> Result<(), String> {
    let mut lint = |package, features| {
        let arguments =
            ["clippy", "-p", package, "--no-default-features", "--features", features, "--locked"];
        done.cargo(root, &[&arguments[..], &["--", "-D", "warnings"]].concat(), &[])
    };
    lint("ragtag-devices", "")?;
    BACKENDS.iter().try_for_each(|backend| lint("ragtag-devices", backend))?;
    lint("ragtag", "")?;
    // Of the backends the command's code asks for HIP alone.
    lint("ragtag", "cli")?;
    lint("ragtag", "cli,hip")
}

/// Licences, sources and advisories of the dependencies.
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

/// The fuzz targets compile. Tests of `graph` and `scheduler` run their code on the seeds.
fn fuzz_targets(root: &Path, done: &mut Done) -> Result<(), String> {
    let arguments = ["check", "--manifest-path", "fuzz/Cargo.toml", "--locked"];
    // With a library of libFuzzer named, its C++ is not built. Nothing is linked.
    done.cargo(root, &arguments, &[("CUSTOM_LIBFUZZER_PATH", "target/libfuzzer.a")])
}

/// What cargo prints with these arguments.
fn output(root: &Path, arguments: &[&str]) -> Result<Output, String> {
    let output = Command::new(cargo()).args(arguments).current_dir(root).output();
    output.map_err(|e| format!("cargo {}: {e}", arguments.join(" ")))
}

/// The cargo that runs this program.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}
