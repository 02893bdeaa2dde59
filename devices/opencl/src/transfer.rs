//! How bytes come from host regions to buffers and back: by a command of the driver, or by the host itself where host and
//! device address the same memory.
//!
//! This module decides by capabilities alone; it must not know buffers or queues.

/// What a device says about memory that it shares with the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCaps {
    /// The device works in the host's memory: it is the processor, or integrated with it.
    pub host_memory: bool,
    /// Shared virtual memory of OpenCL 2.0, in fine-grained buffers: either side sees what the other wrote once a
    /// command has ended, without a call.
    pub fine_grained_buffers: bool,
    /// Unified shared memory (`cl_intel_unified_shared_memory`) on the host, that kernels read and write.
    pub unified_host: bool,
}

/// How a device's buffers are filled and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferMode {
    /// By the driver's copies alone.
    Explicit,
    /// Buffers are shared virtual memory: small copies, for which nothing has to be waited, are made by the host.
    SharedVirtual,
    /// The same with unified shared memory.
    Unified,
}

/// The mode for a device. Memory that is not the host's own would be reached across the bus by every kernel, so sharing is
/// for devices that work in the host's memory; of two ways to share, the standard's own is taken.
pub fn transfer_mode(caps: &MemoryCaps) -> TransferMode {
    match caps {
        MemoryCaps { host_memory: false, .. } => TransferMode::Explicit,
        MemoryCaps { fine_grained_buffers: true, .. } => TransferMode::SharedVirtual,
        MemoryCaps { unified_host: true, .. } => TransferMode::Unified,
        MemoryCaps { .. } => TransferMode::Explicit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_only_with_devices_that_work_in_it() {
        let mode = |host_memory, fine_grained_buffers, unified_host| {
            transfer_mode(&MemoryCaps { host_memory, fine_grained_buffers, unified_host })
        };
        for (fine, unified) in [(false, false), (false, true), (true, false), (true, true)] {
            assert_eq!(mode(false, fine, unified), TransferMode::Explicit);
        }
        assert_eq!(mode(true, false, false), TransferMode::Explicit);
        assert_eq!(mode(true, true, false), TransferMode::SharedVirtual);
        assert_eq!(mode(true, true, true), TransferMode::SharedVirtual);
        assert_eq!(mode(true, false, true), TransferMode::Unified);
    }
}
