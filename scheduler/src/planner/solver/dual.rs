//! Lower bounds where there are too many sets of devices: prices of segments.
//!
//! Let every segment have a price that is paid to whoever runs it, and let every device take the run that earns it most,
//! whatever the others take. No placement takes less time than all prices together less all earnings: this is the
//! Lagrangian relaxation of the condition that each segment is run once, and it is tight where segments are much alike.
//! Prices rise for segments that nobody takes and fall for those that several take (the subgradient method, with Polyak's
//! step). Crossings count with the cheapest way into a device.
//!
//! This module must not know scores.

use super::Instance;
use super::rules::{KindRules, Rules, slide};
use rayon::prelude::*;
use std::ops::Range;

/// How much more than what is proved a step goes for, relatively.
const REACH: f64 = 0.02;

/// Evaluations of the search for a factor.
const EVALUATIONS: usize = 18;

/// Prices of segments with the bound that they prove.
#[derive(Clone)]
pub(super) struct Prices {
    each: Vec<f64>,
    /// No placement within the limits takes less time.
    pub bound: f64,
}

/// The run that earns a device most, per member of a kind.
struct Offer {
    earns: f64,
    run: Range<usize>,
    members: usize,
}

impl Prices {
    /// Prices in proportion to what segments cost on average.
    pub fn new(instance: &Instance) -> Self {
        Self { each: weights(instance, |device, at| instance.devices[device].before[at].time), bound: 0.0 }
    }

    /// Raises the bound by so many steps towards `target`; stops once it is there.
    pub fn improve(
        &mut self,
        instance: &Instance,
        kinds: &[Vec<usize>],
        rules: &Rules,
        target: f64,
        steps: usize,
    ) {
        let best_ways: Vec<Vec<f64>> = (0..kinds.len()).map(|to| cheapest_ways(rules, to)).collect();
        let mut trial = self.each.clone();
        let (mut best, mut scale, mut since) = (self.bound, 1.0, 0);
        for _ in 0..steps {
            let offers = offers(kinds, rules, &best_ways, &trial);
            let (bound, taken) = settle(instance, kinds, offers, &trial);
            since += 1;
            if bound > best {
                (best, since) = (bound, 0);
                self.each.clone_from(&trial);
                self.bound = bound;
            }
            if best >= target {
                return;
            }
            if since == 8 {
                (scale, since) = (scale / 2.0, 0);
                trial.clone_from(&self.each);
                continue;
            }
            let wanting: Vec<f64> = taken.iter().map(|taken| 1.0 - taken).collect();
            let square: f64 = wanting.iter().map(|w| w * w).sum();
            if square == 0.0 {
                return;
            }
            // The target may be far above what can be proved: go for a little more than what is.
            let goal = target.min(best + REACH * best.abs());
            let step = scale * (goal - bound) / square;
            trial.iter_mut().zip(&wanting).for_each(|(price, wanting)| *price += step * wanting);
        }
    }

    /// Multiplies all prices by what proves most.
    pub fn scale(&mut self, instance: &Instance, kinds: &[Vec<usize>], rules: &Rules, largest: f64) {
        let best_ways: Vec<Vec<f64>> = (0..kinds.len()).map(|to| cheapest_ways(rules, to)).collect();
        let value = |factor: f64| {
            let prices: Vec<f64> = self.each.iter().map(|price| price * factor).collect();
            (settle(instance, kinds, offers(kinds, rules, &best_ways, &prices), &prices).0, prices)
        };
        // The bound is concave in the factor: golden section.
        let golden = (5f64.sqrt() - 1.0) / 2.0;
        let (mut low, mut high) = (0.0, largest);
        let (mut a, mut b) = (high - golden * high, golden * high);
        let (mut at_a, mut at_b) = (value(a), value(b));
        for _ in 2..EVALUATIONS {
            if at_a.0 < at_b.0 {
                (low, a, at_a) = (a, b, at_b);
                b = low + golden * (high - low);
                at_b = value(b);
            } else {
                (high, b, at_b) = (b, a, at_a);
                a = high - golden * (high - low);
                at_a = value(a);
            }
        }
        let (bound, each) = if at_a.0 < at_b.0 { at_b } else { at_a };
        if bound > self.bound {
            *self = Self { each, bound };
        }
    }
}

