//! The solver: a search that works only on numbers. It chooses devices, their order and each device's run of
//! segments.
//!
//! An [`Instance`] holds the costs of each run of segments on each device and of each transfer. A placement
//! is a sequence of devices, each with a contiguous run of segments. [`solve`] finds the placement with the
//! smallest score.
//!
//! The result is exact if the sets of devices can be enumerated. This holds for up to twelve different
//! devices, and for more if some are interchangeable. For given limits on `busy` and `chunk`, dynamic
//! programming over the sets finds the smallest sum of `time` (`exact`). Branch and bound over these limits
//! finds the placement with the best score (`branch_and_bound`).
//!
//! With more devices, local search improves orders of devices (`orders`). A Lagrangian bound (`lagrangian`)
//! shows how far the result can be from the optimum (`bounded`).
//!
//! This module knows nothing about models or plans, or about the meaning of the numbers.

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

/// Costs of a stage or a transfer, in microseconds. They are never negative. `busy` limits throughput, `time`
/// adds to the time of a request, and `chunk` is the additional time per prefill chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Costs {
    /// The score uses the maximum of this cost over all stages, transfers and shared links. The cost of a
    /// shared link is the sum over its transfers.
    pub busy: f64,
    /// The score uses the sum of this cost over all stages and transfers.
    pub time: f64,
    /// The score uses the maximum of this cost, as for `busy`.
    pub chunk: f64,
}

impl Costs {
    /// Infinite costs. As upper limits, they exclude no placement.
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

/// A placement problem with `segments` segments and `devices.len()` devices.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    /// Number of segments, at least 1.
    pub segments: usize,
    /// The devices, at least 1.
    pub devices: Vec<DeviceCosts>,
    /// Links between the devices, at `from * devices + to`. `None` if there is no link.
    pub transfers: Vec<Option<LinkCosts>>,
    /// Links that several transfers share. Each one limits the sum of its transfers' costs.
    pub shared: Vec<SharedBus>,
    /// The score to minimise.
    pub score: Score,
    /// For each segment: the only device that may run it, if the segment is pinned.
    pub pins: Vec<Option<usize>>,
    /// Devices that every placement must use.
    pub required: Vec<usize>,
    /// For each device: whether no placement may use it.
    pub excluded: Vec<bool>,
    /// Maximum number of stages, at least 1.
    pub max_stages: usize,
    /// Score of a known placement, or infinity. The solver may miss placements whose score is more than
    /// [`SHARE`] worse than this.
    pub known: f64,
}

/// Costs of running segments on a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeviceCosts {
    /// Cumulative costs of the segments `0 .. i`, at index `i`. Has one entry more than there are segments.
    /// Never decreases.
    pub before: Vec<Costs>,
    /// Costs of the stage that do not depend on its segments.
    pub stage: Costs,
    /// Additional costs if the device runs the first stage.
    pub entry: Costs,
    /// Additional costs if the device runs the last stage.
    pub exit: Costs,
    /// For each class and first segment: the end of the longest run that fits into memory, at
    /// `[class][first]`. It is `first` if no run fits. The class is [`LinkCosts::class`] of the transfer into
    /// the stage, and 0 for the first stage. The end never decreases with `first`, because a run that fits
    /// still fits without its first segment.
    pub reach: Vec<Vec<usize>>,
}

/// The link from one device to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LinkCosts {
    /// Costs of a transfer.
    pub costs: Costs,
    /// Index into [`DeviceCosts::reach`] for the stage that receives the transfer.
    pub class: usize,
}

/// A link that several transfers share. The transfers' costs add up in one term of the score. A link that
/// limits both `busy` and `chunk` has two entries.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SharedBus {
    /// Term to which the costs are added.
    pub term: Term,
    /// Pairs (from, to) of devices that use the link, along with the cost of a transfer between them. Each
    /// pair is listed at most once.
    pub users: Vec<((usize, usize), f64)>,
}

/// A term of the score that is a maximum over all parts of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// [`Costs::busy`].
    Busy,
    /// [`Costs::chunk`].
    Chunk,
}

impl Term {
    /// Returns this term's value in `costs`.
    pub fn of(self, costs: &Costs) -> f64 {
        match self {
            Self::Busy => costs.busy,
            Self::Chunk => costs.chunk,
        }
    }

    /// Returns `costs` with another value of this term.
    fn with(self, costs: Costs, value: f64) -> Costs {
        match self {
            Self::Busy => Costs { busy: value, ..costs },
            Self::Chunk => Costs { chunk: value, ..costs },
        }
    }
}

/// Formula for a placement's score. A smaller score is better. B and C are the maximum `busy` and `chunk`
/// over all stages, transfers and shared links. T is the sum of `time`. Weights are not negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Score {
    /// T + `chunk_weight` · C + `busy_weight` · B
    Sum {
        /// Weight of C.
        chunk_weight: f64,
        /// Weight of B.
        busy_weight: f64,
    },
    /// max(B, (T + `chunk_weight` · C) ÷ `sequences`)
    Busy {
        /// Number of sequences, above 0.
        sequences: f64,
        /// Weight of C.
        chunk_weight: f64,
    },
}

/// A device and its run of segments.
pub(crate) type Stage = (usize, Range<usize>);

