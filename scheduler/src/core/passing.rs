//! Keys and values that a prefill stage passes to the stages that decode.
//!
//! Each receiver has a region of host memory with a few places, one for each micro-batch at the prefill
//! stage. The prefill stage copies keys and values to a place as soon as it has computed a part of the stage.
//! The receiver copies them to its own cache and returns the place. Its later computations wait for this
//! copy.
//!
//! With verification, both stages compute a checksum of the blocks in their caches. The prefill stage
//! overwrites blocks only after they were copied, so that both checksums are of the same bytes. The receiver
//! returns the place, and computes later micro-batches, only after it has compared the checksums. Wrong bytes
//! end the run.

use crate::core::action::Requests;
use crate::core::{MicroBatch, PassingAction, StageAction};
use crate::error::{Error, Result};
use ragtag_graph::execution::PREFILLS;
use ragtag_hal::Point;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
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

/// Keys and values in a receiver's cache whose checksums have not been compared.
#[derive(Debug)]
struct Unverified {
    /// The answer to the prefill stage.
    read: PlaceRead,
    /// Point after which the receiver has computed its checksum.
    computed: Point,
    /// Checksum of the receiver's cache.
    own: Option<u64>,
    /// Checksum of the cache of the prefill stage.
    source: Option<u64>,
}

/// A place that receivers read or have read.
#[derive(Clone, Debug)]
struct PassingPlace {
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
    free: VecDeque<PassingPlace>,
    used: Vec<PassingPlace>,
    /// Whether keys and values are verified.
    verified: bool,
    /// On a verified prefill stage: the point after which the latest copy of each part's keys and values has
    /// ended.
    copied: BTreeMap<usize, Point>,
    /// On a verified receiver: number of micro-batches whose keys and values it has received.
    received: u64,
    /// Those that it has not verified, oldest first.
    unverified: VecDeque<Unverified>,
    /// Number of requested checksums that have not been computed.
    summing: usize,
}

impl Passing {
    /// Creates free places. `parts` is empty on a stage that passes nothing.
    pub(super) fn new(parts: &[Vec<usize>], verified: bool) -> Self {
        let places = 0..PREFILLS as u32;
        let free = places.map(|place| PassingPlace { place, unread: 0, after: Vec::new() }).collect();
        let (used, copied, received, unverified, summing) = Default::default();
        Self { parts: parts.to_vec(), free, used, verified, copied, received, unverified, summing }
    }

