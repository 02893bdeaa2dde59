//! Checks AArch64 on a machine with a different architecture. Cross-compiles the workspace, and runs the NEON
//! CPU kernels in QEMU. If `RAGTAG_TEST_ALL` is set, QEMU also runs the conformance suite of CPU devices.
//!
//! Knows nothing about individual kernels.

use crate::checks::{Done, TURNS};
use std::path::Path;
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const QEMU: &str = "qemu-aarch64";
/// Number of shares of the kernel variants. QEMU runs one share per commit, and all in the complete run.
const SHARES: &str = "24";
/// Setting of cargo. Several units of code compile on several cores, which saves more time than slower kernels
/// take in QEMU.
const SEVERAL_UNITS: &str = "profile.dev.package.ragtag-kernels.codegen-units=16";
/// Environment variables that set cargo's linker and runner for AArch64.
const VARIABLES: [(&str, &str); 2] = [
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER),
    // LD_LIBRARY_PATH names libraries of the host machine, which QEMU cannot run.
    (
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
        "qemu-aarch64 -L /usr/aarch64-linux-gnu -U LD_LIBRARY_PATH",
    ),
];

/// Cross-compiles the workspace. Skips the step if its tools are missing.
///
/// # Errors
/// Returns an error if a crate does not compile.
pub(crate) fn check(root: &Path, done: &mut Done) -> Result<(), String> {
    if !compiles(done) {
        return Ok(());
    }
    done.cargo(root, &["check", "--workspace", "--locked", "--target", TARGET], &VARIABLES)
}

/// Tests the CPU kernels, and in the complete run the CPU device. Skips the step if its tools are missing.
///
/// # Errors
/// Returns an error if a test does not compile or fails.
pub(crate) fn test(root: &Path, done: &mut Done) -> Result<(), String> {
    if !compiles(done) {
        return Ok(());
    }
    if !starts(QEMU) {
        done.skip("kernels on AArch64", "QEMU for AArch64", QEMU);
        return Ok(());
    }
    // This step has a turn of its own, so the remainder of the seed is constant. The quotient selects the share.
    let seed = (test_support::seed() / TURNS).to_string();
    let mut test = |package, test, shares| {
        let target = ["--target", TARGET, "--config", SEVERAL_UNITS];
        let arguments = [&["test", "-p", package, "--test", test, "--locked"], &target[..]].concat();
        let share = [("RAGTAG_TEST_SHARES", shares), ("RAGTAG_TEST_SEED", &*seed)];
        done.cargo(root, &arguments, &[&VARIABLES[..], &share].concat())
    };
    let is_complete = std::env::var_os("RAGTAG_TEST_ALL").is_some();
    test("ragtag-kernels", "cpu", if is_complete { "1" } else { SHARES })?;
    // This step compiles every backend for the target, which takes longer than all tests in QEMU.
    if is_complete {
        test("ragtag-conformance", "cpu", "1")?;
    }
    Ok(())
}

/// Returns whether this machine can compile for [`TARGET`]. Records a skip if it cannot.
fn compiles(done: &mut Done) -> bool {
    if !has_std() {
        done.skip("AArch64", "Rust for AArch64", &format!("rustup target add {TARGET}"));
        return false;
    }
    // Dependencies contain C code, so `cargo check` needs the linker as well.
    if !starts(LINKER) {
        done.skip("AArch64", "C compiler for AArch64", LINKER);
        return false;
    }
    true
}

/// Returns whether the Rust toolchain has the standard library for [`TARGET`].
fn has_std() -> bool {
    let output = Command::new("rustc").args(["--print=target-libdir", "--target", TARGET]).output();
    output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

fn starts(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}
