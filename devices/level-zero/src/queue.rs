//! An implementation of `ragtag-hal`'s queue on top of an immediate command list. It enqueues scripts, returns
//! events, and converts times to the host's clock.
//!
//! Commands of an immediate list may overlap. Each submission therefore waits for the end of its predecessor,
//! and barriers separate its steps. To submit a recorded program takes three calls: a barrier that opens the
//! program's gate after all predecessors, the execution of the list, and a barrier that ends the submission.
//!
//! This module does not depend on IDs or points.

use crate::api::{Between, CommandList, CommandQueue, Device};
use crate::clock::Clock;
use crate::driver::{LevelZero, Script};
use crate::events::{Event, Events, Signal};
use crate::recording::Recording;
use crate::semaphore::Semaphore;
use crate::steps::append;
use ragtag_hal::queues::{DriverQueue, Ends, Fences};
use ragtag_hal::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Time in nanoseconds after which a thread that waits for an event checks whether the device still works.
const SLICE_NS: u64 = 100_000_000;

/// A queue of a device.
pub(crate) struct Queue {
    state: Mutex<State>,
    events: Arc<Events>,
    device: Device,
    /// Clock of the device, shared by its queues.
    clock: Arc<Mutex<Clock>>,
}

/// Lists, which one thread at a time may use, and unfinished submissions.
struct State {
    list: CommandList,
    /// Queue for recorded programs.
    programs: Option<CommandQueue>,
    /// Events at the ends of submissions that the host has not observed, in order.
    outstanding: Vec<Arc<Signal>>,
}

impl Queue {
    pub(crate) fn new(
        list: CommandList,
        programs: Option<CommandQueue>,
        device: Device,
        events: &Arc<Events>,
        clock: &Arc<Mutex<Clock>>,
    ) -> Self {
        let state = Mutex::new(State { list, programs, outstanding: Vec::new() });
        Self { state, events: Arc::clone(events), device, clock: Arc::clone(clock) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an event, and checks the device now and then.
    fn ended(&self, event: &Event) -> Result<()> {
        while !event.signal.event.wait(SLICE_NS)? {
            self.device.status()?;
        }
        event.observe()
    }

    /// Signals the ends of all unfinished submissions, so that no other device waits for them.
    fn release(&self) {
        self.lock().outstanding.iter().filter(|end| end.is_pending()).for_each(|end| end.release());
    }
}

impl State {
    /// Appends steps. The first step waits for the events that `end` keeps.
    fn steps(&self, script: &Script, first: Option<&Signal>, end: &Event) -> Result<()> {
        let steps = script.steps();
        let after = end.awaited();
        let last = Some(end.signal.event.as_ref());
        let Some(most) = steps.len().checked_sub(1) else {
            return self.list.barrier(Between { after: &after, signal: last }).inspect_err(|_| end.cancel());
        };
        for (at, step) in steps.iter().enumerate() {
            let signal = if at == most { last } else { None };
            if at > 0 {
                self.list.barrier(Between::NOTHING)?;
                append(&self.list, step, Between { signal, ..Between::NOTHING })?;
                continue;
            }
            let started = first.map(|first| first.event.as_ref());
            let between = Between { after: &after, signal: signal.or(started) };
            append(&self.list, step, between).map_err(|error| {
                end.cancel();
                if step.is_copy() { error.refusing_copy() } else { error }
            })?;
        }
        Ok(())
    }

    fn play(&self, recording: &Recording, end: &Event) -> Result<()> {
        let missing = || Error::invalid("a program on a queue for copies");
        let programs = self.programs.as_ref().ok_or_else(missing)?;
        let gate = Some(recording.gate.event.as_ref());
        let opened = self.list.barrier(Between { after: &end.awaited(), signal: gate });
        opened.inspect_err(|_| end.cancel())?;
        // SAFETY: the guarantees for each single step apply to the list. `Checked` submits a program only after
        // its previous run has ended.
        unsafe { programs.execute(&recording.list) }?;
        let (after, signal) = ([recording.end.event.as_ref()], Some(end.signal.event.as_ref()));
        self.list.barrier(Between { after: &after, signal })
    }

    /// Appends a barrier after all submissions and returns its end.
    fn barrier(&self, events: &Arc<Events>) -> Result<Event> {
        let before = self.outstanding.last().map(Arc::clone);
        let end = Event::end(events.signal()?, before.into_iter().collect());
        let between = Between { after: &end.awaited(), signal: Some(end.signal.event.as_ref()) };
        self.list.barrier(between).inspect_err(|_| end.cancel())?;
        Ok(end)
    }

    /// Enqueues a script and returns its start and its end.
    fn enqueue(
        &mut self,
        script: &Script,
        after: Vec<Arc<Signal>>,
        events: &Arc<Events>,
    ) -> Result<(Option<Event>, Event)> {
        self.outstanding.retain(|end| end.is_pending());
        let before = self.outstanding.last().map(Arc::clone);
        let after = after.into_iter().filter(|event| event.is_pending()).chain(before).collect();
        let end = events.signal()?;
        let (start, end) = match script.recording() {
            Some(recording) => {
                let end = Event::end(end, after).of_program(Arc::clone(&recording.end));
                self.play(recording, &end)?;
                (Some(Arc::clone(&recording.start)), end)
            }
            None => {
                let first = if script.steps().len() > 1 { Some(events.signal()?) } else { None };
                let end = first.iter().fold(Event::end(end, after), Event::started_by);
                self.steps(script, first.as_deref(), &end)?;
                (first, end)
            }
        };
        self.outstanding.push(Arc::clone(&end.signal));
        Ok((start.map(Event::start), end))
    }
}

impl DriverQueue for Queue {
    type Driver = LevelZero;
    type Event = Event;

    /// True, because a recorded list may be in use until its queue is idle.
    const USES_AFTER_END: bool = true;

    fn enqueue(&self, script: &Arc<Script>, fences: &Fences<'_, Self>) -> Result<Ends<Event>> {
        let Fences { after, waits, raises, .. } = fences;
        let own = after.iter().map(|event| Ok(Arc::clone(&event.signal)));
        let awaited = own.chain(waits.iter().map(|(semaphore, value)| semaphore.event(*value)));
        let (first, last) = self.lock().enqueue(script, awaited.collect::<Result<_>>()?, &self.events)?;
        raises.iter().for_each(|(semaphore, value)| Semaphore::add(semaphore, *value, &last.signal));
        Ok(Ends { first, last: Arc::new(last) })
    }

    fn passed(&self, event: &Event) -> Option<bool> {
        Some(event.signal.event.has_passed())
    }

    fn wait(&self, event: &Event) -> Result<()> {
        self.ended(event).inspect_err(|_| self.release())
    }

    fn times_ns(&self, ends: &Ends<Event>) -> Option<(u64, u64)> {
        let last = ends.last.signal.event.times().ok()?;
        let start = match &ends.first {
            Some(first) => first.signal.event.times().ok()?.start,
            None => last.start,
        };
        self.clock.lock().unwrap_or_else(PoisonError::into_inner).host(start, last.end)
    }

    fn finish(&self) -> Result<()> {
        let end = self.lock().barrier(&self.events)?;
        self.ended(&end)?;
        loop {
            // The lock is released now and then, so that other threads can enqueue work.
            match self.lock().programs.as_ref().map(|programs| programs.finish(SLICE_NS)).transpose()? {
                Some(false) => self.device.status()?,
                Some(true) | None => return Ok(()),
            }
        }
    }
}
