//! Test of a real device loss, caused by a kernel that writes to an invalid address. The test needs a device
//! with its own memory, because on a CPU device the write would crash the process. It has its own process,
//! because a driver may be unusable after a loss. A device with robust buffer access cannot be lost in this
//! way. `vulkan/faults.rs` simulates the loss of such a device with a layer.

#![allow(clippy::print_stdout)] // a skip is visible

#[path = "vulkan/support.rs"]
mod support;

use ragtag_hal::KernelLanguage;
use support::*;

const TEXT: &str = "struct Constants { first_group: vec3<u32>, far: u32 }
    var<immediate> constants: Constants;
    @group(0) @binding(0) var<storage, read_write> result: array<u32>;
    @compute @workgroup_size(64)
    fn stray(@builtin(local_invocation_index) item: u32) {
        result[constants.far + (item << 20)] = 1u;
    }";

#[test]
fn a_stray_kernel_loses_the_device() {
    let subject = subject();
    for adapter in suite::cards(&subject) {
        let anew = support::backend();
        let lost = goes_astray([&subject.0, &anew], &adapter, (KernelLanguage::Wgsl, TEXT), 0x3000_0000);
        if lost.is_none() {
            test_support::skip!(
                "driver without robust access",
                "{} confines kernels to their bindings",
                adapter.label()
            );
        }
    }
}
