//! Lagrangian lower bounds, computed without a table of sets. There are two sets of multipliers: a price for
//! each segment, and, for each device, a share of the weights of the maximum `busy` and `chunk`. A kind is a
//! group of interchangeable devices, which have equal multipliers.
//!
//! Every segment has a price that is paid to the device that runs it. Every device takes the run with the
//! largest earnings (prices minus costs), independently of the other devices. This relaxes the condition that
//! each segment runs exactly once. The sum of all prices minus the sum of all earnings is a lower bound on
//! the time of every placement. The bound is tight if segments are similar.
//!
//! The maximum of a term over all devices is at least as large as any weighted mean of the devices' terms. So
//! the weight of the maximum is distributed among the devices, and each device pays its share of its own
//! term. The undistributed remainder of the weight is multiplied by a lower bound on the maximum.
//!
//! The multipliers are improved by the subgradient method with Polyak's step size. It raises the prices of
//! segments that no device takes, and lowers the prices of segments that several devices take. It raises the
//! shares of devices with large terms. Each device pays for the cheapest transfer into it.
//!
//! This module knows nothing about how placements are found.

use super::rules::{KindRules, Limits, Rules, slide};
use super::{Costs, DeviceCosts, Instance, Term};
use rayon::prelude::*;
use std::ops::Range;

/// Relative distance between the best bound so far and the bound at which a subgradient step aims.
const REACH: f64 = 0.1;

/// Number of steps without a better bound after which the step size is halved.
const PATIENCE: usize = 7;

/// Number of bisection steps in the search for a lower bound on the maximum `busy` or `chunk`.
const HALVINGS: usize = 12;

/// Number of evaluations in the search for the best scale factor of the prices.
const EVALUATIONS: usize = 18;

/// Minimum product of kind count and segment count for which a second thread is worthwhile.
const CELLS_PER_TASK: usize = 1 << 12;

/// Relaxation of the sum in the score, over all placements in a box. The sum includes the maximum `busy` and
/// the maximum `chunk` only if they have a weight in it.
#[derive(Clone, Copy)]
pub(super) struct Relaxed<'a> {
    instance: &'a Instance,
    kinds: &'a [Vec<usize>],
    /// Rules for the upper limits of the box.
    rules: &'a Rules,
    /// Lower bounds on the maximum `busy` and `chunk` in the box.
    lower: Costs,
    /// Weights of the maximum `busy` and `chunk` in the sum, or 0 for a term that is not in the sum. `time`
    /// is unused.
    weights: Costs,
}

/// Lagrange multipliers (prices of segments, and shares of devices in the maximum `busy` and `chunk`), along
/// with the bound that follows from them.
#[derive(Clone)]
pub(super) struct Prices {
    each: Vec<f64>,
    /// For each kind: the weights of a member's own `busy` and `chunk` in the costs that the member pays.
    /// `time` is unused.
    shares: Vec<Costs>,
    /// For each kind: the largest earnings that a member can have, at least 0.
    earnings: Vec<f64>,
    /// Lower bound on the sum over all placements in the box.
    pub bound: f64,
}

/// Prices and earnings that bound the time for completing a placement after a given end.
pub(super) struct Completion {
    /// At index `end`: the total price of the segments from `end` on.
    pub prices: Vec<f64>,
    /// For each kind: the largest earnings that a member can have, at least 0.
    pub earnings: Vec<f64>,
}

/// The run with the largest earnings for a device of one kind, and the number of devices of the kind.
struct Offer {
    earns: f64,
    run: Range<usize>,
    members: usize,
}

/// The lower bound that follows from prices and shares, and its subgradient.
struct PricedBound {
    bound: f64,
    /// For each segment: 1 minus the number of devices that take it.
    wanting: Vec<f64>,
    /// For each kind: the excess of its members' `busy` and `chunk` over the lower bounds on the maximum,
    /// summed over the members.
    excess: Vec<Costs>,
    /// For each kind: the earnings of a member, at least 0.
    earnings: Vec<f64>,
}

