//! Runs the suite on every OpenCL device of this machine.

#![allow(clippy::print_stdout)] // Skips must be visible.

mod support;

use ragtag_conformance::{Outcome, Part, Suite, Verdict};
use ragtag_devices::{Backends, Config};
use ragtag_hal::KernelLanguage;

#[test]
fn every_opencl_device() {
    support::every_device_of("opencl", "OpenCL driver");
}

/// Runs the committed SPIR-V on OpenCL devices that accept it. Level Zero gets the same programs.
#[test]
fn kernels_in_spir_v() {
    let backends = Backends::new(&Config::default());
    let adapters = support::adapters(&backends, "opencl").unwrap_or_default();
    let takes = adapters.iter().filter(|adapter| adapter.caps.languages.contains(&KernelLanguage::SpirV));
    let takes: Vec<_> = takes.collect();
    if takes.is_empty() {
        test_support::skip!("OpenCL driver that accepts SPIR-V", "no adapter");
    }
    // Other tests run the same variants in OpenCL C. The table repeats after three languages, so that a part of
    // four has variants in each.
    let part = Part { of: if std::env::var_os("RAGTAG_TEST_ALL").is_some() { 1 } else { 4 }, index: 0 };
    let seed = test_support::seed();
    let suite = Suite::new().only("kernel/*/opencl").in_language(KernelLanguage::SpirV);
    for adapter in takes {
        let report = support::run_on(&backends, adapter, suite.by_turns(part, 1, seed));
        let failed = report.tests.iter().filter(|test| !matches!(test.verdict, Verdict::Passed { .. }));
        let failed: Vec<_> = failed.collect();
        println!("{}: {} kernels", adapter.label(), report.tests.len());
        assert!(failed.is_empty(), "{}: {failed:#?}\nrepeat with: {}", adapter.label(), support::repeat());
        assert!(!report.tests.is_empty(), "no kernel is in OpenCL C");
    }
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
