//! The links between the devices, and the times of transfers over them.

use crate::cost::{LinkFacts, SharedLink};
use crate::search::PlannerInput;
use crate::search::hosts::host_of;
use crate::search::workload_times::{Point, Times, WorkloadTimes};
use std::collections::HashMap;

pub(super) fn pairs(input: &PlannerInput<'_>) -> impl Iterator<Item = (usize, usize)> + Clone + use<> {
    let devices = input.devices.len();
    (0..devices).flat_map(move |from| (0..devices).map(move |to| (from, to)))
}

pub(super) fn index(input: &PlannerInput<'_>, label: &str) -> Option<usize> {
    input.devices.iter().position(|device| device.label == label)
}

/// Returns the links between all pairs of devices, at `from * devices + to`.
pub(super) fn links<'a>(input: &PlannerInput<'a>) -> Vec<&'a LinkFacts> {
    let devices = input.devices.len();
    let index: HashMap<_, _> =
        input.devices.iter().enumerate().map(|(at, d)| (d.label.as_str(), at)).collect();
    let mut links = vec![&input.links.other; devices * devices];
    // If a link is listed twice, the first entry counts, as in `Links::between`.
    for (from, to, facts) in input.links.known.iter().rev() {
        if let (Some(from), Some(to)) = (index.get(from.as_str()), index.get(to.as_str())) {
            links[from * devices + to] = facts;
        }
    }
    links
}

/// Returns the latency of the network between the coordinator and a device, in microseconds. It is that of the link to a
/// device of the coordinator's host.
pub(super) fn network_us(input: &PlannerInput<'_>, device: usize) -> f64 {
    let label = &input.devices[device].label;
    if host_of(label).is_empty() {
        return 0.0;
    }
    let own = input.links.known.iter().filter(|(from, to, _)| host_of(from).is_empty() && to == label);
    own.map(|(_, _, link)| link.latency_us.value).min_by(f64::total_cmp).unwrap_or(0.0)
}

/// Returns the pairs (from, to) of devices whose transfers use a shared link.
pub(super) fn users<'a>(
    input: &'a PlannerInput<'_>,
    shared: &'a SharedLink,
) -> impl Iterator<Item = (usize, usize)> + 'a {
    shared.users.iter().filter_map(|(from, to)| Some((index(input, from)?, index(input, to)?)))
}

/// Returns, at `from * devices + to`, the lowest rate among the shared links that a transfer between the pair
/// uses, in bytes per second.
pub(super) fn shared_rates(input: &PlannerInput<'_>) -> Vec<f64> {
    let devices = input.devices.len();
    let mut rates = vec![f64::INFINITY; devices * devices];
    for shared in &input.links.shared {
        for (from, to) in users(input, shared) {
            let rate = &mut rates[from * devices + to];
            *rate = rate.min(shared.bandwidth_bytes_per_s.value);
        }
    }
    rates
}

pub(super) fn transfer_bytes(input: &PlannerInput<'_>, point: Point, rows: u32) -> u64 {
    u64::from(rows).saturating_mul(point.wire_type.row_bytes(input.model.row_bytes))
}

/// Returns the times of a transfer if no other transfer uses the same links. The rate is the lowest among the
/// link itself and the shared links on its path.
pub(super) fn transfer_times(
    input: &PlannerInput<'_>,
    point: Point,
    workload_times: &WorkloadTimes,
    link: &LinkFacts,
    shared_rate: f64,
) -> Times {
    let time_us = |bytes: u64| {
        let shared_us = link.latency_us.value + bytes as f64 / shared_rate * 1e6;
        link.time_us(bytes).max(shared_us)
    };
    workload_times.times(|batch| time_us(transfer_bytes(input, point, batch.rows)))
}