impl Prices {
    /// Creates prices that are proportional to the average costs of the segments, and equal shares for all
    /// devices.
    pub fn new(instance: &Instance, kinds: &[Vec<usize>]) -> Self {
        let Costs { busy, chunk, .. } = instance.score.weights_in_sum();
        let devices: usize = kinds.iter().map(Vec::len).sum();
        let share = |weight: f64| weight / devices.max(1) as f64;
        Self {
            each: weights(instance, |device, at| instance.devices[device].before[at].time),
            shares: vec![Costs { busy: share(busy), time: 0.0, chunk: share(chunk) }; kinds.len()],
            earnings: vec![0.0; kinds.len()],
            bound: 0.0,
        }
    }

    /// Creates prices for the sum of `time` alone, without shares.
    pub fn without_shares(instance: &Instance, kinds: &[Vec<usize>]) -> Self {
        Self { shares: vec![Costs::default(); kinds.len()], ..Self::new(instance, kinds) }
    }

    /// Returns the prices and earnings that bound the completion of partial placements.
    pub fn completion(&self) -> Completion {
        let sums = prefix_sums(&self.each);
        let all = sums[self.each.len()];
        Completion {
            prices: sums.into_iter().map(|sum| all - sum).collect(),
            earnings: self.earnings.clone(),
        }
    }

    /// Returns, at index k, a lower bound on the sum over all placements with at most k + 1 stages.
    pub fn bounds(&self, kinds: &[Vec<usize>], stages: usize) -> Vec<f64> {
        let members = |(kind, earns): (&Vec<usize>, &f64)| std::iter::repeat_n(*earns, kind.len());
        let mut earnings: Vec<f64> = kinds.iter().zip(&self.earnings).flat_map(members).collect();
        earnings.sort_by(|a, b| b.total_cmp(a));
        let mut left = self.bound + earnings.iter().take(stages).sum::<f64>();
        let with_one_more = |earns: f64| {
            left -= earns;
            left.max(self.bound)
        };
        earnings.iter().copied().chain(std::iter::repeat(0.0)).take(stages).map(with_one_more).collect()
    }

    /// Raises the bound towards `target` in at most `steps` subgradient steps.
    pub fn improve(&mut self, relaxed: &Relaxed<'_>, target: f64, steps: usize) {
        let ways = relaxed.cheapest_ways();
        let (busy, chunk) = (relaxed.weights.busy, relaxed.weights.chunk);
        // Scale between shares and prices: the ratio of their totals.
        let unit = |weight: f64| {
            let price = self.each.iter().sum::<f64>() / self.each.len() as f64;
            let share = weight / self.shares.len() as f64;
            if price > 0.0 { share / price } else { 0.0 }
        };
        let units = (unit(busy).powi(2), unit(chunk).powi(2));
        let mut trial = self.clone();
        let (mut best, mut scale, mut since) = (f64::NEG_INFINITY, 1.0, 0);
        for _ in 0..steps {
            let priced = relaxed.priced_bound(&ways, &trial);
            since += 1;
            if priced.bound > best {
                (best, since) = (priced.bound, 0);
                self.each.clone_from(&trial.each);
                self.shares.clone_from(&trial.shares);
                (self.earnings, self.bound) = (priced.earnings, best);
            }
            if best >= target {
                return;
            }
            if since == PATIENCE {
                (scale, since) = (scale / 2.0, 0);
                trial.clone_from(self);
                continue;
            }
            let of_segments: f64 = priced.wanting.iter().map(|w| w * w).sum();
            let of_kinds =
                priced.excess.iter().map(|e| units.0 * e.busy * e.busy + units.1 * e.chunk * e.chunk);
            let of_kinds = of_kinds.sum::<f64>();
            // If segments are similar, all devices take the same ones. The shares then move by the same
            // distance as the prices.
            let ratio = if of_kinds > 0.0 { of_segments / of_kinds } else { 0.0 };
            let square = if of_kinds > 0.0 { 2.0 * of_segments } else { of_segments };
            let units = (units.0 * ratio, units.1 * ratio);
            if square == 0.0 {
                return;
            }
            // The target may be far above any provable bound. So aim only slightly above the best bound so
            // far.
            let goal = target.min(best + REACH * best.abs());
            let step = scale * (goal - priced.bound) / square;
            trial.each.iter_mut().zip(&priced.wanting).for_each(|(price, wanting)| *price += step * wanting);
            for (share, excess) in trial.shares.iter_mut().zip(&priced.excess) {
                share.busy += step * units.0 * excess.busy;
                share.chunk += step * units.1 * excess.chunk;
            }
            share_out(&mut trial.shares, relaxed.kinds, busy, |share| &mut share.busy);
            share_out(&mut trial.shares, relaxed.kinds, chunk, |share| &mut share.chunk);
        }
    }