    /// Returns whether the stage is a prefill stage.
    pub(super) fn passes(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Returns the number of micro-batches whose keys and values must be verified before the stage computes a
    /// micro-batch that arrives now.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Returns whether the stage can compute a micro-batch: the first `received` keys and values are
    /// verified, and the stage needs no place or one is free.
    pub(super) fn is_ready(&self, received: u64) -> bool {
        let verified = self.received - self.unverified.len() as u64;
        verified >= received && (!self.passes() || !self.free.is_empty())
    }

    /// Returns whether all places are free and everything is verified.
    pub(super) fn is_idle(&self) -> bool {
        self.used.is_empty() && self.unverified.is_empty() && self.summing == 0
    }

    /// Returns whether a checksum was requested and not computed.
    pub(super) fn wants_sum(&self) -> bool {
        self.summing > 0
    }

    /// Takes a place for a micro-batch.
    ///
    /// # Errors
    /// [`Error::Protocol`] if none is free.
    pub(super) fn take(&mut self) -> Result<()> {
        if self.passes() {
            let place = self.free.pop_front();
            let place = place.ok_or_else(|| Error::protocol("no place for keys and values is free"))?;
            self.used.push(PassingPlace { unread: self.parts.len(), ..place });
        }
        Ok(())
    }

    /// Returns the point after which `part` may overwrite the keys and values of earlier micro-batches.
    /// `None` if it need not wait.
    pub(super) fn before(&self, part: usize) -> Option<Point> {
        self.copied.get(&part).copied()
    }

    /// Submits the copies of the keys and values that `part` has computed for the micro-batch of the place
    /// that was taken last.
    pub(super) fn after(
        &mut self,
        part: usize,
        micro_batch: &Arc<MicroBatch>,
        computed: Point,
        requests: &mut Requests<'_>,
    ) {
        let Some(PassingPlace { place, after, .. }) = self.used.last_mut().filter(|_| !self.parts.is_empty())
        else {
            return;
        };
        for (to, parts) in self.parts.iter().enumerate().filter(|(_, parts)| parts.contains(&part)) {
            let signal = requests.points.download.allot();
            let waits = std::iter::once(computed).chain(after.drain(..)).collect();
            let (place, micro_batch) = (*place, micro_batch.clone());
            let passed = Passed { micro_batch: micro_batch.clone(), place, ready: signal };
            let pass = PassingAction::Pass { to, place, part, micro_batch, waits, signal };
            requests.push(StageAction::Passing(pass));
            if self.verified {
                self.copied.insert(part, signal);
            }
            if parts.last() == Some(&part) {
                let announce = PassingAction::Announce { to, passed: passed.clone() };
                requests.push(StageAction::Passing(announce));
                if self.verified {
                    sum(to, passed, computed, requests);
                    self.summing += 1;
                }
            }
        }
    }

    /// On a receiver: submits the copy of keys and values from a place to the cache. Returns the point after
    /// which the cache holds these keys and values.
    pub(super) fn keep(&mut self, passed: Passed, requests: &mut Requests<'_>) -> Point {
        let signal = requests.points.upload.allot();
        // The copy must not overwrite blocks before their checksum is computed.
        let summed = self.unverified.back().map(|earlier| earlier.computed);
        let (waits, place) = (std::iter::once(passed.ready).chain(summed).collect(), passed.place);
        let micro_batch = passed.micro_batch.clone();
        requests.push(StageAction::Passing(PassingAction::Keep { micro_batch, place, waits, signal }));
        let read = PlaceRead { place, after: signal };
        if self.verified {
            let computed = sum(0, passed, signal, requests);
            self.unverified.push_back(Unverified { read, computed, own: None, source: None });
            self.received += 1;
            self.summing += 1;
        } else {
            requests.push(StageAction::Passing(PassingAction::Answer(read)));
        }
        signal
    }

    /// Handles a checksum that this stage has computed. The prefill stage sends it to the receiver.
    ///
    /// # Errors
    /// [`Error::Protocol`] if these keys and values were not received.
    pub(super) fn summed(
        &mut self,
        to: usize,
        place: u32,
        sum: u64,
        requests: &mut Requests<'_>,
    ) -> Result<()> {
        assert!(self.summing > 0, "the checksum of the keys and values in place {place} was not requested");
        self.summing -= 1;
        if self.passes() {
            requests.push(StageAction::Passing(PassingAction::SendSum { to, place, sum }));
            return Ok(());
        }
        self.unverified(place)?.own = Some(sum);
        Ok(())
    }

    /// On a receiver: handles the checksum that the prefill stage has computed.
    ///
    /// # Errors
    /// [`Error::Protocol`] if these keys and values were not received.
    pub(super) fn source(&mut self, place: u32, sum: u64) -> Result<()> {
        self.unverified(place)?.source = Some(sum);
        Ok(())
    }

    fn unverified(&mut self, place: u32) -> Result<&mut Unverified> {
        let found = self.unverified.iter_mut().find(|other| other.read.place == place);
        found.ok_or_else(|| Error::protocol("a checksum of keys and values that were not received"))
    }

    /// Compares checksums, and returns the places of right bytes to the prefill stage. Returns their number.
    pub(super) fn compare(&mut self, requests: &mut Requests<'_>) -> u64 {
        let mut right = 0;
        while let Some(Unverified { read, own: Some(own), source: Some(source), .. }) =
            self.unverified.front()
        {
            requests.push(StageAction::Passing(match own == source {
                true => PassingAction::Answer(*read),
                false => PassingAction::Wrong,
            }));
            right += u64::from(own == source);
            self.unverified.pop_front();
        }
        right
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

/// Requests the checksum of keys and values in the cache, where they are after `after`. Returns the point
/// after which it is computed.
fn sum(to: usize, passed: Passed, after: Point, requests: &mut Requests<'_>) -> Point {
    let Passed { micro_batch, place, .. } = passed;
    let points = &mut requests.points;
    let (waits, computed, signal) = (vec![after], points.compute.allot(), points.download.allot());
    let sum = PassingAction::Sum { to, place, micro_batch, waits, computed, signal };
    requests.push(StageAction::Passing(sum));
    computed
}
