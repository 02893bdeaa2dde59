//! Given an order of devices, finds the placements that use devices in this order and may skip some of them.
//! Also finds good initial orders. This module knows nothing about scores.

use super::exact::way;
use super::rules::{Rules, slide};
use super::{Instance, Stage};

/// Returns the placement with the smallest time that uses the devices in this order. The indices in `order`
/// refer to `kinds`, which have one member each. `exits` contains the exit classes of these kinds. Returns
/// `None` if the rules allow no placement.
pub(super) fn least(
    instance: &Instance,
    kinds: &[Vec<usize>],
    exits: &[Vec<usize>],
    rules: &Rules,
    order: &[usize],
) -> Option<Vec<Stage>> {
    let width = instance.segments + 1;
    let must: Vec<bool> = order.iter().map(|kind| instance.required.contains(&kinds[*kind][0])).collect();
    let mut times = vec![f64::INFINITY; order.len() * width];
    let mut costs = vec![f64::INFINITY; width];
    let mut queue = Vec::new();
    // For each exit and end: the smallest time over all earlier places of this exit, as long as no required
    // place lies in between.
    let mut behind = vec![vec![f64::INFINITY; width]; exits.len()];
    // For each place: the last required place before it, or 0.
    let mut earliest = vec![0; order.len()];
    for (at, &kind) in order.iter().enumerate() {
        earliest[at] = (0..at).rev().find(|before| must[*before]).unwrap_or(0);
        let own = &mut times[at * width..][..width];
        let to = &rules.kinds[kind];
        if !must[..at].contains(&true) {
            own.copy_from_slice(&to.opening);
        }
        for (group, windows) in to.groups.iter().enumerate() {
            let mut any = false;
            for (exit, behind) in exits.iter().zip(&behind) {
                let Some(way) = way(rules, exit, kind).filter(|way| way.group == group) else { continue };
                any = true;
                for (cost, time) in costs.iter_mut().zip(&behind[..instance.segments]) {
                    *cost = cost.min(time + way.time);
                }
            }
            if any {
                costs.iter_mut().zip(&to.prefix).for_each(|(cost, prefix)| *cost -= prefix);
                let range = 1..instance.segments;
                slide(&costs, range, &windows.from, 2.min(instance.segments), &mut queue, |end, least| {
                    own[end] = own[end].min(least + to.finish[end]);
                });
                costs.fill(f64::INFINITY);
            }
        }
        if must[at] {
            behind.iter_mut().for_each(|times| times.fill(f64::INFINITY));
        }
        for (exit, behind) in exits.iter().zip(&mut behind) {
            if exit.contains(&kind) {
                behind.iter_mut().zip(&*own).for_each(|(least, time)| *least = least.min(*time));
            }
        }
    }
    let last = must.iter().rposition(|must| *must).unwrap_or(0);
    let end = |place: &usize| times[place * width + instance.segments];
    let mut place =
        (last..order.len()).filter(|p| end(p).is_finite()).min_by(|a, b| end(a).total_cmp(&end(b)))?;
    let mut stages = Vec::new();
    let mut end = instance.segments;
    loop {
        let kind = order[place];
        let to = &rules.kinds[kind];
        // Smallest time, and the predecessor of the stage: the previous place and its end, or `None` for a
        // first stage.
        let mut best = (if must[..place].contains(&true) { f64::INFINITY } else { to.opening[end] }, None);
        for before in earliest[place]..place {
            let Some(way) = rules.way(order[before], kind) else { continue };
            for first in to.groups[way.group].from[end] as usize..end {
                let time = times[before * width + first] + way.time + to.finish[end] - to.prefix[first];
                if time < best.0 {
                    best = (time, Some((before, first)));
                }
            }
        }
        let Some((before, first)) = best.1 else {
            stages.push((kinds[kind][0], 0..end));
            break;
        };
        stages.push((kinds[kind][0], first..end));
        (place, end) = (before, first);
    }
    stages.reverse();
    Some(stages)
}

/// Returns initial orders of the devices: by speed, by memory, by both, and by nearest neighbour. Each order
/// contains all required devices, and is at most as long as the maximum number of stages.
pub(super) fn starts(instance: &Instance, kinds: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let costs = |kind: usize| &instance.devices[kinds[kind][0]];
    let slow = |kind: usize| costs(kind).before[instance.segments].time;
    let holds = |kind: usize| {
        let runs = costs(kind).reach.iter().flat_map(|reach| reach.iter().enumerate());
        runs.map(|(first, end)| end - first).fold(0, usize::max) as f64
    };
    let by = |key: &dyn Fn(usize) -> f64| {
        let mut order: Vec<usize> = (0..kinds.len()).collect();
        order.sort_by(|a, b| key(*a).total_cmp(&key(*b)));
        order.sort_by_key(|kind| !instance.required.contains(&kinds[*kind][0]));
        order.truncate(instance.max_stages);
        order.sort_by(|a, b| key(*a).total_cmp(&key(*b)));
        order
    };
    let by_speed = by(&slow);
    let by_memory = by(&|kind| -holds(kind));
    let by_both = by(&|kind| slow(kind) / (holds(kind) + 1.0));
    let mut orders = vec![nearest_next(instance, kinds, &by_speed), nearest_next(instance, kinds, &by_both)];
    for order in [by_speed, by_memory, by_both] {
        orders.push(order.iter().rev().copied().collect());
        orders.push(order);
    }
    orders
}

/// Reorders devices so that each device is followed by the one with the cheapest transfer from it. Among
/// equally cheap transfers, chooses the device that comes first in `order`.
fn nearest_next(instance: &Instance, kinds: &[Vec<usize>], order: &[usize]) -> Vec<usize> {
    let mut left = order.to_vec();
    let mut chain: Vec<usize> = Vec::new();
    loop {
        let far = |to: usize| match chain.last() {
            None => 0.0,
            Some(last) => {
                instance.transfer(kinds[*last][0], kinds[to][0]).map_or(f64::INFINITY, |c| c.costs.time)
            }
        };
        let next = (0..left.len()).min_by(|a, b| far(left[*a]).total_cmp(&far(left[*b])));
        let Some(next) = next else { return chain };
        chain.push(left.remove(next));
    }
}
