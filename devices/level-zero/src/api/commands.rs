//! Command lists and command queues.
//!
//! A command starts after the events in [`Between::after`], and signals the event in [`Between::signal`] when
//! it has ended. Other commands of a list may run at the same time, except across a barrier.

use super::objects::logged;
use super::types::*;
use super::{Context, Device, Event, Kernel, call};
use ragtag_hal::Result;
use std::sync::Arc;

/// Events between which a command runs.
#[derive(Clone, Copy)]
pub(crate) struct Between<'a> {
    pub(crate) after: &'a [&'a Event],
    pub(crate) signal: Option<&'a Event>,
}

impl Between<'_> {
    /// Neither waits nor signals.
    pub(crate) const NOTHING: Self = Self { after: &[], signal: None };

    /// Passes the handle of the signalled event, the number of awaited events, and their handles to `append`.
    fn with<T>(&self, append: impl FnOnce(Handle, u32, *const Handle) -> T) -> T {
        let events: Vec<Handle> = self.after.iter().map(|event| event.handle).collect();
        let signal = self.signal.map_or(Handle::NULL, |event| event.handle);
        let list = if events.is_empty() { std::ptr::null() } else { events.as_ptr() };
        append(signal, events.len() as u32, list)
    }
}

/// A command list. One thread at a time may use it.
pub(crate) struct CommandList {
    handle: Handle,
    context: Arc<Context>,
}

impl CommandList {
    /// Creates an immediate list, which executes each command as soon as it is appended. The commands run on
    /// the engine with this index of the queue group `ordinal`.
    pub(crate) fn immediate(
        context: &Arc<Context>,
        device: Device,
        ordinal: u32,
        index: u32,
    ) -> Result<Self> {
        let desc = QueueDesc { ordinal, index, mode: value::ASYNCHRONOUS, ..QueueDesc::default() };
        let mut handle = Handle::NULL;
        // SAFETY: the call reads the description and writes one handle.
        unsafe {
            call!(
                context.api,
                zeCommandListCreateImmediate(context.handle, device.handle, &raw const desc, &raw mut handle)
            )
        }?;
        Ok(Self { handle, context: Arc::clone(context) })
    }

    /// Creates a list that is executed as a whole, after [`CommandList::close`].
    pub(crate) fn recorded(context: &Arc<Context>, device: Device, ordinal: u32) -> Result<Self> {
        let desc = ListDesc { ordinal, ..ListDesc::default() };
        let mut handle = Handle::NULL;
        // SAFETY: the call reads the description and writes one handle.
        unsafe {
            call!(
                context.api,
                zeCommandListCreate(context.handle, device.handle, &raw const desc, &raw mut handle)
            )
        }?;
        Ok(Self { handle, context: Arc::clone(context) })
    }

    /// Ends the recording.
    pub(crate) fn close(&self) -> Result<()> {
        // SAFETY: the list is valid.
        unsafe { call!(self.context.api, zeCommandListClose(self.handle)) }
    }

    /// Appends a barrier: later commands start after all earlier commands have ended.
    pub(crate) fn barrier(&self, between: Between<'_>) -> Result<()> {
        between.with(|signal, count, events| {
            // SAFETY: the list and the events are valid.
            unsafe { call!(self.context.api, zeCommandListAppendBarrier(self.handle, signal, count, events)) }
        })
    }

    /// Appends a wait for an event.
    pub(crate) fn wait(&self, event: &Event) -> Result<()> {
        let events = [event.handle];
        // SAFETY: the list and the event are valid.
        unsafe { call!(self.context.api, zeCommandListAppendWaitOnEvents(self.handle, 1, events.as_ptr())) }
    }

    /// Appends a reset of an event.
    pub(crate) fn reset(&self, event: &Event) -> Result<()> {
        // SAFETY: the list and the event are valid.
        unsafe { call!(self.context.api, zeCommandListAppendEventReset(self.handle, event.handle)) }
    }

