//! The solver: the search behind plans, on numbers alone. It chooses devices, their order and their runs of
//! segments.
//!
//! An [`Instance`] holds the cost of each run of segments on each device and the cost of each transfer. A
//! placement is an ordered choice of devices with a contiguous run of segments each. [`solve`] finds the
//! placement with the smallest score.
//!
//! If the sets of devices can be enumerated (twelve different devices, more if some are interchangeable) the
//! result is exact. Dynamic programming over sets of devices finds the smallest sum under limits (`exact`).
//! Branch and bound over these limits (`branch_and_bound`) finds the best trade-off between the sum and the
//! largest terms. Beyond that, local search improves orders of devices (`orders`), and a Lagrangian bound
//! (`lagrangian`) limits the distance to the optimum (`bounded`).
//!
//! Knows nothing about models or plans, or the meaning of the numbers.

mod bounded;
mod branch_and_bound;
mod exact;
mod kinds;
mod lagrangian;
mod orders;
mod rules;
#[cfg(test)]
mod tests;
mod trade;
mod values;

use std::ops::{Add, Range, Sub};

/// Costs of a stage or transfer, in microseconds and never negative. `busy` limits throughput, `time` adds to
/// the time of a request, and `chunk` is the time for each prefill chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Costs {
    /// Counts by the maximum over all stages, transfers and shared links. A shared link's cost is the sum of
    /// its transfers.
    pub busy: f64,
    /// Counts by its sum.
    pub time: f64,
    /// Counts by the maximum, as `busy` does.
    pub chunk: f64,
}

impl Costs {
    /// No limit on anything.
    const INFINITE: Self = Self { busy: f64::INFINITY, time: f64::INFINITY, chunk: f64::INFINITY };
}

impl Add for Costs {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { busy: self.busy + other.busy, time: self.time + other.time, chunk: self.chunk + other.chunk }
    }
}

impl Sub for Costs {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self { busy: self.busy - other.busy, time: self.time - other.time, chunk: self.chunk - other.chunk }
    }
}

/// A problem: `segments` segments on `devices.len()` devices.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    /// Number of segments, at least 1.
    pub segments: usize,
    /// The devices, at least 1.
    pub devices: Vec<DeviceCosts>,
    /// Transfers at `from * devices + to`; `None` if there is no link.
    pub transfers: Vec<Option<LinkCosts>>,
    /// Links that several transfers share.
    pub shared: Vec<SharedBus>,
    /// The score to minimise.
    pub score: Score,
    /// Per segment: the device that must run it.
    pub pins: Vec<Option<usize>>,
    /// Devices that must be used.
    pub required: Vec<usize>,
    /// Per device: whether it must not be used.
    pub excluded: Vec<bool>,
    /// Most stages, at least 1.
    pub max_stages: usize,
    /// Score of a known placement. Placements that score worse by more than [`SHARE`] need not be found.
    /// Infinite if there is none.
    pub known: f64,
}

/// Costs of runs of segments on a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeviceCosts {
    /// Cumulative costs of the segments `0 .. i`, with one entry more than there are segments. Never
    /// decreases.
    pub before: Vec<Costs>,
    /// Costs of the stage itself.
    pub stage: Costs,
    /// Additional costs of the first stage.
    pub entry: Costs,
    /// Additional costs of the last stage.
    pub exit: Costs,
    /// Largest end of a run that fits, at `[class][first]`; `first` itself if none fits. The class is that of
    /// the transfer into the stage, 0 for the first stage. Never decreases with `first`: a run that fits
    /// still fits without its first segment.
    pub reach: Vec<Vec<usize>>,
}

/// The link from one device to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LinkCosts {
    /// Costs of a transfer.
    pub costs: Costs,
    /// Index into [`DeviceCosts::reach`] for the next stage.
    pub class: usize,
}

