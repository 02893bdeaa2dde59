//! Families of placements in which devices have several stages. The solver's exact search covers only
//! placements with one stage per device. The planner evaluates placements of these families as additional
//! candidates:
//!
//! - *Interleaved*: the devices take turns, with 2 to [`TURNS`] stages each. Shorter stages fill the pipeline
//!   in less time ([Megatron-LM](https://arxiv.org/abs/2104.04473)).
//! - *Feed-forward apart*: one device has the attention halves of all blocks, and another device has the
//!   feed-forward halves of some or all blocks. This suits a model whose weights fit only on the second device and
//!   whose KV cache fits on the first. Mixtures of experts have most of their weights in these halves, and read few of
//!   them for each token.
//! - *Around pins*: one device has all segments that no pin places.
//!
//! This module does not depend on the solver or the explanation.

use super::PlannerInput;
use super::grid::{Choice, Grid, SearchResult};
use super::problem::Run;
use crate::plan::Family;
use ragtag_graph::Granularity;

/// Maximum number of stages per device in an interleaved placement.
const TURNS: usize = 4;
/// Minimum predicted gain from giving devices several stages, or more of them. The margin covers a delay that
/// the cost model omits: the time until the host learns that an input has arrived and submits its
/// computation.
pub(super) const GAIN: f64 = 0.05;
/// Maximum number of devices for which the planner tries interleaved placements, or placements with the
/// feed-forward halves apart.
const DEVICES: usize = 8;

/// Number of shares of the blocks whose feed-forward halves the planner tries to place apart.
const SHARES: usize = 8;

/// Adds the best placement of these families to the result. It becomes the best result if its predicted gain
/// exceeds [`GAIN`].
pub(super) fn add(grid: &Grid<'_>, found: &mut SearchResult) {
    let turns = found.all().flat_map(|choice| interleaved(&choice.runs)).collect();
    let Some(choice) = best(grid, turns) else { return };
    if gains(&choice, &found.best) {
        let exact = std::mem::replace(&mut found.best, choice);
        found.others.insert(0, exact);
    } else {
        found.others.push(choice);
    }
}

/// Returns whether the gain of a choice from giving devices several stages exceeds [`GAIN`].
pub(super) fn gains(choice: &Choice, than: &Choice) -> bool {
    choice.expected_us() < than.expected_us() * (1.0 - GAIN)
}

/// Returns the best placement of these families, for an input in which no placement with one stage per device fits.
pub(super) fn alone(grid: &Grid<'_>) -> Option<SearchResult> {
    best(grid, Vec::new()).map(|choice| SearchResult::with_best(choice, Vec::new(), None))
}

