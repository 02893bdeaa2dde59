//! Which devices run which segments, in which order: the search behind plans, as numbers alone.
//!
//! An [`Instance`] holds what each run of segments costs on each device and what each crossing costs; a placement is an
//! ordered choice of devices with a contiguous run of segments each. [`solve`] finds the placement of least score. Where
//! the sets of devices can be counted (twelve different devices; more if some are alike) the answer is exact: dynamic
//! programming over sets of devices finds the least sum under limits (`exact`), and branch and bound over those limits
//! (`frontier`) finds the best trade between the sum and the largest terms. Beyond, orders are improved by local search
//! (`orders`), and a Lagrangian bound (`dual`) says how far the answer can be from the best (`bounded`).
//!
//! This module must not know models, figures, plans or what the numbers mean.

mod bounded;
mod dual;
mod exact;
mod frontier;
mod kinds;
mod orders;
mod rules;
#[cfg(test)]
mod tests;
mod trade;
mod values;

use std::ops::{Add, Range, Sub};

/// Costs of something in three currencies, in microseconds and never negative. What a stage or crossing is `busy` with
/// limits throughput, its `time` adds to the time of a request, and its `chunk` is its part in each chunk of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Costs {
    /// Counts by the largest of all stages and crossings, and of what shared links add up to.
    pub busy: f64,
    /// Counts by its sum.
    pub time: f64,
    /// Counts as `busy` does.
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

/// One problem: `segments` segments on `devices.len()` devices.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    /// Segments to place; at least 1.
    pub segments: usize,
    /// At least 1.
    pub devices: Vec<DeviceCosts>,
    /// At `from * devices + to`; `None`: there is no way from one to the other.
    pub crossings: Vec<Option<LinkCosts>>,
    /// Links that several crossings have in common.
    pub shared: Vec<SharedBus>,
    /// What to minimise.
    pub score: Score,
    /// Per segment: the device that must run it.
    pub pins: Vec<Option<usize>>,
    /// Devices that must take part.
    pub required: Vec<usize>,
    /// Per device: must not take part.
    pub excluded: Vec<bool>,
    /// Most stages; at least 1.
    pub max_stages: usize,
    /// A score that another placement reaches: those that score more by over [`SHARE`] do not matter, and need not be
    /// found. Infinite if there is none.
    pub known: f64,
}

/// What runs of segments cost on a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeviceCosts {
    /// Sums over the segments `0 .. i`, with one entry more than there are segments; never falling.
    pub before: Vec<Costs>,
    /// Added once for the stage on this device.
    pub stage: Costs,
    /// Added if the stage is the first.
    pub entry: Costs,
    /// Added if the stage is the last.
    pub exit: Costs,
    /// At `[class][first]`: the largest end of a run from `first` that fits the device, `first` itself if none does. The
    /// class is that of the crossing into the stage, 0 for the first stage. Never falls with `first`: a run that fits
    /// still fits with its first segment left out.
    pub reach: Vec<Vec<usize>>,
}

/// A way from a device to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LinkCosts {
    /// What it costs.
    pub costs: Costs,
    /// The row of [`DeviceCosts::reach`] that holds for the stage behind it.
    pub class: usize,
}

/// A link that several crossings have in common: what they cost in one currency adds up there. One that counts in two
/// currencies is listed twice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SharedBus {
    /// The currency.
    pub term: Term,
    /// Pairs (from, to) of devices, each at most once, and what a crossing between them adds.
    pub users: Vec<((usize, usize), f64)>,
}

/// A currency that counts by its largest term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// `busy`.
    Busy,
    /// `chunk`.
    Chunk,
}

impl Term {
    /// It, of costs.
    pub fn of(self, costs: &Costs) -> f64 {
        match self {
            Self::Busy => costs.busy,
            Self::Chunk => costs.chunk,
        }
    }
}

/// What a placement is worth; smaller is better. With B the largest `busy` and C the largest `chunk` of all stages and
/// crossings and of the sum on each shared bus of that term, and T the sum of `time`. Weights are not negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Score {
    /// T + `chunk_weight` · C
    Sum {
        /// Weight of C.
        chunk_weight: f64,
    },
    /// max(B, (T + `chunk_weight` · C) ÷ `sequences`)
    Busy {
        /// Positive.
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

/// An ordered choice of devices with their runs, and its score.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Placement {
    /// The stages, in order.
    pub stages: Vec<Stage>,
    /// [`score`] of them.
    pub score: f64,
}

