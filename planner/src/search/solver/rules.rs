//! Rules: the runs and transfers that an instance allows under limits on the terms of the score. A kind is a
//! group of interchangeable devices, to which the same rules apply. The module also computes the smallest
//! total time of all stages after a given stage.
//!
//! Every condition on a run (memory, pins, limits) still holds if the run gets shorter. So for a given device
//! and end, the allowed first segments form an interval that ends at this end.
//!
//! This module knows nothing about the searches.

use super::{Costs, Instance};
use std::collections::VecDeque;
use std::ops::Range;

/// Limits on a placement.
#[derive(Clone, Copy)]
pub(super) struct Limits<'a> {
    /// Maximum `busy` and `chunk` of a stage or transfer, and maximum sum of `time`. All limits are
    /// inclusive.
    pub most: Costs,
    /// Pairs (from, to) of devices that must not be neighbours.
    pub forbidden: &'a [(usize, usize)],
}

/// A transfer that the limits allow.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub time: f64,
    /// Index into [`KindRules::groups`] for the stage that receives the transfer.
    pub group: usize,
}

/// Allowed runs on one kind of device, for stages whose incoming transfers belong to one group.
#[derive(PartialEq)]
pub(super) struct Windows {
    /// For each end: the first segment of the longest allowed run, or the end itself if no run is allowed.
    /// Never decreases.
    pub from: Vec<u32>,
    /// For each first segment: the end of the longest allowed run, or the segment itself if no run is
    /// allowed. Never decreases.
    pub to: Vec<u32>,
}

/// The rules for one kind of device.
pub(super) struct KindRules {
    /// Sum of `time` over the segments `0 .. i`, at index `i`.
    pub prefix: Vec<f64>,
    /// At index `end`: the value from which `prefix[first]` is subtracted to get the `time` of the stage
    /// `first .. end`.
    pub finish: Vec<f64>,
    /// At index `end`: the `time` of the pipeline's first stage if it runs `0 .. end`, or infinity if this
    /// stage is not allowed.
    pub opening: Vec<f64>,
    /// The distinct windows of the kind.
    pub groups: Vec<Windows>,
}

/// The rules of an instance under given limits.
pub(super) struct Rules {
    pub kinds: Vec<KindRules>,
    /// Allowed transfers, at `from * kinds + to`.
    ways: Vec<Option<Way>>,
    /// Load that a transfer adds to each shared bus, at `(from * kinds + to) * buses + bus`.
    rides: Vec<f64>,
    /// Maximum load of each shared bus.
    most: Vec<f64>,
}

impl Rules {
    pub fn new(instance: &Instance, kinds: &[Vec<usize>], limits: &Limits<'_>) -> Self {
        let (all, group_of): (Vec<_>, Vec<_>) =
            kinds.iter().map(|kind| kind_rules(instance, kind[0], &limits.most)).unzip();
        let way = |from: usize, to: usize| {
            let source = kinds[from][0];
            // Within a kind, use the transfer between two of its members.
            let target = if from == to { *kinds[from].get(1)? } else { kinds[to][0] };
            let transfer = instance.transfer(source, target)?;
            let within = transfer.costs.busy <= limits.most.busy && transfer.costs.chunk <= limits.most.chunk;
            let allowed = within && !limits.forbidden.contains(&(source, target));
            allowed.then(|| Way { time: transfer.costs.time, group: group_of[to][transfer.class] })
        };
        let pairs = || (0..kinds.len()).flat_map(|from| (0..kinds.len()).map(move |to| (from, to)));
        let ride = |(from, to): (usize, usize)| {
            let pair = (kinds[from][0], kinds[to][0]);
            instance.shared.iter().map(move |bus| bus.load(pair))
        };
        Self {
            kinds: all,
            ways: pairs().map(|(from, to)| way(from, to)).collect(),
            rides: pairs().flat_map(ride).collect(),
            most: instance.shared.iter().map(|bus| bus.term.of(&limits.most)).collect(),
        }
    }

    pub fn way(&self, from: usize, to: usize) -> Option<Way> {
        self.ways[from * self.kinds.len() + to]
    }

