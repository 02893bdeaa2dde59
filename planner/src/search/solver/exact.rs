//! Finds, for each number of stages, the placement with the smallest sum of `time` under limits on the other
//! terms. Uses dynamic programming over the set of devices, the last device and the number of placed
//! segments. Devices of the same kind are interchangeable, so each set is stored as a count per kind. Kinds
//! with the same outgoing transfer costs form one exit class, called `exit` in the code. For each set and
//! exit, only the best last device matters.
//!
//! For a given kind of the last device and a given end of its run, the allowed first segments form a window.
//! The window only moves forward as the end grows, so a sliding minimum makes each cell cheap to compute.
//!
//! The search drops a cell if no completion meets the limit on the sum of `time`. Two relaxations prove this.
//! The first allows devices to be reused, and the second assigns Lagrangian prices to segments. The search
//! also drops a cell if the remaining devices cannot hold the remaining segments. For each set and exit, it
//! stores the range of ends whose cells remain.
//!
//! With shared buses, the search also stores, for each set and exit, the smallest possible load of each bus.
//! It drops a state if one of these loads is too large. The loads are only lower bounds, so the caller must
//! check the true loads of a placement.
//!
//! This module knows nothing about scores.

use super::lagrangian::Completion;
use super::rules::{Rules, Way, slide};
use super::{Instance, Stage, kinds};
use rayon::prelude::*;
use std::ops::Range;

/// Maximum number of table cells. The table reserves half a gigabyte of address space and uses less than half
/// of it.
const MAX_CELLS: usize = 1 << 26;

/// Minimum number of cells for which a separate task is worthwhile.
const CELLS_PER_TASK: usize = 1 << 16;

/// The placement with the smallest sum of `time` among all allowed placements with the same number of stages.
pub(super) struct Least {
    pub time: f64,
    pub stages: Vec<Stage>,
}

/// The sets of devices over which the dynamic programming runs.
pub(super) struct Table<'a> {
    instance: &'a Instance,
    kinds: &'a [Vec<usize>],
    sets: Sets,
    /// Exit classes. Each lists the kinds that have the same outgoing transfer costs.
    exits: Vec<Vec<usize>>,
    /// For each kind: index of its exit class.
    exit_of: Vec<usize>,
}

/// States of all sets, computed for one choice of limits.
pub(super) struct Cells {
    /// At `set * exits + exit`: the state if the last stage runs on the best kind in this exit class.
    slots: Vec<Slot>,
    /// For each set: whether any of its slots has remaining cells.
    alive: Vec<bool>,
    /// For each cell: the smallest sum of `time`, at `(set * exits + exit) * (segments + 1) + end`.
    times: Vec<f64>,
}

/// State of one combination of set and exit. `Cells::times` holds the times.
#[derive(Clone, Default)]
struct Slot {
    /// Range of ends whose cells remain.
    alive: Range<u32>,
    /// Smallest possible load of each shared bus.
    loads: Vec<f64>,
}

impl Slot {
    /// Merges the times in `better` into the slot, for the ends in `ends`. Each cell keeps the smaller time.
    fn take(&mut self, times: &mut [f64], better: &[f64], ends: Range<usize>) {
        let alive = self.alive.start as usize..self.alive.end as usize;
        let all = if alive.is_empty() {
            ends.clone()
        } else {
            alive.start.min(ends.start)..alive.end.max(ends.end)
        };
        times[all.start..alive.start.clamp(all.start, all.end)].fill(f64::INFINITY);
        times[alive.end.clamp(all.start, all.end)..all.end].fill(f64::INFINITY);
        for (time, better) in times[ends.clone()].iter_mut().zip(&better[ends]) {
            *time = time.min(*better);
        }
        self.alive = all.start as u32..all.end as u32;
    }
}

/// Buffers that a thread reuses while it fills slots.
#[derive(Default)]
struct Scratch {
    /// Times for each end. Between uses, `times` and `costs` contain only infinity.
    times: Vec<f64>,
    costs: Vec<f64>,
    queue: Vec<u32>,
}

/// Inputs for filling the slots of all sets of one size.
#[derive(Clone, Copy)]
struct Goal<'a> {
    rules: &'a Rules,
    /// For each kind and end: the smallest total time of all later stages after a stage with this end, if
    /// devices may be reused.
    rest: &'a [Vec<f64>],
    completion: &'a Completion,
    /// Kinds in descending order of their earnings.
    by_earnings: &'a [usize],
    /// At `set * exits + exit`: the smallest end after which the devices outside the set can hold all
    /// remaining segments.
    needed: &'a [u32],
    /// At index n: the largest allowed time of a complete placement that has n further stages.
    most: &'a [f64],
}