/// A link that several transfers share. Their costs in one term add up. A link that counts in two terms is
/// listed twice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SharedBus {
    /// The term.
    pub term: Term,
    /// Pairs (from, to) of devices, each at most once, and the cost of a transfer between them.
    pub users: Vec<((usize, usize), f64)>,
}

/// A term that counts by its maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// [`Costs::busy`].
    Busy,
    /// [`Costs::chunk`].
    Chunk,
}

impl Term {
    /// Returns this term of `costs`.
    pub fn of(self, costs: &Costs) -> f64 {
        match self {
            Self::Busy => costs.busy,
            Self::Chunk => costs.chunk,
        }
    }
}

/// The score of a placement; smaller is better. B and C are the largest `busy` and `chunk` of all stages,
/// transfers and shared links. T is the sum of `time`. Weights are not negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Score {
    /// T + `chunk_weight` · C
    Sum {
        /// Weight of C.
        chunk_weight: f64,
    },
    /// max(B, (T + `chunk_weight` · C) ÷ `sequences`)
    Busy {
        /// Number of sequences, positive.
        sequences: f64,
        /// Weight of C.
        chunk_weight: f64,
    },
    /// T + `chunk_weight` · C + `busy_weight` · B
    Mix {
        /// Weight of C.
        chunk_weight: f64,
        /// Weight of B.
        busy_weight: f64,
    },
}

/// A device and its run of segments.
pub(crate) type Stage = (usize, Range<usize>);

/// A placement: an ordered choice of devices with their runs, and its score.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Placement {
    /// The stages, in order.
    pub stages: Vec<Stage>,
    /// Its [`score`].
    pub score: f64,
}

/// The result of [`solve`].
#[derive(Clone, Debug)]
pub(crate) struct Solution {
    /// At k: the best placement found with k + 1 stages. If `exact`, the best of all is optimal. So is the
    /// one that [`Solution::choose`] returns, among those with equal numbers of stages, for shares up to
    /// [`SHARE`]. Both hold only for placements within [`SHARE`] of [`Instance::known`].
    pub best_by_stages: Vec<Option<Placement>>,
    /// Lower bound of all scores, unless [`Instance::known`] is smaller. Infinite if there is no placement.
    pub bound: f64,
    /// Whether a placement, or [`Instance::known`], reaches `bound`.
    pub exact: bool,
}

/// Largest share for which [`Solution::choose`] is exact.
pub(crate) const SHARE: f64 = 0.01;

/// Finds the best placement of an instance.
pub(crate) fn solve(instance: &Instance) -> Solution {
    if instance.required.iter().any(|device| instance.excluded[*device]) {
        return Solution::empty(instance);
    }
    let kinds = kinds::merge(instance);
    if kinds.is_empty() {
        return Solution::empty(instance);
    }
    match exact::Table::new(instance, &kinds) {
        Some(table) => branch_and_bound::solve(instance, &kinds, table),
        None => bounded::solve(instance),
    }
}

/// Returns a lower bound of all scores, from Lagrangian prices without a search. Ignores shared links.
pub(crate) fn bound(instance: &Instance) -> f64 {
    bounded::relaxed(instance)
}

/// Groups the usable devices that are interchangeable in every placement.
pub(crate) fn alike(instance: &Instance) -> Vec<Vec<usize>> {
    kinds::merge(instance)
}

/// Returns the number of table cells for an exact solution, or `None` if there are too many.
pub(crate) fn cells(instance: &Instance) -> Option<usize> {
    exact::cells(&kinds::merge(instance), instance.segments)
}

/// Returns the score of the stages; infinite if the instance does not allow them.
pub(crate) fn score(instance: &Instance, stages: &[Stage]) -> f64 {
    if instance.allows(stages) { instance.score.of(&instance.totals(stages)) } else { f64::INFINITY }
}

impl Solution {
    /// Returns the placement with the fewest stages among those within `share` of the best.
    pub fn choose(&self, share: f64) -> Option<&Placement> {
        let found = || self.best_by_stages.iter().flatten();
        let best = found().map(|p| p.score).reduce(f64::min)?;
        found().find(|p| p.score <= best * (1.0 + share))
    }