/// Returns the best of `placements` and of those that do not depend on other placements.
fn best(grid: &Grid<'_>, mut placements: Vec<Vec<Run>>) -> Option<Choice> {
    placements.retain(|runs| grid.input.allows(runs));
    placements.extend(independent(grid.input));
    grid.cheapest(&placements.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Returns the placements of these families that do not depend on other placements, as far as the constraints allow.
pub(super) fn independent(input: &PlannerInput<'_>) -> Vec<Vec<Run>> {
    let mut placements = feed_forward_apart(input);
    placements.extend(around_pins(input));
    placements.retain(|runs| input.allows(runs));
    placements
}

/// Returns placements in which one device has all segments without a pin.
fn around_pins(input: &PlannerInput<'_>) -> Vec<Vec<Run>> {
    let pins = &input.constraints.pins;
    let of_label = |label: &String| input.devices.iter().position(|device| device.label == *label);
    let around = |device: usize| {
        let mut placed = vec![device; input.segments.len()];
        for pin in pins {
            *placed.get_mut(pin.segment as usize)? = of_label(&pin.device)?;
        }
        Some(runs_of(&placed))
    };
    let devices = if pins.is_empty() { 0 } else { input.devices.len() };
    (0..devices).filter_map(around).collect()
}

/// Returns the runs of a placement, given the device of each segment.
fn runs_of(placed: &[usize]) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut first = 0;
    for run in placed.chunk_by(|a, b| a == b) {
        runs.push(Run::new(run[0], first..first + run.len()));
        first += run.len();
    }
    runs
}

/// Returns the family of a placement.
pub(super) fn family(runs: &[Run], granularity: Granularity) -> Family {
    let turn =
        runs.iter().skip(1).position(|run| run.device == runs[0].device).map_or(runs.len(), |at| at + 1);
    let takes_turns = runs.iter().zip(&runs[turn..]).all(|(run, next)| run.device == next.device);
    let is_once = |run: &Run| runs.iter().filter(|other| other.device == run.device).count() == 1;
    if runs.iter().all(is_once) {
        Family::OneStage
    } else if granularity == Granularity::HalfBlock && is_apart(runs) {
        Family::FeedForwardApart
    } else if takes_turns
        && turn < runs.len()
        && runs.len().is_multiple_of(turn)
        && runs.len() / turn <= TURNS
    {
        Family::Interleaved
    } else {
        Family::SeveralStages
    }
}

/// Returns whether one device has nothing but feed-forward halves, one in each stage, and another device has the rest.
fn is_apart(runs: &[Run]) -> bool {
    // Segment 0 is the embedding, and 2 the first feed-forward half.
    let is_half = |run: &Run| run.segments.len() == 1 && run.segments.start.is_multiple_of(2);
    runs.len() > 2
        && runs.iter().step_by(2).all(|run| run.device == runs[0].device)
        && runs.iter().skip(1).step_by(2).all(|run| run.device == runs[1].device && is_half(run))
}

/// Returns interleaved variants of a placement, in which its devices take turns. Each device keeps its number
/// of segments.
pub(super) fn interleaved(runs: &[Run]) -> Vec<Vec<Run>> {
    if !(2..=DEVICES).contains(&runs.len()) {
        return Vec::new();
    }
    let shortest = runs.iter().map(|run| run.segments.len()).fold(TURNS, usize::min);
    (2..=shortest).map(|turns| in_turns(runs, turns)).collect()
}

fn in_turns(runs: &[Run], turns: usize) -> Vec<Run> {
    let (mut first, mut placed) = (0, Vec::new());
    for turn in 0..turns {
        for run in runs {
            let cut = |turn: usize| run.segments.len() * turn / turns;
            let end = first + cut(turn + 1) - cut(turn);
            placed.push(Run::new(run.device, first..end));
            first = end;
        }
    }
    placed
}

/// Returns placements in which one device has the attention halves, the embedding and the head, and another
/// device has the feed-forward halves of the last blocks: of all, or of a share of them.
fn feed_forward_apart(input: &PlannerInput<'_>) -> Vec<Vec<Run>> {
    let segments = input.segments.len();
    let devices = input.devices.len();
    if Granularity::of(input.segments) != Granularity::HalfBlock || segments < 6 || devices > DEVICES {
        return Vec::new();
    }
    let pairs = (0..devices).flat_map(|a| (0..devices).map(move |b| (a, b))).filter(|(a, b)| a != b);
    // Segment 0 is the embedding, 1 the first attention half, and the last is the head.
    let blocks = (segments - 2) / 2;
    let place = |(attention, feed_forward): (usize, usize), share: usize| {
        let mut placed = vec![attention; segments];
        let apart = blocks - (blocks * share).div_ceil(SHARES)..blocks;
        apart.for_each(|block| placed[2 * block + 2] = feed_forward);
        runs_of(&placed)
    };
    let all = pairs.flat_map(|pair| (1..=SHARES).map(move |share| (pair, share)));
    let mut placements: Vec<Vec<Run>> = all.map(|(pair, share)| place(pair, share)).collect();
    placements.dedup();
    placements
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(parts: &[(usize, usize)]) -> Vec<Run> {
        let mut first = 0;
        let mut run = |&(device, length): &(usize, usize)| {
            let segments = first..first + length;
            first += length;
            Run::new(device, segments)
        };
        parts.iter().map(&mut run).collect()
    }

    #[test]
    fn devices_take_turns_with_their_own_shares() {
        let placements = interleaved(&runs(&[(1, 5), (0, 3)]));
        assert_eq!(placements[0], runs(&[(1, 2), (0, 1), (1, 3), (0, 2)]));
        assert_eq!(placements[1], runs(&[(1, 1), (0, 1), (1, 2), (0, 1), (1, 2), (0, 1)]));
        assert_eq!(placements.len(), 2, "no turn is empty");
        assert!(interleaved(&runs(&[(0, 9)])).is_empty());
    }

    #[test]
    fn a_placement_names_its_family() {
        let family = |parts: &[(usize, usize)]| family(&runs(parts), Granularity::Block);
        assert_eq!(family(&[(0, 4)]), Family::OneStage);
        assert_eq!(family(&[(2, 4), (0, 4), (1, 1)]), Family::OneStage);
        assert_eq!(family(&[(0, 4), (1, 4), (0, 1), (1, 1)]), Family::Interleaved);
        assert_eq!(family(&[(0, 4), (1, 4), (0, 1)]), Family::SeveralStages);
        assert_eq!(family(&[(0, 1), (1, 1), (2, 1), (1, 1)]), Family::SeveralStages);
        let halves = runs(&[(0, 2), (1, 1), (0, 1), (1, 1), (0, 1)]);
        assert_eq!(super::family(&halves, Granularity::HalfBlock), Family::FeedForwardApart);
        let some = runs(&[(0, 4), (1, 1), (0, 1), (1, 1), (0, 2)]);
        assert_eq!(super::family(&some, Granularity::HalfBlock), Family::FeedForwardApart);
        let attention = runs(&[(0, 3), (1, 1), (0, 1), (1, 1), (0, 2)]);
        assert_eq!(super::family(&attention, Granularity::HalfBlock), Family::SeveralStages);
        assert_eq!(super::family(&halves, Granularity::Block), Family::SeveralStages);
    }
}
