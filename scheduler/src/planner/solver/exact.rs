//! The least sum of time under limits, for each number of stages: dynamic programming over (set of devices, last device,
//! segments placed). Devices of one kind are counted instead of told apart, so the sets are multisets of kinds.
//!
//! For the last stage's kind the first segments that are allowed for an end form a window, and the window only moves
//! forward with the end: a sliding minimum makes each cell cheap. A cell is dropped if it cannot be finished within the
//! limit on time, even if devices could be used again, or if the devices that are left cannot hold the segments that are
//! left, at their furthest reach. Each (set, last) keeps the range of its cells that remain.
//!
//! Where shared buses are, each (set, last) also keeps the least load that each of them can have: a bus that is too busy
//! even so rules the state out. This is a relaxation; the caller looks at the true loads.
//!
//! This module must not know scores.

use super::rules::{Limits, Rules, slide};
use super::{Instance, Stage};
use rayon::prelude::*;
use std::ops::Range;

/// Most cells of a table: half a gigabyte of addresses, of which less than half are ever touched.
const MOST_CELLS: usize = 1 << 26;

/// Fewest cells that are worth a task for another thread.
const CELLS_PER_TASK: usize = 1 << 16;

/// A placement with the least sum of time for its number of stages.
pub(super) struct Least {
    pub time: f64,
    pub stages: Vec<Stage>,
}

/// The table of the dynamic programme. Kept between uses for its memory.
pub(super) struct Table<'a> {
    instance: &'a Instance,
    kinds: &'a [Vec<usize>],
    sets: Sets,
    /// At `set * kinds + last`.
    slots: Vec<Slot>,
    /// The least time, at `(set * kinds + last) * (segments + 1) + end`.
    times: Vec<f64>,
}

/// What is known of a set and its last device besides times.
#[derive(Clone, Default)]
struct Slot {
    /// The ends whose cells hold something.
    alive: Range<u32>,
    /// The least loads of the shared buses.
    loads: Vec<f64>,
}

/// What one thread needs to fill slots.
#[derive(Default)]
struct Scratch {
    costs: Vec<f64>,
    queue: Vec<u32>,
}

/// The slots of all sets that are smaller than those being filled.
#[derive(Clone, Copy)]
struct Smaller<'a> {
    rules: &'a Rules,
    sets: &'a Sets,
    slots: &'a [Slot],
    times: &'a [f64],
    segments: usize,
    /// At `set * kinds + last`: what is behind this end the devices that are left can hold.
    needed: &'a [u32],
    /// Whether the sets being filled are the largest: only the last end counts.
    last: bool,
    most_time: f64,
}

impl<'a> Table<'a> {
    /// `None` if there are too many sets.
    pub fn new(instance: &'a Instance, kinds: &'a [Vec<usize>]) -> Option<Self> {
        let sets = kinds.iter().try_fold(1usize, |n, kind| n.checked_mul(kind.len() + 1))?;
        let slots = sets.checked_mul(kinds.len())?;
        let cells = slots.checked_mul(instance.segments + 1).filter(|cells| *cells <= MOST_CELLS)?;
        Some(Self {
            instance,
            kinds,
            sets: Sets::new(kinds, instance.most_stages()),
            slots: vec![Slot::default(); slots],
            times: vec![0.0; cells],
        })
    }

    /// At k: the least with k + 1 stages, for up to `stages` stages; `None` where the limits allow none.
    pub fn least(&mut self, limits: &Limits<'_>, stages: usize) -> Vec<Option<Least>> {
        let rules = Rules::new(self.instance, self.kinds, limits);
        let needed = self.needed(&rules);
        let sizes = stages.min(self.sets.by_size.len());
        for size in 0..sizes {
            self.fill(&rules, &needed, limits.most.time, size, size + 1 == sizes);
        }
        (0..stages).map(|size| self.best(&rules, size)).collect()
    }

