//! Checks whether a model fits into memory, and computes how much memory is missing if it does not. Knows
//! nothing about times.

use super::Shortage;
use super::problem::{Problem, Run};
use super::solver::Instance;

/// Maximum number of devices for which the check tries all orders of the devices.
const EXACT: usize = 12;
/// Maximum product of device count and segment count for which the search minimises the missing bytes.
const SEARCHED: usize = 2048;

/// Returns whether some placement fits. The answer is exact for at most [`EXACT`] usable devices. With more
/// devices, the check only fills the devices in descending order of capacity.
pub(super) fn fits(instance: &Instance) -> bool {
    let usable: Vec<usize> = (0..instance.devices.len()).filter(|&d| !instance.excluded[d]).collect();
    if usable.len() > EXACT {
        return fits_by_size(instance, usable);
    }
    // For each set of devices and last device: the largest number of segments that can be placed. A larger
    // number is never worse.
    let sets = 1usize << usable.len();
    let mut furthest = vec![0usize; sets * usable.len()];
    for set in 1..sets {
        if set.count_ones() as usize > instance.max_stages {
            continue;
        }
        for last in (0..usable.len()).filter(|last| set >> last & 1 == 1) {
            let rest = set & !(1 << last);
            let mut end = 0;
            if rest == 0 {
                end = reach(instance, usable[last], 0, 0);
            }
            for before in (0..usable.len()).filter(|before| rest >> before & 1 == 1) {
                let first = furthest[rest * usable.len() + before];
                if first > 0 {
                    end = end.max(next(instance, usable[before], usable[last], first));
                }
            }
            if end == instance.segments {
                return true;
            }
            furthest[set * usable.len() + last] = end;
        }
    }
    false
}

/// Returns the end of the longest run that starts at `first` and that the device's memory and the pins allow.
fn reach(instance: &Instance, device: usize, class: usize, first: usize) -> usize {
    let end = instance.devices[device].reach[class][first];
    let pinned_elsewhere = |segment: &usize| instance.pins[*segment].is_some_and(|pin| pin != device);
    (first..end).find(pinned_elsewhere).unwrap_or(end)
}

/// Returns the end of the longest run on `device` that starts at `first` and follows a stage on `before`.
/// Returns 0 if no run fits.
fn next(instance: &Instance, before: usize, device: usize, first: usize) -> usize {
    let Some(transfer) = &instance.transfers[before * instance.devices.len() + device] else { return 0 };
    match reach(instance, device, transfer.class, first) {
        end if end > first => end,
        _ => 0,
    }
}

fn fits_by_size(instance: &Instance, mut devices: Vec<usize>) -> bool {
    devices.sort_by_key(|&device| std::cmp::Reverse(reach(instance, device, 0, 0)));
    devices.truncate(instance.max_stages);
    filled(instance, &devices).last().is_some_and(|run| run.segments.end == instance.segments)
}

/// Fills the devices in turn, each with the longest run that fits. Skips devices that hold no segment.
fn filled(instance: &Instance, devices: &[usize]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &device in devices {
        let first = runs.last().map_or(0, |run| run.segments.end);
        if first == instance.segments {
            break;
        }
        let end = match runs.last() {
            None => reach(instance, device, 0, 0),
            Some(run) => next(instance, run.device, device, first),
        };
        if end > first {
            runs.push(Run::new(device, first..end));
        }
    }
    runs
}

/// Returns the shortages of the placement that comes closest to fitting, with the devices in their given
/// order. For few devices and segments, this is the placement with the fewest missing bytes. Otherwise, this
/// placement fills all devices in turn, and the last device lacks memory for the rest.
pub(super) fn closest(problem: &Problem<'_>) -> Vec<Shortage> {
    let (segments, devices) = (problem.input.segments.len(), problem.input.devices.len());
    let runs = if segments * devices <= SEARCHED { least_missing(problem) } else { filled_in_turn(problem) };
    problem.prove(&runs).err().unwrap_or_default()
}

fn missing(problem: &Problem<'_>, run: &Run, before: Option<usize>) -> u64 {
    problem.shortage(run, before).map_or(0, |shortage| {
        let excess = shortage.too_large.map_or(0, |buffer| buffer.bytes - buffer.limit);
        shortage.missing_bytes().saturating_add(excess)
    })
}

/// Returns the placement with the fewest missing bytes, found by dynamic programming. Each state (placed
/// segments, last device) stores the missing bytes, the start of the last run, and the previous device.
fn least_missing(problem: &Problem<'_>) -> Vec<Run> {
    let (segments, devices) = (problem.input.segments.len(), problem.input.devices.len());
    let mut best: Vec<Option<(u64, usize, Option<usize>)>> = vec![None; (segments + 1) * devices];
    for device in 0..devices {
        for end in 1..=segments {
            for first in 0..end {
                let run = Run::new(device, first..end);
                let ways = (0..device).map(Some).chain([None]).filter(|way| way.is_some() == (first > 0));
                for before in ways {
                    let so_far = match before {
                        None => 0,
                        Some(before) => match best[first * devices + before] {
                            Some((bytes, ..)) => bytes,
                            None => continue,
                        },
                    };
                    let bytes = so_far.saturating_add(missing(problem, &run, before));
                    let cell = &mut best[end * devices + device];
                    if cell.is_none_or(|(least, ..)| bytes < least) {
                        *cell = Some((bytes, first, before));
                    }
                }
            }
        }
    }
    let bytes = |device: &usize| best[segments * devices + device].expect("a run covers all segments").0;
    let mut runs = Vec::new();
    let (mut end, mut device) = (segments, (0..devices).min_by_key(bytes));
    while let Some(at) = device {
        let (_, first, before) = best[end * devices + at].expect("a run leads to each state of the way");
        runs.push(Run::new(at, first..end));
        (end, device) = (first, before);
    }
    runs.reverse();
    runs
}

/// Fills all devices in turn. The last device gets the remaining segments, whether they fit or not.
fn filled_in_turn(problem: &Problem<'_>) -> Vec<Run> {
    let instance = problem.instance();
    let others: Vec<usize> = (0..instance.devices.len() - 1).collect();
    let mut runs = filled(&instance, &others);
    let first = runs.last().map_or(0, |run| run.segments.end);
    if first < instance.segments {
        runs.push(Run::new(others.len(), first..instance.segments));
    }
    runs
}
