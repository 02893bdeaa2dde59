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
use ragtag_hal::Result;
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

fn wait_list(after: &[cl_event]) -> (cl_uint, *const cl_event) {
    // The list must be null if it is empty.
    (after.len() as cl_uint, if after.is_empty() { ptr::null() } else { after.as_ptr() })
}

/// Calls an enqueue function with the queue before its arguments, and the wait list and event after them.
macro_rules! enqueue {
    ($queue:expr, $after:expr, $wanted:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let (count, list) = wait_list($after);
        let mut event: cl_event = ptr::null_mut();
        let place = if $wanted { &raw mut event } else { ptr::null_mut() };
        status!($function($queue, $($argument,)* count, list, place))
            .map(|()| $wanted.then(|| Event(event)))
    }};
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
    pub(crate) fn marker(&self, after: &[cl_event], wanted: bool) -> Result<Option<Event>> {
        // SAFETY: valid queue and events.
        unsafe { enqueue!(self.0, after, wanted, clEnqueueMarkerWithWaitList()) }
    }

    pub(crate) fn fill(
        &self,
        to: Part<'_>,
        word: u32,
        after: &[cl_event],
        wanted: bool,
    ) -> Result<Option<Event>> {
        let pattern = (&raw const word).cast::<c_void>();
        let Part { memory, offset, bytes } = to;
        // SAFETY: the pattern is copied by the call; the driver checks the range.
        unsafe {
            enqueue!(
                self.0,
                after,
                wanted,
                clEnqueueFillBuffer(memory.0, pattern, size_of::<u32>(), offset, bytes)
            )
        }
    }

    /// Writes a zero byte.
    pub(crate) fn touch(&self, memory: &Mem) -> Result<Event> {
        let mut event: cl_event = ptr::null_mut();
        let pattern = 0u8;
        // SAFETY: every buffer has a first byte; the pattern is copied by the call.
        unsafe {
            status!(clEnqueueFillBuffer(
                self.0,
                memory.0,
                (&raw const pattern).cast(),
                1,
                0,
                1,
                0,
                ptr::null(),
                &raw mut event,
            ))
        }?;
        Ok(Event(event))
    }

    /// Copies between buffers. `to` has the length of `from` and does not overlap it.
    pub(crate) fn copy(
        &self,
        from: Part<'_>,
        to: Part<'_>,
        after: &[cl_event],
        wanted: bool,
    ) -> Result<Option<Event>> {
        let (source, target) = (from.memory.0, to.memory.0);
        // SAFETY: the driver checks the ranges.
        unsafe {
            enqueue!(
                self.0,
                after,
                wanted,
                clEnqueueCopyBuffer(source, target, from.offset, to.offset, from.bytes)
            )
        }
    }

    /// Copies from host memory.
    ///
    /// # Safety
    /// `to.bytes` bytes from `from` on are valid until the command has ended.
    pub(crate) unsafe fn write(
        &self,
        from: *const u8,
        to: Part<'_>,
        after: &[cl_event],
        wanted: bool,
    ) -> Result<Option<Event>> {
        let Part { memory, offset, bytes } = to;
        // SAFETY: the driver checks the range; the host memory is valid by the caller's promise.
        unsafe {
            enqueue!(
                self.0,
                after,
                wanted,
                clEnqueueWriteBuffer(memory.0, CL_NON_BLOCKING, offset, bytes, from.cast())
            )
        }
    }

    /// Copies to host memory.
    ///
    /// # Safety
    /// As for [`Queue::write`]; nothing else may touch those bytes while the command runs.
    pub(crate) unsafe fn read(
        &self,
        from: Part<'_>,
        to: *mut u8,
        after: &[cl_event],
        wanted: bool,
    ) -> Result<Option<Event>> {
        let Part { memory, offset, bytes } = from;
        // SAFETY: the driver checks the range; the host memory is valid by the caller's promise.
        unsafe {
            enqueue!(
                self.0,
                after,
                wanted,
                clEnqueueReadBuffer(memory.0, CL_NON_BLOCKING, offset, bytes, to.cast())
            )
        }
    }

    /// Launches a kernel with its current arguments.
    ///
    /// # Safety
    /// The kernel touches only memory that its arguments give it.
    pub(crate) unsafe fn launch(
        &self,
        kernel: &Kernel,
        size: &Range3,
        after: &[cl_event],
        wanted: bool,
    ) -> Result<Option<Event>> {
        let (global, local) = (size.global.as_ptr(), size.local.as_ptr());
        // SAFETY: there are as many sizes of each kind as axes; the driver checks them and the arguments.
        unsafe {
            enqueue!(
                self.0,
                after,
                wanted,
                clEnqueueNDRangeKernel(kernel.0, size.axes(), ptr::null(), global, local)
            )
        }
    }

    /// Enqueues a command buffer.
    ///
    /// # Safety
    /// As for the recorded commands.
    pub(crate) unsafe fn play(
        &self,
        buffer: &CommandBuffer,
        after: &[cl_event],
        wanted: bool,
    ) -> Result<Option<Event>> {
        let (count, list) = wait_list(after);
        let mut event: cl_event = ptr::null_mut();
        let place = if wanted { &raw mut event } else { ptr::null_mut() };
        buffer.enqueue(count, list, place)?;
        Ok(wanted.then(|| Event(event)))
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
