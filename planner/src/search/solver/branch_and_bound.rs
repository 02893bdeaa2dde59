//! Branch and bound over limits on `busy` and `chunk`. Each step finds the placements with the smallest sum
//! of `time` under some limits. The result is the placement with the smallest score.
//!
//! A region is a box: one interval for the maximum `busy` and one for the maximum `chunk`. The smallest time
//! under the box's upper limits, combined with its lower limits, gives a lower bound on all scores in the
//! box. A placement with this smallest time dominates every other placement in the box that is no better in
//! `busy` and `chunk`. The search splits the rest of the box into parts. Each region covers all stage counts.
//!
//! Computing the smallest time requires the table. The Lagrange multipliers (`lagrangian`) first give a much
//! cheaper bound. A placement matters if it can still change the result. If the bound proves that no
//! placement in a box matters, the search drops the box. It halves a wide box, unless the score is the
//! maximum of two terms.
//!
//! The table ignores the true loads of shared buses. If a placement overloads a bus, the search splits the
//! region by the placement's transfers. The first part excludes the first transfer. The second part keeps the
//! first transfer and excludes the second transfer, and so on.
//!
//! This module knows nothing about how the smallest time is computed.

use super::exact::{Cells, Table};
use super::lagrangian::{self, Prices, Relaxed};
use super::rules::{Limits, Rules};
use super::values::Values;
use super::{Costs, Instance, SHARE, Score, SharedBus, Solution, Stage, Term, kinds, orders};
use rayon::prelude::*;
use std::cmp::Ordering;
use std::sync::Arc;

/// Maximum relative difference between scores that count as equal.
const MARGIN: f64 = 1e-12;

/// Number of regions that are processed in parallel. Fixed, so that the result does not depend on the
/// machine.
const AT_ONCE: usize = 2;

/// Maximum number of rounds. The bound that the search returns accounts for the regions that are still open
/// after the last round.
const MAX_ROUNDS: usize = 1 << 14;

/// A box counts as wide if, within it, `busy` or `chunk` can change the score by at least this fraction.
const WIDE: f64 = 0.05;

/// Maximum numbers of subgradient steps: for the first box, for each part of a box, and for the multipliers
/// of `time` before the search uses the table.
const FIRST_STEPS: usize = 40;
const STEPS: usize = 2;
const LOOK_STEPS: usize = 3;

/// Limits on `busy` and `chunk` under which the search finds initial placements, as multiples of the lower
/// bounds on these terms.
const FIRST_LIMITS: [f64; 4] = [1.05, 1.15, 1.3, 2.0];

/// A box, with bounds for the placements in it.
#[derive(Clone)]
struct Region {
    /// Inclusive lower limits of the maximum `busy` and `chunk`. `time` is unused.
    lower: Costs,
    /// Inclusive upper limits of the maximum `busy` and `chunk`. `time` is unused.
    upper: Costs,
    /// At index k: bounds for placements with k + 1 stages. `None` if no such placement in the region
    /// matters.
    open: Vec<Option<Open>>,
    /// Pairs (from, to) of devices that must not be neighbours in a placement of the region.
    forbidden: Vec<(usize, usize)>,
    /// Pairs (from, to) of devices that must be neighbours in a placement of the region.
    kept: Vec<(usize, usize)>,
    /// Runs and transfers that the upper limits allow. `None` until `priced` has processed the region.
    rules: Option<Arc<Rules>>,
    /// Lagrange multipliers for the sum in the score. They prove bounds without the table.
    prices: Prices,
    /// Lagrange multipliers for the sum of `time` alone.
    time_prices: Prices,
    /// Whether `time_prices` were improved for the current upper limits.
    timed: bool,
}

/// Bounds for those placements of a region that have a given number of stages.
#[derive(Clone)]
struct Open {
    /// Lower bound on the score.
    bound: f64,
    /// Lower bound on the sum of `time`.
    least: f64,
    /// A placement whose sum of `time` is `least` and that meets the upper limits, except possibly on shared
    /// buses.
    seen: Option<Arc<Seen>>,
}

