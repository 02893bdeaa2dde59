//! Command lists. Immediate lists submit each command at once; regular lists record commands.

use crate::calls::{entries, lock};
use crate::cl::Argument;
use crate::device::{COPY, COPY_PATTERN_BYTES, Context, Device};
use crate::engine::{Action, Command};
use crate::event::Event;
use crate::faults::misuse;
use crate::handles::{described, find, find_all, give, put, take};
use crate::memory::{check_argument, check_range};
use crate::module::Kernel;
use crate::queue::{Queue, check_idle};
use crate::types::code::{
    HANDLE_OBJECT_IN_USE, INVALID_ARGUMENT, INVALID_COMMAND_LIST_TYPE, INVALID_NULL_POINTER, INVALID_SIZE,
};
use crate::types::*;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// Commands of a regular list.
struct Recording {
    commands: Arc<Vec<Command>>,
    is_closed: bool,
}

/// Destination of a list's commands.
enum Target {
    Immediate(Arc<Queue>),
    Regular(Mutex<Recording>),
}

/// A command list.
pub struct List {
    pub device: Arc<Device>,
    pub ordinal: u32,
    target: Target,
}

impl List {
    /// Returns the commands of a closed regular list.
    pub fn closed(&self) -> Result<Arc<Vec<Command>>> {
        let Target::Regular(recording) = &self.target else {
            return Err(misuse(INVALID_COMMAND_LIST_TYPE, "an immediate list was executed"));
        };
        let recording = lock(recording);
        if recording.is_closed {
            return Ok(Arc::clone(&recording.commands));
        }
        Err(misuse(INVALID_ARGUMENT, "an open list was executed"))
    }

    fn recording(&self) -> Result<&Mutex<Recording>> {
        match &self.target {
            Target::Regular(recording) => Ok(recording),
            Target::Immediate(_) => {
                Err(misuse(INVALID_COMMAND_LIST_TYPE, "an immediate list was closed or reset"))
            }
        }
    }

    /// Appends a command.
    ///
    /// # Safety
    /// `waits` must be null or point to `count` handles.
    unsafe fn append(&self, action: Action, signal: Handle, count: u32, waits: *const Handle) -> Result<()> {
        let signal = if signal.is_null() { None } else { Some(find::<Event>(signal)?) };
        // SAFETY: the caller guarantees the list.
        let waits = unsafe { find_all(count, waits) }?;
        let command = Command { action, waits, signal };
        match &self.target {
            Target::Immediate(queue) => queue.submit(Arc::new(vec![command]), None, true),
            Target::Regular(recording) => {
                let mut recording = lock(recording);
                if recording.is_closed {
                    return Err(misuse(INVALID_ARGUMENT, "a command was appended to a closed list"));
                }
                let commands = Arc::get_mut(&mut recording.commands);
                commands.ok_or(HANDLE_OBJECT_IN_USE)?.push(command);
                Ok(())
            }
        }
    }

    fn check_copy(&self, to: usize, from: usize, bytes: usize) -> Result<()> {
        check_range(to, bytes, self.device.number)?;
        check_range(from, bytes, self.device.number)
    }

    fn check_fill(&self, to: usize, pattern: usize, bytes: usize) -> Result<()> {
        check_range(to, bytes, self.device.number)?;
        let limit = if self.ordinal == COPY { COPY_PATTERN_BYTES } else { 128 };
        if pattern.is_power_of_two() && pattern <= limit && bytes.is_multiple_of(pattern) {
            return Ok(());
        }
        Err(misuse(INVALID_SIZE, "the size of a fill pattern is invalid"))
    }

    /// Captures a launch. The kernel may change afterwards.
    fn launch(&self, kernel: &Kernel, groups: [u32; 3]) -> Result<Action> {
        if self.ordinal == COPY {
            return Err(misuse(INVALID_COMMAND_LIST_TYPE, "a launch on a copy engine"));
        }
        if groups.contains(&0) {
            return Err(misuse(INVALID_ARGUMENT, "a launch has no groups"));
        }
        let (arguments, group) = kernel.captured()?;
        for argument in &arguments {
            if let Argument::Address(address) = argument {
                check_argument(*address, self.device.number)?;
            }
        }
        Ok(Action::Launch { kernel: Arc::clone(&kernel.code), arguments, groups, group })
    }
}

