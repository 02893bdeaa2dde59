//! The suite on every Vulkan device of this machine.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

#[test]
fn every_vulkan_device() {
    support::every_device_of("vulkan");
}
