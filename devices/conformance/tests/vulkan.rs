//! The suite on every Vulkan device of this machine.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_conformance::{Suite, Verdict};
use ragtag_devices::{Backends, Config};
use ragtag_hal::{DeviceId, Feature, Limits};

#[test]
fn every_vulkan_device() {
    support::every_device_of("vulkan");
}

/// The kernels on matrix units alone, for drivers that are there because they have them: those that a compiler for processors
/// is done with in time. Skipped visibly where none has; `RAGTAG_TEST_VULKAN_MATRICES` says that one must.
#[test]
fn kernels_on_matrix_units() {
    let backends = Backends::new(&Config::default());
    let adapters = support::adapters(&backends, "vulkan").unwrap_or_else(|why| {
        println!("skipped: vulkan: {why}");
        Vec::new()
    });
    let mut passed = 0;
    for adapter in adapters.iter().filter(|one| one.caps.features.contains(&Feature::CooperativeMatrix)) {
        let open = || {
            let mut devices = backends.open(&[(adapter.clone(), DeviceId(0))], &Limits::default())?;
            Ok(devices.swap_remove(0))
        };
        for only in ["kernel/attention*matrices-short", "kernel/matmul/F16*matrices-"] {
            let report = Suite::new().only(only).run(adapter, open, |_| {});
            for test in &report.tests {
                println!("{} ({}): {}: {:?}", adapter.label(), adapter.driver, test.name, test.verdict);
            }
            assert_eq!(report.failures().count(), 0, "{}", adapter.label());
            passed +=
                report.tests.iter().filter(|test| matches!(test.verdict, Verdict::Passed { .. })).count();
        }
    }
    println!("{passed} kernels on matrix units passed");
    let must = std::env::var_os("RAGTAG_TEST_VULKAN_MATRICES").is_some();
    assert!(passed > 0 || !must, "no device of Vulkan has matrix units");
}
