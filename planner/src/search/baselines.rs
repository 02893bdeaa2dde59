//! Simple placement rules of common inference engines. The planner compares its plans with them.
//!
//! A rule places segments on the devices in their given order and skips excluded devices. A rule has no
//! baseline if its placement does not fit or violates another constraint.
//!
//! This module knows nothing about the search.

use super::PlannerInput;
use super::problem::Run;
use serde::Serialize;
use std::fmt;

/// A simple rule that places layers without a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Baseline {
    /// Every device gets the same number of layers.
    EvenLayers,
    /// Each device gets a number of layers in proportion to its memory.
    ByMemory,
    /// Each device gets a number of layers in proportion to its arithmetic rate.
    ByFlops,
    /// The fastest single device gets all layers.
    BestSingle,
    /// Each device is filled before the next device is used.
    Greedy,
}

impl Baseline {
    /// All rules.
    pub const ALL: [Self; 5] =
        [Self::EvenLayers, Self::ByMemory, Self::ByFlops, Self::BestSingle, Self::Greedy];
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EvenLayers => "even layers",
            Self::ByMemory => "by memory",
            Self::ByFlops => "by FLOPs",
            Self::BestSingle => "best single device",
            Self::Greedy => "filled in turn",
        })
    }
}

/// Rule by which an inference engine groups sequences for decode. It is the same for all placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineDecode {
    /// All sequences decode in one micro-batch, as in llama.cpp.
    Together,
    /// Each stage has one group of sequences in flight, as in vLLM.
    InTurn,
}

impl EngineDecode {
    /// Both groupings.
    pub const ALL: [Self; 2] = [Self::Together, Self::InTurn];
}

impl fmt::Display for EngineDecode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Together => "one group",
            Self::InTurn => "a group per stage",
        })
    }
}

/// Returns the placements that a rule produces: one per device for [`Baseline::BestSingle`], and a single one
/// for every other rule. Does not check memory, pins or the number of stages.
pub(super) fn placements(
    baseline: Baseline,
    input: &PlannerInput<'_>,
    fits: impl Fn(&[Run]) -> bool,
) -> Vec<Vec<Run>> {
    let is_excluded = |device: &usize| input.constraints.excluded.contains(&input.devices[*device].label);
    let devices: Vec<usize> = (0..input.devices.len()).filter(|device| !is_excluded(device)).collect();
    let segments = input.segments.len();
    let rate = |device: &usize| input.devices[*device].fast_flops_per_s.value;
    match baseline {
        Baseline::EvenLayers => vec![in_proportion(segments, &devices, |_| 1.0)],
        Baseline::ByMemory => {
            vec![in_proportion(segments, &devices, |device| input.devices[*device].memory_bytes as f64)]
        }
        Baseline::ByFlops => vec![in_proportion(segments, &devices, rate)],
        Baseline::BestSingle => {
            devices.into_iter().map(|device| vec![Run::new(device, 0..segments)]).collect()
        }
        Baseline::Greedy => vec![greedy(segments, &devices, fits)],
    }
}

/// Divides the segments among the devices, in order and in proportion to the devices' weights. A device whose
/// share is less than half a segment gets no run.
fn in_proportion(segments: usize, devices: &[usize], weight: impl Fn(&usize) -> f64) -> Vec<Run> {
    let total: f64 = devices.iter().map(&weight).sum();
    let (mut runs, mut so_far, mut first) = (Vec::new(), 0.0, 0);
    for (at, device) in devices.iter().enumerate() {
        so_far += weight(device);
        let share = (so_far / total * segments as f64).round() as usize;
        let end = if at + 1 == devices.len() { segments } else { share.min(segments) };
        if end > first {
            runs.push(Run::new(*device, first..end));
            first = end;
        }
    }
    runs
}

/// Fills each device in turn, up to the largest run that fits. The last device gets all remaining segments.
fn greedy(segments: usize, devices: &[usize], fits: impl Fn(&[Run]) -> bool) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut first = 0;
    for (at, &device) in devices.iter().enumerate() {
        if first == segments {
            break;
        }
        let with = |end: usize| {
            let mut with = runs.clone();
            with.push(Run::new(device, first..end));
            with
        };
        let end = match at + 1 == devices.len() {
            true => segments,
            false => (first + 1..=segments).rev().find(|&end| fits(&with(end))).unwrap_or(first),
        };
        if end > first {
            runs = with(end);
            first = end;
        }
    }
    runs
}
