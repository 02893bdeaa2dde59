//! Tests drivers that crash or hang during a probe. The command must report them and continue with the other
//! drivers.
//!
//! The tests build the drivers with the system's C compiler. Without a compiler they record a skip.

#![cfg(target_os = "linux")]

use crate::support::{ragtag, text};
use ragtag_devices::{Backends, Config};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Stand-in library that replaces a backend's driver.
struct Driver {
    backend: &'static str,
    library: &'static str,
    /// C declaration of the failing function. It is the first function that a probe calls, or a constructor
    /// that runs when the library is loaded.
    entry: &'static str,
}

/// Drivers of the backends that Ragtag probes in a separate process.
const DRIVERS: [Driver; 3] = [
    Driver { backend: "opencl", library: "libOpenCL.so.1", entry: "int clGetPlatformIDs(void)" },
    Driver {
        backend: "hip",
        library: "libamdhip64.so.7",
        entry: "__attribute__((constructor)) int when_loaded(void)",
    },
    Driver {
        backend: "level-zero",
        library: "libze_loader.so.1",
        entry: "__attribute__((constructor)) int when_loaded(void)",
    },
];

/// Builds a library with the single function `driver.entry`, whose C body is `body`. Without a compiler,
/// records a skip and returns `None`.
fn build(driver: &Driver, body: &str, folder: &Path) -> Option<()> {
    let source = folder.join("driver.c");
    let code = format!(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
         {} {{ {body} return 0; }}\n",
        driver.entry
    );
    std::fs::write(&source, code).unwrap();
    let library = folder.join(driver.library);
    let arguments = ["-shared", "-fPIC", "-o", text(&library), text(&source)];
    match Command::new("cc").args(arguments).status() {
        Ok(status) => assert!(status.success(), "cannot compile the driver"),
        Err(error) => {
            test_support::skip!("C compiler", "{error}");
            return None;
        }
    }
    Some(())
}

/// Runs `ragtag devices` with a driver whose function has the C body `body`. Checks that the backend is
/// unavailable. Returns the reported cause and the duration of the command, or `None` after a skip.
fn status(driver: &Driver, body: &str, limit_s: &str) -> Option<(Value, Duration)> {
    let compiled = Backends::new(&Config::default()).compiled(driver.backend);
    if !compiled {
        test_support::skip!("all features", "{} is not in this build", driver.backend);
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    build(driver, body, folder.path())?;
    let begun = Instant::now();
    let output = ragtag()
        .env("LD_LIBRARY_PATH", folder.path())
        .env("RAGTAG_PROBE_LIMIT", limit_s)
        .args(["devices", "--json"])
        .output()
        .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{:?}: {err}", output.status);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["selected"] == serde_json::json!(["cpu:0"]), "the other devices are selected: {json}");
    let backends = json["report"]["backends"].as_array().unwrap();
    let found = backends.iter().find(|backend| backend["name"] == driver.backend).unwrap();
    assert_eq!(found["status"], "unavailable", "{found}");
    Some((found["cause"].clone(), begun.elapsed()))
}

#[test]
fn a_driver_that_crashes_is_unavailable_with_the_signal() {
    for driver in &DRIVERS {
        // The fault must be real. The probe mistakes a raised signal for a stack overflow and tries once
        // more.
        let crash = "*(volatile int *)0 = 1;";
        let Some((cause, _)) = status(driver, crash, "60") else { continue };
        assert_eq!(cause, "the driver crashed while listing its devices: SIGSEGV (segmentation fault)");
        let abort = "fputs(\"LLVM ERROR: unknown processor\\n\", stderr); abort();";
        let Some((cause, _)) = status(driver, abort, "60") else { continue };
        let cause = cause.as_str().unwrap();
        assert!(
            cause.ends_with("SIGABRT (abort); its last output: LLVM ERROR: unknown processor"),
            "{cause}"
        );
    }
}

#[test]
fn a_driver_that_hangs_is_unavailable_after_the_limit() {
    for driver in &DRIVERS {
        let Some((cause, took)) = status(driver, "for (;;) pause();", "1") else { continue };
        assert_eq!(cause, "the driver did not list its devices within 1 s");
        assert!(took < Duration::from_secs(60), "{took:?}");
    }
}

/// Checks that the probe process prints only its result, in one line, and rejects unknown backends.
#[test]
fn a_probe_prints_one_line() {
    let output = ragtag().args(["probe", "cpu"]).output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && out.lines().count() == 1, "{out}");
    assert!(out.starts_with("ragtag-probe {\"found\":[{\"backend\":\"cpu\""), "{out}");
    let output = ragtag().args(["probe", "abacus"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let help = ragtag().arg("--help").output().unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains("probe "), "the subcommand is hidden");
}
