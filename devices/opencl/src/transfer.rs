//! Transfer modes between host regions and buffers. A transfer is a command of the driver. If host and device
//! share memory, it may also be a copy by the host.
//!
//! The mode depends only on the capabilities of the device.

/// Properties of the memory that a device shares with the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCaps {
    /// Whether the device uses host memory, like a CPU or an integrated GPU.
    pub host_memory: bool,
    /// Whether the device has fine-grained buffers in shared virtual memory (OpenCL 2.0). When a command has
    /// ended, host and device see each other's writes without a further call.
    pub fine_grained_buffers: bool,
    /// Whether kernels can read and write unified shared memory on the host
    /// (`cl_intel_unified_shared_memory`).
    pub unified_host: bool,
}

/// Method for writing and reading a device's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferMode {
    /// The driver makes all copies.
    Explicit,
    /// Buffers are in shared virtual memory. The host makes small copies that need not wait for commands.
    SharedVirtual,
    /// Buffers are in unified shared memory. The host makes small copies that need not wait for commands.
    Unified,
}

/// Returns the transfer mode for a device. Only devices that use host memory share buffers with the host.
/// Kernels of other devices would access shared buffers over the bus. If a device has both kinds of shared
/// memory, the kind of the OpenCL standard is used.
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
    fn memory_is_shared_only_with_devices_that_use_host_memory() {
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
