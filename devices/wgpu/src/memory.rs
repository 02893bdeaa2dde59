//! Memory of buffers.
//!
//! This module must not know commands.

use ragtag_hal::driver::Allocation;

/// A buffer.
#[derive(Debug)]
pub(crate) struct Buffer(pub(crate) wgpu::Buffer);

impl Allocation for Buffer {
    /// A multiple of four.
    fn bytes(&self) -> u64 {
        self.0.size()
    }
}
