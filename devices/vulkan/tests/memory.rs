//! Test of a device that runs out of memory. It runs in its own process, because it uses all memory of the
//! device.

#![allow(clippy::print_stdout)] // a skip is visible

#[path = "vulkan/support.rs"]
mod support;

use ragtag_hal::{BufferId, Device, Error, Limits};
use support::*;

/// Checks that a device reports sizes when buffers exceed its total memory, although each buffer alone would
/// fit.
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
        // Other processes may use so much host memory that not even the first block was allocated.
        if at > 0 {
            device.destroy_buffer(BufferId(0)).unwrap();
        }
        device.create_buffer(BufferId(1001), 4096).unwrap();
    }
    no_objections(&backend);
}