/// The sets that are smaller than those being filled, along with their slots.
#[derive(Clone, Copy)]
struct Smaller<'a> {
    goal: Goal<'a>,
    sets: &'a Sets,
    kinds: &'a [Vec<usize>],
    exits: &'a [Vec<usize>],
    slots: &'a [Slot],
    /// For each set: whether any of its slots has remaining cells.
    alive: &'a [bool],
    times: &'a [f64],
    segments: usize,
    buses: usize,
}

/// Returns the number of table cells for these kinds and this number of segments, or `None` if it exceeds
/// [`MAX_CELLS`].
pub(super) fn cells(kinds: &[Vec<usize>], segments: usize) -> Option<usize> {
    let sets = kinds.iter().try_fold(1usize, |n, kind| n.checked_mul(kind.len() + 1))?;
    let width = kinds.len().checked_mul(segments + 1)?;
    sets.checked_mul(width).filter(|cells| *cells <= MAX_CELLS)
}

impl<'a> Table<'a> {
    /// Creates a table, or returns `None` if the table would have too many cells.
    pub fn new(instance: &'a Instance, kinds: &'a [Vec<usize>]) -> Option<Self> {
        cells(kinds, instance.segments)?;
        let exits = kinds::exits(instance, kinds);
        let exit_of = |kind: usize| exits.iter().position(|exit| exit.contains(&kind));
        let exit_of = (0..kinds.len()).map(|kind| exit_of(kind).expect("each kind has an exit")).collect();
        Some(Self { instance, kinds, sets: Sets::new(kinds, instance.most_stages()), exit_of, exits })
    }

    /// Allocates up to `most` independent [`Cells`], for concurrent and repeated use. Allocates fewer if they
    /// would take too much memory.
    pub fn cells(&self, most: usize) -> Vec<Cells> {
        let (sets, slots) = (self.sets.len(), self.sets.len() * self.exits.len());
        let times = slots * (self.instance.segments + 1);
        let cells = |_| Cells {
            slots: vec![Slot::default(); slots],
            alive: vec![false; sets],
            times: vec![0.0; times],
        };
        (0..(MAX_CELLS / times.max(1)).clamp(1, most)).map(cells).collect()
    }

    /// Returns, at index k, the placement with the smallest time among those with k + 1 stages. The entry is
    /// `None` if the rules allow no such placement with a time of at most `most[k]`. `most` must not increase
    /// with k.
    pub fn least(
        &self,
        cells: &mut Cells,
        rules: &Rules,
        completion: &Completion,
        most: &[f64],
    ) -> Vec<Option<Least>> {
        let (needed, rest) = (self.needed(rules), rules.rest(self.instance.segments));
        let sizes = most.len().min(self.sets.by_size.len());
        let mut by_earnings: Vec<usize> = (0..self.kinds.len()).collect();
        by_earnings.sort_by(|a, b| completion.earnings[*b].total_cmp(&completion.earnings[*a]));
        for size in 0..sizes {
            let goal = Goal {
                rules,
                rest: &rest,
                completion,
                by_earnings: &by_earnings,
                needed: &needed,
                most: &most[size..sizes],
            };
            self.fill(cells, goal, size);
        }
        (0..most.len()).map(|size| self.best(cells, rules, size)).collect()
    }

    /// Returns, at `set * exits + exit`, the smallest end after which the devices outside the set can hold
    /// all remaining segments. Assumes that each of these devices takes its longest run.
    fn needed(&self, rules: &Rules) -> Vec<u32> {
        let (exits, all) = (self.exits.len(), self.instance.segments as u32);
        // At `kind * exits + exit`: for each end, the first segment of the kind's longest run after this
        // exit.
        let windows = |kind: usize| {
            self.exits.iter().map(move |exit| {
                let way = way(rules, exit, kind)?;
                Some(rules.kinds[kind].groups[way.group].from.as_slice())
            })
        };
        let windows: Vec<Option<&[u32]>> = (0..self.kinds.len()).flat_map(windows).collect();
        // At `set * exits + exit`: the earliest first segment from which the set can hold all remaining
        // segments, if its first stage follows this exit.
        let mut first = vec![all; self.sets.len() * exits];
        for set in 0..self.sets.len() {
            let (smaller_first, first) = first.split_at_mut(set * exits);
            for kind in 0..self.kinds.len() {
                let with = set * self.kinds.len() + kind;
                if self.sets.counts[with] == 0 {
                    continue;
                }
                let smaller = self.sets.without(with);
                let behind = smaller.map_or(all, |set| smaller_first[set * exits + self.exit_of[kind]]);
                let windows = &windows[kind * exits..(kind + 1) * exits];
                for (first, window) in first.iter_mut().zip(windows) {
                    if let Some(window) = window {
                        *first = (*first).min(window[behind as usize]);
                    }
                }
            }
        }
        let left = |slot: usize| match self.sets.others[slot / exits] {
            Others::None => all,
            Others::Set(set) => first[set as usize * exits + slot % exits],
            Others::TooMany => 0,
        };
        (0..self.sets.len() * exits).map(left).collect()
    }

