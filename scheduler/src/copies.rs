//! Work in flight: the copies and computations of each device, and the reads of each stage from the model's file.
//! Actors add them, and the coordinator watches them (`watch.rs`).

use ragtag_hal::{Point, QueueKind, Timeline};
use ragtag_transfer::Route;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Contents of a watched copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Copied {
    /// Activations, over this edge and route. Edge `n` leaves stage `n`.
    Activations(u32, Route),
    /// Streamed weights.
    Weights,
    /// Streamed weights, from the model's file to host memory.
    FromFile,
    /// Logits.
    Logits,
    /// Keys and values that pass to or from the stage.
    KeysAndValues,
    /// A checksum of activations, or of keys and values.
    Checksum,
}

/// A copy or a computation that may not have completed.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) signal: Point,
    pub(crate) waits: Vec<Point>,
    /// Index of the stage.
    pub(crate) stage: u32,
    /// Present for a copy.
    pub(crate) copied: Option<Copied>,
}

/// Work of one queue, oldest first.
#[derive(Debug, Default)]
struct Queue {
    work: VecDeque<Pending>,
    /// Value that the latest accepted submission signals.
    accepted: u64,
}

/// Copies and computations of one device. The device's actor adds them, and the coordinator reads them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies(Arc<Mutex<[Queue; 3]>>);

impl Copies {
    /// Adds work before its submission, and removes the work that has completed. `value` is the current value of
    /// its queue's timeline.
    pub(crate) fn add(&self, work: Pending, value: u64) {
        let queue = &mut self.queues()[work.signal.timeline.queue.index()].work;
        while queue.pop_front_if(|work| work.signal.value <= value).is_some() {}
        queue.push_back(work);
    }

    /// Records that the device has accepted the submission that signals `signal`.
    pub(crate) fn accept(&self, signal: Point) {
        self.queues()[signal.timeline.queue.index()].accepted = signal.value;
    }

    fn queues(&self) -> MutexGuard<'_, [Queue; 3]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device whose copies are watched.
pub(crate) struct WatchedDevice {
    pub(crate) copies: Copies,
    /// Timelines of the device's queues.
    pub(crate) own: [Arc<Timeline>; 3],
}

impl WatchedDevice {
    /// Returns the next work of a queue, if it is watched.
    pub(crate) fn next(&self, queue: QueueKind) -> Option<Pending> {
        let next = self.own[queue.index()].value() + 1;
        self.copies.queues()[queue.index()].work.iter().find(|work| work.signal.value == next).cloned()
    }

    /// Returns the number of computations in flight.
    pub(crate) fn computations(&self) -> u32 {
        let (queue, value) = (QueueKind::Compute.index(), self.own[QueueKind::Compute.index()].value());
        let queues = self.copies.queues();
        queues[queue].work.iter().filter(|work| work.signal.value > value).count() as u32
    }

    /// Returns the work that the device has not accepted. If a submission fails, its queue fails at once, while
    /// earlier work may still run.
    pub(crate) fn unaccepted(&self, queue: QueueKind) -> Option<Pending> {
        let queue = &self.copies.queues()[queue.index()];
        queue.work.back().filter(|work| work.signal.value > queue.accepted).cloned()
    }
}

/// Reads of one stage from the model's file.
#[derive(Clone)]
pub(crate) struct FileReads {
    /// Its id belongs to no device.
    pub(crate) timeline: Arc<Timeline>,
    /// Reads in flight.
    pub(crate) copies: Copies,
}

impl FileReads {
    /// Returns the host as a device that does nothing but these reads.
    pub(crate) fn watched(&self) -> WatchedDevice {
        let own = std::array::from_fn(|_| Arc::clone(&self.timeline));
        WatchedDevice { copies: self.copies.clone(), own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_hal::{DeviceId, TimelineId};

    #[test]
    fn completed_copies_are_forgotten() {
        let copies = Copies::default();
        let id = TimelineId { device: DeviceId(0), queue: QueueKind::Upload };
        for value in 1..100 {
            let (signal, waits) = (id.at(value), Vec::new());
            copies.add(Pending { signal, waits, stage: 0, copied: Some(Copied::Weights) }, value - 1);
        }
        assert_eq!(copies.queues().iter().map(|queue| queue.work.len()).sum::<usize>(), 1);
    }
}