    /// Whether placements within the limits are possible as far as the furthest reach of each (set, last) tells: how they
    /// may end is not looked at. Fast, for bounds.
    pub fn may_reach(&self, limits: &Limits<'_>) -> bool {
        let rules = Rules::new(self.instance, self.kinds, limits);
        let kinds = self.kinds.len();
        let mut furthest = vec![0; self.slots.len()];
        for slot in 0..self.sets.len() * kinds {
            let kind = slot % kinds;
            furthest[slot] = if let Some(smaller) = self.sets.without(slot) {
                let behind = |before| {
                    let way = rules.way(before, kind)?;
                    Some(rules.kinds[kind].groups[way.group].to[furthest[smaller * kinds + before] as usize])
                };
                (0..kinds).filter_map(behind).max().unwrap_or(0)
            } else if self.sets.counts[slot] > 0 {
                rules.kinds[kind].opening.iter().rposition(|time| time.is_finite()).unwrap_or(0) as u32
            } else {
                0
            };
            if furthest[slot] as usize == self.instance.segments {
                return true;
            }
        }
        false
    }

    /// At `set * kinds + last`: the least end behind which the devices outside the set can hold everything, each of them at
    /// its furthest reach towards the front.
    fn needed(&self, rules: &Rules) -> Vec<u32> {
        let (kinds, all) = (self.kinds.len(), self.instance.segments as u32);
        // At `set * kinds + before`: the first segment that the set can hold, to the end, behind this kind.
        let mut first = vec![all; self.sets.len() * kinds];
        for set in 0..self.sets.len() {
            for before in
                (0..kinds).filter(|k| usize::from(self.sets.counts[set * kinds + k]) < self.kinds[*k].len())
            {
                let with = |kind: usize| {
                    let slot = set * kinds + kind;
                    let way = (self.sets.counts[slot] > 0).then(|| rules.way(before, kind))??;
                    let behind = self.sets.without(slot).map_or(all, |smaller| first[smaller * kinds + kind]);
                    Some(rules.kinds[kind].groups[way.group].from[behind as usize])
                };
                first[set * kinds + before] = (0..kinds).filter_map(with).min().unwrap_or(all);
            }
        }
        let left = |slot: usize| match self.sets.others[slot / kinds] {
            Others::None => all,
            Others::Set(set) => first[set as usize * kinds + slot % kinds],
            Others::TooMany => 0,
        };
        (0..self.sets.len() * kinds).map(left).collect()
    }

    /// Fills the slots of the sets of a size.
    fn fill(&mut self, rules: &Rules, needed: &[u32], most_time: f64, size: usize, last: bool) {
        let width = self.instance.segments + 1;
        let sets = self.sets.by_size[size].clone();
        let (first, count) = (sets.start * self.kinds.len(), sets.len() * self.kinds.len());
        let (smaller_slots, slots) = self.slots.split_at_mut(first);
        let (smaller_times, times) = self.times.split_at_mut(first * width);
        let smaller = Smaller {
            rules,
            sets: &self.sets,
            slots: smaller_slots,
            times: smaller_times,
            segments: self.instance.segments,
            needed,
            last,
            most_time,
        };
        let buses = self.instance.shared.len();
        slots[..count]
            .par_iter_mut()
            .zip(times[..count * width].par_chunks_mut(width))
            .enumerate()
            .with_min_len(CELLS_PER_TASK.div_ceil(width))
            .for_each_init(Scratch::default, |scratch, (at, (slot, times))| {
                slot.loads.clear();
                slot.loads.resize(buses, 0.0);
                slot.alive = smaller.fill(first + at, &mut slot.loads, times, scratch);
            });
    }

    /// The least of a size, told back from the end of the table.
    fn best(&self, rules: &Rules, size: usize) -> Option<Least> {
        let (kinds, segments) = (self.kinds.len(), self.instance.segments);
        let slots = self.sets.by_size.get(size)?.clone().filter(|set| self.has_required(*set));
        let slots = slots.flat_map(|set| set * kinds..(set + 1) * kinds);
        let (time, mut slot) = slots
            .map(|slot| (self.time(slot, segments), slot))
            .filter(|(time, _)| time.is_finite())
            .reduce(|best, other| if other.0 < best.0 { other } else { best })?;
        let (mut parts, mut end) = (Vec::new(), segments);
        while let Some((before, first)) = self.step_back(rules, slot, end) {
            parts.push((slot % kinds, first..end));
            (slot, end) = (before, first);
        }
        parts.push((slot % kinds, 0..end));
        parts.reverse();
        Some(Least { time, stages: self.with_members(parts) })
    }

