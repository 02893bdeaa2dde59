//! A device that is really lost: by a kernel that writes where nothing is. On a processor that would be the end of the
//! process, so it is tried on devices with memory of their own, and in a process of its own.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::KernelLanguage;
use support::*;

const TEXT: &str = "__kernel void stray(__global uint *out, uint far) {
    *(__global uint *)((size_t)out + ((size_t)far << 20)) = 1u;
}";

#[test]
fn a_kernel_that_goes_astray_loses_the_device() {
    let subject = subject();
    // One of them alone: some drivers are good for nothing in this process afterwards.
    if let Some(adapter) = suite::cards(&subject).first() {
        let anew = support::backend();
        let lost = goes_astray([&subject.0, &anew], adapter, (KernelLanguage::OpenClC, TEXT), 0x7000_0000);
        assert!(lost.is_some(), "{}", adapter.label());
    }
}
