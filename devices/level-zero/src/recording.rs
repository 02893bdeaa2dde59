//! Recorded programs: regular command lists.
//!
//! The list runs on a command queue, and waits for an event that the immediate list of its queue signals. It
//! signals another event at its end. A program never changes: values that differ between runs are in the
//! parameter block, which the first step copies from a host region.

use crate::api::{Between, CommandList, Context, Device};
use crate::driver::LevelZero;
use crate::events::{Events, Signal};
use crate::steps::append;
use ragtag_hal::Result;
use ragtag_hal::driver::Step;
use std::sync::Arc;

/// A recorded program.
pub(crate) struct Recording {
    pub(crate) list: CommandList,
    /// Event that starts the program. The program resets it.
    pub(crate) gate: Arc<Signal>,
    /// Event that the program signals when it starts.
    pub(crate) start: Arc<Signal>,
    /// Event that the program signals at its end. The host resets it.
    pub(crate) end: Arc<Signal>,
}

impl Recording {
    /// Records steps for the queue group `ordinal`.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn new(
        context: &Arc<Context>,
        device: Device,
        ordinal: u32,
        events: &Arc<Events>,
        steps: &[Step<LevelZero>],
    ) -> Result<Self> {
        let list = CommandList::recorded(context, device, ordinal)?;
        let (gate, start, end) = (events.signal()?, events.signal()?, events.signal()?);
        list.wait(&gate.event)?;
        list.reset(&gate.event)?;
        list.reset(&start.event)?;
        list.barrier(Between { signal: Some(&start.event), ..Between::NOTHING })?;
        for step in steps {
            append(&list, step, Between::NOTHING)?;
            list.barrier(Between::NOTHING)?;
        }
        list.barrier(Between { signal: Some(&end.event), ..Between::NOTHING })?;
        list.close()?;
        Ok(Self { list, gate, start, end })
    }
}