    /// Returns a solution without placements.
    fn empty(instance: &Instance) -> Self {
        let most = instance.most_stages();
        Self { best_by_stages: vec![None; most], bound: f64::INFINITY, exact: true }
    }

    /// Keeps the stages if they beat the known ones with equal number. Of equal ones the first stays.
    fn offer(&mut self, instance: &Instance, stages: &[Stage]) {
        let score = score(instance, stages);
        let best = &mut self.best_by_stages[stages.len() - 1];
        if score.is_finite() && best.as_ref().is_none_or(|b| score < b.score) {
            *best = Some(Placement { stages: stages.to_vec(), score });
        }
    }

    /// Returns the best score found.
    fn best(&self) -> f64 {
        self.best_by_stages.iter().flatten().map(|p| p.score).fold(f64::INFINITY, f64::min)
    }
}

impl Instance {
    /// Returns the most stages of a placement.
    fn most_stages(&self) -> usize {
        self.segments.min(self.devices.len()).min(self.max_stages)
    }

    fn transfer(&self, from: usize, to: usize) -> Option<&LinkCosts> {
        self.transfers[from * self.devices.len() + to].as_ref()
    }

    /// Returns the costs of a run as a stage.
    fn stage(&self, device: usize, run: Range<usize>) -> Costs {
        let costs = &self.devices[device];
        let mut sum = costs.before[run.end] - costs.before[run.start] + costs.stage;
        if run.start == 0 {
            sum = sum + costs.entry;
        }
        if run.end == self.segments {
            sum = sum + costs.exit;
        }
        sum
    }

    /// Returns the sum of `time` and the largest `busy` and `chunk`. All transfers must exist.
    fn totals(&self, stages: &[Stage]) -> Costs {
        let runs = stages.iter().map(|(device, run)| self.stage(*device, run.clone()));
        let pairs = || stages.windows(2).map(|pair| (pair[0].0, pair[1].0));
        let transfers = pairs().filter_map(|(from, to)| self.transfer(from, to)).map(|c| c.costs);
        let mut total = runs.chain(transfers).fold(Costs::default(), |total, costs| Costs {
            busy: total.busy.max(costs.busy),
            time: total.time + costs.time,
            chunk: total.chunk.max(costs.chunk),
        });
        for bus in &self.shared {
            let load: f64 = pairs().map(|pair| bus.load(pair)).sum();
            match bus.term {
                Term::Busy => total.busy = total.busy.max(load),
                Term::Chunk => total.chunk = total.chunk.max(load),
            }
        }
        total
    }

    /// Returns whether the stages cover all segments in order, fit their devices and meet all conditions.
    fn allows(&self, stages: &[Stage]) -> bool {
        let mut end = 0;
        let mut used = vec![false; self.devices.len()];
        for (at, (device, run)) in stages.iter().enumerate() {
            let class = match at.checked_sub(1).map(|before| self.transfer(stages[before].0, *device)) {
                None => 0,
                Some(Some(transfer)) => transfer.class,
                Some(None) => return false,
            };
            let pinned = |segment: usize| self.pins[segment].is_none_or(|pin| pin == *device);
            let fits = run.start == end && run.start < run.end && run.end <= self.segments;
            if !fits || self.devices[*device].reach[class][run.start] < run.end || !run.clone().all(pinned) {
                return false;
            }
            if self.excluded[*device] || std::mem::replace(&mut used[*device], true) {
                return false;
            }
            end = run.end;
        }
        end == self.segments && stages.len() <= self.max_stages && self.required.iter().all(|d| used[*d])
    }
}

impl SharedBus {
    /// Returns the cost of a transfer on this link.
    fn load(&self, pair: (usize, usize)) -> f64 {
        self.users.iter().find(|(user, _)| *user == pair).map_or(0.0, |(_, busy)| *busy)
    }
}
