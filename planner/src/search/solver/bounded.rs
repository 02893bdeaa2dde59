//! Solves instances that have too many sets of devices to enumerate. Returns heuristic placements and a lower
//! bound on the score.
//!
//! Like the exact search, this search divides the space of the maximum `busy` and `chunk` into boxes. It
//! bounds a box with Lagrange multipliers instead of the smallest time, and derives placements from good
//! orders of the devices. It halves the most promising box until the gap is small. Local search then improves
//! the order of the devices in the best placement.
//!
//! This module knows nothing about how bounds and placements are computed.

use super::lagrangian::{self, Prices, Relaxed};
use super::rules::{Limits, Rules};
use super::{Costs, Instance, Placement, Solution, Term, kinds, orders};
use rayon::prelude::*;

/// Relative gap between the best score and the lower bound at which the search stops.
const GAP: f64 = 0.0075;

/// Maximum number of boxes that the search tries to halve.
const MAX_BOXES: usize = 80;

/// Maximum numbers of subgradient steps: for the first box, and for each half of a box.
const FIRST_STEPS: usize = 100;
const STEPS: usize = 24;

/// Maximum ratio between the Lagrange multipliers of a half-box and those of the whole box.
const LARGEST_FACTOR: f64 = 4.0;

/// Number of rounds of local search, and number of trials in each round.
const ROUNDS: usize = 40;
const TRIALS: usize = 8;

/// A box: one interval for the maximum `busy` and one for the maximum `chunk`. `time` is unused.
#[derive(Clone)]
struct Region {
    lower: Costs,
    upper: Costs,
    /// Lagrange multipliers for the sum of `time` alone. In a narrow box, the bound that follows from them
    /// and from the lower limits is the better one.
    of_time: Prices,
    /// Lagrange multipliers for the whole sum in the score, including the maximum `busy` and `chunk`. In a
    /// wide box, the bound that follows from them is the better one.
    of_sum: Prices,
}

struct Search<'a> {
    instance: &'a Instance,
    /// Groups of devices. `single` has one group per device and is used for orders. `merged` has groups of
    /// interchangeable devices and is used for bounds.
    single: Vec<Vec<usize>>,
    merged: Vec<Vec<usize>>,
    /// Exit classes of the kinds in `single`.
    exits: Vec<Vec<usize>>,
    orders: Vec<Vec<usize>>,
    solution: Solution,
}

/// Finds good placements, and a lower bound on all scores.
pub(super) fn solve(instance: &Instance) -> Solution {
    let mut search = Search::new(instance);
    search.orders = orders::starts(instance, &search.single);
    let mut regions = vec![search.everything()];
    search.look(&mut regions[0]);
    instance.check_bound(search.bound(&regions[0]), search.solution.best());
    search.improve_orders();
    let mut bound = f64::INFINITY;
    for _ in 0..MAX_BOXES {
        let best = search.best();
        if best.is_infinite() {
            break;
        }
        regions.retain(|region| search.bound(region) < best);
        let bounds = regions.iter().map(|region| search.bound(region)).enumerate();
        let Some((at, least)) = bounds.min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
        if least >= best * (1.0 - GAP) {
            break;
        }
        let region = regions.swap_remove(at);
        let Some(parts) = search.halve(&region) else {
            // The box cannot be halved. Its remaining gap comes from the multipliers.
            bound = bound.min(least);
            continue;
        };
        for mut part in parts {
            search.look(&mut part);
            regions.push(part);
        }
    }
    search.improve_orders();
    let left = regions.iter().map(|region| search.bound(region)).fold(bound, f64::min);
    let best = search.best();
    Solution { bound: left.min(best), exact: left >= best && best.is_finite(), ..search.solution }
}

/// Returns a lower bound on all scores. Does not search for placements.
pub(super) fn relaxed(instance: &Instance) -> f64 {
    let search = Search::new(instance);
    let mut all = search.everything();
    search.price(&mut all);
    search.bound(&all)
}