struct Seen {
    /// Sum of `time`, maximum `busy` and maximum `chunk` of the placement. A term that has no weight in the
    /// score is 0.
    totals: Costs,
    stages: Vec<Stage>,
}

impl Seen {
    /// Returns the pairs of devices between which the placement transfers activations.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.stages.windows(2).map(|pair| (pair[0].0, pair[1].0))
    }
}

/// Finds the best placements of an instance that is small enough for a table.
pub(super) fn solve(instance: &Instance, kinds: &[Vec<usize>], table: Table<'_>) -> Solution {
    let solution = Solution::empty(instance);
    let (busy, chunk) = (Values::ANY, Values::ANY);
    let mut search = Search { instance, kinds, table, busy, chunk, solution, regions: Vec::new() };
    search.start();
    let mut cells = search.table.cells(AT_ONCE);
    for _ in 0..MAX_ROUNDS {
        let taken = search.take_most_promising(cells.len());
        if taken.is_empty() {
            search.solution.bound = search.best();
            return search.solution;
        }
        let (mut parts, mut looks) = (Vec::new(), Vec::new());
        for (region, stages) in taken {
            match search.parts(&region, stages) {
                Some(more) => parts.extend(more),
                None => looks.push(region),
            }
        }
        let price = || parts.into_par_iter().filter_map(|part| search.priced(part)).collect::<Vec<_>>();
        let look = |(region, cells): (&mut Region, &mut Cells)| search.look(region, cells);
        let look = || looks.par_iter_mut().zip(cells.par_iter_mut()).flat_map_iter(look).collect::<Vec<_>>();
        let (parts, found) = rayon::join(price, look);
        found.iter().for_each(|stages| search.solution.offer(instance, stages));
        search.regions.extend(looks.into_iter().chain(parts));
        search.forget();
    }
    let open = search.regions.iter().flat_map(|r| (0..r.open.len()).filter_map(|k| search.bound(r, k)));
    search.solution.bound = open.fold(search.best(), f64::min);
    search.solution.exact = false;
    search.solution
}

struct Search<'a> {
    instance: &'a Instance,
    kinds: &'a [Vec<usize>],
    table: Table<'a>,
    /// Possible values of the maximum `busy` and of the maximum `chunk`.
    busy: Values,
    chunk: Values,
    solution: Solution,
    regions: Vec<Region>,
}

