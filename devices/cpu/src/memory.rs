//! Host memory of buffers.
//!
//! This module knows nothing about commands or queues.

use ragtag_hal::HostPages;
use ragtag_hal::driver::Allocation;
use std::sync::Arc;

/// Memory of a buffer. Devices that have imported the buffer use the same pages.
#[derive(Clone, Debug)]
pub(crate) struct Buffer(pub(crate) Arc<HostPages>);

impl Buffer {
    /// Allocates a buffer of `bytes` bytes. Returns `None` if the host cannot provide the memory.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        HostPages::new(bytes).map(Arc::new).map(Self)
    }

    /// Returns a pointer to the first byte.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.0.pointer()
    }
}

impl Allocation for Buffer {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn writable(&self) -> Option<*mut u8> {
        Some(self.pointer())
    }

    fn readable(&self) -> Option<*const u8> {
        Some(self.pointer().cast_const())
    }
}
