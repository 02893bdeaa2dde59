//! Memory that an API exports as a file descriptor.
//!
//! This module knows no API.

use crate::error::{Error, Result};
use std::os::fd::OwnedFd;

/// An allocation as an opaque file descriptor, which only drivers of its device can interpret. The allocation
/// contains one buffer, at offset 0, and was made for this buffer alone (a dedicated allocation).
#[derive(Debug)]
pub struct OpaqueFd {
    /// The file descriptor. An import needs its own duplicate.
    pub fd: OwnedFd,
    /// Size of the allocation in bytes. It is at least the size of the buffer.
    pub allocation_bytes: u64,
    /// Index of the allocation's memory type in Vulkan.
    pub memory_type: u32,
    /// UUID of the physical device.
    pub device_uuid: [u8; 16],
    /// UUID of the driver that exported the memory.
    pub driver_uuid: [u8; 16],
}

impl OpaqueFd {
    /// Checks that a driver of the physical device `device_uuid` can interpret the file descriptor. Ignores
    /// the UUID of the driver if it is `None`.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] with the reason.
    pub fn check(&self, device_uuid: [u8; 16], driver_uuid: Option<[u8; 16]>) -> Result<()> {
        let refused =
            |of: &str| Err(Error::Unsupported { what: format!("importing memory of another {of}") });
        if self.device_uuid != device_uuid {
            return refused("physical device");
        }
        if driver_uuid.is_some_and(|uuid| self.driver_uuid != uuid) {
            return refused("driver");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_other_devices_and_drivers_is_refused() {
        let fd = tempfile();
        let memory =
            OpaqueFd { fd, allocation_bytes: 4, memory_type: 0, device_uuid: [1; 16], driver_uuid: [2; 16] };
        assert_eq!(memory.check([1; 16], Some([2; 16])), Ok(()));
        assert_eq!(memory.check([1; 16], None), Ok(()));
        for (device, driver, reason) in
            [([2; 16], Some([2; 16]), "physical"), ([1; 16], Some([1; 16]), "driver")]
        {
            let refused = memory.check(device, driver).unwrap_err();
            assert!(refused.to_string().contains(reason), "{refused}");
        }
    }

    fn tempfile() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }
}