impl Search<'_> {
    /// Finds initial placements, and creates the region that contains all placements.
    fn start(&mut self) {
        let instance = self.instance;
        let lower = lagrangian::least_terms(instance, self.kinds);
        // If a score is known, the multipliers alone may prove that no placement comes close to it.
        let is_known = instance.known.is_finite();
        if !is_known {
            self.offer_orders(&lower);
        }
        self.list_values(&lower);
        let limits = Limits { most: Costs::INFINITE, forbidden: &[] };
        let rules = Rules::new(instance, self.kinds, &limits);
        let relaxed = Relaxed::of_sum(instance, self.kinds, &rules, lower);
        // New multipliers sum to 1, so scale them.
        let slowest = instance.devices.iter().map(|d| d.before[instance.segments].time).fold(0.0, f64::max);
        let mut time_prices = Prices::without_shares(instance, self.kinds);
        time_prices.scale(&Relaxed::of_time(instance, self.kinds, &rules), slowest * 2.0);
        let mut prices = Prices::new(instance, self.kinds);
        prices.scale(&relaxed, slowest * 2.0);
        prices.improve(&relaxed, instance.score.most_sum(self.enough()), FIRST_STEPS);
        let open =
            vec![Some(Open { bound: 0.0, least: 0.0, seen: None }); self.solution.best_by_stages.len()];
        let (forbidden, kept) = (Vec::new(), Vec::new());
        let all = Region {
            lower,
            upper: Costs::INFINITE,
            open,
            forbidden,
            kept,
            rules: None,
            prices,
            time_prices,
            timed: false,
        };
        let all = self.priced(all);
        let bounds = all.iter().flat_map(|all| (0..all.open.len()).filter_map(|k| self.bound(all, k)));
        instance.check_bound(bounds.fold(f64::INFINITY, f64::min), self.solution.best());
        self.regions.extend(all);
        if is_known && !self.regions.is_empty() {
            self.offer_orders(&lower);
        }
    }

    /// Lists the values of the maximum `busy` and `chunk` that may matter. `least` contains lower bounds on
    /// these terms.
    fn list_values(&mut self, least: &Costs) {
        let instance = self.instance;
        let most = instance.score.largest_terms(self.enough(), least);
        let (busy_weight, chunk_weight) = instance.score.weights();
        let values = |term: Term, weight: f64| {
            // Loads of shared buses are sums, with too many possible values to list.
            let is_sum = instance.shared.iter().any(|bus| bus.term == term);
            match weight > 0.0 && !is_sum {
                true => Values::new(instance, self.kinds, term, (term.of(least), term.of(&most))),
                false => Values::ANY,
            }
        };
        self.busy = values(Term::Busy, busy_weight);
        self.chunk = values(Term::Chunk, chunk_weight);
    }

    /// Finds placements for good orders of the devices, under several limits on `busy` and `chunk`.
    fn offer_orders(&mut self, least: &Costs) {
        let single = kinds::single(self.instance);
        let exits = kinds::exits(self.instance, &single);
        let orders = orders::starts(self.instance, &single);
        let (busy_weight, chunk_weight) = self.instance.score.weights();
        let limits = |weight: f64| if weight > 0.0 { FIRST_LIMITS.as_slice() } else { &[f64::INFINITY] };
        let offer = |search: &mut Self, most: Costs| {
            let rules = Rules::new(search.instance, &single, &Limits { most, forbidden: &[] });
            for order in &orders {
                if let Some(stages) = orders::least(search.instance, &single, &exits, &rules, order) {
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

    /// Returns a lower bound on the scores of placements with k + 1 stages in the region, or `None` if no
    /// such placement matters.
    fn bound(&self, region: &Region, k: usize) -> Option<f64> {
        let open = region.open[k].as_ref()?;
        Some(open.bound.max(self.instance.score.of(&Costs { time: open.least, ..region.lower })))
    }

    /// Returns, at index k, the largest score at which a placement with k + 1 stages would still change the
    /// choice. For fewer stages than the chosen placement has, this score is [`SHARE`] above the best score.
    /// For the same number of stages, it is the score of the chosen placement. For more stages, it is the
    /// best score.
    fn wanted(&self) -> Vec<f64> {
        let best = self.best();
        let score = |k: usize| self.solution.best_by_stages[k].as_ref().map_or(f64::INFINITY, |p| p.score);
        let all = 0..self.solution.best_by_stages.len();
        let chosen = all.clone().find(|k| score(*k) <= self.enough()).unwrap_or(all.end);
        let wanted = |k: usize| match k.cmp(&chosen) {
            Ordering::Less => self.enough(),
            Ordering::Equal => score(k),
            Ordering::Greater => best,
        };
        all.map(wanted).collect()
    }

    /// Removes and returns up to `count` of the most promising regions that may still change the choice. Each
    /// region is paired with the index k (number of stages minus one) for which it is promising.
    fn take_most_promising(&mut self, count: usize) -> Vec<(Region, usize)> {
        let (wanted, enough) = (self.wanted(), self.enough());
        let matters = |bound: f64, k: usize| match wanted[k] {
            wanted if wanted == enough => bound <= wanted,
            wanted => bound < wanted * (1.0 - MARGIN),
        };
        let promise = |(at, region): (usize, &Region)| {
            let bounds = (0..region.open.len()).filter_map(|k| Some((self.bound(region, k)?, at, k)));
            let promising = bounds.filter(|(bound, _, k)| matters(*bound, *k));
            promising.reduce(|best, other| if other.0 < best.0 { other } else { best })
        };
        let mut promising: Vec<_> = self.regions.iter().enumerate().filter_map(promise).collect();
        promising.sort_by(|a, b| a.0.total_cmp(&b.0));
        promising.truncate(count);
        promising.sort_by_key(|(_, at, _)| std::cmp::Reverse(*at));
        promising.into_iter().map(|(_, at, k)| (self.regions.swap_remove(at), k)).collect()
    }

    /// Splits a region that is wide or that contains a known placement. Returns `None` if the region must
    /// first be solved with the table.
    fn parts(&self, region: &Region, stages: usize) -> Option<Vec<Region>> {
        match region.open[stages].as_ref().and_then(|open| open.seen.as_ref()) {
            Some(seen) => Some(self.parts_around(region, stages, seen)),
            None => self.halves(region).map(Vec::from),
        }
    }

    /// Returns the smallest lower bound on the sum of `time` over all stage counts that remain in a region.
    fn least(region: &Region) -> f64 {
        region.open.iter().flatten().map(|open| open.least).fold(f64::INFINITY, f64::min)
    }

    /// Halves a wide region along `busy` or `chunk`, whichever has the larger effect on the score. Returns
    /// `None` if the region is narrow or unbounded, or if the score is the maximum of two terms.
    fn halves(&self, region: &Region) -> Option<[Region; 2]> {
        // If the score is the larger of two terms, splitting around a known placement is better.
        if matches!(self.instance.score, Score::Busy { .. }) {
            return None;
        }
        let Region { lower, upper, .. } = *region;
        let (busy_weight, chunk_weight) = self.instance.score.weights();
        let least = Costs { time: Self::least(region), ..lower };
        let worth = |costs: Costs| self.instance.score.of(&costs);
        let busy = if busy_weight > 0.0 { worth(Costs { busy: upper.busy, ..least }) } else { 0.0 };
        let chunk = if chunk_weight > 0.0 { worth(Costs { chunk: upper.chunk, ..least }) } else { 0.0 };
        let widest = busy.max(chunk) - worth(least);
        if widest <= WIDE * self.best() || widest.is_infinite() {
            return None;
        }
        Some(region.halved(if busy >= chunk { Term::Busy } else { Term::Chunk }))
    }

    /// Narrows a region to the limits within which placements can matter, and computes its Lagrangian bounds.
    /// Returns `None` if no placement in the region matters.
    fn priced(&self, mut region: Region) -> Option<Region> {
        let (instance, enough) = (self.instance, self.enough());
        let largest =
            instance.score.largest_terms(enough, &Costs { time: Self::least(&region), ..region.lower });
        let busy = self.busy.within(region.lower.busy, region.upper.busy.min(largest.busy))?;
        let chunk = self.chunk.within(region.lower.chunk, region.upper.chunk.min(largest.chunk))?;
        region.confine(busy, chunk);
        let limits = Limits { most: region.upper, forbidden: &region.forbidden };
        let rules = Rules::new(instance, self.kinds, &limits);
        let worth = |region: &Region| Costs { time: region.time_prices.bound, ..region.lower };
        region.timed = instance.score.of(&worth(&region))
            > instance.score.of_sum(region.prices.bound, region.lower.busy);
        if region.timed {
            self.improve_time(&mut region, &rules);
        } else {
            let relaxed = Relaxed::of_sum(instance, self.kinds, &rules, region.lower);
            region.prices.improve(&relaxed, instance.score.most_sum(enough), STEPS);
            let bounds = region.prices.bounds(self.kinds, region.open.len());
            for (open, bound) in region.open.iter_mut().zip(bounds) {
                let Some(known) = open else { continue };
                known.bound = known.bound.max(instance.score.of_sum(bound, region.lower.busy));
            }
        }
        region.rules = Some(Arc::new(rules));
        self.close(&mut region);
        region.open.iter().any(Option::is_some).then_some(region)
    }

    /// Improves the multipliers of `time`, and updates the bounds that follow from them.
    fn improve_time(&self, region: &mut Region, rules: &Rules) {
        let relaxed = Relaxed::of_time(self.instance, self.kinds, rules);
        let most = self.instance.score.largest_terms(self.enough(), &region.lower).time;
        region.time_prices.improve(&relaxed, most, LOOK_STEPS);
        let bounds = region.time_prices.bounds(self.kinds, region.open.len());
        for (open, bound) in region.open.iter_mut().zip(bounds) {
            open.iter_mut().for_each(|known| known.least = known.least.max(bound));
        }
    }

    /// Removes from the region each stage count for which no placement in the region matters.
    fn close(&self, region: &mut Region) {
        for k in 0..region.open.len() {
            if self.bound(region, k).is_some_and(|bound| bound > self.enough()) {
                region.open[k] = None;
            }
        }
    }

    /// Finds, for each number of stages, the placement with the smallest sum of `time` under the upper limits
    /// of a region.
    fn look(&self, region: &mut Region, cells: &mut Cells) -> Vec<Vec<Stage>> {
        let instance = self.instance;
        let limits = Limits { most: region.upper, forbidden: &region.forbidden };
        let rules = region.rules.take();
        let rules = rules.unwrap_or_else(|| Arc::new(Rules::new(instance, self.kinds, &limits)));
        if !region.timed {
            self.improve_time(region, &rules);
            self.close(region);
        }
        let Some(stages) = region.open.iter().rposition(Option::is_some).map(|k| k + 1) else {
            return Vec::new();
        };
        let most = |score: f64| instance.score.largest_terms(score, &region.lower).time;
        let enough = most(self.enough());
        let wanted: Vec<f64> = self.wanted().into_iter().take(stages).map(most).collect();
        let found = self.table.least(cells, &rules, &region.time_prices.completion(), &wanted);
        let mut placements = Vec::new();
        let (busy_weight, chunk_weight) = instance.score.weights();
        for ((open, found), wanted) in region.open.iter_mut().zip(found).zip(wanted) {
            *open = match (open.take(), found) {
                (Some(open), Some(found)) => {
                    placements.push(found.stages.clone());
                    let mut totals = instance.totals(&found.stages);
                    assert!(instance.allows(&found.stages), "the table breaks a rule: {:?}", found.stages);
                    instance.check_bound(open.least, totals.time);
                    instance.check_bound(found.time, totals.time);
                    instance.check_bound(totals.time, found.time);
                    if busy_weight == 0.0 {
                        totals.busy = 0.0;
                    }
                    if chunk_weight == 0.0 {
                        totals.chunk = 0.0;
                    }
                    Some(Open {
                        least: found.time,
                        bound: open.bound,
                        seen: Some(Arc::new(Seen { totals, stages: found.stages })),
                    })
                }
                // The search stopped when `time` reached `wanted`, which becomes the new lower bound.
                (Some(open), None) if wanted < enough => Some(Open { least: open.least.max(wanted), ..open }),
                _ => None,
            };
        }
        placements
    }

    /// Splits a region around a known placement with `stages + 1` stages.
    fn parts_around(&self, region: &Region, stages: usize, seen: &Seen) -> Vec<Region> {
        if let Some(bus) = self.overloaded(region, seen) {
            return Self::parts_by_bus(region, seen, bus);
        }
        let Costs { busy, chunk, .. } = seen.totals;
        match self.instance.score {
            // The score is the larger of two terms, so a better placement must reduce the larger one. It
            // cannot reduce `time`, which is already minimal in this region.
            Score::Busy { .. } => {
                let sum = self.instance.score.of(&Costs { busy: 0.0, ..seen.totals });
                if busy > sum {
                    let (less_busy, rest) = region.parts_by(Term::Busy, busy);
                    return less_busy.into_iter().flatten().chain([rest]).collect();
                }
                let (smaller, mut rest) = region.parts_by(Term::Chunk, chunk);
                if let Some(open) = &mut rest.open[stages] {
                    open.bound = open.bound.max(sum);
                }
                smaller.into_iter().flatten().chain([rest]).collect()
            }
            // The first part has a smaller `busy`, the second a smaller `chunk`, and the third is the rest.
            Score::Sum { .. } => {
                let (less_busy, rest) = region.parts_by(Term::Busy, busy);
                let (smaller, rest) = rest.parts_by(Term::Chunk, chunk);
                less_busy.into_iter().chain(smaller).flatten().chain([rest]).collect()
            }
        }
    }

    /// Returns a bus on which the placement exceeds the upper limits of the region, if there is one.
    fn overloaded(&self, region: &Region, seen: &Seen) -> Option<&SharedBus> {
        let load = |bus: &SharedBus| seen.pairs().map(|pair| bus.load(pair)).sum::<f64>();
        self.instance.shared.iter().find(|bus| load(bus) > bus.term.of(&region.upper))
    }

    /// Splits a region by the transfers of a placement that overloads `bus`.
    fn parts_by_bus(region: &Region, seen: &Seen, bus: &SharedBus) -> Vec<Region> {
        let (mut parts, mut part) = (Vec::new(), region.clone());
        for open in part.open.iter_mut().flatten() {
            open.seen = None;
        }
        for pair in seen.pairs().filter(|pair| bus.load(*pair) > 0.0 && !region.kept.contains(pair)) {
            let mut without = part.clone();
            without.forbidden.push(pair);
            parts.push(without);
            part.kept.push(pair);
        }
        parts
    }

    /// Returns the best known score.
    fn best(&self) -> f64 {
        self.solution.best().min(self.instance.known)
    }

    /// Returns the score above which no placement matters.
    fn enough(&self) -> f64 {
        self.best() * (1.0 + SHARE)
    }

    /// Drops the regions in which no placement matters.
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
    /// Returns the part of the region between the limits `lower` and `upper`.
    fn within(&self, lower: Costs, upper: Costs) -> Self {
        Self { lower, upper, ..self.clone() }
    }

    /// Halves the region along a term.
    fn halved(&self, term: Term) -> [Self; 2] {
        let Self { lower, upper, .. } = *self;
        let middle = (term.of(&lower) + term.of(&upper)) / 2.0;
        [self.within(lower, term.with(upper, middle)), self.within(term.with(lower, middle), upper)]
    }

    /// Splits off the part of the region in which the maximum of a term is less than `value`. Returns the two
    /// halves of this part, and the rest of the region.
    fn parts_by(&self, term: Term, value: f64) -> (Option<[Self; 2]>, Self) {
        let (least, less) = (term.of(&self.lower), below(value));
        let part = || self.within(self.lower, term.with(self.upper, less));
        let rest = self.within(term.with(self.lower, least.max(value)), self.upper);
        ((less > least).then(|| part().halved(term)), rest)
    }

    /// Narrows the limits of `busy` and `chunk` to the given intervals. Forgets known placements outside the
    /// new limits. Removes a stage count if its known placement is at least as good as every placement in the
    /// region.
    fn confine(&mut self, busy: (f64, f64), chunk: (f64, f64)) {
        let (lower, upper) = (
            Costs { busy: busy.0, chunk: chunk.0, ..self.lower },
            Costs { busy: busy.1, chunk: chunk.1, ..self.upper },
        );
        (self.lower, self.upper) = (lower, upper);
        for known in &mut self.open {
            let Some(Open { seen: Some(seen), .. }) = known else { continue };
            let totals = &seen.totals;
            if totals.busy <= lower.busy && totals.chunk <= lower.chunk {
                // No placement in the region is better in any term.
                *known = None;
            } else if totals.busy > upper.busy || totals.chunk > upper.chunk {
                known.iter_mut().for_each(|open| open.seen = None);
            }
        }
    }
}

/// Returns `value` reduced by slightly more than a rounding error.
fn below(value: f64) -> f64 {
    value - value * MARGIN
}