entries! {
    fn zeCommandListCreate(context: Handle, device: Handle, desc: *const ListDesc, to: *mut Handle) {
        find::<Context>(context)?;
        let (device, ordinal) = (find(device)?, described(desc)?.ordinal);
        let recording = Recording { commands: Arc::default(), is_closed: false };
        put(to, give(List { device, ordinal, target: Target::Regular(Mutex::new(recording)) }))
    }
    fn zeCommandListCreateImmediate(
        context: Handle,
        device: Handle,
        desc: *const QueueDesc,
        to: *mut Handle,
    ) {
        find::<Context>(context)?;
        let (device, desc) = (find::<Device>(device)?, described(desc)?);
        let target = Target::Immediate(Queue::new(Arc::clone(&device), &desc)?);
        put(to, give(List { device, ordinal: desc.ordinal, target }))
    }
    fn zeCommandListDestroy(list: Handle) {
        match &take::<List>(list)?.target {
            Target::Immediate(queue) => check_idle(queue),
            Target::Regular(recording) if Arc::strong_count(&lock(recording).commands) == 1 => Ok(()),
            Target::Regular(_) => {
                Err(misuse(HANDLE_OBJECT_IN_USE, "a list was destroyed while it was executed"))
            }
        }
    }
    fn zeCommandListClose(list: Handle) {
        let list = find::<List>(list)?;
        lock(list.recording()?).is_closed = true;
        Ok(())
    }
    fn zeCommandListReset(list: Handle) {
        let list = find::<List>(list)?;
        let mut recording = lock(list.recording()?);
        if Arc::strong_count(&recording.commands) > 1 {
            return Err(misuse(HANDLE_OBJECT_IN_USE, "a list was reset while it was executed"));
        }
        *recording = Recording { commands: Arc::default(), is_closed: false };
        Ok(())
    }
    fn zeCommandListAppendWriteGlobalTimestamp(
        list: Handle,
        to: *mut u64,
        signal: Handle,
        count: u32,
        waits: *const Handle,
    ) {
        let list = find::<List>(list)?;
        check_range(to as usize, size_of::<u64>(), list.device.number)?;
        list.append(Action::Timestamp(to as usize), signal, count, waits)
    }
    fn zeCommandListAppendBarrier(list: Handle, signal: Handle, count: u32, waits: *const Handle) {
        find::<List>(list)?.append(Action::Nothing, signal, count, waits)
    }
    fn zeCommandListAppendMemoryRangesBarrier(
        list: Handle,
        _ranges: u32,
        _sizes: *const usize,
        _starts: *const *const c_void,
        signal: Handle,
        count: u32,
        waits: *const Handle,
    ) {
        find::<List>(list)?.append(Action::Nothing, signal, count, waits)
    }
    fn zeCommandListAppendMemoryCopy(
        list: Handle,
        to: Handle,
        from: *const c_void,
        bytes: usize,
        signal: Handle,
        count: u32,
        waits: *const Handle,
    ) {
        let (list, to, from) = (find::<List>(list)?, to as usize, from as usize);
        list.check_copy(to, from, bytes)?;
        let action = if bytes == 0 { Action::Nothing } else { Action::Copy { to, from, bytes } };
        list.append(action, signal, count, waits)
    }
    fn zeCommandListAppendMemoryFill(
        list: Handle,
        to: Handle,
        pattern: *const u8,
        pattern_bytes: usize,
        bytes: usize,
        signal: Handle,
        count: u32,
        waits: *const Handle,
    ) {
        let (list, to) = (find::<List>(list)?, to as usize);
        if pattern.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        list.check_fill(to, pattern_bytes, bytes)?;
        let pattern = std::slice::from_raw_parts(pattern, pattern_bytes).to_vec();
        let action = if bytes == 0 { Action::Nothing } else { Action::Fill { to, pattern, bytes } };
        list.append(action, signal, count, waits)
    }
    fn zeCommandListAppendMemoryPrefetch(list: Handle, _from: *const c_void, _bytes: usize) {
        find::<List>(list).map(drop)
    }
    fn zeCommandListAppendMemAdvise(
        list: Handle,
        device: Handle,
        _from: *const c_void,
        _bytes: usize,
        _advice: u32,
    ) {
        find::<Device>(device)?;
        find::<List>(list).map(drop)
    }
    fn zeCommandListAppendSignalEvent(list: Handle, event: Handle) {
        find::<Event>(event)?;
        find::<List>(list)?.append(Action::Nothing, event, 0, std::ptr::null())
    }
    fn zeCommandListAppendWaitOnEvents(list: Handle, count: u32, events: *const Handle) {
        find::<List>(list)?.append(Action::Nothing, std::ptr::null_mut(), count, events)
    }
    fn zeCommandListAppendEventReset(list: Handle, event: Handle) {
        let event = find::<Event>(event)?;
        find::<List>(list)?.append(Action::Reset(event), std::ptr::null_mut(), 0, std::ptr::null())
    }
    fn zeCommandListAppendLaunchKernel(
        list: Handle,
        kernel: Handle,
        groups: *const [u32; 3],
        signal: Handle,
        count: u32,
        waits: *const Handle,
    ) {
        if groups.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        let (list, kernel) = (find::<List>(list)?, find::<Kernel>(kernel)?);
        list.append(list.launch(&kernel, *groups)?, signal, count, waits)
    }
}
