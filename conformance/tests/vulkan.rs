//! The suite on every Vulkan device of this machine.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_conformance::{Part, Suite, Verdict};
use ragtag_devices::{Backends, Config};
use ragtag_hal::{Adapter, Feature};

#[test]
fn every_vulkan_device() {
    support::every_device_of("vulkan", "Vulkan driver");
}

/// The kernels that exchange values within sub-groups, on the devices that `RAGTAG_TEST_SUB_GROUPS` names by a part of their name:
/// drivers can be told how wide sub-groups are, and nothing else depends on it.
#[test]
fn kernels_on_sub_groups() {
    let Ok(name) = std::env::var("RAGTAG_TEST_SUB_GROUPS") else {
        return test_support::skip!("device with known sub-groups", "RAGTAG_TEST_SUB_GROUPS names none");
    };
    let passed = try_kernels(|one| one.name.contains(&name), &["kernel/*sub-groups"]);
    println!("{passed} kernels on sub-groups passed");
    assert!(passed > 0, "no device {name} has sub-groups");
}

/// The kernels on matrix units, for drivers that are there because they have them: those that a compiler for processors
/// is done with in time. Skipped visibly where none has; `RAGTAG_TEST_VULKAN_MATRICES` says that one must.
#[test]
fn kernels_on_matrix_units() {
    let has = |one: &Adapter| one.caps.features.contains(&Feature::CooperativeMatrix);
    let passed = try_kernels(has, &["kernel/attention*matrices-short", "kernel/matmul/F16*matrices-"]);
    println!("{passed} kernels on matrix units passed");
    if passed == 0 {
        assert!(
            std::env::var_os("RAGTAG_TEST_VULKAN_MATRICES").is_none(),
            "no Vulkan device has matrix units"
        );
        test_support::skip!("Vulkan device with matrix units", "no device shows cooperative matrices");
    }
}

/// Tries the kernels of these names on chosen devices; none may fail. Returns how many passed.
#[track_caller]
fn try_kernels(chosen: impl Fn(&Adapter) -> bool, names: &[&str]) -> usize {
    let backends = Backends::new(&Config::default());
    let adapters = support::adapters(&backends, "vulkan").unwrap_or_default();
    let mut passed = 0;
    for adapter in adapters.iter().filter(|one| chosen(one)) {
        for only in names {
            let suite =
                Suite::new().only(only).by_turns(Part::default(), support::SOME, test_support::seed());
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
