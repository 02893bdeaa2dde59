//! Memory of buffers.
//!
//! This module does not depend on commands.

use crate::api::{Context, Device, UsmMemory};
use crate::context::Registered;
use ragtag_hal::driver::Allocation;
use ragtag_hal::{Error, HostPages, Pin, Result};
#[cfg(unix)]
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Memory that is freed with its last reference. Several devices of a context use the same memory if one of
/// them has imported it.
#[derive(Clone)]
pub(crate) struct Buffer(Arc<Memory>);

enum Memory {
    /// Memory that only devices access.
    Device { memory: UsmMemory, bytes: u64 },
    /// Memory that host and device share.
    Shared { memory: UsmMemory, bytes: u64 },
    /// Imported pages of the host. The driver only copies between them and other buffers.
    Host {
        /// Field order: the registration ends before the pages are unmapped.
        _pin: Option<Pin<Registered>>,
        pages: Arc<HostPages>,
    },
}

/// Kind of memory for a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of the device.
    Device,
    /// Memory that host and device share.
    Shared,
}

fn size(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::OutOfMemory { wanted: bytes, free: None })
}

impl Buffer {
    /// Allocates a buffer. If `relaxed` is true, the size may exceed the device's limit for a single
    /// allocation.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn new(
        context: &Arc<Context>,
        device: Device,
        bytes: u64,
        kind: Kind,
        relaxed: bool,
    ) -> Result<Self> {
        let size = size(bytes)?;
        Ok(Self(Arc::new(match kind {
            Kind::Device => {
                Memory::Device { memory: UsmMemory::device(context, device, size, relaxed)?, bytes }
            }
            Kind::Shared => {
                Memory::Shared { memory: UsmMemory::shared(context, device, size, relaxed)?, bytes }
            }
        })))
    }

    /// Allocates a buffer in device memory that can be exported as a dma-buf. The meaning of `relaxed` is that
    /// of [`Buffer::new`].
    ///
    /// # Errors
    /// Returns the driver's error.
    #[cfg(unix)]
    pub(crate) fn exportable(
        context: &Arc<Context>,
        device: Device,
        bytes: u64,
        relaxed: bool,
    ) -> Result<Self> {
        let memory = UsmMemory::exportable(context, device, size(bytes)?, relaxed)?;
        Ok(Self(Arc::new(Memory::Device { memory, bytes })))
    }

    /// Imports the first bytes of a dma-buf. The meaning of `relaxed` is that of [`Buffer::new`].
    ///
    /// # Errors
    /// Returns the driver's error.
    #[cfg(unix)]
    pub(crate) fn import(
        context: &Arc<Context>,
        device: Device,
        bytes: u64,
        relaxed: bool,
        fd: OwnedFd,
    ) -> Result<Self> {
        let memory = UsmMemory::import(context, device, size(bytes)?, relaxed, fd)?;
        Ok(Self(Arc::new(Memory::Device { memory, bytes })))
    }

    /// Exports a buffer from [`Buffer::exportable`] as a dma-buf.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] for any other buffer, or the driver's error.
    #[cfg(unix)]
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        match self.0.as_ref() {
            Memory::Device { memory, .. } => memory.export(),
            _ => Err(Error::Unsupported { what: "exporting memory of the host".into() }),
        }
    }

    /// Returns a buffer over pages of the host, which `pin` has registered.
    pub(crate) fn over(pages: Arc<HostPages>, pin: Option<Pin<Registered>>) -> Self {
        Self(Arc::new(Memory::Host { _pin: pin, pages }))
    }

    /// Returns the address of the first byte, for copies.
    pub(crate) fn pointer(&self) -> *mut u8 {
        match self.0.as_ref() {
            Memory::Device { memory, .. } | Memory::Shared { memory, .. } => memory.pointer(),
            Memory::Host { pages, .. } => pages.pointer(),
        }
    }

    /// Returns the address of the first byte, for kernels and fills.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] for imported pages of the host.
    pub(crate) fn on_device(&self) -> Result<*mut u8> {
        match self.0.as_ref() {
            Memory::Host { .. } => Err(Error::Unsupported {
                what: "Level Zero commands other than copies on imported memory".into(),
            }),
            _ => Ok(self.pointer()),
        }
    }
}

impl Allocation for Buffer {
    fn bytes(&self) -> u64 {
        match self.0.as_ref() {
            Memory::Device { bytes, .. } | Memory::Shared { bytes, .. } => *bytes,
            Memory::Host { pages, .. } => pages.bytes(),
        }
    }

    fn writable(&self) -> Option<*mut u8> {
        match self.0.as_ref() {
            Memory::Shared { memory, .. } => Some(memory.pointer()),
            _ => None,
        }
    }

    fn readable(&self) -> Option<*const u8> {
        self.writable().map(<*mut u8>::cast_const)
    }
}