    /// Multiplies all prices by the factor, between 0 and `largest`, that gives the largest bound.
    pub fn scale(&mut self, relaxed: &Relaxed<'_>, largest: f64) {
        let ways = relaxed.cheapest_ways();
        let value = |factor: f64| {
            let each = self.each.iter().map(|price| price * factor).collect();
            let prices = Self { each, ..self.clone() };
            let PricedBound { bound, earnings, .. } = relaxed.priced_bound(&ways, &prices);
            Self { bound, earnings, ..prices }
        };
        // The bound is a concave function of the factor, so use golden-section search.
        let golden = (5f64.sqrt() - 1.0) / 2.0;
        let (mut low, mut high) = (0.0, largest);
        let (mut a, mut b) = (high - golden * high, golden * high);
        let (mut at_a, mut at_b) = (value(a), value(b));
        for _ in 2..EVALUATIONS {
            if at_a.bound < at_b.bound {
                (low, a, at_a) = (a, b, at_b);
                b = low + golden * (high - low);
                at_b = value(b);
            } else {
                (high, b, at_b) = (b, a, at_a);
                a = high - golden * (high - low);
                at_a = value(a);
            }
        }
        let best = if at_a.bound < at_b.bound { at_b } else { at_a };
        if best.bound > self.bound {
            *self = best;
        }
    }
}

/// Raises negative shares to 0. If the shares of all devices sum to more than `weight`, lowers them until the
/// sum is at most `weight`.
fn share_out(shares: &mut [Costs], kinds: &[Vec<usize>], weight: f64, part: fn(&mut Costs) -> &mut f64) {
    // Each round subtracts the same amount from all positive shares.
    for _ in 0..=shares.len() {
        let (mut sum, mut members) = (0.0, 0);
        for (share, kind) in shares.iter_mut().zip(kinds) {
            let share = part(share);
            *share = share.max(0.0);
            if *share > 0.0 {
                sum += *share * kind.len() as f64;
                members += kind.len();
            }
        }
        if sum <= weight {
            return;
        }
        let excess = (sum - weight) / members as f64;
        shares.iter_mut().map(part).filter(|share| **share > 0.0).for_each(|share| *share -= excess);
    }
    shares.iter_mut().map(part).for_each(|share| *share = 0.0);
}

/// Returns a weight for each segment: its fraction of a device's total cost, averaged over the devices. The
/// weights sum to 1. `before(device, i)` is the cost of the segments `0 .. i`.
pub(super) fn weights(instance: &Instance, before: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let devices = (0..instance.devices.len()).filter(|d| !instance.excluded[*d]);
    let mut weights = vec![0.0; instance.segments];
    for device in devices.filter(|d| before(*d, instance.segments) > 0.0) {
        let whole = before(device, instance.segments);
        for (at, weight) in weights.iter_mut().enumerate() {
            *weight += (before(device, at + 1) - before(device, at)) / whole;
        }
    }
    let sum: f64 = weights.iter().sum();
    if sum == 0.0 {
        return vec![1.0 / instance.segments as f64; instance.segments];
    }
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// Returns lower bounds on the maximum `busy` and `chunk`. The bound is 0 for a term that has no weight in
/// the score.
pub(super) fn least_terms(instance: &Instance, kinds: &[Vec<usize>]) -> Costs {
    let (busy_weight, chunk_weight) = instance.score.weights();
    let least = |term: Term, weight: f64| {
        if weight == 0.0 {
            return 0.0;
        }
        let before = |device: usize, at: usize| term.of(&instance.devices[device].before[at]);
        let weights = weights(instance, before);
        let slowest = (0..instance.devices.len()).map(|device| before(device, instance.segments));
        let (mut low, mut high) = (0.0, slowest.fold(0.0, f64::max));
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            let most = term.with(Costs::INFINITE, middle);
            let rules = Rules::new(instance, kinds, &Limits { most, forbidden: &[] });
            if may_hold(instance, kinds, &rules, &weights) { high = middle } else { low = middle }
        }
        low
    };
    Costs { busy: least(Term::Busy, busy_weight), time: 0.0, chunk: least(Term::Chunk, chunk_weight) }
}

