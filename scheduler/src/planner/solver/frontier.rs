//! Branch and bound over limits: from the least sum of time under limits to the least score.
//!
//! A region is a box of largest `busy` and largest `chunk`. The least time under the box's upper limits, together with its
//! lower ones, bounds the score of everything inside. A placement that has this least time beats all that is no better
//! than itself in both largest terms; what is left of the box is cut into parts. All numbers of stages share the regions.
//!
//! The least time needs a look at the table. Before that prices (`dual`) bound the box, which takes far less: boxes in which
//! they prove that nothing matters are forgotten, and wide ones are halved.
//!
//! A table knows nothing of the true loads of shared buses. Where a placement overloads one, the region is parted by its
//! crossings: those without the first of them, those with the first and without the second, and so on.
//!
//! This module must not know how the least time is found.

use super::dual::{self, Prices, Relaxed};
use super::exact::Table;
use super::rules::{Limits, Rules};
use super::{Costs, Instance, SHARE, Solution, Stage, kinds, orders};
use std::cmp::Ordering;
use std::rc::Rc;

/// Scores that differ by less, relatively, count as equal.
const MARGIN: f64 = 1e-12;

/// Most regions that are looked at; what is left open then is told in the bound.
const MOST_ROUNDS: usize = 1 << 14;

/// A box is wide if a largest term makes more of a difference to the score inside, relatively.
const WIDE: f64 = 0.05;

/// Steps towards better prices: for the first box, for each part of one, and towards those of time before a look.
const FIRST_STEPS: usize = 60;
const STEPS: usize = 4;
const LOOK_STEPS: usize = 6;

/// Largest terms for the first placements, as multiples of the least possible ones.
const FIRST_LIMITS: [f64; 4] = [1.05, 1.15, 1.3, 2.0];

/// A box with what is known of the placements in it.
#[derive(Clone)]
struct Region {
    /// Inclusive; `time` is not used.
    lower: Costs,
    /// Inclusive; `time` is not used.
    upper: Costs,
    /// At k: what is known of those with k + 1 stages; `None`: none of them matters.
    open: Vec<Option<Open>>,
    /// Pairs of devices that do not follow one another in the region, and pairs that do.
    forbidden: Vec<(usize, usize)>,
    kept: Vec<(usize, usize)>,
    /// They prove what is known without a look at the table.
    prices: Prices,
    /// The same of time alone.
    time_prices: Prices,
}

/// What is known of one number of stages in a region.
#[derive(Clone)]
struct Open {
    /// No placement scores less.
    bound: f64,
    /// No placement takes less time.
    least: f64,
    /// One that takes just this and keeps the upper limits, but for what shared buses add.
    seen: Option<Rc<Seen>>,
}

struct Seen {
    /// As far as they count in the score.
    totals: Costs,
    stages: Vec<Stage>,
}

/// The best placements of an instance for which there is a table.
pub(super) fn solve(instance: &Instance, kinds: &[Vec<usize>], table: Table<'_>) -> Solution {
    let solution = Solution::empty(instance);
    let mut search = Search { instance, kinds, table, solution, regions: Vec::new() };
    search.start();
    for _ in 0..MOST_ROUNDS {
        let Some((at, stages)) = search.most_promising() else {
            search.solution.bound = search.solution.best();
            return search.solution;
        };
        let mut region = search.regions.swap_remove(at);
        if let Some(seen) = region.open[stages].as_ref().and_then(|open| open.seen.clone()) {
            search.part(&region, &seen);
        } else if let Some(halves) = search.halves(&region) {
            halves.into_iter().for_each(|half| search.add(half));
        } else {
            search.look(&mut region);
            search.regions.push(region);
        }
        search.forget();
    }
    let open = search.regions.iter().flat_map(|r| (0..r.open.len()).filter_map(|k| search.bound(r, k)));
    search.solution.bound = open.fold(search.solution.best(), f64::min);
    search.solution.exact = false;
    search.solution
}

struct Search<'a> {
    instance: &'a Instance,
    kinds: &'a [Vec<usize>],
    table: Table<'a>,
    solution: Solution,
    regions: Vec<Region>,
}

