//! Replaces a pipeline that has failed. The coordinator and its clients stay.

use super::World;
use super::queue::Event;
use crate::core::Nanoseconds;
use crate::sim::SimFailure;

/// Maximum time until the next pipeline has loaded.
const LOADING_NS: Nanoseconds = 2_000_000;

impl World<'_> {
    /// Returns the world with the next pipeline in place of this one. Messages of the lost stages do not arrive any more.
    pub(super) fn replaced(mut self) -> Result<Self, SimFailure> {
        let Some(spec) = self.spec.then.as_deref() else { return Ok(self) };
        let mut next = Self::idle(spec)?;
        let run = next.cores.len();
        self.queue.replace(|event| match event {
            Event::Request { .. } | Event::Tick => Some(event),
            Event::Arrive { message, .. } if message.is_request() => Some(Event::Arrive { to: run, message }),
            _ => None,
        });
        next.queue = self.queue;
        self.mailboxes
            .take_requests()
            .for_each(|request| next.mailboxes.arrive(&mut next.queue, run, request));
        next.invariants = self.invariants;
        next.invariants.iter_mut().for_each(|invariants| invariants.replace(spec));
        let observations = std::mem::take(&mut next.report.observations);
        next.report = self.report;
        next.report.observations.stages = observations.stages;
        next.report.observations.edges = observations.edges;
        next.report.observations.shared_busy_ns = observations.shared_busy_ns;
        (next.run, next.texts, next.tick_ns) = (self.run, self.texts, self.tick_ns);
        (next.next_request, next.entered, next.stopped) = (self.next_request, self.entered, self.stopped);
        next.schedule_faults();
        let loaded = next.queue.now + next.queue.draw(LOADING_NS);
        next.queue.at(loaded, Event::Restart);
        Ok(next)
    }
}