/// What segments cost on average over the devices, each device's costs in proportion to their sum; in all 1.
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

/// Whether the runs that the rules allow can hold all segments, by weight, if each device took the heaviest it can.
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

/// At group: the least time of a way into it; infinite if there is none.
fn cheapest_ways(rules: &Rules, to: usize) -> Vec<f64> {
    let mut best = vec![f64::INFINITY; rules.kinds[to].groups.len()];
    for way in (0..rules.kinds.len()).filter_map(|from| rules.way(from, to)) {
        best[way.group] = best[way.group].min(way.time);
    }
    best
}

fn offers(kinds: &[Vec<usize>], rules: &Rules, ways: &[Vec<f64>], prices: &[f64]) -> Vec<Offer> {
    let sums = prefix_sums(prices);
    let offer = |kind: usize| Offer {
        members: kinds[kind].len(),
        ..best_run(&rules.kinds[kind], &ways[kind], &sums)
    };
    (0..kinds.len()).into_par_iter().with_min_len(4).map(offer).collect()
}

/// The run that earns most.
fn best_run(kind: &KindRules, ways: &[f64], sums: &[f64]) -> Offer {
    let mut best = Offer { earns: f64::NEG_INFINITY, run: 0..0, members: 1 };
    for (end, time) in kind.opening.iter().enumerate() {
        if sums[end] - time > best.earns {
            best = Offer { earns: sums[end] - time, run: 0..end, members: 1 };
        }
    }
    let costs: Vec<f64> = sums.iter().zip(&kind.prefix).map(|(sum, prefix)| sum - prefix).collect();
    let segments = sums.len() - 1;
    let mut queue = Vec::new();
    for (group, way) in kind.groups.iter().zip(ways).filter(|(_, way)| way.is_finite()) {
        let mut found = None;
        slide(&costs, 1..segments, &group.from, 2.min(segments), &mut queue, |end, least| {
            let earns = sums[end] - kind.finish[end] - least - way;
            if earns > best.earns {
                best.earns = earns;
                found = Some((end, least));
            }
        });
        if let Some((end, least)) = found {
            let first = (group.from[end] as usize..end).find(|first| costs[*first] <= least).unwrap_or(end);
            best.run = first..end;
        }
    }
    best
}

/// The bound that offers prove, and how often each segment is taken. Devices that lose stay out unless they must take part,
/// and of the others no more take part than there may be stages.
fn settle(
    instance: &Instance,
    kinds: &[Vec<usize>],
    mut offers: Vec<Offer>,
    prices: &[f64],
) -> (f64, Vec<f64>) {
    for (offer, kind) in offers.iter_mut().zip(kinds) {
        let must = instance.required.contains(&kind[0]);
        if offer.earns < 0.0 && !must {
            offer.members = 0;
        }
    }
    offers.sort_by(|a, b| b.earns.total_cmp(&a.earns));
    let mut bound: f64 = prices.iter().sum();
    let mut taken = vec![0.0; prices.len()];
    let mut left = instance.max_stages;
    for offer in offers {
        let members = offer.members.min(left);
        if members == 0 {
            continue;
        }
        left -= members;
        bound -= members as f64 * offer.earns;
        taken[offer.run].iter_mut().for_each(|taken| *taken += members as f64);
    }
    (bound, taken)
}

fn prefix_sums(values: &[f64]) -> Vec<f64> {
    let sums = values.iter().scan(0.0, |sum, value| {
        *sum += value;
        Some(*sum)
    });
    std::iter::once(0.0).chain(sums).collect()
}