    /// Fills the slots of all sets of `size + 1` devices.
    fn fill(&self, cells: &mut Cells, goal: Goal<'_>, size: usize) {
        let (exits, width) = (self.exits.len(), self.instance.segments + 1);
        let sets = self.sets.by_size[size].clone();
        let (first, count) = (sets.start * exits, sets.len() * exits);
        let (smaller_slots, slots) = cells.slots.split_at_mut(first);
        let (smaller_times, times) = cells.times.split_at_mut(first * width);
        let (smaller_alive, alive) = cells.alive.split_at_mut(sets.start);
        let smaller = Smaller {
            goal,
            sets: &self.sets,
            kinds: self.kinds,
            exits: &self.exits,
            slots: smaller_slots,
            alive: smaller_alive,
            times: smaller_times,
            segments: self.instance.segments,
            buses: self.instance.shared.len(),
        };
        type SetState<'a> = (usize, ((&'a mut [Slot], &'a mut [f64]), &'a mut bool));
        let one = |scratch: &mut Scratch, (at, ((slots, times), alive)): SetState<'_>| {
            smaller.fill(sets.start + at, slots, times, scratch);
            *alive = slots.iter().any(|slot| !slot.alive.is_empty());
        };
        let (slots, times, alive) =
            (&mut slots[..count], &mut times[..count * width], &mut alive[..sets.len()]);
        if count * width < CELLS_PER_TASK {
            let mut scratch = Scratch::default();
            let slots = slots.chunks_mut(exits).zip(times.chunks_mut(exits * width)).zip(alive);
            slots.enumerate().for_each(|set| one(&mut scratch, set));
        } else {
            let slots =
                slots.par_chunks_mut(exits).zip(times.par_chunks_mut(exits * width)).zip(alive).enumerate();
            let fewest = CELLS_PER_TASK.div_ceil(exits * width);
            slots.with_min_len(fewest).for_each_init(Scratch::default, one);
        }
    }

    /// Returns the best placement with `size + 1` stages. Backtracks from the last cells of the table.
    fn best(&self, cells: &Cells, rules: &Rules, size: usize) -> Option<Least> {
        let (exits, segments) = (self.exits.len(), self.instance.segments);
        let slots = self.sets.by_size.get(size)?.clone().filter(|set| self.has_required(*set));
        let slots = slots.flat_map(|set| set * exits..(set + 1) * exits);
        let (time, mut slot) = slots
            .map(|slot| (self.time(cells, slot, segments), slot))
            .filter(|(time, _)| time.is_finite())
            .reduce(|best, other| if other.0 < best.0 { other } else { best })?;
        let (mut parts, mut end) = (Vec::new(), segments);
        loop {
            match self.step_back(cells, rules, slot, end) {
                (kind, Some((before, first))) => {
                    parts.push((kind, first..end));
                    (slot, end) = (before, first);
                }
                (kind, None) => {
                    parts.push((kind, 0..end));
                    break;
                }
            }
        }
        parts.reverse();
        Some(Least { time, stages: self.with_members(parts) })
    }

    /// Returns whether `set` contains all members of the required kinds.
    fn has_required(&self, set: usize) -> bool {
        let complete = |(kind, members): (usize, &Vec<usize>)| {
            !self.instance.required.contains(&members[0])
                || usize::from(self.sets.counts[set * self.kinds.len() + kind]) == members.len()
        };
        self.kinds.iter().enumerate().all(complete)
    }

    /// Returns the kind of a cell's last stage, and the slot and end of the previous stage. There is no
    /// previous slot if the last stage is also the first.
    fn step_back(
        &self,
        cells: &Cells,
        rules: &Rules,
        slot: usize,
        end: usize,
    ) -> (usize, Option<(usize, usize)>) {
        let (exits, kinds) = (self.exits.len(), self.kinds.len());
        let set = slot / exits;
        let mut best = (f64::INFINITY, None);
        for &kind in self.exits[slot % exits].iter().filter(|kind| self.sets.counts[set * kinds + **kind] > 0)
        {
            let to = &rules.kinds[kind];
            let Some(smaller) = self.sets.without(set * kinds + kind) else {
                if to.opening[end] < best.0 {
                    best = (to.opening[end], Some((kind, None)));
                }
                continue;
            };
            for (before, exit) in self.exits.iter().enumerate() {
                let from = smaller * exits + before;
                let Slot { alive, loads } = &cells.slots[from];
                let Some(way) = way(rules, exit, kind) else { continue };
                if alive.is_empty() || rules.ride(exit[0], kind, loads).is_none() {
                    continue;
                }
                for first in alive.start.max(to.groups[way.group].from[end])..alive.end.min(end as u32) {
                    let first = first as usize;
                    let time = self.time(cells, from, first) + way.time + to.finish[end] - to.prefix[first];
                    if time < best.0 {
                        best = (time, Some((kind, Some((from, first)))));
                    }
                }
            }
        }
        best.1.expect("a cell with a time has a last stage")
    }

    /// Returns the smallest time of a cell, or infinity if the cell was dropped.
    fn time(&self, cells: &Cells, slot: usize, end: usize) -> f64 {
        let alive = cells.slots[slot].alive.contains(&(end as u32));
        if alive { cells.times[slot * (self.instance.segments + 1) + end] } else { f64::INFINITY }
    }

    /// Assigns each part to a device of the part's kind. Uses the devices of a kind in order.
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
    /// Fills the slots of `set` from the slots of smaller sets.
    fn fill(&self, set: usize, slots: &mut [Slot], times: &mut [f64], scratch: &mut Scratch) {
        let mut most_with_prices = None;
        let mut own = std::mem::take(&mut scratch.times);
        own.resize(self.segments + 1, f64::INFINITY);
        for (at, (slot, times)) in slots.iter_mut().zip(times.chunks_mut(self.segments + 1)).enumerate() {
            slot.alive = 0..0;
            let needed = self.goal.needed[set * self.exits.len() + at] as usize;
            let begin = if self.goal.most.len() == 1 { self.segments } else { needed.max(1) };
            for &kind in &self.exits[at] {
                let with = set * self.kinds.len() + kind;
                if self.sets.counts[with] == 0 {
                    continue;
                }
                let smaller = self.sets.without(with);
                if smaller.is_some_and(|smaller| !self.alive[smaller]) {
                    continue;
                }
                let most_with_prices = *most_with_prices.get_or_insert_with(|| self.most_with_prices(set));
                slot.loads.clear();
                slot.loads.resize(self.buses, 0.0);
                let reached = match smaller {
                    None => {
                        own[begin..].copy_from_slice(&self.goal.rules.kinds[kind].opening[begin..]);
                        begin..own.len()
                    }
                    Some(smaller) => {
                        slot.loads.fill(f64::INFINITY);
                        self.enter((smaller, kind), begin, &mut slot.loads, &mut own, scratch)
                    }
                };
                let kept = self.keep(kind, most_with_prices, reached.clone(), &own);
                if !kept.is_empty() {
                    slot.take(times, &own, kept);
                }
                own[reached].fill(f64::INFINITY);
            }
        }
        scratch.times = own;
    }

    /// Appends a stage on a device of `kind` to the placements in all slots of a smaller set. Returns the
    /// range of ends that received a value.
    fn enter(
        &self,
        (set, kind): (usize, usize),
        begin: usize,
        loads: &mut [f64],
        times: &mut [f64],
        scratch: &mut Scratch,
    ) -> Range<usize> {
        let groups = 0..self.goal.rules.kinds[kind].groups.len();
        let reached = groups.map(|group| self.extend((set, kind, group), begin, loads, times, scratch));
        let filled = reached.filter(|reached| !reached.is_empty());
        filled.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }

    /// Appends a stage on a device of `kind` to the placements of a smaller set. Uses only slots whose
    /// transfer to `kind` leads to the window group `group`, and only ends from `begin` on. Returns the range
    /// of ends that received a value.
    fn extend(
        &self,
        (set, kind, group): (usize, usize, usize),
        begin: usize,
        loads: &mut [f64],
        times: &mut [f64],
        scratch: &mut Scratch,
    ) -> Range<usize> {
        let width = self.segments + 1;
        let to = &self.goal.rules.kinds[kind];
        let Scratch { costs, queue, .. } = scratch;
        costs.resize(width, f64::INFINITY);
        let from = &to.groups[group].from;
        let mut range = width..0;
        for (before, exit) in self.exits.iter().enumerate() {
            let slot = set * self.exits.len() + before;
            let alive = &self.slots[slot].alive;
            // A stage cannot begin after the last segment.
            let alive = alive.start.max(from[begin]) as usize..self.segments.min(alive.end as usize);
            let Some(way) = way(self.goal.rules, exit, kind).filter(|w| w.group == group) else { continue };
            let Some(sums) = self.goal.rules.ride(exit[0], kind, &self.slots[slot].loads) else { continue };
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
            return 0..0;
        }
        let costs = &mut costs[..range.end];
        for (cost, prefix) in costs[range.clone()].iter_mut().zip(&to.prefix[range.clone()]) {
            *cost -= prefix;
        }
        let mut reached = width..0;
        slide(costs, range.clone(), from, begin, queue, |end, least| {
            times[end] = times[end].min(least + to.finish[end]);
            reached = reached.start.min(end)..end + 1;
        });
        costs[range].fill(f64::INFINITY);
        reached
    }

    /// Narrows the range of ends: drops ends on both sides for which no completion can meet the limit on
    /// time.
    fn keep(&self, kind: usize, most_with_prices: f64, ends: Range<usize>, times: &[f64]) -> Range<usize> {
        let rest = &self.goal.rest[kind];
        let (prices, most) = (&self.goal.completion.prices, self.goal.most[0]);
        let in_time = |end: usize| {
            let time = times[end];
            let with_prices = time + prices[end] <= most_with_prices || end == self.segments;
            time + rest[end] <= most && with_prices && time < f64::INFINITY
        };
        let mut ends = ends;
        while !ends.is_empty() && !in_time(ends.start) {
            ends.start += 1;
        }
        while !ends.is_empty() && !in_time(ends.end - 1) {
            ends.end -= 1;
        }
        ends
    }

    /// Returns the maximum of a cell's time plus the prices of its remaining segments at which a completion
    /// can still meet the limit on time. Assumes that the devices outside the set have their largest
    /// earnings.
    fn most_with_prices(&self, set: usize) -> f64 {
        let kinds = self.kinds.len();
        let counts = &self.sets.counts[set * kinds..(set + 1) * kinds];
        let outside = |&kind: &usize| {
            let members = self.kinds[kind].len() - usize::from(counts[kind]);
            std::iter::repeat_n(self.goal.completion.earnings[kind], members)
        };
        let earnings = self.goal.by_earnings.iter().flat_map(outside);
        let sums = earnings.scan(0.0, |sum, earns| {
            *sum += earns;
            Some(*sum)
        });
        self.goal.most[1..].iter().zip(sums).map(|(most, sum)| most + sum).fold(f64::NEG_INFINITY, f64::max)
    }
}

