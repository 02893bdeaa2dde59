//! Weight streaming: how the streamed segments of a stage share device memory.
//!
//! A streamed segment's weights stay in host memory. They are copied to an *arena* on the device before each
//! computation of the segment. Neighbouring streamed segments use different arenas, and so do the last and
//! the first one. While the device computes one segment, it can therefore copy the weights of the next ones,
//! also from one micro-batch to the next. The more arenas a stage has, the earlier a copy can start.
//!
//! If host memory cannot hold a copy of a segment's weights, the stage reads them from the model's file before
//! each computation, through a few places in pinned host memory.
//!
//! This module knows no times.

use std::ops::Range;

/// Minimum number of streamed segments of a stage. With fewer, each segment would keep an arena of its own
/// and save no memory.
pub const FEWEST: usize = 4;

/// Maximum number of arenas of a stage.
pub const MAX_ARENAS: usize = 8;

/// Number of places in pinned host memory through which a stage reads streamed weights from the model's file.
/// Each place holds the weights of one segment. While the device copies from one place, the next segment is
/// read into the other.
pub const READ_PLACES: usize = 2;

/// Assignment of a stage's streamed segments to arenas. The segments use the arenas of a cycle in turn. If
/// the length of the cycle does not divide the number of segments, each of the last segments has an arena of
/// its own, so its weights are copied only once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arenas {
    /// Number of streamed segments.
    streamed: usize,
    /// Number of arenas that the segments use in turn.
    cycle: usize,
}

impl Arenas {
    /// Returns the possible assignments of `streamed` segments, those with fewer arenas first. Each has
    /// another number of arenas. With fewer than [`FEWEST`] segments, each segment has an arena of its own.
    pub fn all(streamed: usize) -> Vec<Self> {
        let cycles = 2..=MAX_ARENAS.min(streamed / 2);
        let mut all: Vec<Self> = cycles.map(|cycle| Self { streamed, cycle }).collect();
        all.retain(|arenas| arenas.count() <= MAX_ARENAS);
        // The longest cycle of equally many arenas lets copies start earliest.
        all.sort_by_key(|arenas| (arenas.count(), std::cmp::Reverse(arenas.cycle)));
        all.dedup_by_key(|arenas| arenas.count());
        if all.is_empty() { vec![Self { streamed, cycle: streamed }] } else { all }
    }

    /// Returns the assignment of `streamed` segments to `count` arenas, or `None` if it is impossible.
    /// Without `count`, returns the assignment with the fewest arenas.
    pub fn new(streamed: usize, count: Option<usize>) -> Option<Self> {
        let is_wanted = |arenas: &Self| count.is_none_or(|count| arenas.count() == count);
        Self::all(streamed).into_iter().find(is_wanted)
    }

    /// Returns the assignment with the most arenas up to `most`, or that with the fewest arenas if it has
    /// more.
    pub fn at_most(streamed: usize, most: usize) -> Self {
        let all = Self::all(streamed);
        all.iter().rfind(|arenas| arenas.count() <= most).copied().unwrap_or(all[0])
    }

    /// Returns the number of arenas.
    pub fn count(self) -> usize {
        self.cycle + self.streamed.checked_rem(self.cycle).unwrap_or(0)
    }

    /// Returns the arena of the streamed segment at `index`.
    pub fn of(self, index: usize) -> usize {
        assert!(index < self.streamed, "{self:?} have no segment {index}");
        let in_turn = self.in_turn();
        if index < in_turn { index % self.cycle } else { self.cycle + index - in_turn }
    }

    /// Returns the number of segments whose weights are copied for each micro-batch. They come first.
    pub fn copied(self) -> usize {
        if self.cycle == self.streamed { 0 } else { self.in_turn() }
    }

    /// Returns the number of segments that use the arenas of the cycle.
    fn in_turn(self) -> usize {
        self.streamed - self.streamed.checked_rem(self.cycle).unwrap_or(0)
    }
}

/// Returns why `streamed` segments cannot share `count` arenas, or `None` if they can.
pub fn wrong_arenas(streamed: usize, count: usize) -> Option<String> {
    if Arenas::new(streamed, Some(count)).is_some() {
        return None;
    }
    let counts: Vec<_> = Arenas::all(streamed).iter().map(|arenas| arenas.count().to_string()).collect();
    Some(format!(
        "{streamed} streamed segments cannot share {count} arenas (possible: {})",
        counts.join(", ")
    ))
}

/// Returns why a stage cannot read the segments `from_file` from the model's file, or `None` if it can.
/// `streamed` lists its streamed segments.
pub fn wrong_from_file<T: PartialOrd + std::fmt::Display>(streamed: &[T], from_file: &[T]) -> Option<String> {
    if let Some(at) = from_file.iter().find(|at| !streamed.contains(at)) {
        return Some(format!("segment {at} is read from the model's file, but it is not streamed"));
    }
    let is_unordered = from_file.windows(2).any(|pair| pair[0] >= pair[1]);
    is_unordered.then(|| "the segments from the model's file must be in ascending order".into())
}

