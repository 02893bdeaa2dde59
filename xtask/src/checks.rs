//! Runs the checks of `cargo xtask test` and `cargo xtask ci` in order, and the tests last. The run ends at
//! the first failed check, but a failed test does not stop the other tests. Every commit gets the same checks.
//!
//! Rules about source text are in the module `tidy`.

use crate::packages::Depth;
use crate::run_tests::{self, TestArgs};
use crate::{clients, dependencies, hostile, packages, real_models, support, tidy};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;
use test_support::Skip;

/// Runs steps, and collects the steps that cannot run on this machine.
#[derive(Default)]
pub(crate) struct Done {
    pub skips: Vec<Skip>,
}

impl Done {
    /// Runs cargo with `arguments` and `variables` as a step.
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

    /// Runs a named step and prints its duration.
    pub(crate) fn timed(
        &mut self,
        name: &str,
        step: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        println!("== {name}");
        let start = Instant::now();
        step()?;
        println!("== done in {:.0} s", start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Records a step that cannot run on this machine.
    pub(crate) fn skip(&mut self, step: &str, missing: &str, why: &str) {
        println!("== SKIPPED {step}: {missing}: {why}");
        let [missing, package, test, why] = [missing, "xtask", step, why].map(str::to_owned);
        self.skips.push(Skip { missing, package, test, why });
    }
}

/// Packages with backend features, and the feature sets with which every commit compiles them: no backend, the
/// CPU alone, the library without the command, and the command with HIP, the only backend feature that the engine's
/// code checks. The nightly run compiles with each backend.
const FEATURES: [(&str, &[&str]); 2] = [("ragtag-devices", &["", "cpu"]), ("ragtag", &["", "cli,hip"])];

/// Packages with code that depends on the processor: kernels, and calls of drivers.
const NATIVE: [&str; 2] = ["ragtag-kernels", "ragtag-devices"];

/// Runs the checks that the README describes. The workspace's tests run last, so that their output ends the
/// log.
pub fn test(root: &Path, args: &TestArgs) -> Result<(), String> {
    test_after(root, args, Done::default())
}

/// Lints everything, builds the documentation and runs the tests. If `args` selects tests, only runs these.
fn test_after(root: &Path, args: &TestArgs, mut done: Done) -> Result<(), String> {
    if args.selects() {
        return run_tests::run(root, args, done);
    }
    done.cargo(root, &["fmt", "--all", "--check"], &[])?;
    done.timed("tidy", || tidy::run(root))?;
    done.timed("support table", || support::run(root, true))?;
    // Clippy denies compiler warnings along with its own, in every target. The tests therefore need no
    // RUSTFLAGS, which would recompile everything.
    done.cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], &[])?;
    let doc = ["doc", "--workspace", "--no-deps", "--locked"];
    done.cargo(root, &doc, &[("RUSTDOCFLAGS", "-D warnings")])?;
    hostile::check(root, &mut done)?;
    run_tests::run(root, args, done)
}

/// Checks dependencies and their features, other feature sets, fuzz targets, AArch64, packages, a released model and clients of the server.
/// Then runs the checks of `cargo xtask test`.
pub fn ci(root: &Path, args: &TestArgs) -> Result<(), String> {
    let mut done = Done::default();
    deny(root, &mut done)?;
    done.timed("dependencies", || dependencies::check(root))?;
    for (package, sets) in FEATURES {
        for features in sets {
            let clippy = ["clippy", "-p", package, "--no-default-features", "--features", features];
            done.cargo(root, &[&clippy[..], &["--locked", "--", "-D", "warnings"]].concat(), &[])?;
        }
    }
    fuzz_targets(root, &mut done)?;
    aarch64(root, &mut done)?;
    packages::run(root, Depth::Check, &mut done)?;
    newer_pocl(root, &mut done)?;
    real_models::ci(root, &mut done)?;
    clients::ci(root, &mut done)?;
    test_after(root, args, done)
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

/// Checks that [`NATIVE`] packages compile for AArch64. The nightly run also tests the CPU kernels in QEMU.
fn aarch64(root: &Path, done: &mut Done) -> Result<(), String> {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    let libraries = Command::new("rustc").args(["--print=target-libdir", "--target", TARGET]).output();
    let has_std = |out: Output| Path::new(String::from_utf8_lossy(&out.stdout).trim_end()).is_dir();
    if !libraries.is_ok_and(has_std) {
        done.skip("AArch64", "Rust for AArch64", &format!("rustup target add {TARGET}"));
        return Ok(());
    }
    // Dependencies contain C code.
    if let Err(error) = Command::new("aarch64-linux-gnu-gcc").arg("--version").output() {
        done.skip("AArch64", "C compiler for AArch64", &error.to_string());
        return Ok(());
    }
    let packages = NATIVE.into_iter().flat_map(|package| ["-p", package]);
    let check = ["check", "--locked", "--target", TARGET];
    done.cargo(root, &check.into_iter().chain(packages).collect::<Vec<_>>(), &[])
}

/// Runs kernels and models on the newer PoCL that `.ci/install-pocl` unpacks. The nightly run tests all kernels there.
fn newer_pocl(root: &Path, done: &mut Done) -> Result<(), String> {
    let run = root.join("target/ci/pocl/run");
    if !run.exists() {
        done.skip("newer PoCL", "newer PoCL", ".ci/install-pocl target/ci/pocl");
        return Ok(());
    }
    let runner = format!("CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_RUNNER", std::env::consts::ARCH.to_uppercase());
    let run = run.to_string_lossy();
    let required = ["RAGTAG_TEST_NEWER_POCL", "RAGTAG_TEST_OPENCL_ADAPTERS"].map(|name| (name, "1"));
    let variables = [&required[..], &[(&*runner, &*run)]].concat();
    let tests = ["waiting_kernels_on_a_newer_pocl", "logits_of_checkpoints_are_within_1e_4_on_every_adapter"];
    let targets = ["test", "--workspace", "--locked", "--test", "opencl", "--test", "integration", "--"];
    done.cargo(root, &[&targets[..], &tests].concat(), &variables)
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
