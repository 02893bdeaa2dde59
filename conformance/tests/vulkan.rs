//! Runs the suite on every Vulkan device of this machine.

#![allow(clippy::print_stdout)] // Skips must be visible.

mod support;

use ragtag_conformance::{Suite, Verdict};
use ragtag_devices::{Backends, Config};
use ragtag_hal::{Adapter, Feature, KernelLanguage};
use ragtag_kernels::{Kernel, Variant, variants};

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
    let passed = try_kernels(|one| one.name.contains(&name), &["kernel/*sub-groups"]);
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
    let passed = try_kernels(has, &names);
    println!("{passed} kernels on matrix units passed");
    if passed == 0 {
        assert!(
            std::env::var_os("RAGTAG_TEST_VULKAN_MATRICES").is_none(),
            "no Vulkan device has matrix units"
        );
        test_support::skip!("Vulkan device with matrix units", "no device shows cooperative matrices");
    }
}

/// Kernels that exist in WGSL alone, because they fuse kernels that other languages have.
const FUSED: [&str; 3] = ["kernel/append-attention/", "kernel/gated-matmul/", "kernel/norm-matmul/"];

#[test]
fn fused_kernels_on_swiftshader() {
    let passed = try_kernels(|one| one.driver.name.contains("SwiftShader"), &FUSED);
    println!("{passed} fused kernels passed");
    if passed == 0 {
        test_support::skip!("Vulkan driver", "SwiftShader is not installed");
    }
}

/// Checks that each kernel runs in continuous integration on at least two independent devices: two of the CPU, PoCL
/// (OpenCL C) and lavapipe (WGSL), or lavapipe and SwiftShader. Products that decode weights exist for CUDA only, and int8
/// products of experts for the CPU only, with the code of its other products.
#[test]
fn every_kernel_runs_on_two_devices() {
    // These devices lack sub-groups or matrix units.
    let lacking = [Feature::SubGroups, Feature::Xmx, Feature::CooperativeMatrix];
    for kernel in Kernel::all() {
        let is_general = |variant: &&Variant| {
            variant.kernel == kernel && !variant.requires.iter().any(|feature| lacking.contains(feature))
        };
        let of_kernel: Vec<_> = variants().iter().filter(is_general).filter_map(Variant::language).collect();
        let languages = [KernelLanguage::Host, KernelLanguage::OpenClC, KernelLanguage::Wgsl];
        let count = languages.iter().filter(|language| of_kernel.contains(language)).count();
        let is_fused = FUSED.iter().any(|fused| format!("kernel/{kernel}").starts_with(fused));
        let has_only = |language| kernel.is_optional() && of_kernel.iter().all(|found| *found == language);
        let is_of_one = has_only(KernelLanguage::CudaC) || has_only(KernelLanguage::Host);
        assert!(count >= 2 || (count == 1 && is_fused) || is_of_one, "{kernel}: {of_kernel:?}");
    }
}

/// Runs the kernels that `names` selects on the devices that `chosen` selects. Fails if a kernel fails. Returns the
/// number of passed tests.
#[track_caller]
fn try_kernels(chosen: impl Fn(&Adapter) -> bool, names: &[&str]) -> usize {
    let backends = Backends::new(&Config::default());
    let adapters = support::adapters(&backends, "vulkan").unwrap_or_default();
    let mut passed = 0;
    for adapter in adapters.iter().filter(|one| chosen(one)) {
        for only in names {
            let suite = Suite::new().only(only).one_listed_in(support::SOME);
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
