//! Command queues and their commands.
//!
//! A command waits for the events in [`Ends::after`]. It returns an event only if [`Ends::wanted`] is true,
//! because events cost time.

use super::objects::handle;
use super::{CommandBuffer, Context, Event, Kernel, Mem, create, status};
use opencl3::command_queue::{CL_QUEUE_PROFILING_ENABLE, CL_QUEUE_PROPERTIES};
use opencl3::device::Device;
use opencl3::memory::CL_MAP_WRITE_INVALIDATE_REGION;
use opencl3::types::{CL_BLOCKING, CL_NON_BLOCKING, cl_command_queue, cl_event, cl_uint};
use ragtag_hal::{Error, Result};
use std::ffi::c_void;
use std::ptr;

handle! {
    /// An in-order queue with profiling enabled.
    Queue(cl_command_queue), clReleaseCommandQueue
}

/// Returns the raw handles of events. The handles are valid as long as the events live.
pub(crate) fn raw<'a>(events: impl Iterator<Item = &'a Event>) -> Vec<cl_event> {
    events.map(|event| event.0).collect()
}

/// Events that a command waits for, and whether the command returns an event.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'a> {
    pub(crate) after: &'a [cl_event],
    pub(crate) wanted: bool,
}

type Enqueued = Result<Option<Event>>;

fn wait_list(after: &[cl_event]) -> (cl_uint, *const cl_event) {
    // OpenCL requires a null pointer for an empty list.
    (after.len() as cl_uint, if after.is_empty() { ptr::null() } else { after.as_ptr() })
}

/// Calls an enqueue function. The macro passes the queue before the given arguments, and the wait list and
/// the event after them.
macro_rules! enqueue {
    ($queue:expr, $ends:expr, $function:ident($($argument:expr),* $(,)?)) => {
        give($ends, |count, list, place| status!($function($queue, $($argument,)* count, list, place)))
    };
}

fn give(
    ends: Ends<'_>,
    enqueue: impl FnOnce(cl_uint, *const cl_event, *mut cl_event) -> Result<()>,
) -> Enqueued {
    let (count, list) = wait_list(ends.after);
    let mut event: cl_event = ptr::null_mut();
    let place = if ends.wanted { &raw mut event } else { ptr::null_mut() };
    enqueue(count, list, place).map(|()| ends.wanted.then(|| Event(event)))
}

impl Queue {
    /// Creates a queue. `modern` states whether the platform supports OpenCL 2.0 or later.
    pub(crate) fn new(context: &Context, device: Device, modern: bool) -> Result<Self> {
        let properties = [CL_QUEUE_PROPERTIES as u64, CL_QUEUE_PROFILING_ENABLE, 0];
        // SAFETY: the device belongs to the context, and the properties end with zero.
        let queue = unsafe {
            if modern {
                create!(clCreateCommandQueueWithProperties(context.0, device.id(), properties.as_ptr()))
            } else {
                create!(clCreateCommandQueue(context.0, device.id(), CL_QUEUE_PROFILING_ENABLE))
            }
        };
        queue.map(Self)
    }

    /// Sends all enqueued commands to the device.
    pub(crate) fn flush(&self) -> Result<()> {
        // SAFETY: the queue is valid.
        unsafe { status!(clFlush(self.0)) }
    }

    /// Blocks until all commands in the queue have ended.
    pub(crate) fn finish(&self) -> Result<()> {
        // SAFETY: the queue is valid.
        unsafe { status!(clFinish(self.0)) }
    }

    /// Enqueues a marker.
    pub(crate) fn marker(&self, ends: Ends<'_>) -> Enqueued {
        // SAFETY: the queue and the events are valid.
        unsafe { enqueue!(self.0, ends, clEnqueueMarkerWithWaitList()) }
    }

    pub(crate) fn fill(&self, to: BufferPart<'_>, word: u32, ends: Ends<'_>) -> Enqueued {
        let pattern = (&raw const word).cast::<c_void>();
        let BufferPart { memory, offset, bytes } = to;
        // SAFETY: the call copies the pattern, and the driver checks the range.
        unsafe {
            enqueue!(self.0, ends, clEnqueueFillBuffer(memory.0, pattern, size_of::<u32>(), offset, bytes))
        }
    }

    /// Writes a zero to the first byte of a buffer.
    pub(crate) fn touch(&self, memory: &Mem) -> Result<Event> {
        let (pattern, ends) = ([0u8], Ends { after: &[], wanted: true });
        // SAFETY: every buffer has a first byte, and the call copies the pattern.
        let event = unsafe {
            enqueue!(self.0, ends, clEnqueueFillBuffer(memory.0, pattern.as_ptr().cast(), 1, 0, 1))
        }?;
        event.ok_or_else(|| Error::invalid("a command returned no event"))
    }