/// Returns whether the devices can hold the total weight of all segments if each device takes its heaviest
/// allowed run.
pub(super) fn may_hold(instance: &Instance, kinds: &[Vec<usize>], rules: &Rules, weights: &[f64]) -> bool {
    let sums = prefix_sums(weights);
    let mut held: Vec<f64> = Vec::new();
    for (kind, members) in rules.kinds.iter().zip(kinds) {
        let behind = |group: &super::rules::Windows| {
            (1..=instance.segments).map(|end| sums[end] - sums[group.from[end] as usize]).fold(0.0, f64::max)
        };
        let first =
            (1..=instance.segments).rfind(|end| kind.opening[*end].is_finite()).map_or(0.0, |end| sums[end]);
        let most = kind.groups.iter().map(behind).fold(first, f64::max);
        held.extend(std::iter::repeat_n(most, members.len()));
    }
    held.sort_by(|a, b| b.total_cmp(a));
    held.into_iter().take(instance.max_stages).sum::<f64>() >= sums[instance.segments] * (1.0 - 1e-9)
}

impl<'a> Relaxed<'a> {
    /// Relaxes the whole sum in the score for a box. `lower` contains lower bounds on the maximum `busy` and
    /// `chunk`.
    pub fn of_sum(instance: &'a Instance, kinds: &'a [Vec<usize>], rules: &'a Rules, lower: Costs) -> Self {
        Self { instance, kinds, rules, lower, weights: instance.score.weights_in_sum() }
    }

    /// Relaxes the sum of `time` alone.
    pub fn of_time(instance: &'a Instance, kinds: &'a [Vec<usize>], rules: &'a Rules) -> Self {
        Self { instance, kinds, rules, lower: Costs::default(), weights: Costs::default() }
    }

    /// Returns, for each kind and window group, the smallest time of a transfer into the kind. It is infinite
    /// if there is no such transfer.
    fn cheapest_ways(&self) -> Vec<Vec<f64>> {
        let into = |to: usize| {
            let mut best = vec![f64::INFINITY; self.rules.kinds[to].groups.len()];
            for way in (0..self.kinds.len()).filter_map(|from| self.rules.way(from, to)) {
                best[way.group] = best[way.group].min(way.time);
            }
            best
        };
        (0..self.kinds.len()).map(into).collect()
    }

    /// Returns the lower bound that follows from prices and shares, and its subgradient.
    fn priced_bound(&self, ways: &[Vec<f64>], prices: &Prices) -> PricedBound {
        let sums = prefix_sums(&prices.each);
        let offer = |kind: usize| {
            let device = &self.instance.devices[self.kinds[kind][0]];
            let best = best_run(&self.rules.kinds[kind], device, &prices.shares[kind], &ways[kind], &sums);
            Offer { members: self.kinds[kind].len(), ..best }
        };
        let kinds = 0..self.kinds.len();
        let offers: Vec<Offer> = if kinds.len() * sums.len() < 2 * CELLS_PER_TASK {
            kinds.map(offer).collect()
        } else {
            kinds.into_par_iter().with_min_len(CELLS_PER_TASK.div_ceil(sums.len())).map(offer).collect()
        };
        self.settle(offers, prices)
    }

