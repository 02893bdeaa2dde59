//! A queue of a CPU device. The thread that waits for a script's event runs the script.
//!
//! This module knows nothing about IDs or points.

use crate::driver::{Cpu, Script};
use crate::team::{Team, run_alone};
use ragtag_hal::queues::{DriverQueue, Ends, Fences};
use ragtag_hal::{Result, Timing};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A queue of the device.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Threads that share the work of a script. If this is `None`, the queue's own thread runs scripts alone.
    pub(crate) team: Option<Team>,
}

/// Completion event of a script.
pub(crate) struct Event {
    /// Script whose end the event signals. The queue takes the script out of the event to run it, so that the
    /// script is released before its end is reported.
    script: Mutex<Option<Arc<Script>>>,
    times_ns: OnceLock<(u64, u64)>,
}

impl DriverQueue for Queue {
    type Driver = Cpu;
    type Event = Event;

    const RUNS_IN_WAIT: bool = true;

    fn enqueue(&self, script: &Arc<Script>, _: &Fences<'_, Self>) -> Result<Ends<Event>> {
        let event = Event { script: Mutex::new(Some(Arc::clone(script))), times_ns: OnceLock::new() };
        Ok(Ends { first: None, last: Arc::new(event) })
    }

    fn passed(&self, _: &Event) -> Option<bool> {
        None
    }

    fn wait(&self, event: &Event) -> Result<()> {
        let Some(script) = event.script.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(());
        };
        let start_ns = Timing::now_ns();
        match &self.team {
            Some(team) => team.run(&script)?,
            None => run_alone(&script)?,
        }
        let _ = event.times_ns.set((start_ns, Timing::now_ns()));
        Ok(())
    }

    fn times_ns(&self, ends: &Ends<Event>) -> Option<(u64, u64)> {
        ends.last.times_ns.get().copied()
    }

    /// Does nothing, because all work has an event, for which the completion thread waits.
    fn finish(&self) -> Result<()> {
        Ok(())
    }
}
