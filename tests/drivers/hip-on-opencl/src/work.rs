//! Defines units of work for a queue. A graph stores such units for repeated submission.

use crate::engine::unknown;
use crate::program::Kernel;
use hip_shim::{Result, Shape};
use opencl3::command_queue::CommandQueue;
use opencl3::types::CL_NON_BLOCKING;

/// Argument of a kernel launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    /// Memory address.
    Address(u64),
    /// 32-bit value.
    Word(u32),
}

/// Unit of work on a queue. Addresses may be host or device addresses.
pub(crate) enum Work {
    /// Copy of bytes.
    Copy { from: usize, to: usize, bytes: usize },
    /// Fill with a 32-bit value.
    Fill { to: usize, word: u32, bytes: usize },
    /// Kernel launch.
    Launch { kernel: Kernel, arguments: Vec<Argument>, shape: Shape },
}

/// Work that was captured from a stream.
pub(crate) struct Graph(pub(crate) Vec<Work>);

impl Work {
    pub(crate) fn enqueue(&self, queue: &CommandQueue) -> Result<()> {
        match self {
            Work::Copy { bytes: 0, .. } | Work::Fill { bytes: 0, .. } => Ok(()),
            // SAFETY: the HIP caller guarantees that both ranges are valid until the copy has ended.
            Work::Copy { from, to, bytes } => unsafe {
                queue
                    .enqueue_svm_mem_cpy(CL_NON_BLOCKING, *to as *mut _, *from as *const _, *bytes, &[])
                    .map(drop)
                    .map_err(unknown)
            },
            // SAFETY: as for `Copy`; the driver copies the pattern before the call returns.
            Work::Fill { to, word, bytes } => unsafe {
                queue.enqueue_svm_mem_fill(*to as *mut _, &[*word], *bytes, &[]).map(drop).map_err(unknown)
            },
            Work::Launch { kernel, arguments, shape } => kernel.launch(queue, arguments, shape),
        }
    }
}