    /// Selects the devices with the largest earnings, up to the maximum number of stages, and computes the
    /// bound from their offers. Selects devices with negative earnings only if they are required.
    fn settle(&self, mut offers: Vec<Offer>, prices: &Prices) -> PricedBound {
        for (offer, kind) in offers.iter_mut().zip(self.kinds) {
            let must = self.instance.required.contains(&kind[0]);
            if offer.earns < 0.0 && !must {
                offer.members = 0;
            }
        }
        let mut by_earnings: Vec<usize> = (0..offers.len()).collect();
        by_earnings.sort_by(|a, b| offers[*b].earns.total_cmp(&offers[*a].earns));
        let mut bound: f64 = prices.each.iter().sum();
        let mut wanting = vec![1.0; prices.each.len()];
        let mut excess = vec![Costs::default(); offers.len()];
        let mut left = self.instance.max_stages;
        let (busy, chunk) = (self.weights.busy, self.weights.chunk);
        let (mut busy_left, mut chunk_left) = (busy, chunk);
        for kind in by_earnings {
            let offer = &offers[kind];
            let members = self.kinds[kind].len() as f64;
            busy_left -= members * prices.shares[kind].busy;
            chunk_left -= members * prices.shares[kind].chunk;
            excess[kind] =
                Costs { busy: -members * self.lower.busy, time: 0.0, chunk: -members * self.lower.chunk };
            let taking = offer.members.min(left);
            if taking == 0 {
                continue;
            }
            left -= taking;
            bound -= taking as f64 * offer.earns;
            if !offer.run.is_empty() {
                let stage = self.instance.stage(self.kinds[kind][0], offer.run.clone());
                excess[kind].busy += taking as f64 * stage.busy;
                excess[kind].chunk += taking as f64 * stage.chunk;
            }
            wanting[offer.run.clone()].iter_mut().for_each(|wanting| *wanting -= taking as f64);
        }
        if busy > 0.0 {
            bound += busy_left.max(0.0) * self.lower.busy;
        }
        if chunk > 0.0 {
            bound += chunk_left.max(0.0) * self.lower.chunk;
        }
        let earnings = offers.iter().map(|offer| offer.earns.max(0.0)).collect();
        PricedBound { bound, wanting, excess, earnings }
    }
}

/// Returns the run with the largest earnings for a device of this kind.
fn best_run(kind: &KindRules, device: &DeviceCosts, shares: &Costs, ways: &[f64], sums: &[f64]) -> Offer {
    let pays = |costs: &Costs| costs.time + shares.busy * costs.busy + shares.chunk * costs.chunk;
    let (stage, exit) = (pays(&device.stage), pays(&device.exit));
    let segments = sums.len() - 1;
    // The earnings of a run are the difference of `values` at its ends, minus the stage's own costs.
    let values: Vec<f64> = sums.iter().zip(&device.before).map(|(sum, before)| sum - pays(before)).collect();
    let at_end = |end: usize| values[end] - stage - if end == segments { exit } else { 0.0 };
    let mut best = Offer { earns: f64::NEG_INFINITY, run: 0..0, members: 1 };
    let entry = pays(&device.entry);
    for end in (1..=segments).filter(|end| kind.opening[*end].is_finite()) {
        let earns = at_end(end) - entry;
        if earns > best.earns {
            best = Offer { earns, run: 0..end, members: 1 };
        }
    }
    let mut queue = Vec::new();
    for (group, way) in kind.groups.iter().zip(ways).filter(|(_, way)| way.is_finite()) {
        let mut found = None;
        slide(&values, 1..segments, &group.from, 2.min(segments), &mut queue, |end, least| {
            let earns = at_end(end) - least - way;
            if earns > best.earns {
                best.earns = earns;
                found = Some((end, least));
            }
        });
        if let Some((end, least)) = found {
            let first = (group.from[end] as usize..end).find(|first| values[*first] <= least);
            best.run = first.expect("the smallest value is in the window")..end;
        }
    }
    best
}

fn prefix_sums(values: &[f64]) -> Vec<f64> {
    let sums = values.iter().scan(0.0, |sum, value| {
        *sum += value;
        Some(*sum)
    });
    std::iter::once(0.0).chain(sums).collect()
}
