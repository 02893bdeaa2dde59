//! Runs the suite on every OpenCL device of this machine.

#![allow(clippy::print_stdout)] // Skips must be visible.

mod support;

use ragtag_conformance::{Outcome, Suite, Verdict};
use ragtag_devices::{Backends, Config};
use ragtag_hal::{Adapter, Feature, KernelLanguage};
use test_support::nightly;

#[test]
fn every_opencl_device() {
    support::every_device_of("opencl", "OpenCL driver");
}

/// Runs the committed SPIR-V on OpenCL devices that accept it. Level Zero gets the same programs.
#[test]
fn kernels_in_spir_v() {
    // Other tests run the same variants in OpenCL C.
    let suite = Suite::new().only("kernel/*/opencl").in_language(KernelLanguage::SpirV);
    let suite = if nightly() { suite } else { suite.divided(16, 0) };
    let takes = |adapter: &Adapter| adapter.caps.languages.contains(&KernelLanguage::SpirV);
    on_adapters("OpenCL driver that accepts SPIR-V", takes, suite);
}

/// Kernels whose items wait for each other, in the forms that compilers for CPUs compile differently. The other kernels
/// differ from them in the tensor type.
const WAITING: [&str; 10] = [
    "kernel/*norm*/opencl",
    "kernel/quantize/*/opencl",
    "kernel/silu-mul/int8/opencl",
    "kernel/arg-max/opencl",
    "kernel/top-k/opencl",
    "kernel/softmax-axis/opencl",
    "kernel/reduce/opencl",
    "kernel/attention*/f32/opencl",
    "kernel/rope-append/q8_0/opencl",
    "kernel/matmul/Q4_0/int8/opencl",
];

/// Runs the kernels whose items wait for each other on PoCL 5 and newer. Their compiler differs from that of PoCL 3,
/// which runs all kernels. If there is no such PoCL, records a skip, or fails if `RAGTAG_TEST_NEWER_POCL` is set.
#[test]
fn waiting_kernels_on_a_newer_pocl() {
    let is_newer = |adapter: &Adapter| {
        // The name ends with the version: `driver 6.0+debian`.
        let (name, version) = adapter.driver.name.rsplit_once(' ').unwrap_or_default();
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        name.starts_with("Portable Computing Language") && major.is_some_and(|major| major >= 5)
    };
    let backends = Backends::new(&Config::default());
    let found = support::adapters(&backends, "opencl").unwrap_or_default();
    if !found.iter().any(is_newer) {
        assert!(std::env::var_os("RAGTAG_TEST_NEWER_POCL").is_none(), "no newer PoCL: {found:?}");
        return test_support::skip!("newer PoCL", "no adapter");
    }
    for pattern in WAITING {
        on_adapters("newer PoCL", is_newer, Suite::new().only(pattern));
    }
}

/// Runs the kernels with sub-groups on Intel's driver. PoCL 3, which runs all other kernels, has no sub-groups.
#[test]
fn kernels_on_intel_sub_groups() {
    let takes = |adapter: &Adapter| adapter.driver.name.starts_with("Intel(R) OpenCL");
    on_adapters("Intel's OpenCL driver", takes, Suite::new().only("kernel/*/opencl-sub-groups"));
}

/// Functions in place of the matrix instructions of Intel's GPUs.
const MATRIX_UNITS: &str = include_str!("../../tests/drivers/level-zero-on-opencl/src/matrix_units.cl");

/// Checks the products for Intel's matrix units on drivers with sub-groups of 8 work items.
#[test]
fn kernels_on_intel_matrix_units() {
    let suite = Suite::new().only("kernel/*/opencl-xmx").emulating(Feature::Xmx, MATRIX_UNITS);
    let takes = |adapter: &Adapter| adapter.driver.name.starts_with("Intel(R) OpenCL");
    on_adapters("Intel's OpenCL driver", takes, suite);
}

/// Runs `suite` on the first adapter of each driver for which `takes` is true. All tests must pass, except those of
/// kernels that require another feature.
#[track_caller]
fn on_adapters(missing: &str, takes: impl Fn(&Adapter) -> bool, suite: Suite<'_>) {
    let backends = Backends::new(&Config::default());
    let adapters = support::adapters(&backends, "opencl").unwrap_or_default();
    let mut adapters: Vec<_> = adapters.into_iter().filter(takes).collect();
    adapters.dedup_by(|b, a| a.driver == b.driver);
    if adapters.is_empty() {
        test_support::skip!(missing, "no adapter");
    }
    for adapter in adapters {
        let report = support::run_on(&backends, &adapter, suite);
        let lacks =
            |verdict: &Verdict| matches!(verdict, Verdict::Skipped { reason } if reason.contains("lacks"));
        let (passed, others): (Vec<_>, Vec<_>) =
            report.tests.iter().partition(|test| matches!(test.verdict, Verdict::Passed { .. }));
        let failed: Vec<_> = others.into_iter().filter(|test| !lacks(&test.verdict)).collect();
        println!("{}: {} kernels passed", adapter.label(), passed.len());
        assert!(failed.is_empty(), "{}: {failed:#?}\nrepeat with: {}", adapter.label(), support::repeat());
        assert!(!passed.is_empty(), "the suite has no such kernel");
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
        test("kernel/gather/opencl", true),
        test("kernel/add/wgsl", false),
        test("kernel/add/opencl", true),
    ];
    let counts = |driver: &str, tests: &[Outcome]| support::not_passed("opencl", driver, tests);
    assert_eq!(counts("Intel(R) OpenCL, OpenCL 3.0", &tests), (0, 4));
    tests[1] = test("kernel/gather/opencl", false);
    assert_eq!(counts("Intel(R) OpenCL, OpenCL 3.0", &tests), (1, 4));
    assert_eq!(counts("another driver", &tests), (1, 1));
    tests[3] = test("kernel/add/opencl", false);
    assert_eq!(counts("another driver", &tests), (2, 1));
}