    /// Copies a range between two buffers. `to` has the length of `from` and does not overlap it.
    pub(crate) fn copy(&self, from: BufferPart<'_>, to: BufferPart<'_>, ends: Ends<'_>) -> Enqueued {
        let (source, target) = (from.memory.0, to.memory.0);
        // SAFETY: the driver checks the ranges.
        unsafe {
            enqueue!(self.0, ends, clEnqueueCopyBuffer(source, target, from.offset, to.offset, from.bytes))
        }
    }

    /// Copies host memory to a buffer.
    ///
    /// # Safety
    /// The host memory from `from` to `from + to.bytes` is valid until the command has ended.
    pub(crate) unsafe fn write(&self, from: *const u8, to: BufferPart<'_>, ends: Ends<'_>) -> Enqueued {
        let BufferPart { memory, offset, bytes } = to;
        // SAFETY: the driver checks the range. The caller guarantees that the host memory is valid.
        unsafe {
            enqueue!(
                self.0,
                ends,
                clEnqueueWriteBuffer(memory.0, CL_NON_BLOCKING, offset, bytes, from.cast())
            )
        }
    }

    /// Copies a buffer to host memory.
    ///
    /// # Safety
    /// The requirements of [`Queue::write`] apply to `to`. Nothing else accesses these bytes while the
    /// command runs.
    pub(crate) unsafe fn read(&self, from: BufferPart<'_>, to: *mut u8, ends: Ends<'_>) -> Enqueued {
        let BufferPart { memory, offset, bytes } = from;
        // SAFETY: the driver checks the range. The caller guarantees that the host memory is valid.
        unsafe {
            enqueue!(self.0, ends, clEnqueueReadBuffer(memory.0, CL_NON_BLOCKING, offset, bytes, to.cast()))
        }
    }

    /// Launches a kernel with its current arguments.
    ///
    /// # Safety
    /// The kernel accesses only the memory of its arguments.
    pub(crate) unsafe fn launch(&self, kernel: &Kernel, size: &Range3, ends: Ends<'_>) -> Enqueued {
        let (global, local) = (size.global.as_ptr(), size.local.as_ptr());
        // SAFETY: each list has one size per axis. The driver checks the sizes and the arguments.
        unsafe {
            enqueue!(self.0, ends, clEnqueueNDRangeKernel(kernel.0, size.axes(), ptr::null(), global, local))
        }
    }

    /// Enqueues a command buffer.
    ///
    /// # Safety
    /// The requirements of all recorded commands apply.
    pub(crate) unsafe fn play(&self, buffer: &CommandBuffer, ends: Ends<'_>) -> Enqueued {
        give(ends, |count, list, place| buffer.enqueue(count, list, place))
    }

    /// Maps a buffer that uses host memory, so that the driver pins this memory. The contents of the memory
    /// do not change.
    pub(crate) fn pin(&self, memory: &Mem, bytes: usize) -> Result<*mut c_void> {
        let mut event: cl_event = ptr::null_mut();
        // SAFETY: the call maps the whole of a valid buffer and blocks until the buffer is mapped. The flag
        // prevents a copy.
        let pointer = unsafe {
            create!(clEnqueueMapBuffer(
                self.0,
                memory.0,
                CL_BLOCKING,
                CL_MAP_WRITE_INVALIDATE_REGION,
                0,
                bytes,
                0,
                ptr::null(),
                &raw mut event,
            ))
        }?;
        drop(Event(event));
        Ok(pointer)
    }

    /// Enqueues an unmap command, which reverses [`Queue::pin`].
    pub(crate) fn unpin(&self, memory: &Mem, pointer: *mut c_void) -> Result<()> {
        // SAFETY: mapping this memory returned the pointer.
        unsafe {
            status!(clEnqueueUnmapMemObject(self.0, memory.0, pointer, 0, ptr::null(), ptr::null_mut()))
        }
    }
}

/// A byte range of a buffer.
#[derive(Clone, Copy)]
pub(crate) struct BufferPart<'a> {
    pub(crate) memory: &'a Mem,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// Global size and work group size of a launch, in work items per axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range3 {
    pub(crate) global: [usize; 3],
    pub(crate) local: [usize; 3],
}

impl Range3 {
    /// Returns the number of axes, without trailing axes of size one. On some drivers, a launch with fewer
    /// axes is faster.
    pub(super) fn axes(&self) -> cl_uint {
        let last = (1..3).rev().find(|&axis| self.global[axis] > 1).unwrap_or(0);
        last as cl_uint + 1
    }
}