/// A placement: a sequence of stages, and its score.
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
    /// At index k: the best placement found with k + 1 stages. If `exact` is set, the best of these
    /// placements is optimal. The placement that [`Solution::choose`] returns for a share of at most
    /// [`SHARE`] is then optimal among the placements with the same number of stages. Both statements hold
    /// only for scores that are at most [`SHARE`] worse than [`Instance::known`].
    pub best_by_stages: Vec<Option<Placement>>,
    /// Lower bound on the scores of all placements, capped at [`Instance::known`]. Infinite if no placement
    /// exists and no score is known.
    pub bound: f64,
    /// Whether `bound` equals the score of a placement or [`Instance::known`].
    pub exact: bool,
}

/// Maximum relative score difference for which the result of [`Solution::choose`] is exact.
pub(crate) const SHARE: f64 = 0.01;

/// Finds the best placement of an instance.
pub(crate) fn solve(instance: &Instance) -> Solution {
    instance.check();
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

/// Returns a lower bound on the scores of all placements, from Lagrange multipliers and without a search.
/// Ignores shared links.
pub(crate) fn bound(instance: &Instance) -> f64 {
    instance.check();
    bounded::relaxed(instance)
}

/// Groups the usable devices. The devices of a group are interchangeable in every placement.
pub(crate) fn alike(instance: &Instance) -> Vec<Vec<usize>> {
    kinds::merge(instance)
}

/// Returns the number of table cells that an exact solution needs, or `None` if the table would be too large.
pub(crate) fn cells(instance: &Instance) -> Option<usize> {
    exact::cells(&kinds::merge(instance), instance.segments)
}

/// Returns the score of the placement with these stages, or infinity if the instance does not allow it.
pub(crate) fn score(instance: &Instance, stages: &[Stage]) -> f64 {
    if instance.allows(stages) { instance.score.of(&instance.totals(stages)) } else { f64::INFINITY }
}

impl Solution {
    /// Returns the placement with the fewest stages among those whose score is at most `share` worse than the
    /// best score.
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

    /// Stores the placement if it beats the stored placement with the same number of stages. A tie keeps the
    /// stored placement.
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
    /// Checks the invariants of the fields. The searches rely on them: with a negative cost or a reach that
    /// decreases, they would exclude good placements.
    fn check(&self) {
        let (segments, devices) = (self.segments, self.devices.len());
        assert!(segments.min(devices).min(self.max_stages) > 0, "an instance without placements: {self:?}");
        let (busy, chunk) = self.score.weights();
        assert!(busy >= 0.0 && chunk >= 0.0, "a negative weight: {:?}", self.score);
        let sizes = [self.transfers.len(), self.pins.len(), self.excluded.len()];
        assert_eq!(sizes, [devices * devices, segments, devices], "{devices} devices, {segments} segments");
        let is_cost = |costs: &Costs| {
            [costs.busy, costs.time, costs.chunk].iter().all(|us| (0.0..=f64::MAX).contains(us))
        };
        for (at, device) in self.devices.iter().enumerate() {
            let DeviceCosts { before, stage, entry, exit, reach } = device;
            let mut steps = before.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(
                before.len() == segments + 1
                    && before.iter().chain([stage, entry, exit]).all(is_cost)
                    && steps.all(|step| is_cost(&step)),
                "costs of device {at} are negative, infinite or NaN: {device:?}"
            );
            let is_reach = |row: &Vec<usize>| {
                let mut ends = row[..segments].iter().enumerate();
                row.is_sorted() && ends.all(|(first, end)| (first..=segments).contains(end))
            };
            assert!(reach.iter().all(is_reach), "the runs on device {at} do not shrink with it: {reach:?}");
        }
        let mut transfers = self.transfers.iter().flatten();
        assert!(transfers.all(|link| is_cost(&link.costs)), "invalid transfer costs: {:?}", self.transfers);
    }

    /// Checks that `bound`, a lower bound on scores or on sums of `time`, is at most the `found` value of a
    /// placement, except for rounding errors. They grow with the times of the slowest device.
    fn check_bound(&self, bound: f64, found: f64) {
        let slowest = self.devices.iter().map(|d| d.before[self.segments].time).fold(0.0, f64::max);
        let most = found * (1.0 + 1e-9) + slowest * 1e-12;
        assert!(bound <= most, "a placement has {found}, below the lower bound {bound}");
    }

    /// Returns the maximum number of stages of a placement.
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

    /// Returns the sum of `time`, and the maximum `busy` and `chunk`, of a placement. All transfers of the
    /// placement must exist.
    fn totals(&self, stages: &[Stage]) -> Costs {
        let runs = stages.iter().map(|(device, run)| self.stage(*device, run.clone()));
        let pairs = || stages.windows(2).map(|pair| (pair[0].0, pair[1].0));
        let transfers =
            pairs().map(|(from, to)| self.transfer(from, to).expect("each transfer has a link").costs);
        let mut total = runs.chain(transfers).fold(Costs::default(), |total, costs| Costs {
            busy: total.busy.max(costs.busy),
            time: total.time + costs.time,
            chunk: total.chunk.max(costs.chunk),
        });
        for bus in &self.shared {
            let load: f64 = pairs().map(|pair| bus.load(pair)).sum();
            total = bus.term.with(total, bus.term.of(&total).max(load));
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
    /// Returns the cost that a transfer between the devices of `pair` adds to the shared link.
    fn load(&self, pair: (usize, usize)) -> f64 {
        self.users.iter().find(|(user, _)| *user == pair).map_or(0.0, |(_, busy)| *busy)
    }
}