    /// Whether all members of the kinds that must take part are in.
    fn has_required(&self, set: usize) -> bool {
        let complete = |(kind, members): (usize, &Vec<usize>)| {
            !self.instance.required.contains(&members[0])
                || usize::from(self.sets.counts[set * self.kinds.len() + kind]) == members.len()
        };
        self.kinds.iter().enumerate().all(complete)
    }

    /// The slot and the end before the last stage of a cell; `None` if that is the first stage.
    fn step_back(&self, rules: &Rules, slot: usize, end: usize) -> Option<(usize, usize)> {
        let kinds = self.kinds.len();
        let (smaller, kind) = (self.sets.without(slot)?, slot % kinds);
        let mut best = (f64::INFINITY, None);
        for before in 0..kinds {
            let from = smaller * kinds + before;
            let Slot { alive, loads } = &self.slots[from];
            let Some(way) = rules.way(before, kind) else { continue };
            if alive.is_empty() || rules.ride(before, kind, loads).is_none() {
                continue;
            }
            let to = &rules.kinds[kind];
            for first in alive.start.max(to.groups[way.group].from[end])..alive.end.min(end as u32) {
                let first = first as usize;
                let time = self.time(from, first) + way.time - to.prefix[first];
                if time < best.0 {
                    best = (time, Some((from, first)));
                }
            }
        }
        best.1
    }

    /// The least time of a cell.
    fn time(&self, slot: usize, end: usize) -> f64 {
        let alive = self.slots[slot].alive.contains(&(end as u32));
        if alive { self.times[slot * (self.instance.segments + 1) + end] } else { f64::INFINITY }
    }

    /// Gives the parts of a kind to its members in order.
    fn with_members(&self, parts: Vec<(usize, Range<usize>)>) -> Vec<Stage> {
        let mut used = vec![0; self.kinds.len()];
        let member = |(kind, run): (usize, Range<usize>)| {
            used[kind] += 1;
            (self.kinds[kind][used[kind] - 1], run)
        };
        parts.into_iter().map(member).collect()
    }
}

impl Smaller<'_> {
    /// Fills the cells of a slot; returns the range of those that hold something. `loads` come as zeros.
    fn fill(&self, slot: usize, loads: &mut [f64], times: &mut [f64], scratch: &mut Scratch) -> Range<u32> {
        if self.sets.counts[slot] == 0 {
            return 0..0;
        }
        let kind = slot % self.sets.kinds;
        let begin = if self.last { self.segments } else { (self.needed[slot] as usize).max(1) };
        let Some(smaller) = self.sets.without(slot) else {
            times[begin..].copy_from_slice(&self.rules.kinds[kind].opening[begin..]);
            return self.keep(kind, begin..times.len(), times);
        };
        let before = smaller * self.sets.kinds..(smaller + 1) * self.sets.kinds;
        if self.slots[before].iter().all(|slot| slot.alive.is_empty()) {
            return 0..0;
        }
        loads.fill(f64::INFINITY);
        times[begin..].fill(f64::INFINITY);
        let groups = 0..self.rules.kinds[kind].groups.len();
        let reached = groups.map(|group| self.extend((smaller, kind, group), begin, loads, times, scratch));
        let reached = reached.max().unwrap_or(0);
        self.keep(kind, begin..reached + 1, times)
    }

    /// Enters the stages of a kind, with ends from `begin`, behind all slots of a set from which a crossing leads to this
    /// group. Returns the last end with something.
    fn extend(
        &self,
        (set, kind, group): (usize, usize, usize),
        begin: usize,
        loads: &mut [f64],
        times: &mut [f64],
        scratch: &mut Scratch,
    ) -> usize {
        let width = self.segments + 1;
        let to = &self.rules.kinds[kind];
        let Scratch { costs, queue } = scratch;
        costs.resize(width, f64::INFINITY);
        let from = &to.groups[group].from;
        let mut range = width..0;
        for before in 0..self.sets.kinds {
            let slot = set * self.sets.kinds + before;
            let alive = &self.slots[slot].alive;
            // Behind the last segment nothing begins.
            let alive = alive.start.max(from[begin]) as usize..self.segments.min(alive.end as usize);
            let Some(way) = self.rules.way(before, kind).filter(|w| w.group == group) else { continue };
            let Some(sums) = self.rules.ride(before, kind, &self.slots[slot].loads) else { continue };
            if alive.is_empty() {
                continue;
            }
            loads.iter_mut().zip(sums).for_each(|(load, sum)| *load = load.min(sum));
            range = range.start.min(alive.start)..range.end.max(alive.end);
            let cells = &self.times[slot * width..][alive.clone()];
            for (cost, time) in costs[alive].iter_mut().zip(cells) {
                *cost = cost.min(time + way.time);
            }
        }
        if range.is_empty() {
            return 0;
        }
        let costs = &mut costs[..range.end];
        for (cost, prefix) in costs[range.clone()].iter_mut().zip(&to.prefix[range.clone()]) {
            *cost -= prefix;
        }
        let mut reached = 0;
        slide(costs, range.clone(), from, begin, queue, |end, least| {
            times[end] = times[end].min(least + to.finish[end]);
            reached = end;
        });
        costs[range].fill(f64::INFINITY);
        reached
    }

    /// Drops what cannot be finished in time, of these ends.
    fn keep(&self, kind: usize, ends: Range<usize>, times: &mut [f64]) -> Range<u32> {
        let rest = &self.rules.kinds[kind].rest;
        let mut alive = times.len() as u32..0;
        for end in ends {
            if times[end] + rest[end] <= self.most_time && times[end] < f64::INFINITY {
                alive = alive.start.min(end as u32)..end as u32 + 1;
            } else {
                times[end] = f64::INFINITY;
            }
        }
        alive
    }
}

