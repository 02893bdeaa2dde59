//! Tests of driver installations: without a driver, and with a driver that is installed twice. The OpenCL
//! library looks for drivers once per process. Each case therefore has its own child process, which runs this
//! test binary with different environment variables.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use support::*;
use test_support::child as child_process;

/// Name of the test that child processes run.
const CHILD: &str = "child";

/// Prints the probe result if this process is a child process.
#[test]
fn child() {
    prints_its_probe(CHILD, &backend());
}

/// Returns the probe result of a child process that loads the drivers listed in a folder.
fn probed_with(vendors: &Path) -> Vec<String> {
    probed(child_process(CHILD).env("OCL_ICD_VENDORS", vendors))
}

/// Returns the folder with the ICD files of the drivers.
fn vendors() -> PathBuf {
    std::env::var_os("OCL_ICD_VENDORS").map_or_else(|| "/etc/OpenCL/vendors".into(), PathBuf::from)
}

#[test]
fn a_driver_that_is_installed_twice_lists_its_devices_once() {
    let files: Vec<_> = fs::read_dir(vendors())
        .map(|entries| entries.filter_map(|entry| entry.ok()).map(|entry| entry.path()).collect())
        .unwrap_or_default();
    if !cfg!(target_os = "linux") || files.is_empty() {
        test_support::skip!("OpenCL driver", "no folder names one");
        return;
    }
    let (once, twice) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (at, file) in files.iter().enumerate() {
        fs::copy(file, once.path().join(format!("{at}.icd"))).unwrap();
        fs::copy(file, twice.path().join(format!("{at}.icd"))).unwrap();
        fs::copy(file, twice.path().join(format!("{at}-again.icd"))).unwrap();
    }
    let devices = |lines: Vec<String>| {
        // The order of drivers is unspecified, so the test only compares the devices and how often each
        // occurs.
        let mut names: Vec<_> =
            lines.iter().filter_map(|line| line.split_once(' ')).map(|at| at.1.to_string()).collect();
        names.sort_unstable();
        names
    };
    let (once, twice) = (devices(probed_with(once.path())), devices(probed_with(twice.path())));
    println!("{once:#?}");
    assert_eq!(once, twice);
}

#[test]
fn a_missing_driver_is_reported() {
    if !cfg!(target_os = "linux") {
        test_support::skip!("Linux", "OCL_ICD_VENDORS is its own");
        return;
    }
    let empty = tempfile::tempdir().unwrap();
    let said = probed_with(empty.path());
    assert!(said.len() == 1 && said[0].contains("unavailable") && said[0].contains("OpenCL"), "{said:?}");
}
