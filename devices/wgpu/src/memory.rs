//! Memory of buffers.
//!
//! Knows nothing about commands.

use ragtag_hal::driver::Allocation;

/// A buffer.
#[derive(Debug)]
pub(crate) struct Buffer(pub(crate) wgpu::Buffer);

impl Allocation for Buffer {
    /// Returns the size, a multiple of four.
    fn bytes(&self) -> u64 {
        self.0.size()
    }
}
