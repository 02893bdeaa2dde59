//! Runs the suite on every device that wgpu reports on this machine.

#![allow(clippy::print_stdout)] // Skips must be visible.

mod support;

/// Checks that the number of devices equals `RAGTAG_TEST_VULKAN_ADAPTERS`, if this variable is set.
#[test]
fn every_wgpu_device() {
    let devices = support::every_device_of("wgpu", "Vulkan driver");
    let wanted = std::env::var("RAGTAG_TEST_VULKAN_ADAPTERS").ok();
    if let Some(wanted) = wanted.and_then(|count| count.parse::<usize>().ok()) {
        assert_eq!(devices, wanted, "adapters");
    }
}
