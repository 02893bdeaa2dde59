//! The solver: a search on plain numbers. It chooses devices, their order and their runs of segments.
//!
//! An [`Instance`] holds the costs of each run of segments on each device and of each transfer. A placement
//! is a sequence of devices, each with a contiguous run of segments. [`solve`] finds the placement with the
//! smallest score.
//!
//! The result is exact if the sets of devices can be enumerated. This holds for up to twelve different
//! devices, and for more if some are interchangeable. Dynamic programming over the sets finds the smallest
//! sum under limits (`exact`). Branch and bound over the limits finds the best trade-off between the sum and
//! the largest terms (`branch_and_bound`).
//!
//! With more devices, local search improves orders of devices (`orders`). A Lagrangian bound (`lagrangian`)
//! limits the distance to the optimum (`bounded`).
//!
//! Knows nothing about models or plans, or about the meaning of the numbers.

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

/// Costs of a stage or a transfer, in microseconds, never negative. `busy` limits throughput, `time` adds to
/// the time of a request, and `chunk` is paid for each prefill chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Costs {
    /// Enters the score as the maximum over all stages, transfers and shared links. The cost of a shared link
    /// is the sum over its transfers.
    pub busy: f64,
    /// Enters the score as the sum over all stages and transfers.
    pub time: f64,
    /// Enters the score as a maximum, like `busy`.
    pub chunk: f64,
}

impl Costs {
    /// Costs that limit nothing.
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

/// A problem with `segments` segments and `devices.len()` devices.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    /// Number of segments, at least 1.
    pub segments: usize,
    /// The devices, at least 1.
    pub devices: Vec<DeviceCosts>,
    /// Transfers at `from * devices + to`. `None` if there is no link.
    pub transfers: Vec<Option<LinkCosts>>,
    /// Links that several transfers share, and that limit their sum.
    pub shared: Vec<SharedBus>,
    /// The score to minimise.
    pub score: Score,
    /// For each segment: the device that must run it, if any.
    pub pins: Vec<Option<usize>>,
    /// Devices that a placement must use.
    pub required: Vec<usize>,
    /// For each device: whether placements must not use it.
    pub excluded: Vec<bool>,
    /// Largest number of stages, at least 1.
    pub max_stages: usize,
    /// Score of a known placement, or infinity. The solver may miss placements whose score is worse by more
    /// than [`SHARE`].
    pub known: f64,
}

/// Costs of runs of segments on a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeviceCosts {
    /// Cumulative costs of the segments `0 .. i`, at index `i`. Has one entry more than there are segments.
    /// Never decreases.
    pub before: Vec<Costs>,
    /// Costs of the stage that do not depend on its segments.
    pub stage: Costs,
    /// Additional costs of the first stage.
    pub entry: Costs,
    /// Additional costs of the last stage.
    pub exit: Costs,
    /// End of the longest run that fits, at `[class][first]`; equal to `first` if no run fits. The class
    /// comes from the transfer into the stage, and is 0 for the first stage. The end never decreases with
    /// `first`, because a run that fits still fits without its first segment.
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

/// A link that several transfers share. The transfers' costs in one term add up. A link that counts in two
/// terms is listed twice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SharedBus {
    /// The term in which the costs count.
    pub term: Term,
    /// Pairs (from, to) of devices, with the cost of a transfer between them. Each pair is listed at most
    /// once.
    pub users: Vec<((usize, usize), f64)>,
}

/// A term that enters the score as a maximum.
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

/// The score of a placement. A smaller score is better. B and C are the largest `busy` and `chunk` of all
/// stages, transfers and shared links. T is the sum of `time`. Weights are not negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Score {
    /// T + `chunk_weight` · C
    Sum {
        /// Weight of C.
        chunk_weight: f64,
    },
    /// max(B, (T + `chunk_weight` · C) ÷ `sequences`)
    Busy {
        /// Number of sequences, above 0.
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

/// A placement: a sequence of devices with their runs, and its score.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Placement {
    /// The stages, in order.
    pub stages: Vec<Stage>,
    /// Score of the placement.
    pub score: f64,
}

/// The result of [`solve`].
#[derive(Clone, Debug)]
pub(crate) struct Solution {
    /// At index k: the best placement found with k + 1 stages. If `exact` is set, the best of them is
    /// optimal. The placement that [`Solution::choose`] returns for a share of at most [`SHARE`] is then
    /// optimal for its number of stages. Both statements hold only for placements within [`SHARE`] of
    /// [`Instance::known`].
    pub best_by_stages: Vec<Option<Placement>>,
    /// Lower bound of all scores, unless [`Instance::known`] is smaller. Infinite if no placement exists.
    pub bound: f64,
    /// Whether the score of a placement, or [`Instance::known`], equals `bound`.
    pub exact: bool,
}

/// Largest share for which the result of [`Solution::choose`] is exact.
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

/// Returns a lower bound of all scores from Lagrange multipliers, without a search. Ignores shared links.
pub(crate) fn bound(instance: &Instance) -> f64 {
    bounded::relaxed(instance)
}

/// Groups the usable devices that are interchangeable in every placement.
pub(crate) fn alike(instance: &Instance) -> Vec<Vec<usize>> {
    kinds::merge(instance)
}

/// Returns the number of table cells for an exact solution. Returns `None` if it is too large.
pub(crate) fn cells(instance: &Instance) -> Option<usize> {
    exact::cells(&kinds::merge(instance), instance.segments)
}

/// Returns the score of the stages, or infinity if the instance does not allow them.
pub(crate) fn score(instance: &Instance, stages: &[Stage]) -> f64 {
    if instance.allows(stages) { instance.score.of(&instance.totals(stages)) } else { f64::INFINITY }
}

impl Solution {
    /// Returns the placement with the fewest stages among those within `share` of the best score.
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

    /// Keeps the stages if their score beats the known placement with equally many stages. The first of equal
    /// placements stays.
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
    /// Returns the largest possible number of stages of a placement.
    fn most_stages(&self) -> usize {
        self.segments.min(self.devices.len()).min(self.max_stages)
    }

    fn transfer(&self, from: usize, to: usize) -> Option<&LinkCosts> {
        self.transfers[from * self.devices.len() + to].as_ref()
    }

    /// Returns the costs of a stage that runs these segments.
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

    /// Returns the sum of `time` and the largest `busy` and `chunk` of a placement. All of its transfers must
    /// exist.
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

    /// Returns whether the stages cover all segments in order, fit their devices and meet all constraints.
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
    /// Returns the cost of a transfer on this shared link.
    fn load(&self, pair: (usize, usize)) -> f64 {
        self.users.iter().find(|(user, _)| *user == pair).map_or(0.0, |(_, busy)| *busy)
    }
}
