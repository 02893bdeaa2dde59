//! How engines commonly place layers, to hold plans against.
//!
//! A baseline is what its rule says, over the devices in their order, without those that are excluded. Where that does not
//! fit or breaks another constraint there is no such baseline.
//!
//! This module must not know the search.

use super::PlannerInput;
use super::problem::Run;
use serde::Serialize;
use std::fmt;

/// A rule by which layers are placed without a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Baseline {
    /// Every device gets as many layers as every other.
    EvenLayers,
    /// In proportion to the devices' memory.
    ByMemory,
    /// In proportion to the devices' rates of arithmetic.
    ByFlops,
    /// All on the device on which that is fastest.
    BestSingle,
    /// Each device is filled before the next one gets any.
    Greedy,
}

impl Baseline {
    /// All of them.
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

/// How an engine that chooses nothing to suit a placement spreads the sequences that generate over micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineDecode {
    /// All take a step together; the way of llama.cpp.
    Together,
    /// In as many groups as there are stages, one on each stage in turn; the way of vLLM.
    InTurn,
}

impl EngineDecode {
    /// All of them.
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

/// The placements that a rule allows: one, or one for each single device. Memory is not proved, and pins and the number of
/// stages are not looked at.
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
            devices.into_iter().map(|device| vec![Run { device, segments: 0..segments }]).collect()
        }
        Baseline::Greedy => vec![greedy(segments, &devices, fits)],
    }
}

/// Consecutive shares of the segments, each as large as its device's weight; a device whose share is less than half a segment
/// gets none.
fn in_proportion(segments: usize, devices: &[usize], weight: impl Fn(&usize) -> f64) -> Vec<Run> {
    let total: f64 = devices.iter().map(&weight).sum();
    let (mut runs, mut so_far, mut first) = (Vec::new(), 0.0, 0);
    for (at, device) in devices.iter().enumerate() {
        so_far += weight(device);
        let share = (so_far / total * segments as f64).round() as usize;
        let end = if at + 1 == devices.len() { segments } else { share.min(segments) };
        if end > first {
            runs.push(Run { device: *device, segments: first..end });
            first = end;
        }
    }
    runs
}

/// As many segments on each device as fit there; what is left at the end goes to the last.
fn greedy(segments: usize, devices: &[usize], fits: impl Fn(&[Run]) -> bool) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut first = 0;
    for (at, &device) in devices.iter().enumerate() {
        if first == segments {
            break;
        }
        let with = |end: usize| {
            let mut with = runs.clone();
            with.push(Run { device, segments: first..end });
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
