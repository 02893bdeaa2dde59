//! Test of a device that runs out of memory. The test has its own process, because it uses up the device's
//! memory.

#![allow(clippy::print_stdout)] // a skip is visible

#[path = "vulkan/support.rs"]
mod support;

use ragtag_hal::{BufferId, Device, Error, Limits};
use support::*;

/// Checks that the error contains sizes if buffers together exceed the device's memory, although each buffer
/// alone would fit.
#[test]
fn a_shortage_is_reported_with_sizes() {
    let backend = backend();
    for adapter in adapters(&backend) {
        let mut device = open(&backend, &adapter, 0, &Limits::default());
        let block = adapter.caps.max_allocation_bytes.min(adapter.memory[0].total_bytes / 2);
        let blocks = adapter.memory[0].total_bytes / block + 2;
        let refused =
            (0..blocks as u32).find_map(|id| Some((id, device.create_buffer(BufferId(id), block).err()?)));
        let Some((at, Error::OutOfMemory { wanted, free })) = refused else { panic!("{refused:?}") };
        assert!(wanted == block && free.is_none_or(|free| free < block), "{wanted} of {free:?}");
        let too_large = device.create_buffer(BufferId(1000), u64::MAX / 2);
        assert!(matches!(too_large, Err(Error::AllocationTooLarge { .. })), "{too_large:?}");
        // If other processes use a lot of host memory, even the first allocation may have failed.
        if at > 0 {
            device.destroy_buffer(BufferId(0)).unwrap();
        }
        device.create_buffer(BufferId(1001), 4096).unwrap();
    }
    no_objections(&backend);
}
