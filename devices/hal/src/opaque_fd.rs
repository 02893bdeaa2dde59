//! Memory and semaphores that an API exports as file descriptors.
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
        check("memory", [(self.device_uuid, Some(device_uuid)), (self.driver_uuid, driver_uuid)])
    }
}

/// A timeline semaphore as an opaque file descriptor, which only drivers of its device can interpret.
#[derive(Debug)]
pub struct SemaphoreFd {
    /// The file descriptor. An import needs its own duplicate.
    pub fd: OwnedFd,
    /// UUID of the physical device.
    pub device_uuid: [u8; 16],
    /// UUID of the driver that exported the semaphore.
    pub driver_uuid: [u8; 16],
}

impl SemaphoreFd {
    /// Checks that a driver of the physical device `device_uuid` can interpret the file descriptor. Ignores
    /// the UUID of the driver if it is `None`.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] with the reason.
    pub fn check(&self, device_uuid: [u8; 16], driver_uuid: Option<[u8; 16]>) -> Result<()> {
        check("a semaphore", [(self.device_uuid, Some(device_uuid)), (self.driver_uuid, driver_uuid)])
    }
}

/// Compares the UUIDs of the physical device and of the driver with those of the importing device. Ignores a
/// missing UUID.
fn check(what: &str, [device, driver]: [([u8; 16], Option<[u8; 16]>); 2]) -> Result<()> {
    let differs = |(own, other): ([u8; 16], Option<[u8; 16]>)| other.is_some_and(|other| own != other);
    let refused = |of: &str| Err(Error::Unsupported { what: format!("importing {what} of another {of}") });
    if differs(device) {
        return refused("physical device");
    }
    if differs(driver) {
        return refused("driver");
    }
    Ok(())
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