impl<'a> Search<'a> {
    fn new(instance: &'a Instance) -> Self {
        let single = kinds::single(instance);
        Self {
            instance,
            exits: kinds::exits(instance, &single),
            single,
            merged: kinds::merge(instance),
            orders: Vec::new(),
            solution: Solution::empty(instance),
        }
    }

    /// Returns the region that contains all placements. Its lower limits are lower bounds on the maximum
    /// `busy` and `chunk`.
    fn everything(&self) -> Region {
        let lower = lagrangian::least_terms(self.instance, &self.merged);
        let of_time = Prices::without_shares(self.instance, &self.merged);
        Region { lower, upper: Costs::INFINITE, of_time, of_sum: Prices::new(self.instance, &self.merged) }
    }

    /// Returns a lower bound on the scores of all placements in the region.
    fn bound(&self, region: &Region) -> f64 {
        self.by_time(region).max(self.by_sum(region))
    }

    /// Returns the lower bound on the scores that follows from the multipliers of `time` alone. `by_sum`
    /// returns the one that follows from the multipliers of the whole sum.
    fn by_time(&self, region: &Region) -> f64 {
        self.instance.score.of(&Costs { time: region.of_time.bound.max(0.0), ..region.lower })
    }

    fn by_sum(&self, region: &Region) -> f64 {
        self.instance.score.of_sum(region.of_sum.bound, region.lower.busy)
    }

    /// Searches for placements in a region, and computes its bounds.
    fn look(&mut self, region: &mut Region) {
        let limits = Limits { most: region.upper, forbidden: &[] };
        self.offer_orders(&Rules::new(self.instance, &self.single, &limits));
        self.price(region);
    }

    /// Improves the Lagrange multipliers of a region.
    fn price(&self, region: &mut Region) {
        let instance = self.instance;
        let first = region.upper == Costs::INFINITE;
        let largest = instance.score.largest_terms(self.best(), &region.lower);
        let rules = Rules::new(instance, &self.merged, &Limits { most: region.upper, forbidden: &[] });
        let of_time = Relaxed::of_time(instance, &self.merged, &rules);
        let of_sum = Relaxed::of_sum(instance, &self.merged, &rules, region.lower);
        if first {
            // New multipliers sum to 1, so scale them first.
            let slowest =
                instance.devices.iter().map(|d| d.before[instance.segments].time).fold(0.0, f64::max);
            region.of_time.scale(&of_time, slowest * 2.0);
            region.of_sum.scale(&of_sum, slowest * 2.0);
            let totals =
                self.solution.best_by_stages.iter().flatten().map(|p| instance.totals(&p.stages).time);
            region.of_time.improve(&of_time, totals.fold(f64::INFINITY, f64::min), FIRST_STEPS);
            region.of_sum.improve(&of_sum, instance.score.most_sum(self.best()), FIRST_STEPS);
        } else {
            region.of_time.scale(&of_time, LARGEST_FACTOR);
            region.of_time.improve(&of_time, largest.time, STEPS);
            if self.by_sum(region) >= self.by_time(region) {
                region.of_sum.improve(&of_sum, instance.score.most_sum(self.best()), STEPS);
            }
        }
    }

    /// Halves a region along `busy` or `chunk`, whichever has the larger effect on the score. Returns `None`
    /// if both effects are too small.
    fn halve(&self, region: &Region) -> Option<[Region; 2]> {
        let (lower, least) = (region.lower, region.of_time.bound.max(0.0));
        let largest = self.instance.score.largest_terms(self.best(), &Costs { time: least, ..lower });
        let busy = region.upper.busy.min(largest.busy);
        let chunk = region.upper.chunk.min(largest.chunk);
        let worth = |costs: Costs| self.instance.score.of(&Costs { time: least, ..costs });
        let (busy_weight, chunk_weight) = self.instance.score.weights();
        let busy_counts = if busy_weight > 0.0 { worth(Costs { busy, ..lower }) } else { 0.0 };
        let chunk_counts = if chunk_weight > 0.0 { worth(Costs { chunk, ..lower }) } else { 0.0 };
        if busy_counts.max(chunk_counts) <= worth(lower) * (1.0 + GAP / 4.0) {
            return None;
        }
        let upper = Costs { busy, chunk, ..region.upper };
        let term = if busy_counts >= chunk_counts { Term::Busy } else { Term::Chunk };
        let middle = (term.of(&lower) + term.of(&upper)) / 2.0;
        let part = |lower, upper| Region { lower, upper, ..region.clone() };
        Some([part(lower, term.with(upper, middle)), part(term.with(lower, middle), upper)])
    }