    /// Appends a copy.
    ///
    /// # Safety
    /// Both ranges are valid until the command has ended. They do not overlap, and nothing else accesses the
    /// destination meanwhile.
    pub(crate) unsafe fn copy(
        &self,
        from: *const u8,
        to: *mut u8,
        bytes: usize,
        between: Between<'_>,
    ) -> Result<()> {
        between.with(|signal, count, events| {
            // SAFETY: guaranteed by the caller.
            unsafe {
                call!(
                    self.context.api,
                    zeCommandListAppendMemoryCopy(
                        self.handle,
                        to.cast(),
                        from.cast(),
                        bytes,
                        signal,
                        count,
                        events
                    )
                )
            }
        })
    }

    /// Appends a fill with a 32-bit word.
    ///
    /// # Safety
    /// The range is device memory that is valid until the command has ended. Nothing else accesses it
    /// meanwhile.
    pub(crate) unsafe fn fill(
        &self,
        to: *mut u8,
        word: u32,
        bytes: usize,
        between: Between<'_>,
    ) -> Result<()> {
        between.with(|signal, count, events| {
            let pattern = (&raw const word).cast();
            // SAFETY: guaranteed by the caller. The call copies the pattern.
            unsafe {
                call!(
                    self.context.api,
                    zeCommandListAppendMemoryFill(
                        self.handle,
                        to.cast(),
                        pattern,
                        size_of::<u32>(),
                        bytes,
                        signal,
                        count,
                        events
                    )
                )
            }
        })
    }

    /// Appends a launch of a kernel with its current arguments.
    ///
    /// # Safety
    /// The kernel accesses only memory that is valid until the command has ended.
    pub(crate) unsafe fn launch(
        &self,
        kernel: &Kernel,
        groups: [u32; 3],
        between: Between<'_>,
    ) -> Result<()> {
        between.with(|signal, count, events| {
            // SAFETY: guaranteed by the caller.
            unsafe {
                call!(
                    self.context.api,
                    zeCommandListAppendLaunchKernel(
                        self.handle,
                        kernel.handle,
                        &raw const groups,
                        signal,
                        count,
                        events
                    )
                )
            }
        })
    }
}

impl Drop for CommandList {
    fn drop(&mut self) {
        // SAFETY: the list belongs to this value, and its commands have ended.
        logged(unsafe { call!(self.context.api, zeCommandListDestroy(self.handle)) });
    }
}

/// A command queue, which executes recorded lists.
pub(crate) struct CommandQueue {
    handle: Handle,
    context: Arc<Context>,
}

impl CommandQueue {
    pub(crate) fn new(context: &Arc<Context>, device: Device, ordinal: u32, index: u32) -> Result<Self> {
        let desc = QueueDesc { ordinal, index, mode: value::ASYNCHRONOUS, ..QueueDesc::default() };
        let mut handle = Handle::NULL;
        // SAFETY: the call reads the description and writes one handle.
        unsafe {
            call!(
                context.api,
                zeCommandQueueCreate(context.handle, device.handle, &raw const desc, &raw mut handle)
            )
        }?;
        Ok(Self { handle, context: Arc::clone(context) })
    }

    /// Waits at most `timeout_ns` nanoseconds. Returns true if all work has ended.
    pub(crate) fn finish(&self, timeout_ns: u64) -> Result<bool> {
        // SAFETY: the queue is valid.
        let code = unsafe { (self.context.api.functions.zeCommandQueueSynchronize)(self.handle, timeout_ns) };
        super::ready("zeCommandQueueSynchronize", code)
    }

    /// Executes a recorded list.
    ///
    /// # Safety
    /// The requirements of all recorded commands apply. The previous execution of the list has ended.
    pub(crate) unsafe fn execute(&self, list: &CommandList) -> Result<()> {
        let mut lists = [list.handle];
        // SAFETY: guaranteed by the caller.
        unsafe {
            call!(
                self.context.api,
                zeCommandQueueExecuteCommandLists(self.handle, 1, lists.as_mut_ptr(), Handle::NULL)
            )
        }
    }
}

impl Drop for CommandQueue {
    fn drop(&mut self) {
        // SAFETY: the queue belongs to this value, and its work has ended.
        logged(unsafe { call!(self.context.api, zeCommandQueueDestroy(self.handle)) });
    }
}
