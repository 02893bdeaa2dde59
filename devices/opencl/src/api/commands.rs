//! Command queues, and the commands that go into them.
//!
//! Each command may wait for events and may give one; one that gives none costs less. This module must not know what the
//! commands are for.

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
    /// An in-order queue that measures times.
    Queue(cl_command_queue), clReleaseCommandQueue
}

/// The handles of events. They are valid as long as the events are.
pub(crate) fn raw<'a>(events: impl Iterator<Item = &'a Event>) -> Vec<cl_event> {
    events.map(|event| event.0).collect()
}

/// What a command waits for, and whether it gives an event.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'a> {
    pub(crate) after: &'a [cl_event],
    pub(crate) wanted: bool,
}

type Enqueued = Result<Option<Event>>;

fn wait_list(after: &[cl_event]) -> (cl_uint, *const cl_event) {
    // An empty list must be null.
    (after.len() as cl_uint, if after.is_empty() { ptr::null() } else { after.as_ptr() })
}

/// Calls an enqueuing function with the queue before its arguments, and the wait list and the event behind them.
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
    /// `modern`: whether the platform is of OpenCL 2.0 or later.
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

    /// Hands what was enqueued to the device.
    pub(crate) fn flush(&self) -> Result<()> {
        // SAFETY: the queue is valid.
        unsafe { status!(clFlush(self.0)) }
    }

    /// Blocks until everything is done.
    pub(crate) fn finish(&self) -> Result<()> {
        // SAFETY: the queue is valid.
        unsafe { status!(clFinish(self.0)) }
    }

    /// Does nothing, after everything before it.
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
        event.ok_or_else(|| Error::invalid("a command that gave no event"))
    }

    /// `to` has the length of `from`, and does not overlap it.
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
    /// As for [`Queue::write`]; nobody else may touch those bytes while the command runs.
    pub(crate) unsafe fn read(&self, from: Part<'_>, to: *mut u8, ends: Ends<'_>) -> Enqueued {
        let Part { memory, offset, bytes } = from;
        // SAFETY: the driver checks the range; the host memory is valid by the caller's promise.
        unsafe {
            enqueue!(self.0, ends, clEnqueueReadBuffer(memory.0, CL_NON_BLOCKING, offset, bytes, to.cast()))
        }
    }

    /// Launches a kernel with the arguments that it has now.
    ///
    /// # Safety
    /// The kernel touches nothing but what its arguments give it.
    pub(crate) unsafe fn launch(&self, kernel: &Kernel, size: &Range3, ends: Ends<'_>) -> Enqueued {
        let (global, local) = (size.global.as_ptr(), size.local.as_ptr());
        // SAFETY: as many sizes of each kind as there are axes; the driver checks them and the arguments.
        unsafe {
            enqueue!(self.0, ends, clEnqueueNDRangeKernel(kernel.0, size.axes(), ptr::null(), global, local))
        }
    }

    /// Plays a command buffer.
    ///
    /// # Safety
    /// As for what was recorded in it.
    pub(crate) unsafe fn play(&self, buffer: &CommandBuffer, ends: Ends<'_>) -> Enqueued {
        give(ends, |count, list, place| buffer.enqueue(count, list, place))
    }

    /// Maps memory that is the host's, so that the driver pins it. What the host has there stays as it is.
    pub(crate) fn pin(&self, memory: &Mem, bytes: usize) -> Result<*mut c_void> {
        let mut event: cl_event = ptr::null_mut();
        // SAFETY: the whole of valid memory; blocks until it is mapped. The flag says that nothing is to be copied.
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

    /// Undoes [`Queue::pin`], in its turn.
    pub(crate) fn unpin(&self, memory: &Mem, pointer: *mut c_void) -> Result<()> {
        // SAFETY: the pointer is what mapping this memory gave.
        unsafe {
            status!(clEnqueueUnmapMemObject(self.0, memory.0, pointer, 0, ptr::null(), ptr::null_mut()))
        }
    }
}

/// Bytes of device memory.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) memory: &'a Mem,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// The sizes of a launch, in work items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range3 {
    pub(crate) global: [usize; 3],
    pub(crate) local: [usize; 3],
}

impl Range3 {
    /// How many axes there are, if those at the end along which there is one work item count for nothing. Some drivers
    /// launch the faster for it.
    pub(super) fn axes(&self) -> cl_uint {
        let last = (1..3).rev().find(|&axis| self.global[axis] > 1).unwrap_or(0);
        last as cl_uint + 1
    }
}
