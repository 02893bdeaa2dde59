//! Tests of driver installations: no driver, a driver that is installed twice, and different sub-group
//! widths. The loader and its drivers read environment variables once per process. Each case therefore has
//! its own child process, which runs this test binary with different environment variables.

use crate::support::*;
use ragtag_hal::{Adapter, AdapterKind};
use std::fs;
use test_support::child as child_process;

/// Name of the test that child processes run.
const CHILD: &str = "drivers::child";

/// Prints the probe result if this process is a child process.
#[test]
fn child() {
    prints_its_probe(CHILD, &backend());
}

/// Returns the probe result of a child process with these environment variables.
fn probed_with(variables: &[(&str, &str)]) -> Vec<String> {
    let child = child_process(CHILD).envs(variables.iter().copied());
    probed(child.env_remove("RAGTAG_TEST_VULKAN_ADAPTERS"))
}

#[test]
fn a_missing_driver_is_reported() {
    if !cfg!(target_os = "linux") {
        test_support::skip!("Linux", "only its loader can be redirected");
        return;
    }
    let nowhere = tempfile::tempdir().unwrap().path().join("no_driver.json");
    let nowhere = nowhere.to_str().unwrap();
    let said = probed_with(&[("VK_DRIVER_FILES", nowhere), ("VK_ICD_FILENAMES", nowhere)]);
    assert!(said.len() == 1 && said[0].contains("unavailable") && said[0].contains("ulkan"), "{said:?}");
}

#[test]
fn a_driver_that_is_named_twice_lists_its_devices_twice() {
    let software = |one: &&Adapter| one.kind == AdapterKind::Software;
    let Some(files) = std::env::var("VK_DRIVER_FILES").ok().filter(|files| !files.is_empty()) else {
        test_support::skip!("Vulkan driver", "VK_DRIVER_FILES names none");
        return;
    };
    let Some(file) = files.split(':').next() else { return };
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("a_copy.json");
    fs::copy(file, &copy).unwrap();
    let once = probed_with(&[("VK_DRIVER_FILES", file)]);
    let twice = probed_with(&[("VK_DRIVER_FILES", &format!("{file}:{}", copy.display()))]);
    println!("{once:#?}\n{twice:#?}");
    if adapters(&backend()).iter().all(|one| software(&one)) {
        assert_eq!(2 * once.len(), twice.len());
    }
}
