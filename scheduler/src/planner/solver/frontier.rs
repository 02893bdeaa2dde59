//! Branch and bound over limits: from the least sum of time under limits to the least score.
//!
//! A region is a box of largest `busy` and largest `chunk`. The least time under the box's upper limits, together with its
//! lower ones, bounds the score of everything inside. A placement that has this least time beats all that is no better
//! than itself in both largest terms; what is left of the box is cut into parts. All numbers of stages share the regions.
//!
//! A table knows nothing of the true loads of shared buses. Where a placement overloads one, the region is parted by its
//! crossings: those without the first of them, those with the first and without the second, and so on.
//!
//! This module must not know how the least time is found.

use super::exact::Table;
use super::rules::Limits;
use super::{Costs, Instance, SHARE, Solution, Stage};
use std::cmp::Ordering;
use std::rc::Rc;

/// Scores that differ by less, relatively, count as equal.
const MARGIN: f64 = 1e-12;

/// Most uses of the table; what is left open then is told in the bound.
const MOST_ROUNDS: usize = 4096;

/// Halvings of the interval in which the least possible largest term lies.
const HALVINGS: usize = 10;

/// Where the first cut is made: slightly above the least possible largest term.
const FIRST_CUT: f64 = 1.02;

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
}

/// What is known of one number of stages in a region.
#[derive(Clone)]
struct Open {
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
pub(super) fn solve(instance: &Instance, table: Table<'_>) -> Solution {
    let mut search = Search { instance, table, solution: Solution::empty(instance), regions: Vec::new() };
    search.start();
    for _ in 0..MOST_ROUNDS {
        let Some((at, stages)) = search.most_promising() else {
            search.solution.bound = search.solution.best();
            return search.solution;
        };
        let mut region = search.regions.swap_remove(at);
        if region.open[stages].as_ref().is_some_and(|open| open.seen.is_none()) {
            search.look(&mut region);
            search.regions.push(region);
        } else {
            search.part(&region, stages);
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
    table: Table<'a>,
    solution: Solution,
    regions: Vec<Region>,
}

impl Search<'_> {
    /// Looks at everything, and cuts off what the largest terms cannot be.
    fn start(&mut self) {
        let infinite = Costs { busy: f64::INFINITY, time: f64::INFINITY, chunk: f64::INFINITY };
        let open = vec![Some(Open { least: 0.0, seen: None }); self.solution.best_by_stages.len()];
        let (forbidden, kept) = (Vec::new(), Vec::new());
        let mut all = Region { lower: Costs::default(), upper: infinite, open, forbidden, kept };
        self.look(&mut all);
        let seen = || all.open.iter().flatten().filter_map(|open| open.seen.as_ref()).map(|seen| seen.totals);
        let least = |part: fn(&mut Costs) -> &mut f64| {
            let mut most = seen().map(|mut totals| *part(&mut totals)).fold(0.0, f64::max);
            let mut low = 0.0;
            for _ in 0..HALVINGS {
                let mut limits = Limits { most: infinite, forbidden: &[] };
                let middle = (low + most) / 2.0;
                *part(&mut limits.most) = middle;
                if self.table.may_reach(&limits) { most = middle } else { low = middle }
            }
            low
        };
        let (busy_weight, chunk_weight) = self.instance.score.weights();
        let busy = if busy_weight > 0.0 { least(|c| &mut c.busy) } else { 0.0 };
        let chunk = if chunk_weight > 0.0 { least(|c| &mut c.chunk) } else { 0.0 };
        all.lower = Costs { busy, time: 0.0, chunk };
        let cut = Costs { busy: busy * FIRST_CUT, time: 0.0, chunk: chunk * FIRST_CUT };
        if busy_weight > 0.0 {
            self.add(all.within(all.lower, Costs { busy: cut.busy, ..all.upper }));
            self.add(all.within(Costs { busy: cut.busy, ..all.lower }, all.upper));
        } else {
            self.add(all.within(all.lower, Costs { chunk: cut.chunk, ..all.upper }));
            self.add(all.within(Costs { chunk: cut.chunk, ..all.lower }, all.upper));
        }
    }

    /// No placement with k + 1 stages in the region scores less; `None` if none of them matters.
    fn bound(&self, region: &Region, k: usize) -> Option<f64> {
        let open = region.open[k].as_ref()?;
        Some(self.instance.score.of(&Costs { time: open.least, ..region.lower }))
    }

    /// The region and the number of stages (less one) that promise most, of those that may still change the choice: a
    /// better score than the best; one within [`SHARE`] of the best with fewer stages than are known; a better one with
    /// as many.
    fn most_promising(&self) -> Option<(usize, usize)> {
        let best = self.solution.best();
        let score = |k: usize| self.solution.best_by_stages[k].as_ref().map_or(f64::INFINITY, |p| p.score);
        let share = best * (1.0 + SHARE);
        let chosen = (0..self.solution.best_by_stages.len()).find(|k| score(*k) <= share).unwrap_or(0);
        let matters = |bound: f64, k: usize| match k.cmp(&chosen) {
            Ordering::Less => bound <= share,
            Ordering::Equal => bound < score(k) * (1.0 - MARGIN),
            Ordering::Greater => bound < best * (1.0 - MARGIN),
        };
        let bounds = self.regions.iter().enumerate().flat_map(|(at, region)| {
            let bound = move |k| Some((self.bound(region, k)?, at, k));
            (0..region.open.len()).filter_map(bound)
        });
        let promising = bounds.filter(|(bound, _, k)| matters(*bound, *k));
        let (_, at, k) = promising.reduce(|best, other| if other.0 < best.0 { other } else { best })?;
        Some((at, k))
    }

    /// Finds the least times under the upper limits of a region.
    fn look(&mut self, region: &mut Region) {
        let instance = self.instance;
        let enough = self.enough();
        let least = region.open.iter().flatten().map(|open| open.least).fold(f64::INFINITY, f64::min);
        let room = instance.score.room(enough, &Costs { time: least, ..region.lower });
        region.upper.busy = region.upper.busy.min(room.busy);
        region.upper.chunk = region.upper.chunk.min(room.chunk);
        let limits = Limits { most: Costs { time: room.time, ..region.upper }, forbidden: &region.forbidden };
        let stages = region.open.iter().rposition(Option::is_some).map_or(0, |k| k + 1);
        let found = self.table.least(&limits, stages);
        let (busy_weight, chunk_weight) = instance.score.weights();
        for (open, found) in region.open.iter_mut().zip(found) {
            *open = open.take().and(found).map(|found| {
                self.solution.offer(instance, &found.stages);
                let mut totals = instance.totals(&found.stages);
                if busy_weight == 0.0 {
                    totals.busy = 0.0;
                }
                if chunk_weight == 0.0 {
                    totals.chunk = 0.0;
                }
                Open { least: found.time, seen: Some(Rc::new(Seen { totals, stages: found.stages })) }
            });
        }
    }

    /// Parts a region that has been looked at, by its placement with k + 1 stages.
    fn part(&mut self, region: &Region, k: usize) {
        let Some(seen) = region.open[k].as_ref().and_then(|open| open.seen.clone()) else { return };
        let Costs { busy, chunk, .. } = seen.totals;
        if busy > region.upper.busy {
            self.part_by_bus(region, &seen);
            return;
        }
        let Region { lower, upper, .. } = *region;
        // What is better by less than the margin does not count: it may be rounding.
        let below = |value: f64| value - value * MARGIN;
        // Less busy than the placement, in two halves; else with smaller chunks, in two halves; else the others.
        if below(busy) > lower.busy {
            let middle = (lower.busy + below(busy)) / 2.0;
            self.add(region.within(lower, Costs { busy: middle, ..upper }));
            self.add(region.within(Costs { busy: middle, ..lower }, Costs { busy: below(busy), ..upper }));
        }
        let lower = Costs { busy: lower.busy.max(busy), ..lower };
        if below(chunk) > lower.chunk {
            let middle = (lower.chunk + below(chunk)) / 2.0;
            self.add(region.within(lower, Costs { chunk: middle, ..upper }));
            self.add(region.within(Costs { chunk: middle, ..lower }, Costs { chunk: below(chunk), ..upper }));
        }
        self.add(region.within(Costs { chunk: lower.chunk.max(chunk), ..lower }, upper));
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
            self.add(Some(without));
            part.kept.push(pair);
        }
    }

    fn add(&mut self, region: Option<Region>) {
        self.regions.extend(region);
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
            (!beaten).then_some(Open { least: open.least, seen })
        };
        let open: Vec<_> = self.open.iter().map(|o| o.as_ref().and_then(open)).collect();
        let matters = open.iter().any(Option::is_some);
        matters.then(|| Self { lower, upper, open, ..self.clone() })
    }
}
