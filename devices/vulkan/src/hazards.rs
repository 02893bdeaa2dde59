//! Placement of barriers between the commands of a command buffer.
//!
//! Vulkan may run the commands of a command buffer concurrently unless a barrier separates them. Two commands
//! need a barrier between them if one of them writes bytes that the other reads or writes. A barrier makes
//! all later commands wait for all earlier ones. Only the commands since the last barrier therefore matter.
//!
//! This module does not depend on Vulkan's calls.

use std::ops::Range;

/// A read or write of a byte range by a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// Identifier of the memory, unique per memory object.
    pub(crate) memory: usize,
    pub(crate) range: Range<u64>,
    pub(crate) writes: bool,
}

impl Use {
    fn conflicts(&self, other: &Use) -> bool {
        (self.writes || other.writes)
            && self.memory == other.memory
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

/// Accesses of the commands since the last barrier.
#[derive(Debug, Default)]
pub(crate) struct Hazards(Vec<Use>);

impl Hazards {
    /// Adds the accesses of a command. Returns true if a barrier must precede the command.
    pub(crate) fn barrier_before(&mut self, uses: Vec<Use>) -> bool {
        let barrier = uses.iter().any(|one| self.0.iter().any(|before| one.conflicts(before)));
        if barrier {
            self.0.clear();
        }
        self.0.extend(uses);
        barrier
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(memory: usize, range: Range<u64>) -> Use {
        Use { memory, range, writes: false }
    }

    fn write(memory: usize, range: Range<u64>) -> Use {
        Use { memory, range, writes: true }
    }

    #[test]
    fn only_overlaps_with_a_write_need_a_barrier() {
        for (first, second, barrier) in [
            (read(0, 0..8), read(0, 0..8), false),
            (read(0, 0..8), write(0, 7..9), true),
            (write(0, 0..8), read(0, 7..9), true),
            (write(0, 0..8), write(0, 0..1), true),
            (write(0, 0..8), write(0, 8..9), false),
            (write(0, 0..8), read(1, 0..8), false),
        ] {
            let mut hazards = Hazards::default();
            assert!(!hazards.barrier_before(vec![first.clone()]));
            assert_eq!(hazards.barrier_before(vec![second.clone()]), barrier, "{first:?} then {second:?}");
        }
    }

    #[test]
    fn a_barrier_settles_all_earlier_accesses() {
        let mut hazards = Hazards::default();
        assert!(!hazards.barrier_before(vec![write(0, 0..8)]));
        assert!(!hazards.barrier_before(vec![write(1, 0..8)]));
        assert!(hazards.barrier_before(vec![read(0, 0..8), write(2, 0..8)]));
        assert!(!hazards.barrier_before(vec![read(1, 0..8)]), "settled by the barrier");
        assert!(hazards.barrier_before(vec![read(2, 0..8)]), "an access after the barrier");
    }

    #[test]
    fn a_commands_own_uses_do_not_conflict() {
        let mut hazards = Hazards::default();
        assert!(!hazards.barrier_before(vec![read(0, 0..8), write(0, 4..8)]));
    }
}
