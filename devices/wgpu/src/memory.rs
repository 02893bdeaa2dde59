//! Memory of buffers.
//!
//! This module does not depend on commands.

use ragtag_hal::driver::Allocation;

/// A wgpu buffer.
#[derive(Debug)]
pub(crate) struct Buffer(pub(crate) wgpu::Buffer);

impl Allocation for Buffer {
    /// Returns the size in bytes, a multiple of four.
    fn bytes(&self) -> u64 {
        self.0.size()
    }
}
