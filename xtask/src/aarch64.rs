//! Cross-checks AArch64 from another machine: compiles the workspace and runs the NEON CPU kernels in QEMU.
//! With `RAGTAG_TEST_ALL` the conformance suite of CPU devices runs there, too.
//!
//! Knows nothing about individual kernels.

use crate::checks::Done;
use std::path::Path;
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const QEMU: &str = "qemu-aarch64";
/// Environment variables for cargo.
const VARIABLES: [(&str, &str); 2] = [
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER),
    // LD_LIBRARY_PATH names libraries of the host machine; they do not run in QEMU.
    (
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
        "qemu-aarch64 -L /usr/aarch64-linux-gnu -U LD_LIBRARY_PATH",
    ),
];

/// Compiles the workspace and tests the CPU device. Skips the steps whose tools are missing.
///
/// # Errors
/// Fails if a crate does not compile or a test fails.
pub(crate) fn run(root: &Path, done: &mut Done) -> Result<(), String> {
    let check = ["check", "--workspace", "--locked", "--target", TARGET];
    if !has_std() {
        done.skip("AArch64", "Rust for AArch64", &format!("rustup target add {TARGET}"));
        return Ok(());
    }
    // Dependencies contain C code and need the linker as well.
    if !starts(LINKER) {
        done.skip("AArch64", "C compiler for AArch64", LINKER);
        return Ok(());
    }
    done.cargo(root, &check, &VARIABLES)?;
    if !starts(QEMU) {
        done.skip("kernels on AArch64", "QEMU for AArch64", QEMU);
        return Ok(());
    }
    let mut test = |package, test| {
        let arguments = ["test", "-p", package, "--test", test, "--locked", "--target", TARGET];
        done.cargo(root, &arguments, &VARIABLES)
    };
    test("ragtag-kernels", "cpu")?;
    // Compiles every backend for the target, which takes longer than all tests there.
    if std::env::var_os("RAGTAG_TEST_ALL").is_some() {
        test("ragtag-conformance", "cpu")?;
    }
    Ok(())
}

/// Whether the toolchain has the standard library for the target.
fn has_std() -> bool {
    let output = Command::new("rustc").args(["--print=target-libdir", "--target", TARGET]).output();
    output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

fn starts(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}
