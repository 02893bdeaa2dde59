//! Test of a real device loss, caused by a kernel that writes to an invalid address. The test needs a device
//! with its own memory, because on a CPU device the write would crash the process. It has its own process,
//! because a driver may be unusable after a loss.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::KernelLanguage;
use support::*;

const TEXT: &str = "__kernel void stray(__global uint *out, uint far) {
    *(__global uint *)((size_t)out + ((size_t)far << 20)) = 1u;
}";

#[test]
fn a_stray_kernel_loses_the_device() {
    let subject = subject();
    // Test only one device, because some drivers are unusable for the rest of the process after a loss.
    if let Some(adapter) = suite::cards(&subject).first() {
        let anew = support::backend();
        let lost = goes_astray([&subject.0, &anew], adapter, (KernelLanguage::OpenClC, TEXT), 0x7000_0000);
        assert!(lost.is_some(), "{}", adapter.label());
    }
}
