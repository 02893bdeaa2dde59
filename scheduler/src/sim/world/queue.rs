//! The virtual clock, the scheduled events and the random numbers of a simulation.

use crate::core::Nanoseconds;
use crate::sim::world::mailboxes::Message;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A scheduled event.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Request {
        index: usize,
    },
    Arrive {
        to: usize,
        message: Message,
    },
    Handle {
        actor: usize,
    },
    Done {
        device: usize,
        hardware: usize,
        start_ns: Nanoseconds,
    },
    Fail {
        stage: usize,
        cause: ragtag_hal::Error,
    },
    /// The next pipeline has loaded.
    Restart,
    Tick,
}

/// Scheduled events, in order of time. Simultaneous events keep the order in which they were scheduled.
pub(super) struct EventQueue {
    /// Time of the current event.
    pub(super) now: Nanoseconds,
    rng: SmallRng,
    /// For each event, its time, a number that orders simultaneous events, and its index in `events`.
    heap: BinaryHeap<Reverse<(Nanoseconds, u64, usize)>>,
    events: Vec<Option<Event>>,
    /// Unused indices in `events`.
    vacant: Vec<usize>,
    next: u64,
}

impl EventQueue {
    pub(super) fn new(seed: u64) -> Self {
        let (heap, events, vacant) = Default::default();
        Self { now: 0, rng: SmallRng::seed_from_u64(seed ^ 0x7361_6c74), heap, events, vacant, next: 0 }
    }

    /// Schedules an event.
    pub(super) fn at(&mut self, at: Nanoseconds, event: Event) {
        assert!(at >= self.now, "{event:?} at {at} ns, but it is {} ns already", self.now);
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[index] = Some(event);
        self.heap.push(Reverse((at, self.next, index)));
        self.next += 1;
    }

    /// Removes the next event, and sets the clock to its time.
    pub(super) fn pop(&mut self) -> Option<Event> {
        let Reverse((at, _, index)) = self.heap.pop()?;
        self.now = at;
        self.vacant.push(index);
        self.events[index].take()
    }

    /// Replaces each scheduled event by the one that `keep` returns for it, if any, at the same time.
    pub(super) fn replace(&mut self, mut keep: impl FnMut(Event) -> Option<Event>) {
        let Self { heap, events, vacant, .. } = self;
        heap.retain(|Reverse((.., index))| {
            events[*index] = events[*index].take().and_then(&mut keep);
            let is_kept = events[*index].is_some();
            vacant.extend((!is_kept).then_some(*index));
            is_kept
        });
    }

    /// Returns a random number up to `most`.
    pub(super) fn draw(&mut self, most: Nanoseconds) -> Nanoseconds {
        self.rng.random_range(0..=most)
    }
}