    /// Returns the loads of the shared buses after a transfer. `loads` are the loads before it. Returns
    /// `None` if a load exceeds its limit.
    pub fn ride<'a>(
        &'a self,
        from: usize,
        to: usize,
        loads: &'a [f64],
    ) -> Option<impl Iterator<Item = f64> + 'a> {
        let at = (from * self.kinds.len() + to) * self.most.len();
        let rides = &self.rides[at..at + self.most.len()];
        let sums = move || rides.iter().zip(loads).map(|(ride, load)| ride + load);
        sums().zip(&self.most).all(|(load, most)| load <= *most).then(sums)
    }

    /// Returns, for each kind and end, the smallest total `time` of all stages that follow a stage of this
    /// kind with this end. Devices may be reused. Works backwards from the last segment. Each step chooses a
    /// transfer, and then the best run.
    pub fn rest(&self, segments: usize) -> Vec<Vec<f64>> {
        let mut rest = vec![vec![f64::INFINITY; segments + 1]; self.kinds.len()];
        rest.iter_mut().for_each(|rest| rest[segments] = 0.0);
        let mut queues: Vec<Vec<VecDeque<u32>>> =
            self.kinds.iter().map(|kind| vec![VecDeque::new(); kind.groups.len()]).collect();
        let mut runs: Vec<Vec<f64>> = self.kinds.iter().map(|kind| vec![0.0; kind.groups.len()]).collect();
        for first in (1..segments).rev() {
            for (to, kind) in self.kinds.iter().enumerate() {
                let key = |end: u32| kind.finish[end as usize] + rest[to][end as usize];
                for (group, windows) in kind.groups.iter().enumerate() {
                    let queue = &mut queues[to][group];
                    let end = first as u32 + 1;
                    while queue.back().is_some_and(|last| key(*last) >= key(end)) {
                        queue.pop_back();
                    }
                    queue.push_back(end);
                    while queue.front().is_some_and(|end| *end > windows.to[first]) {
                        queue.pop_front();
                    }
                    runs[to][group] = queue.front().map_or(f64::INFINITY, |e| key(*e) - kind.prefix[first]);
                }
            }
            for (from, rest) in rest.iter_mut().enumerate() {
                let ways = (0..self.kinds.len()).filter_map(|to| Some((to, self.way(from, to)?)));
                rest[first] =
                    ways.map(|(to, way)| way.time + runs[to][way.group]).fold(f64::INFINITY, f64::min);
            }
        }
        rest
    }
}

/// Returns the rules for a device, and the index of the window group for each class of transfers.
fn kind_rules(instance: &Instance, device: usize, most: &Costs) -> (KindRules, Vec<usize>) {
    let costs = &instance.devices[device];
    let segments = instance.segments;
    let within = |run: Range<usize>| {
        let stage = instance.stage(device, run);
        stage.busy <= most.busy && stage.chunk <= most.chunk
    };
    // For each end: the earliest first segment of a run that ends there and contains no segment pinned to
    // another device.
    let mut free = vec![0; segments + 1];
    for (at, pin) in instance.pins.iter().enumerate() {
        free[at + 1] = if pin.is_none_or(|pin| pin == device) { free[at] } else { at + 1 };
    }
    let prefix: Vec<f64> = costs.before.iter().map(|c| c.time).collect();
    let mut finish: Vec<f64> = prefix.iter().map(|time| time + costs.stage.time).collect();
    finish[segments] += costs.exit.time;
    let opens = |end: usize| end > 0 && free[end] == 0 && costs.reach[0][0] >= end && within(0..end);
    let opening = |end: usize| if opens(end) { instance.stage(device, 0..end).time } else { f64::INFINITY };
    let mut groups: Vec<Windows> = Vec::new();
    let mut group_of = Vec::new();
    for reach in &costs.reach {
        let allowed =
            |run: Range<usize>| free[run.end] <= run.start && reach[run.start] >= run.end && within(run);
        let windows = windows(segments, allowed);
        group_of.push(groups.iter().position(|g| *g == windows).unwrap_or(groups.len()));
        if group_of.last() == Some(&groups.len()) {
            groups.push(windows);
        }
    }
    (KindRules { prefix, finish, opening: (0..=segments).map(opening).collect(), groups }, group_of)
}

/// Returns the windows of the allowed runs of all stages except the first.
fn windows(segments: usize, allowed: impl Fn(Range<usize>) -> bool) -> Windows {
    let mut windows = Windows { from: vec![0; segments + 1], to: (0..=segments as u32).collect() };
    let mut first = 1;
    for end in 1..=segments {
        while first < end && !allowed(first..end) {
            first += 1;
        }
        windows.from[end] = first as u32;
        if first < end {
            windows.to[first] = end as u32;
        }
    }
    for first in 1..=segments {
        windows.to[first] = windows.to[first].max(windows.to[first - 1]);
    }
    windows
}

/// Calls `each(end, least)` for every end from `begin` on. `least` is the smallest `costs[first]` over every
/// `first` in `range` that precedes the end and lies in the end's window. `queue` is a scratch buffer.
pub(super) fn slide(
    costs: &[f64],
    range: Range<usize>,
    from: &[u32],
    begin: usize,
    queue: &mut Vec<u32>,
    mut each: impl FnMut(usize, f64),
) {
    queue.clear();
    let mut head = 0;
    let mut entering = range.start.max(from[begin] as usize);
    for (end, &window) in from.iter().enumerate().skip(begin) {
        if window as usize >= range.end {
            return;
        }
        while entering < end.min(range.end) {
            while queue.len() > head && costs[queue[queue.len() - 1] as usize] >= costs[entering] {
                queue.pop();
            }
            queue.push(entering as u32);
            entering += 1;
        }
        while head < queue.len() && queue[head] < window {
            head += 1;
        }
        if head < queue.len() {
            each(end, costs[queue[head] as usize]);
        }
    }
}
