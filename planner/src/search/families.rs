//! Families of placements in which devices have several stages. The solver's exact search covers only
//! placements with one stage per device. The planner evaluates placements of these families as additional
//! candidates:
//!
//! - *Interleaved*: the devices take turns, with 2 to [`TURNS`] stages each. Shorter stages fill the pipeline
//!   in less time ([Megatron-LM](https://arxiv.org/abs/2104.04473)).
//! - *Feed-forward apart*: one device has the attention halves of all blocks, and another device has the
//!   feed-forward halves. This suits a model whose weights fit only on the second device and whose KV cache
//!   fits on the first.
//!
//! This module does not depend on the solver or the explanation.

use super::PlannerInput;
use super::grid::{Grid, SearchResult};
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

/// Adds the best placement of these families to the result. It becomes the best result if its predicted gain
/// exceeds [`GAIN`].
pub(super) fn add(grid: &Grid<'_>, found: &mut SearchResult) {
    let input = grid.input;
    let mut placements = feed_forward_apart(input);
    placements.extend(found.all().flat_map(|choice| interleaved(&choice.runs)));
    placements.retain(|runs| input.allows(runs));
    let Some(choice) = grid.cheapest(&placements.iter().map(Vec::as_slice).collect::<Vec<_>>()) else {
        return;
    };
    if choice.expected_us() < found.best.expected_us() * (1.0 - GAIN) {
        let exact = std::mem::replace(&mut found.best, choice);
        found.others.insert(0, exact);
    } else {
        found.others.push(choice);
    }
}

/// Returns the family of a placement.
pub(super) fn family(runs: &[Run], granularity: Granularity) -> Family {
    let turn =
        runs.iter().skip(1).position(|run| run.device == runs[0].device).map_or(runs.len(), |at| at + 1);
    let takes_turns = runs.iter().zip(&runs[turn..]).all(|(run, next)| run.device == next.device);
    let is_once = |run: &Run| runs.iter().filter(|other| other.device == run.device).count() == 1;
    if runs.iter().all(is_once) {
        Family::OneStage
    } else if granularity == Granularity::HalfBlock && turn == 2 && takes_turns && is_one_half_each(runs) {
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

/// Returns whether all stages except the first and the last have exactly one segment.
fn is_one_half_each(runs: &[Run]) -> bool {
    runs.len() > 2 && runs[1..runs.len() - 1].iter().all(|run| run.segments.len() == 1)
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
/// device has the feed-forward halves.
fn feed_forward_apart(input: &PlannerInput<'_>) -> Vec<Vec<Run>> {
    let segments = input.segments.len();
    let devices = input.devices.len();
    if Granularity::of(input.segments) != Granularity::HalfBlock || segments < 6 || devices > DEVICES {
        return Vec::new();
    }
    let pairs = (0..devices).flat_map(|a| (0..devices).map(move |b| (a, b))).filter(|(a, b)| a != b);
    // Segment 0 is the embedding, 1 the first attention half, and the last is the head.
    let place = |(attention, feed_forward): (usize, usize)| {
        let mut runs = vec![Run::new(attention, 0..2)];
        for first in (2..segments - 1).step_by(2) {
            runs.push(Run::new(feed_forward, first..first + 1));
            runs.push(Run::new(attention, first + 1..first + 2));
        }
        runs
    };
    pairs.map(place).collect()
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
        assert_eq!(super::family(&halves, Granularity::Block), Family::SeveralStages);
    }
}