/// Consecutive segments of a stage that one program computes: a streamed segment, or a run of resident ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagePart {
    /// The segments.
    pub segments: Range<usize>,
    /// Arena of the weights, if the part is a streamed segment.
    pub arena: Option<usize>,
}

impl StagePart {
    /// Divides the segments of a stage into parts. `streamed` lists its streamed segments in ascending order, and
    /// `arenas` is their assignment.
    pub fn all(segments: Range<usize>, streamed: &[usize], arenas: Arenas) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut at = segments.start;
        let resident = |range: Range<usize>, parts: &mut Vec<Self>| {
            if !range.is_empty() {
                parts.push(Self { segments: range, arena: None });
            }
        };
        for (index, &segment) in streamed.iter().enumerate() {
            let rest = at..segments.end;
            assert!(rest.contains(&segment), "segment {segment} is streamed, but {rest:?} are left");
            resident(at..segment, &mut parts);
            let arena = Some(arenas.of(index));
            parts.push(Self { segments: segment..segment + 1, arena });
            at = segment + 1;
        }
        resident(at..segments.end, &mut parts);
        parts
    }
}

/// Returns the sizes of an arena's buffers in bytes. `weights` lists the sizes of each streamed segment's
/// weights, in order and without generated ones. Buffer `k` holds the largest `k`-th weight.
pub fn arena_buffers<'a>(weights: impl IntoIterator<Item = &'a [u64]>) -> Vec<u64> {
    let mut buffers: Vec<u64> = Vec::new();
    for sizes in weights {
        buffers.resize(buffers.len().max(sizes.len()), 0);
        buffers.iter_mut().zip(sizes).for_each(|(buffer, &bytes)| *buffer = bytes.max(*buffer));
    }
    buffers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_arena_is_used_twice_in_a_row() {
        for arenas in (FEWEST..80).flat_map(Arenas::all) {
            let used: Vec<_> = (0..arenas.streamed).map(|index| arenas.of(index)).collect();
            let next = used.iter().cycle().skip(1);
            assert!(used.iter().zip(next).all(|(one, other)| one != other), "{arenas:?}: {used:?}");
            assert_eq!(used.iter().max().map(|most| most + 1), Some(arenas.count()), "{arenas:?}");
            let is_alone = |arena: &usize| used.iter().filter(|other| *other == arena).count() == 1;
            let alone = used.iter().filter(|arena| is_alone(arena)).count();
            assert_eq!(arenas.copied(), arenas.streamed - alone, "{arenas:?}");
            assert!(!used[..arenas.copied()].iter().any(is_alone), "{arenas:?}: {used:?}");
            assert!((2..=MAX_ARENAS).contains(&arenas.count()) && arenas.count() < arenas.streamed);
            assert_eq!(Arenas::new(arenas.streamed, Some(arenas.count())), Some(arenas));
        }
    }

    #[test]
    fn the_possible_numbers_of_arenas() {
        let counts = |streamed| Arenas::all(streamed).into_iter().map(Arenas::count).collect::<Vec<_>>();
        let [four, five, seven, twelve, thirteen] = [4, 5, 7, 12, 13].map(counts);
        assert_eq!((four, five, seven), (vec![2], vec![3], vec![3, 4]));
        assert_eq!((twelve, thirteen), (vec![2, 3, 4, 6, 7], vec![3, 4, 5, 7, 8]));
        for streamed in FEWEST..80 {
            // Plans without the number have two arenas, or three for an odd number of segments.
            let fewest = Arenas::new(streamed, None).map(Arenas::count);
            assert_eq!(fewest, Some(2 + streamed % 2));
            assert_eq!(Arenas::at_most(streamed, 0).count(), 2 + streamed % 2);
            let most = counts(streamed).into_iter().max();
            assert_eq!(Some(Arenas::at_most(streamed, MAX_ARENAS).count()), most);
        }
        assert_eq!([0, 1, 3].map(|few| Arenas::new(few, None).map(Arenas::count)), [0, 1, 3].map(Some));
        assert_eq!(Arenas::at_most(12, 5).count(), 4);
        let wrong = "12 streamed segments cannot share 5 arenas (possible: 2, 3, 4, 6, 7)";
        assert_eq!(wrong_arenas(12, 5).as_deref(), Some(wrong));
        assert_eq!(wrong_arenas(12, 6), None);
    }

    #[test]
    fn parts_cover_the_segments_in_order() {
        let part = |segments, arena| StagePart { segments, arena };
        let expected = [part(2..4, None), part(4..5, Some(0)), part(5..6, Some(1)), part(6..8, None)];
        let parts = |segments, streamed: &[usize]| {
            let arenas = Arenas::new(streamed.len(), None).expect("possible");
            StagePart::all(segments, streamed, arenas)
        };
        assert_eq!(parts(2..8, &[4, 5]), expected);
        let all = [part(1..2, Some(0)), part(2..3, Some(1)), part(3..4, Some(2))];
        assert_eq!(parts(1..4, &[1, 2, 3]), all);
        assert_eq!(parts(0..3, &[]), [part(0..3, None)]);
    }
}