/// Returns the transfer from an exit to the kind `to`. All kinds of the exit have the same transfer. `to`
/// itself represents the exit only if the exit contains no other kind.
pub(super) fn way(rules: &Rules, exit: &[usize], to: usize) -> Option<Way> {
    let from = exit.iter().find(|from| **from != to).unwrap_or(&exit[0]);
    rules.way(*from, to)
}

/// All multisets of kinds, ordered by size, up to the maximum number of stages.
struct Sets {
    /// At index size - 1: the range of sets with this size.
    by_size: Vec<Range<usize>>,
    /// At `set * kinds + kind`: number of the kind's members in the set.
    counts: Vec<u16>,
    /// At `set * kinds + kind`: the set with one fewer member of this kind. `None` if the set has no member
    /// of this kind, or no other member.
    without: Vec<Option<u32>>,
    /// For each set: its complement.
    others: Vec<Others>,
}

/// The complement of a set.
#[derive(Clone, Copy)]
enum Others {
    None,
    Set(u32),
    /// The complement has more devices than a placement may have stages.
    TooMany,
}

impl Sets {
    fn new(kinds: &[Vec<usize>], most: usize) -> Self {
        // The code of a set is a mixed-radix number whose digits are the counts.
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
        let mut sets =
            Self { by_size: Vec::new(), counts: Vec::new(), without: Vec::new(), others: Vec::new() };
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

    /// Returns the set without one member of the kind, where `slot` is `set * kinds + kind`. Returns `None`
    /// if the set has no member of this kind, or no other member.
    fn without(&self, slot: usize) -> Option<usize> {
        self.without[slot].map(|set| set as usize)
    }
}