impl Search<'_> {
    /// Finds placements to begin with, and bounds everything.
    fn start(&mut self) {
        let instance = self.instance;
        let lower = dual::least_terms(instance, self.kinds);
        self.offer_orders(&lower);
        let limits = Limits { most: Costs::INFINITE, forbidden: &[] };
        let rules = Rules::new(instance, self.kinds, &limits);
        let relaxed = Relaxed::of_sum(instance, self.kinds, &rules, lower);
        // New prices sum to 1.
        let slowest = instance.devices.iter().map(|d| d.before[instance.segments].time).fold(0.0, f64::max);
        let mut time_prices = Prices::without_shares(instance, self.kinds);
        time_prices.scale(&Relaxed::of_time(instance, self.kinds, &rules), slowest * 2.0);
        let mut prices = Prices::new(instance, self.kinds);
        prices.scale(&relaxed, slowest * 2.0);
        prices.improve(&relaxed, instance.score.most_sum(self.solution.best()), FIRST_STEPS);
        let open =
            vec![Some(Open { bound: 0.0, least: 0.0, seen: None }); self.solution.best_by_stages.len()];
        let (forbidden, kept) = (Vec::new(), Vec::new());
        self.add(Region { lower, upper: Costs::INFINITE, open, forbidden, kept, prices, time_prices });
    }

    /// Tries good orders under some limits.
    fn offer_orders(&mut self, least: &Costs) {
        let single = kinds::single(self.instance);
        let orders = orders::starts(self.instance, &single);
        let (busy_weight, chunk_weight) = self.instance.score.weights();
        let limits = |weight: f64| if weight > 0.0 { FIRST_LIMITS.as_slice() } else { &[f64::INFINITY] };
        let offer = |search: &mut Self, most: Costs| {
            let rules = Rules::new(search.instance, &single, &Limits { most, forbidden: &[] });
            for order in &orders {
                if let Some(stages) = orders::least(search.instance, &single, &rules, order) {
                    search.solution.offer(search.instance, &stages);
                }
            }
        };
        offer(self, Costs::INFINITE);
        for busy in limits(busy_weight) {
            for chunk in limits(chunk_weight) {
                offer(self, Costs { busy: least.busy * busy, chunk: least.chunk * chunk, ..Costs::INFINITE });
            }
        }
    }

    /// No placement with k + 1 stages in the region scores less; `None` if none of them matters.
    fn bound(&self, region: &Region, k: usize) -> Option<f64> {
        let open = region.open[k].as_ref()?;
        Some(open.bound.max(self.instance.score.of(&Costs { time: open.least, ..region.lower })))
    }

    /// At k: what a placement with k + 1 stages must score, at most, to change the choice: better than the best; within
    /// [`SHARE`] of the best with fewer stages than are known; better with as many.
    fn wanted(&self) -> Vec<f64> {
        let best = self.solution.best();
        let score = |k: usize| self.solution.best_by_stages[k].as_ref().map_or(f64::INFINITY, |p| p.score);
        let all = 0..self.solution.best_by_stages.len();
        let chosen = all.clone().find(|k| score(*k) <= self.enough()).unwrap_or(0);
        let wanted = |k: usize| match k.cmp(&chosen) {
            Ordering::Less => self.enough(),
            Ordering::Equal => score(k),
            Ordering::Greater => best,
        };
        all.map(wanted).collect()
    }

    /// The region and the number of stages (less one) that promise most, of those that may still change the choice.
    fn most_promising(&self) -> Option<(usize, usize)> {
        let (wanted, enough) = (self.wanted(), self.enough());
        let matters = |bound: f64, k: usize| match wanted[k] {
            wanted if wanted == enough => bound <= wanted,
            wanted => bound < wanted * (1.0 - MARGIN),
        };
        let bounds = self.regions.iter().enumerate().flat_map(|(at, region)| {
            let bound = move |k| Some((self.bound(region, k)?, at, k));
            (0..region.open.len()).filter_map(bound)
        });
        let promising = bounds.filter(|(bound, _, k)| matters(*bound, *k));
        let (_, at, k) = promising.reduce(|best, other| if other.0 < best.0 { other } else { best })?;
        Some((at, k))
    }

    /// The least time of what is open in a region.
    fn least(region: &Region) -> f64 {
        region.open.iter().flatten().map(|open| open.least).fold(f64::INFINITY, f64::min)
    }

    /// The halves of a wide region, along the term that counts more; `None` if it is not wide, or without end.
    fn halves(&self, region: &Region) -> Option<[Region; 2]> {
        let Region { lower, upper, .. } = *region;
        let (busy_weight, chunk_weight) = self.instance.score.weights();
        let least = Costs { time: Self::least(region), ..lower };
        let worth = |costs: Costs| self.instance.score.of(&costs);
        let busy = if busy_weight > 0.0 { worth(Costs { busy: upper.busy, ..least }) } else { 0.0 };
        let chunk = if chunk_weight > 0.0 { worth(Costs { chunk: upper.chunk, ..least }) } else { 0.0 };
        let widest = busy.max(chunk) - worth(least);
        if widest <= WIDE * self.solution.best() || widest.is_infinite() {
            return None;
        }
        let (below, above) = if busy >= chunk {
            let middle = (lower.busy + upper.busy) / 2.0;
            (Costs { busy: middle, ..upper }, Costs { busy: middle, ..lower })
        } else {
            let middle = (lower.chunk + upper.chunk) / 2.0;
            (Costs { chunk: middle, ..upper }, Costs { chunk: middle, ..lower })
        };
        Some([Region { upper: below, ..region.clone() }, Region { lower: above, ..region.clone() }])
    }

    /// Adds a region, unless prices prove that nothing in it matters.
    fn add(&mut self, mut region: Region) {
        let (instance, enough) = (self.instance, self.enough());
        let room = instance.score.room(enough, &Costs { time: Self::least(&region), ..region.lower });
        region.upper.busy = region.upper.busy.min(room.busy);
        region.upper.chunk = region.upper.chunk.min(room.chunk);
        let limits = Limits { most: region.upper, forbidden: &region.forbidden };
        let rules = Rules::new(instance, self.kinds, &limits);
        let relaxed = Relaxed::of_sum(instance, self.kinds, &rules, region.lower);
        region.prices.improve(&relaxed, instance.score.most_sum(enough), STEPS);
        let bounds = region.prices.bounds(self.kinds, region.open.len());
        for (open, bound) in region.open.iter_mut().zip(bounds) {
            if let Some(known) = open {
                known.bound = known.bound.max(instance.score.of_sum(bound, region.lower.busy));
                let exact = instance.score.of(&Costs { time: known.least, ..region.lower });
                if known.bound.max(exact) > enough {
                    *open = None;
                }
            }
        }
        if region.open.iter().any(Option::is_some) {
            self.regions.push(region);
        }
    }

    /// Finds the least times under the upper limits of a region.
    fn look(&mut self, region: &mut Region) {
        let instance = self.instance;
        let most = |score: f64| instance.score.room(score, &region.lower).time;
        let stages = region.open.iter().rposition(Option::is_some).map_or(0, |k| k + 1);
        let enough = most(self.enough());
        let wanted: Vec<f64> = self.wanted().into_iter().take(stages).map(most).collect();
        let limits = Limits { most: region.upper, forbidden: &region.forbidden };
        let mut rules = Rules::new(instance, self.kinds, &limits);
        rules.find_rest(instance.segments);
        let relaxed = Relaxed::of_time(instance, self.kinds, &rules);
        region.time_prices.improve(&relaxed, enough, LOOK_STEPS);
        let found = self.table.least(&rules, &region.time_prices.completion(), &wanted);
        let (busy_weight, chunk_weight) = instance.score.weights();
        for ((open, found), wanted) in region.open.iter_mut().zip(found).zip(wanted) {
            *open = match (open.take(), found) {
                (Some(open), Some(found)) => {
                    self.solution.offer(instance, &found.stages);
                    let mut totals = instance.totals(&found.stages);
                    if busy_weight == 0.0 {
                        totals.busy = 0.0;
                    }
                    if chunk_weight == 0.0 {
                        totals.chunk = 0.0;
                    }
                    Some(Open {
                        least: found.time,
                        bound: open.bound,
                        seen: Some(Rc::new(Seen { totals, stages: found.stages })),
                    })
                }
                // More than was looked for.
                (Some(open), None) if wanted < enough => Some(Open { least: open.least.max(wanted), ..open }),
                _ => None,
            };
        }
    }

    /// Parts a region that has been looked at, by a placement that was seen in it.
    fn part(&mut self, region: &Region, seen: &Seen) {
        let Costs { busy, chunk, .. } = seen.totals;
        if busy > region.upper.busy {
            self.part_by_bus(region, seen);
            return;
        }
        let Region { lower, upper, .. } = *region;
        // What is better by less than the margin does not count: it may be rounding.
        let below = |value: f64| value - value * MARGIN;
        // Less busy than the placement, in two halves; else with smaller chunks, in two halves; else the others.
        if below(busy) > lower.busy {
            let middle = (lower.busy + below(busy)) / 2.0;
            region.within(lower, Costs { busy: middle, ..upper }).into_iter().for_each(|part| self.add(part));
            region
                .within(Costs { busy: middle, ..lower }, Costs { busy: below(busy), ..upper })
                .into_iter()
                .for_each(|part| self.add(part));
        }
        let lower = Costs { busy: lower.busy.max(busy), ..lower };
        if below(chunk) > lower.chunk {
            let middle = (lower.chunk + below(chunk)) / 2.0;
            region
                .within(lower, Costs { chunk: middle, ..upper })
                .into_iter()
                .for_each(|part| self.add(part));
            region
                .within(Costs { chunk: middle, ..lower }, Costs { chunk: below(chunk), ..upper })
                .into_iter()
                .for_each(|part| self.add(part));
        }
        region
            .within(Costs { chunk: lower.chunk.max(chunk), ..lower }, upper)
            .into_iter()
            .for_each(|part| self.add(part));
    }

    /// Parts a region by the crossings of a placement that overloads a bus.
    fn part_by_bus(&mut self, region: &Region, seen: &Seen) {
        let pairs = || seen.stages.windows(2).map(|pair| (pair[0].0, pair[1].0));
        let overloaded =
            |bus: &&super::SharedBus| pairs().map(|pair| bus.load(pair)).sum::<f64>() > region.upper.busy;
        let Some(bus) = self.instance.shared.iter().find(overloaded) else { return };
        let mut part = region.clone();
        for open in part.open.iter_mut().flatten() {
            open.seen = None;
        }
        for pair in pairs().filter(|pair| bus.load(*pair) > 0.0 && !region.kept.contains(pair)) {
            let mut without = part.clone();
            without.forbidden.push(pair);
            self.add(without);
            part.kept.push(pair);
        }
    }

    /// A score above which nothing can matter any more.
    fn enough(&self) -> f64 {
        self.solution.best() * (1.0 + SHARE)
    }

    /// Forgets the regions in which nothing can matter any more.
    fn forget(&mut self) {
        let enough = self.enough();
        let mut regions = std::mem::take(&mut self.regions);
        regions.retain(|region| {
            (0..region.open.len()).any(|k| self.bound(region, k).is_some_and(|bound| bound <= enough))
        });
        self.regions = regions;
    }
}

impl Region {
    /// The part of a region between limits; `None` if nothing in it matters.
    fn within(&self, lower: Costs, upper: Costs) -> Option<Self> {
        if lower.busy > upper.busy || lower.chunk > upper.chunk {
            return None;
        }
        let open = |open: &Open| {
            let Some(seen) = &open.seen else { return Some(open.clone()) };
            let totals = &seen.totals;
            // Everything inside is no better in any part.
            let beaten = totals.busy <= lower.busy && totals.chunk <= lower.chunk;
            let inside = totals.busy <= upper.busy && totals.chunk <= upper.chunk;
            let seen = inside.then(|| seen.clone());
            (!beaten).then_some(Open { seen, ..open.clone() })
        };
        let open: Vec<_> = self.open.iter().map(|o| o.as_ref().and_then(open)).collect();
        let matters = open.iter().any(Option::is_some);
        matters.then(|| Self { lower, upper, open, ..self.clone() })
    }
}
