//! Runs the suite on every OpenCL device of this machine.

#![allow(clippy::print_stdout)] // Skips must be visible.

mod support;

use ragtag_conformance::{Outcome, Verdict};

#[test]
fn every_opencl_device() {
    support::every_device_of("opencl", "OpenCL driver");
}

#[test]
fn finds_a_driver_that_skips_kernels_of_its_language() {
    let test = |name: &str, passed: bool| {
        let skipped = Verdict::Skipped { reason: "the device does not take OpenClC kernels".into() };
        let verdict = if passed { Verdict::Passed { relative_error: None } } else { skipped };
        Outcome { name: name.into(), verdict, class: None, duration_us: 0 }
    };
    // Skips of kernels in other languages do not count.
    let mut tests = vec![
        test("memory/copy", true),
        test("kernel/add/opencl", true),
        test("kernel/add/wgsl", false),
        test("kernel/softmax/opencl", true),
    ];
    let counts = |driver: &str, tests: &[Outcome]| support::not_passed("opencl", driver, tests);
    assert_eq!(counts("Portable Computing Language, OpenCL 3.0", &tests), (0, 0));
    tests[1] = test("kernel/add/opencl", false);
    assert_eq!(counts("Portable Computing Language, OpenCL 3.0", &tests), (1, 0));
    assert_eq!(counts("another driver", &tests), (1, 1));
    tests[3] = test("kernel/softmax/opencl", false);
    assert_eq!(counts("another driver", &tests), (2, 1));
}