/// The multisets of kinds with 1 to as many members as there may be stages, ordered by size.
struct Sets {
    kinds: usize,
    /// At size - 1.
    by_size: Vec<Range<usize>>,
    /// At `set * kinds + kind`: how many members of the kind are in.
    counts: Vec<u16>,
    /// At `set * kinds + kind`: the set with one member less, if anything is left then.
    without: Vec<Option<u32>>,
    /// At set: all that is not in it.
    others: Vec<Others>,
}

/// What a set leaves.
#[derive(Clone, Copy)]
enum Others {
    None,
    Set(u32),
    /// More than there may be stages.
    TooMany,
}

impl Sets {
    fn new(kinds: &[Vec<usize>], most: usize) -> Self {
        // A set's code has its counts as digits.
        let mut units = vec![1];
        units.extend(kinds.iter().scan(1, |unit, kind| {
            *unit *= kind.len() + 1;
            Some(*unit)
        }));
        let digit = |code: usize, kind: usize| code / units[kind] % (kinds[kind].len() + 1);
        let size = |code: usize| (0..kinds.len()).map(|kind| digit(code, kind)).sum::<usize>();
        let mut codes: Vec<Vec<usize>> = vec![Vec::new(); most + 1];
        (1..units[kinds.len()])
            .filter(|code| size(*code) <= most)
            .for_each(|code| codes[size(code)].push(code));
        let mut sets = Self {
            kinds: kinds.len(),
            by_size: Vec::new(),
            counts: Vec::new(),
            without: Vec::new(),
            others: Vec::new(),
        };
        let mut index = vec![None; units[kinds.len()]];
        let mut next = 0;
        for codes in &codes[1..] {
            sets.by_size.push(next as usize..next as usize + codes.len());
            for code in codes {
                index[*code] = Some(next);
                next += 1;
                for kind in 0..kinds.len() {
                    let count = digit(*code, kind);
                    sets.counts.push(count as u16);
                    sets.without.push(if count > 0 { index[code - units[kind]] } else { None });
                }
            }
        }
        let others = |code: &usize| match units[kinds.len()] - 1 - code {
            0 => Others::None,
            others => index[others].map_or(Others::TooMany, Others::Set),
        };
        sets.others = codes.iter().flatten().map(others).collect();
        sets
    }

    fn len(&self) -> usize {
        self.by_size.last().map_or(0, |sets| sets.end)
    }

    /// The set of a slot without one of the slot's kind; `None` if there is none in it, or nothing else.
    fn without(&self, slot: usize) -> Option<usize> {
        self.without[slot].map(|set| set as usize)
    }
}
