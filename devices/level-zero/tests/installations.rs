//! Tests of installations: without a loader, without a driver, and with Intel's driver on a machine without an
//! Intel GPU. The loader looks for drivers once per process. Each case therefore has its own child process,
//! which runs this test binary with different environment variables.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use std::fs;
use support::*;
use test_drivers::library_path;
use test_support::child as child_process;

/// Name of the test that child processes run.
const CHILD: &str = "child";

/// Prints the probe result if this process is a child process.
#[test]
fn child() {
    prints_its_probe(CHILD, &backend());
}

/// Returns the probe result of a child process with a list of drivers instead of the installed ones.
fn probed_with(drivers: Option<&str>) -> String {
    let mut child = child_process(CHILD);
    child = match drivers {
        Some(drivers) => child.env("ZE_ENABLE_ALT_DRIVERS", drivers),
        None => child.env_remove("ZE_ENABLE_ALT_DRIVERS"),
    };
    probed(child).join("\n")
}

/// Hides an installed loader behind empty files of its names, so that no loader can be loaded.
#[test]
fn a_missing_loader_is_reported() {
    if !cfg!(target_os = "linux") {
        return test_support::skip!("Linux", "LD_LIBRARY_PATH is its own");
    }
    let names = ["libze_loader.so.1", "libze_loader.so"];
    let folder = tempfile::tempdir().unwrap();
    names.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
    let said = probed(child_process(CHILD).env("LD_LIBRARY_PATH", library_path(folder.path()))).join("\n");
    println!("{said}");
    assert!(
        said.starts_with("unavailable: ") && said.contains("libze_loader.so.1: file too short"),
        "{said}"
    );
    assert!(said.contains("(tried libze_loader.so.1, libze_loader.so)"), "{said}");
}

#[test]
fn a_missing_driver_is_reported() {
    let said = probed_with(Some("/nowhere/libze_none.so"));
    println!("{said}");
    if said.contains("cannot open") {
        return test_support::skip!("Level Zero driver", "{said}");
    }
    assert!(said.contains("ZE_ENABLE_ALT_DRIVERS=/nowhere/libze_none.so has a device"), "{said}");
    assert!(said.contains("UNINITIALIZED"), "{said}");
}

#[test]
fn a_machine_without_a_gpu_gets_a_cause() {
    let said = probed_with(None);
    println!("{said}");
    match () {
        () if said.contains("cannot open") => test_support::skip!("Level Zero driver", "{said}"),
        () if !said.contains("unavailable") => {
            test_support::skip!("machine without Level Zero devices", "{said}");
        }
        () => assert!(said.contains("finds no device") || said.contains("finds no driver"), "{said}"),
    }
}