/// What [`solve`] found.
#[derive(Clone, Debug)]
pub(crate) struct Solution {
    /// At k: the best placement found with k + 1 stages. If `exact`, the best of all is the best there is, and so is the
    /// one that [`Solution::choose`] takes among those with as many stages, for shares up to [`SHARE`]. Both hold for
    /// placements within [`SHARE`] of [`Instance::known`] alone.
    pub best_by_stages: Vec<Option<Placement>>,
    /// No placement scores less, unless [`Instance::known`] is less than this; infinite if there is no placement.
    pub bound: f64,
    /// Whether `bound` is reached, by a placement or by [`Instance::known`].
    pub exact: bool,
}

/// The largest share for which the rule of choice is exact.
pub(crate) const SHARE: f64 = 0.01;

/// The best placement of an instance.
pub(crate) fn solve(instance: &Instance) -> Solution {
    if instance.required.iter().any(|device| instance.excluded[*device]) {
        return Solution::empty(instance);
    }
    let kinds = kinds::merge(instance);
    if kinds.is_empty() {
        return Solution::empty(instance);
    }
    match exact::Table::new(instance, &kinds) {
        Some(table) => frontier::solve(instance, &kinds, table),
        None => bounded::solve(instance),
    }
}

/// No placement of an instance scores less: what prices prove without a search. Nothing is known of shared links here.
pub(crate) fn bound(instance: &Instance) -> f64 {
    bounded::relaxed(instance)
}

/// Devices that may change places without a difference to any placement, those that may take part.
pub(crate) fn alike(instance: &Instance) -> Vec<Vec<usize>> {
    kinds::merge(instance)
}

/// The cells of the table with which an instance is solved exactly; `None` if there are too many.
pub(crate) fn cells(instance: &Instance) -> Option<usize> {
    exact::cells(&kinds::merge(instance), instance.segments)
}

/// What the stages are worth; infinite if the instance does not allow them.
pub(crate) fn score(instance: &Instance, stages: &[Stage]) -> f64 {
    if instance.allows(stages) { instance.score.of(&instance.totals(stages)) } else { f64::INFINITY }
}

impl Solution {
    /// Of the placements within `share` of the best the one with the fewest stages.
    pub fn choose(&self, share: f64) -> Option<&Placement> {
        let found = || self.best_by_stages.iter().flatten();
        let best = found().map(|p| p.score).reduce(f64::min)?;
        found().find(|p| p.score <= best * (1.0 + share))
    }

    /// A solution without any placement.
    fn empty(instance: &Instance) -> Self {
        let most = instance.most_stages();
        Self { best_by_stages: vec![None; most], bound: f64::INFINITY, exact: true }
    }

    /// Keeps the stages if they beat what is known for their number; of equals the first stays.
    fn offer(&mut self, instance: &Instance, stages: &[Stage]) {
        let score = score(instance, stages);
        let best = &mut self.best_by_stages[stages.len() - 1];
        if score.is_finite() && best.as_ref().is_none_or(|b| score < b.score) {
            *best = Some(Placement { stages: stages.to_vec(), score });
        }
    }

    /// The best score found.
    fn best(&self) -> f64 {
        self.best_by_stages.iter().flatten().map(|p| p.score).fold(f64::INFINITY, f64::min)
    }
}

impl Instance {
    /// The most stages that a placement can have.
    fn most_stages(&self) -> usize {
        self.segments.min(self.devices.len()).min(self.max_stages)
    }

    fn crossing(&self, from: usize, to: usize) -> Option<&LinkCosts> {
        self.crossings[from * self.devices.len() + to].as_ref()
    }

    /// What a run costs as a stage.
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

    /// The sum of `time`, and the largest `busy` and `chunk`, of stages whose crossings exist.
    fn totals(&self, stages: &[Stage]) -> Costs {
        let runs = stages.iter().map(|(device, run)| self.stage(*device, run.clone()));
        let pairs = || stages.windows(2).map(|pair| (pair[0].0, pair[1].0));
        let crossings = pairs().filter_map(|(from, to)| self.crossing(from, to)).map(|c| c.costs);
        let mut total = runs.chain(crossings).fold(Costs::default(), |total, costs| Costs {
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

    /// Whether the stages cover all segments in order, fit their devices and keep all conditions.
    fn allows(&self, stages: &[Stage]) -> bool {
        let mut end = 0;
        let mut used = vec![false; self.devices.len()];
        for (at, (device, run)) in stages.iter().enumerate() {
            let class = match at.checked_sub(1).map(|before| self.crossing(stages[before].0, *device)) {
                None => 0,
                Some(Some(crossing)) => crossing.class,
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
    /// What a crossing adds.
    fn load(&self, pair: (usize, usize)) -> f64 {
        self.users.iter().find(|(user, _)| *user == pair).map_or(0.0, |(_, busy)| *busy)
    }
}
