//! Allots the points that a queue's submissions signal.

use ragtag_hal::{Point, TimelineId};
use serde::{Deserialize, Serialize};

/// A queue's points, in the order of its submissions. Whoever submits to a queue holds its only `Points`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Points {
    timeline: TimelineId,
    last: u64,
}

impl Points {
    /// All points of a timeline on which nothing has been submitted.
    pub fn new(timeline: TimelineId) -> Self {
        Self { timeline, last: 0 }
    }

    /// The next point.
    pub fn allot(&mut self) -> Point {
        self.last += 1;
        self.last()
    }

    /// The point allotted last; value 0, which has always passed, before the first.
    pub fn last(&self) -> Point {
        self.timeline.at(self.last)
    }
}
