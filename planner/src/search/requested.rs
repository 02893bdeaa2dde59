//! Placements that the user requests as a split.

use super::context::no_fit;
use super::grid::{Grid, Prefill, SearchResult};
use super::problem::Run;
use super::{PlanError, PlannerInput, hybrid, streamed};
use crate::split::{Split, SplitPart, SplitPrefill};

/// The stages of the user's split, and its prefill stage.
pub(super) type Requested = (Vec<Run>, Option<Prefill>);

/// Converts the user's split. `None` if the user requested none. The split must have passed the checks.
pub(super) fn runs(input: &PlannerInput<'_>) -> Option<Requested> {
    let Split { parts, prefill } = input.split?;
    let run = |label: &str, segments, streamed: &[u32], arenas: Option<u32>| {
        let device = input.devices.iter().position(|device| device.label == label);
        let device = device.unwrap_or_else(|| panic!("the checks know every device, but not {label}"));
        Run::new(device, segments).streaming(indices(streamed), arenas.map_or(0, |count| count as usize))
    };
    let part = |part: &SplitPart| {
        let streamed = part.streamed.as_deref().unwrap_or_default();
        let run = run(&part.device, part.span.range(), streamed, part.arenas);
        Run { from_file: indices(&part.from_file), ..run }
    };
    let prefill = prefill.as_ref().map(|SplitPrefill { device, streamed, arenas, from_tokens }| {
        let run = run(device, 0..input.segments.len(), streamed, *arenas);
        Prefill { run, from_tokens: *from_tokens }
    });
    Some((parts.iter().map(part).collect(), prefill))
}

fn indices(segments: &[u32]) -> Vec<usize> {
    segments.iter().map(|&segment| segment as usize).collect()
}

/// Returns the best settings for the placement of the user's split. Adds a prefill stage only if `may_prefill`
/// is set.
pub(super) fn settings(
    grid: &Grid<'_>,
    (runs, prefill): &Requested,
    may_prefill: bool,
) -> Result<SearchResult, PlanError> {
    let may_stream = grid.input.may_stream();
    let best = match grid.start().prove_with(runs, prefill.as_ref().map(|prefill| &prefill.run)) {
        Ok(()) => {
            let best = match prefill {
                Some(prefill) => hybrid::given(grid, runs, prefill),
                None => grid.cheapest(&[runs]),
            };
            let best = best.expect("the placement fits at some point");
            let hybrid = (may_stream && may_prefill).then(|| hybrid::beside(grid, runs)).flatten();
            hybrid.filter(|hybrid| hybrid.is_faster_than(&best)).unwrap_or(best)
        }
        Err(shortages) => {
            let streamed = may_stream.then(|| streamed::best(grid, &[runs])).flatten();
            streamed.ok_or_else(|| no_fit(grid, shortages))?.best
        }
    };
    // Other choices would be the same placement with other chunks or groups.
    Ok(SearchResult { bound_us: None, best, others: Vec::new(), elsewhere: Vec::new() })
}
