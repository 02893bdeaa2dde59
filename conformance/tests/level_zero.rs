//! Runs the suite through the Level Zero backend: on Intel GPUs, if there are any, and on the test driver, which
//! executes every kernel on Intel's OpenCL runtime behind Level Zero's own loader and validation layer.

#![allow(clippy::print_stdout)] // Skips must be visible.

mod support;

use ragtag_conformance::{Suite, Verdict};
use ragtag_devices::{Backends, Config};
use test_drivers::with_level_zero_on_opencl;

#[test]
fn every_level_zero_device() {
    support::every_device_of("level-zero", "Level Zero driver");
}

#[test]
fn the_test_driver() {
    with_level_zero_on_opencl("the_test_driver", &[], || {
        assert_eq!(support::every_device_of("level-zero", "Level Zero driver"), 2);
    });
}

/// Checks the four products for Intel's matrix units. The test driver replaces the instructions with functions.
#[test]
fn matrix_units() {
    with_level_zero_on_opencl("matrix_units", &[("RAGTAG_FAKE_MATRIX_UNITS", "1")], || {
        let backends = Backends::new(&Config::default());
        let adapter = support::adapters(&backends, "level-zero").unwrap().swap_remove(0);
        let suite = Suite::new().only("kernel/*/opencl-xmx");
        let report = support::run_on(&backends, &adapter, suite);
        for test in &report.tests {
            println!("{}: {}: {:?}", adapter.label(), test.name, test.verdict);
            assert!(matches!(test.verdict, Verdict::Passed { .. }), "{}: {:?}", test.name, test.verdict);
        }
        // The four products have f16 or bf16 weights, and few rows or many.
        assert_eq!(report.tests.len(), 4, "{}", support::repeat());
    });
}
