//! Keys and values that a prefill stage passes to the stages that decode.
//!
//! Each receiver has a region of host memory with a few places, one for each micro-batch at the prefill stage.
//! The prefill stage copies keys and values to a place as soon as it has computed a part of the stage. The
//! receiver copies them to its own cache and returns the place. Its later computations wait for this copy.

use crate::core::{MicroBatch, QueuePoints, StageAction};
use crate::error::{Error, Result};
use ragtag_hal::Point;
use ragtag_planner::streaming::PREFILLS;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// Message to a receiver: the keys and values of a micro-batch pass through host memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// The micro-batch.
    pub micro_batch: Arc<MicroBatch>,
    /// Place in the receiver's region.
    pub place: u32,
    /// Point after which the keys and values are in this place.
    pub ready: Point,
}

/// Message to the prefill stage: a receiver reads a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceRead {
    /// The place.
    pub place: u32,
    /// Point after which the place may be overwritten.
    pub after: Point,
}

/// A place that receivers read or have read.
#[derive(Clone, Debug)]
struct Place {
    place: u32,
    /// Number of receivers that have not answered.
    unread: usize,
    /// Points after which the place may be overwritten.
    after: Vec<Point>,
}

/// The places of a prefill stage.
#[derive(Debug)]
pub(super) struct Passing {
    /// For each receiver, the parts of the prefill stage that compute its segments, in ascending order.
    parts: Vec<Vec<usize>>,
    /// Places that all receivers have read, in the order in which they become free.
    free: VecDeque<Place>,
    used: Vec<Place>,
}

impl Passing {
    /// Creates free places. `parts` is empty on a stage that passes nothing.
    pub(super) fn new(parts: &[Vec<usize>]) -> Self {
        let places = 0..PREFILLS as u32;
        let free = places.map(|place| Place { place, unread: 0, after: Vec::new() }).collect();
        Self { parts: parts.to_vec(), free, used: Vec::new() }
    }

    /// Returns whether the stage is a prefill stage.
    pub(super) fn passes(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Returns whether the stage can compute a micro-batch, because it needs no place or one is free.
    pub(super) fn is_ready(&self) -> bool {
        !self.passes() || !self.free.is_empty()
    }

    /// Returns whether all places are free.
    pub(super) fn is_idle(&self) -> bool {
        self.used.is_empty()
    }

    /// Takes a place for a micro-batch.
    ///
    /// # Errors
    /// [`Error::Protocol`] if none is free.
    pub(super) fn take(&mut self) -> Result<()> {
        if self.passes() {
            let place = self.free.pop_front();
            let place = place.ok_or_else(|| Error::protocol("no place for keys and values is free"))?;
            self.used.push(Place { unread: self.parts.len(), ..place });
        }
        Ok(())
    }

    /// Submits the copies of the keys and values that `part` has computed for the micro-batch of the place that
    /// was taken last.
    pub(super) fn after(
        &mut self,
        part: usize,
        micro_batch: &Arc<MicroBatch>,
        computed: Point,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) {
        let Some(Place { place, after, .. }) = self.used.last_mut().filter(|_| !self.parts.is_empty()) else {
            return;
        };
        for (to, parts) in self.parts.iter().enumerate().filter(|(_, parts)| parts.contains(&part)) {
            let signal = points.download.allot();
            let waits = std::iter::once(computed).chain(after.drain(..)).collect();
            let (place, micro_batch) = (*place, micro_batch.clone());
            actions.push(StageAction::Pass {
                to,
                place,
                part,
                micro_batch: micro_batch.clone(),
                waits,
                signal,
            });
            if parts.last() == Some(&part) {
                let passed = Passed { micro_batch, place, ready: signal };
                actions.push(StageAction::Passed { to, passed });
            }
        }
    }

    /// Handles the answer of a receiver.
    ///
    /// # Errors
    /// [`Error::Protocol`] if no receiver reads this place.
    pub(super) fn read(&mut self, read: PlaceRead) -> Result<()> {
        let at = self.used.iter().position(|used| used.place == read.place);
        let at = at.ok_or_else(|| Error::protocol("a free place was read"))?;
        let used = &mut self.used[at];
        used.after.push(read.after);
        used.unread -= 1;
        if used.unread == 0 {
            self.free.push_back(self.used.remove(at));
        }
        Ok(())
    }
}
