//! Runs the suite on every Vulkan device of this machine.

#![allow(clippy::print_stdout)] // Skips must be visible.

mod support;

use ragtag_conformance::{Part, Suite, Verdict};
use ragtag_devices::{Backends, Config};
use ragtag_hal::{Adapter, Feature};

#[test]
fn every_vulkan_device() {
    support::every_device_of("vulkan", "Vulkan driver");
}

/// Runs the kernels that exchange values within sub-groups, on the devices whose names contain
/// `RAGTAG_TEST_SUB_GROUPS`. Some drivers let the user configure the sub-group size, and only these kernels
/// depend on it.
#[test]
fn kernels_on_sub_groups() {
    let Ok(name) = std::env::var("RAGTAG_TEST_SUB_GROUPS") else {
        return test_support::skip!("device with known sub-groups", "RAGTAG_TEST_SUB_GROUPS selects none");
    };
    // Each takes seconds to compile for wide vectors.
    let part = Part { of: 8, index: 0 };
    let passed = try_kernels(|one| one.name.contains(&name), &["kernel/*sub-groups"], part);
    println!("{passed} kernels on sub-groups passed");
    assert!(passed > 0, "no device {name} has sub-groups");
}

/// Runs matrix-unit kernels on drivers with matrix units, but only kernels that a compiler for the CPU
/// finishes in time. If no device has matrix units, records a skip, or fails if `RAGTAG_TEST_VULKAN_MATRICES`
/// is set.
#[test]
fn kernels_on_matrix_units() {
    let has = |one: &Adapter| one.caps.features.contains(&Feature::CooperativeMatrix);
    let names = ["kernel/attention*matrices-short", "kernel/matmul/F16*matrices-"];
    let passed = try_kernels(has, &names, Part::default());
    println!("{passed} kernels on matrix units passed");
    if passed == 0 {
        assert!(
            std::env::var_os("RAGTAG_TEST_VULKAN_MATRICES").is_none(),
            "no Vulkan device has matrix units"
        );
        test_support::skip!("Vulkan device with matrix units", "no device shows cooperative matrices");
    }
}

/// Runs a part of the kernels that `names` selects on the devices that `chosen` selects, or all of them if
/// `RAGTAG_TEST_ALL` is set. Fails if a kernel fails. Returns the number of passed tests.
#[track_caller]
fn try_kernels(chosen: impl Fn(&Adapter) -> bool, names: &[&str], part: Part) -> usize {
    let backends = Backends::new(&Config::default());
    let adapters = support::adapters(&backends, "vulkan").unwrap_or_default();
    let (part, seed) = (support::or_all(part), test_support::seed());
    let mut passed = 0;
    for adapter in adapters.iter().filter(|one| chosen(one)) {
        for only in names {
            let suite = Suite::new().only(only).by_turns(part, support::SOME, seed);
            let report = support::run_on(&backends, adapter, suite);
            for test in &report.tests {
                println!("{} ({}): {}: {:?}", adapter.label(), adapter.driver, test.name, test.verdict);
            }
            assert_eq!(
                report.failures().count(),
                0,
                "{}: repeat with: {}",
                adapter.label(),
                support::repeat()
            );
            passed +=
                report.tests.iter().filter(|test| matches!(test.verdict, Verdict::Passed { .. })).count();
        }
    }
    passed
}
