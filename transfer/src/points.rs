//! Allocation of the points that a queue's submissions signal.

use ragtag_hal::{Point, TimelineId};
use serde::{Deserialize, Serialize};

/// Allocator of the points of one queue, in submission order. The core of the queue's device owns the queue's
/// only allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Points {
    timeline: TimelineId,
    last: u64,
}

impl Points {
    /// Returns an allocator for a timeline that has no submissions yet.
    pub fn new(timeline: TimelineId) -> Self {
        Self { timeline, last: 0 }
    }

    /// Allocates the next point and returns it.
    pub fn allot(&mut self) -> Point {
        self.last += 1;
        self.last()
    }

    /// Returns the last allocated point. Before the first allocation, it returns the point with value 0,
    /// which has always passed.
    pub fn last(&self) -> Point {
        self.timeline.at(self.last)
    }
}
