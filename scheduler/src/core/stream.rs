//! Weight streaming of a stage: decides when each part's weights are copied to their arena.
//!
//! The first micro-batch of a stage fills all arenas. From then on, an arena gets the weights of its next
//! part as soon as the computation of the part that used it was submitted. The copy waits for that
//! computation, so the device copies weights while it computes the parts with other arenas.
//!
//! If the weights of a part are in the model's file, the host reads them into a place of pinned memory first.
//! The read is requested together with the copy, and waits only until the place is free. The host therefore
//! reads ahead by as many parts as there are places.

use crate::core::action::Requests;
use crate::core::{StageAction, StreamAction};
use ragtag_graph::execution::READ_PLACES;
use ragtag_hal::{Point, TimelineId};
use ragtag_transfer::Points;
use serde::{Deserialize, Serialize};

/// The parts of a stage whose weights are read from the model's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileParts {
    /// Timeline of the reads. It belongs to the host, and to no device.
    pub timeline: TimelineId,
    /// The parts.
    pub parts: Vec<usize>,
}

/// Reads from the model's file.
#[derive(Debug)]
struct Reads {
    points: Points,
    parts: Vec<usize>,
    /// For each place, the point after which it is free again. The place that is used next comes first.
    places: [(usize, Option<Point>); READ_PLACES],
}

/// The parts and arenas of a stage.
#[derive(Debug)]
pub(super) struct Streams {
    /// Arena of each part. `None` for a part with resident weights.
    parts: Vec<Option<usize>>,
    /// For each arena, the next part that uses it, and the point after which it holds the weights of this
    /// part. `None` for an arena that was never used.
    loaded: Vec<Option<(usize, Point)>>,
    /// `None` if host memory holds all streamed weights.
    reads: Option<Reads>,
}

impl Streams {
    /// Creates the parts of a stage. Without `parts`, the stage has a single one with resident weights.
    pub(super) fn new(parts: &[Option<usize>], from_file: Option<&FileParts>) -> Self {
        let parts = if parts.is_empty() { vec![None] } else { parts.to_vec() };
        let arenas = parts.iter().flatten().max().map_or(0, |most| most + 1);
        let reads = from_file.map(|FileParts { timeline, parts }| Reads {
            points: Points::new(*timeline),
            parts: parts.clone(),
            places: std::array::from_fn(|place| (place, None)),
        });
        Self { parts, loaded: vec![None; arenas], reads }
    }

    /// Returns the number of parts.
    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Submits the copies of the weights that each arena holds first, if no earlier micro-batch has.
    pub(super) fn fill(&mut self, requests: &mut Requests<'_>) {
        for part in 0..self.parts.len() {
            if let Some(arena) = self.parts[part].filter(|&arena| self.loaded[arena].is_none()) {
                self.copy(part, arena, Vec::new(), requests);
            }
        }
    }

    /// Returns the point after which the weights of `part` are in their arena. `None` if they are resident.
    pub(super) fn before(&self, part: usize) -> Option<Point> {
        let arena = self.parts[part]?;
        let (held, loaded) = self.loaded[arena].filter(|(held, _)| *held == part).unzip();
        assert!(held.is_some(), "part {part} needs arena {arena}, which holds {:?}", self.loaded[arena]);
        loaded
    }

    /// Submits the copy of the weights that follow those of `part` in its arena. `computed` is the point
    /// after which the computation of `part` has ended.
    pub(super) fn after(&mut self, part: usize, computed: Point, requests: &mut Requests<'_>) {
        let Some(arena) = self.parts[part] else { return };
        let mut later = (part + 1..self.parts.len()).chain(0..part);
        if let Some(next) = later.find(|&other| self.parts[other] == Some(arena)) {
            self.copy(next, arena, vec![computed], requests);
        }
    }

    fn copy(&mut self, part: usize, arena: usize, mut waits: Vec<Point>, requests: &mut Requests<'_>) {
        let signal = requests.points.upload.allot();
        let place = self.reads.as_mut().filter(|reads| reads.parts.contains(&part)).map(|reads| {
            let (place, after) = reads.places[0];
            let read = reads.points.allot();
            requests.push(StageAction::Stream(StreamAction::Read { part, place, after, signal: read }));
            waits.push(read);
            reads.places[0].1 = Some(signal);
            reads.places.rotate_left(1);
            place
        });
        requests.push(StageAction::Stream(StreamAction::Copy { part, place, waits, signal }));
        self.loaded[arena] = Some((part, signal));
    }
}
