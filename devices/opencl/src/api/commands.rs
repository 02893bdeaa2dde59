//! Command queues and the commands enqueued on them.
//!
//! Each command may wait for events and may return one; a command without an event costs less. Does not know
//! what the commands are for.

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
    /// An in-order queue with profiling.
    Queue(cl_command_queue), clReleaseCommandQueue
}

/// Returns the handles of events. They are valid as long as the events are.
pub(crate) fn raw<'a>(events: impl Iterator<Item = &'a Event>) -> Vec<cl_event> {
    events.map(|event| event.0).collect()
}

/// Events that a command waits for, and whether it returns one.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'a> {
    pub(crate) after: &'a [cl_event],
    pub(crate) wanted: bool,
}

type Enqueued = Result<Option<Event>>;

fn wait_list(after: &[cl_event]) -> (cl_uint, *const cl_event) {
    // The list must be null if it is empty.
    (after.len() as cl_uint, if after.is_empty() { ptr::null() } else { after.as_ptr() })
}

/// Calls an enqueue function with the queue before its arguments, and the wait list and event after them.
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
    /// `modern` means that the platform has OpenCL 2.0 or later.
    pub(crate) fn new(context: &Context, device: Device, modern: bool) -> Result<Self> {
        let properties = [CL_QUEUE_PROPERTIES as u64, CL_QUEUE_PROFILING_ENABLE, 0];
        // SAFETY: the device is one of the context's, the properties end with zero.
        let queue = unsafe {
            if modern {
                create!(clCreateCommandQueueWithProperties(context.0, device.id(), properties.as_ptr()))
            } else {
                create!(clCreateCommandQueue(context.0, device.id(), CL_QUEUE_PROFILING_ENABLE))
            }
        };
        queue.map(Self)
    }

    /// Flushes the queue to the device.
    pub(crate) fn flush(&self) -> Result<()> {
        // SAFETY: the queue is valid.
        unsafe { status!(clFlush(self.0)) }
    }

    /// Blocks until all work is done.
    pub(crate) fn finish(&self) -> Result<()> {
        // SAFETY: the queue is valid.
        unsafe { status!(clFinish(self.0)) }
    }

    /// Enqueues a marker.
    pub(crate) fn marker(&self, ends: Ends<'_>) -> Enqueued {
        // SAFETY: valid queue and events.
        unsafe { enqueue!(self.0, ends, clEnqueueMarkerWithWaitList()) }
    }

    pub(crate) fn fill(&self, to: Part<'_>, word: u32, ends: Ends<'_>) -> Enqueued {
        let pattern = (&raw const word).cast::<c_void>();
        let Part { memory, offset, bytes } = to;
        // SAFETY: the pattern is copied by the call; the driver checks the range.
        unsafe {
            enqueue!(self.0, ends, clEnqueueFillBuffer(memory.0, pattern, size_of::<u32>(), offset, bytes))
        }
    }

    /// Writes a zero byte.
    pub(crate) fn touch(&self, memory: &Mem) -> Result<Event> {
        let (pattern, ends) = ([0u8], Ends { after: &[], wanted: true });
        // SAFETY: every buffer has a first byte; the pattern is copied by the call.
        let event = unsafe {
            enqueue!(self.0, ends, clEnqueueFillBuffer(memory.0, pattern.as_ptr().cast(), 1, 0, 1))
        }?;
        event.ok_or_else(|| Error::invalid("a command returned no event"))
    }

    /// Copies between buffers. `to` has the length of `from` and does not overlap it.
    pub(crate) fn copy(&self, from: Part<'_>, to: Part<'_>, ends: Ends<'_>) -> Enqueued {
        let (source, target) = (from.memory.0, to.memory.0);
        // SAFETY: the driver checks the ranges.
        unsafe {
            enqueue!(self.0, ends, clEnqueueCopyBuffer(source, target, from.offset, to.offset, from.bytes))
        }
    }

    /// Copies from host memory.
    ///
    /// # Safety
    /// `to.bytes` bytes from `from` on are valid until the command has ended.
    pub(crate) unsafe fn write(&self, from: *const u8, to: Part<'_>, ends: Ends<'_>) -> Enqueued {
        let Part { memory, offset, bytes } = to;
        // SAFETY: the driver checks the range; the host memory is valid by the caller's promise.
        unsafe {
            enqueue!(
                self.0,
                ends,
                clEnqueueWriteBuffer(memory.0, CL_NON_BLOCKING, offset, bytes, from.cast())
            )
        }
    }

    /// Copies to host memory.
    ///
    /// # Safety
    /// As for [`Queue::write`]; nothing else may touch those bytes while the command runs.
    pub(crate) unsafe fn read(&self, from: Part<'_>, to: *mut u8, ends: Ends<'_>) -> Enqueued {
        let Part { memory, offset, bytes } = from;
        // SAFETY: the driver checks the range; the host memory is valid by the caller's promise.
        unsafe {
            enqueue!(self.0, ends, clEnqueueReadBuffer(memory.0, CL_NON_BLOCKING, offset, bytes, to.cast()))
        }
    }

    /// Launches a kernel with its current arguments.
    ///
    /// # Safety
    /// The kernel touches only memory that its arguments give it.
    pub(crate) unsafe fn launch(&self, kernel: &Kernel, size: &Range3, ends: Ends<'_>) -> Enqueued {
        let (global, local) = (size.global.as_ptr(), size.local.as_ptr());
        // SAFETY: there are as many sizes of each kind as axes; the driver checks them and the arguments.
        unsafe {
            enqueue!(self.0, ends, clEnqueueNDRangeKernel(kernel.0, size.axes(), ptr::null(), global, local))
        }
    }

    /// Enqueues a command buffer.
    ///
    /// # Safety
    /// As for the recorded commands.
    pub(crate) unsafe fn play(&self, buffer: &CommandBuffer, ends: Ends<'_>) -> Enqueued {
        give(ends, |count, list, place| buffer.enqueue(count, list, place))
    }

    /// Maps a buffer over host memory, so that the driver pins it. The contents on the host are kept.
    pub(crate) fn pin(&self, memory: &Mem, bytes: usize) -> Result<*mut c_void> {
        let mut event: cl_event = ptr::null_mut();
        // SAFETY: all of a valid buffer is mapped, and the call blocks until it is. The flag says that
        // nothing is copied.
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

    /// Enqueues the reversal of [`Queue::pin`].
    pub(crate) fn unpin(&self, memory: &Mem, pointer: *mut c_void) -> Result<()> {
        // SAFETY: the pointer is what mapping this memory gave.
        unsafe {
            status!(clEnqueueUnmapMemObject(self.0, memory.0, pointer, 0, ptr::null(), ptr::null_mut()))
        }
    }
}

/// A range of bytes of a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) memory: &'a Mem,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// Global and local size of a launch, in work items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range3 {
    pub(crate) global: [usize; 3],
    pub(crate) local: [usize; 3],
}

impl Range3 {
    /// Returns the number of axes without trailing axes of one work item. Some drivers launch fewer axes
    /// faster.
    pub(super) fn axes(&self) -> cl_uint {
        let last = (1..3).rev().find(|&axis| self.global[axis] > 1).unwrap_or(0);
        last as cl_uint + 1
    }
}