    /// Finds placements for all known orders of the devices, under `rules`.
    fn offer_orders(&mut self, rules: &Rules) {
        let place =
            |order: &Vec<usize>| orders::least(self.instance, &self.single, &self.exits, rules, order);
        let found: Vec<_> = self.orders.par_iter().map(place).collect();
        for stages in found.into_iter().flatten() {
            self.solution.offer(self.instance, &stages);
        }
    }

    /// Runs a local search that starts from the best placement. It swaps, moves or replaces devices in the
    /// placement's order.
    fn improve_orders(&mut self) {
        let Some(mut best) = self.best_placement().cloned() else { return };
        let mut order = self.order_of(&best);
        for round in 0..ROUNDS {
            let totals = self.instance.totals(&best.stages);
            let most = Costs { time: f64::INFINITY, ..totals };
            let rules = Rules::new(self.instance, &self.single, &Limits { most, forbidden: &[] });
            let trial = |at: usize| {
                let order = moved(&order, round * TRIALS + at, self.single.len());
                let stages = orders::least(self.instance, &self.single, &self.exits, &rules, &order)?;
                Some((super::score(self.instance, &stages), at, order, stages))
            };
            let trials: Vec<_> = (0..TRIALS).into_par_iter().filter_map(trial).collect();
            let found = trials.into_iter().min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            if let Some((score, _, better, stages)) = found.filter(|(score, ..)| *score < best.score) {
                self.solution.offer(self.instance, &stages);
                (best, order) = (Placement { stages, score }, better);
            }
        }
        self.orders.push(order);
    }

    /// Returns the best known score.
    fn best(&self) -> f64 {
        self.solution.best().min(self.instance.known)
    }

    fn best_placement(&self) -> Option<&Placement> {
        self.solution.choose(0.0)
    }

    /// Returns the devices of a placement in order, followed by the unused devices. Truncates the list to the
    /// maximum number of stages.
    fn order_of(&self, placement: &Placement) -> Vec<usize> {
        let at = |device: usize| self.single.iter().position(|kind| kind[0] == device);
        let mut order: Vec<usize> = placement.stages.iter().filter_map(|(device, _)| at(*device)).collect();
        let others: Vec<usize> = (0..self.single.len()).filter(|kind| !order.contains(kind)).collect();
        order.extend(others);
        order.truncate(self.instance.max_stages);
        order
    }
}

/// Returns `order` with one small change: two devices swap places, a device moves, or an unused device
/// replaces a device. The same `number` always gives the same change.
fn moved(order: &[usize], number: usize, devices: usize) -> Vec<usize> {
    // A scrambled Weyl sequence is well distributed, stateless and without a visible pattern.
    let scramble = |salt: u64| {
        let mut bits = (number as u64).wrapping_mul(2).wrapping_add(salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        bits ^= bits >> 31;
        bits = bits.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (bits ^ (bits >> 29)) as usize
    };
    let mut order = order.to_vec();
    let (from, to) = (scramble(0) % order.len(), scramble(1) % devices);
    match order.iter().position(|kind| *kind == to) {
        Some(to) if number.is_multiple_of(2) => order.swap(from, to),
        Some(to) => {
            let kind = order.remove(from);
            order.insert(to.min(order.len()), kind);
        }
        None => order[from] = to,
    }
    order
}
