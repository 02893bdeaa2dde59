//! Weight streaming of a stage: decides when each part's weights are copied to their arena.
//!
//! An arena gets the weights of its next part as soon as the computation of the part that used it was
//! submitted. The copy waits for that computation, so the device copies weights while it computes the parts
//! with other arenas.

use crate::core::{QueuePoints, StageAction};
use ragtag_hal::Point;

/// Contents of an arena.
#[derive(Clone, Copy, Debug)]
struct Arena {
    /// Part whose weights are in the arena after [`Arena::loaded`].
    part: usize,
    loaded: Point,
}

/// The parts and arenas of a stage.
#[derive(Debug)]
pub(super) struct Streams {
    /// Arena of each part. `None` for a part with resident weights.
    parts: Vec<Option<usize>>,
    /// `None` for an arena that was never used.
    arenas: Vec<Option<Arena>>,
}

impl Streams {
    /// Creates the parts of a stage. Without `parts`, the stage has a single one with resident weights.
    pub(super) fn new(parts: &[Option<usize>]) -> Self {
        let parts = if parts.is_empty() { vec![None] } else { parts.to_vec() };
        let arenas = parts.iter().flatten().max().map_or(0, |most| most + 1);
        Self { parts, arenas: vec![None; arenas] }
    }

    /// Returns the number of parts.
    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Returns the point after which the weights of `part` are in their arena. Submits their copy if no
    /// earlier computation has.
    pub(super) fn before(
        &mut self,
        part: usize,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Option<Point> {
        let arena = self.parts[part]?;
        match self.arenas[arena] {
            Some(held) if held.part == part => Some(held.loaded),
            // Only a first copy gets here, so nothing uses the arena.
            _ => Some(self.copy(part, arena, Vec::new(), points, actions)),
        }
    }

    /// Submits the copy of the weights that follow those of `part` in its arena. `computed` is the point after
    /// which the computation of `part` has ended.
    pub(super) fn after(
        &mut self,
        part: usize,
        computed: Point,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) {
        let Some(arena) = self.parts[part] else { return };
        let cycle = (part + 1..self.parts.len()).chain(0..=part);
        let next = cycle.into_iter().find(|&other| self.parts[other] == Some(arena));
        if let Some(next) = next.filter(|&next| next != part) {
            self.copy(next, arena, vec![computed], points, actions);
        }
    }

    fn copy(
        &mut self,
        part: usize,
        arena: usize,
        waits: Vec<Point>,
        points: &mut QueuePoints,
        actions: &mut Vec<StageAction>,
    ) -> Point {
        let signal = points.upload.allot();
        actions.push(StageAction::Stream { part, waits, signal });
        self.arenas[arena] = Some(Arena { part, loaded: signal });
        signal
    }
}
