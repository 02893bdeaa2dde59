//! The search over all families of placements.

use super::grid::{Grid, SearchResult};
use super::{families, hybrid, streamed};

/// Searches all placements. Considers streamed weights only if the model does not fit the devices with memory
/// of their own, and a prefill stage only if `may_prefill` is set. Returns `None` if no placement fits.
pub(super) fn search(grid: &Grid<'_>, may_prefill: bool) -> Option<SearchResult> {
    let may_stream = grid.input.may_stream();
    let Some(found) = resident(grid) else { return may_stream.then(|| streamed::search(grid)).flatten() };
    if !may_stream || !streamed::is_short_of_memory(grid, &found) {
        return Some(found);
    }
    let hybrid = may_prefill.then(|| hybrid::search(grid)).flatten();
    let found = streamed::instead_of(grid, &found).unwrap_or(found);
    match hybrid.filter(|hybrid| hybrid.is_faster_than(&found.best)) {
        Some(hybrid) => {
            let others = found.all().cloned().collect();
            Some(SearchResult::with_best(hybrid, others, None))
        }
        None => Some(found),
    }
}

/// Searches the placements whose weights all stay in their devices.
fn resident(grid: &Grid<'_>) -> Option<SearchResult> {
    let several_stages = grid.input.several_stages;
    match grid.search() {
        Some(mut found) => {
            if several_stages {
                families::add(grid, &mut found);
            }
            Some(found)
        }
        None => several_stages.then(|| families::alone(grid)).flatten(),
    }
}
