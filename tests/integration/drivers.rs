//! Tests drivers that crash or hang during a probe. The command must report them and continue with the other
//! drivers.
//!
//! The tests build the drivers with the system's C compiler. Without a compiler they record a skip.

#![cfg(target_os = "linux")]

use crate::examples::example;
use crate::support::{ragtag, sheltered, text};
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

/// Checks that a driver that crashes does not end a program that uses Ragtag as a library.
#[test]
fn a_driver_that_crashes_does_not_end_an_isolated_program() {
    let [driver, ..] = &DRIVERS;
    let folder = tempfile::tempdir().unwrap();
    let called = folder.path().join("called");
    let body = format!("fclose(fopen({called:?}, \"w\")); *(volatile int *)0 = 1;");
    let Some(()) = build(driver, &body, folder.path()) else { return };
    let mut program = sheltered(example("06-attention-everywhere"));
    let done = program.env("LD_LIBRARY_PATH", folder.path()).args(["2", "32", "16"]).assert().success();
    let out = String::from_utf8_lossy(&done.get_output().stdout);
    assert!(called.exists() && out.lines().any(|line| line.starts_with("cpu:0 ")), "{out}");
}

/// Checks that the probe process prints only its result, in one line, and rejects unknown backends.
#[test]
fn a_probe_prints_one_line() {
    let output = ragtag().args(["ragtag-child", "probe", "cpu"]).output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && out.lines().count() == 1, "{out}");
    assert!(out.starts_with("ragtag-probe {\"found\":[{\"backend\":\"cpu\""), "{out}");
    for arguments in [&["probe", "abacus"][..], &["nonsense"]] {
        let output = ragtag().arg("ragtag-child").args(arguments).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]), "{arguments:?}");
    }
}

/// Compiles a library from C code. Without a compiler, records a skip and returns `false`.
fn library(path: &Path, code: &str, more: &[&str]) -> bool {
    let source = path.with_extension("c");
    std::fs::write(&source, code).unwrap();
    let arguments = ["-shared", "-fPIC", "-Wl,--no-as-needed", "-o", text(path), text(&source)];
    match Command::new("cc").args(arguments).args(more).status() {
        Ok(status) => assert!(status.success(), "cannot compile {}", path.display()),
        Err(error) => test_support::skip!("C compiler", "{error}"),
    }
    path.exists()
}

/// Checks that the doctor opens the libraries of drivers and says why it cannot: a missing dependency, another
/// architecture, a file that is no library, or a crash. The drivers' loaders say nothing of that.
#[test]
fn the_doctor_says_which_dependency_of_a_driver_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    if !library(
        &at("libragtag-absent.so.7"),
        "int absent(void) { return 1; }",
        &["-Wl,-soname,libragtag-absent.so.7"],
    ) {
        return;
    }
    library(
        &at("needy.so"),
        "int absent(void); int needy(void) { return absent(); }",
        &[text(&at("libragtag-absent.so.7"))],
    );
    std::fs::remove_file(at("libragtag-absent.so.7")).unwrap();
    library(&at("good.so"), "int good;", &[]);
    library(
        &at("crashing.so"),
        "__attribute__((constructor)) void crash(void) { *(volatile int *)0 = 1; }",
        &[],
    );
    std::fs::write(
        at("text.so"),
        "not a library, but longer than the header of one, which has 64 bytes .......",
    )
    .unwrap();
    // The header of an ELF file for 32-bit programs on x86.
    let mut header = vec![0x7f, b'E', b'L', b'F', 1, 1, 1];
    header.resize(4096, 0);
    (header[16], header[18], header[20]) = (3, 3, 1);
    std::fs::write(at("old.so"), header).unwrap();
    let mut files = Vec::new();
    for name in ["good", "needy", "crashing", "text", "old", "gone"] {
        let json =
            format!("{{\"file_format_version\": \"1.0.0\", \"ICD\": {{\"library_path\": \"./{name}.so\"}}}}");
        std::fs::write(at(&format!("{name}.json")), json).unwrap();
        std::fs::write(at(&format!("{name}.icd")), format!("{}\n", text(&at(&format!("{name}.so")))))
            .unwrap();
        files.push(text(&at(&format!("{name}.json"))).to_owned());
    }
    let output = ragtag()
        .env("VK_DRIVER_FILES", files.join(":"))
        .env("OCL_ICD_VENDORS", folder.path())
        .args(["devices", "--doctor", "--json"])
        .output()
        .unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    for api in ["vulkan", "opencl"] {
        if !Backends::new(&Config::default()).compiled(api) {
            continue;
        }
        let of_api = json["apis"].as_array().unwrap().iter().find(|one| one["api"] == api).unwrap();
        let finding = |name: &str| {
            let is_own = |finding: &&Value| {
                let found = finding["found"].as_str().unwrap();
                finding["subject"] == "driver"
                    && found.contains(&format!("/{name}.{}", if api == "vulkan" { "json" } else { "icd" }))
            };
            let found = of_api["findings"].as_array().unwrap().iter().find(is_own).unwrap();
            let part = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
            (part("state"), part("found"), part("advice"))
        };
        let (state, found, advice) = finding("needy");
        assert_eq!(state, "missing", "{api}: {found}");
        assert!(
            found.contains("which cannot be opened: libragtag-absent.so.7: cannot open shared"),
            "{api}: {found}"
        );
        assert!(advice.contains("libragtag-absent.so.7"), "{api}: {advice}");
        assert_eq!(finding("good").0, "ok", "{api}");
        let (state, found, _) = finding("crashing");
        assert!(state == "missing" && found.contains("crashed while loading: SIGSEGV"), "{api}: {found}");
        let (state, found, _) = finding("text");
        assert!(state == "missing" && found.contains("invalid ELF header"), "{api}: {found}");
        let (state, found, _) = finding("old");
        assert!(state == "note" && found.contains("which is for 32-bit programs"), "{api}: {found}");
        let (state, found, _) = finding("gone");
        assert!(state == "missing" && found.contains("which does not exist"), "{api}: {found}");
    }
}
