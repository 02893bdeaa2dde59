//! Modes of transfer between host regions and buffers. Normally, a transfer is a driver command. If host and
//! device share memory, the host may make the copy instead.
//!
//! The mode depends only on the capabilities of the device.

/// Properties of the memory that a device shares with the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCaps {
    /// Whether the device uses host memory, like a CPU or an integrated GPU.
    pub host_memory: bool,
    /// Whether the device has fine-grained buffers in shared virtual memory (OpenCL 2.0). Once a command has
    /// ended, host and device see each other's writes without another call.
    pub fine_grained_buffers: bool,
    /// Whether kernels can read and write unified shared memory that is allocated on the host
    /// (`cl_intel_unified_shared_memory`).
    pub unified_host: bool,
}

/// Method for writing to and reading from a device's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferMode {
    /// The driver makes all copies.
    Explicit,
    /// Buffers are in shared virtual memory. The host makes small copies that need not wait for commands.
    SharedVirtual,
    /// Buffers are in unified shared memory. The host makes small copies that need not wait for commands.
    Unified,
}

/// Returns the best transfer mode for a device. Buffers are shared with the host only on devices that use
/// host memory. On other devices, kernels would access shared buffers over the bus. If a device supports both
/// kinds of shared memory, the kind from the OpenCL standard is preferred.
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
