//! Plans that stream weights from the model's file, for models that exceed the memory of the devices and of the
//! host.
//!
//! The search reads all streamed weights from the file. Then it keeps pinned copies of as many segments as host
//! memory has room for, because every step reads the others again.

use super::grid::{Choice, Grid};
use super::problem::Run;
use super::streamed::spread;
use super::{PlannerInput, assemble, chunks, for_devices, hosts};
use crate::cost::RunSizes;
use crate::plan::{HostMemory, Plan};

/// Makes a plan whose streamed weights are read from the model's file. Returns `None` if the model still does not
/// fit. Devices in host memory give up the memory that the host needs for the rest of the pipeline.
pub(super) fn plan(input: &PlannerInput<'_>) -> Option<Plan> {
    let input = PlannerInput { from_file: true, ..*input };
    hosts::relieved(&input, |input| for_devices(input, false).ok())
}

/// Returns the choice with pinned copies of as many streamed segments as host memory has room for. Returns `None`
/// if there is room for none, or if the user chose the segments from the file.
pub(super) fn with_pinned_copies(grid: &Grid<'_>, chosen: &Choice) -> Option<Choice> {
    if !grid.input.from_file || chosen.runs.iter().all(|run| run.from_file.is_empty()) {
        return None;
    }
    let memory = host_memory(grid, chosen);
    let problem = grid.problem(chosen.point);
    let mut spare = memory.available?.checked_sub(memory.total)?;
    let mut runs = chosen.runs.clone();
    for run in runs.iter_mut().filter(|run| !run.from_file.is_empty()) {
        let sizes = &problem.lowered.sizes;
        let most = run.pinned_bytes(sizes).saturating_add(spare);
        *run = least_from_file(run, sizes, most);
        spare = most - run.pinned_bytes(sizes);
    }
    let is_new = runs != chosen.runs;
    let pinned = is_new.then(|| Choice::with_prefill(problem, runs, chosen.prefill.clone()));
    pinned.filter(|pinned| host_memory(grid, pinned).fits())
}

/// Returns the host memory that a choice needs.
fn host_memory(grid: &Grid<'_>, choice: &Choice) -> HostMemory {
    assemble::plan(grid, choice, Some(chunks::by_prompt(grid, choice))).host_memory_bytes
}

/// Returns the run with the fewest segments from the model's file with which its host memory takes at most `most`
/// bytes. Segments that are read only once, and then segments at equal distances, are read from the file. Returns
/// the given run if no such run fits.
fn least_from_file(run: &Run, sizes: &RunSizes, most: u64) -> Run {
    let (copied, once) = run.streamed.split_at(run.copied().len());
    let with = |from_file| Run { from_file, ..run.clone() };
    let reading = (0..=copied.len()).map(|count| with([&spread(copied, count)[..], once].concat()));
    let mut runs = std::iter::once(with(Vec::new())).chain(reading);
    runs.find(|run| run.pinned_bytes(sizes) <= most).unwrap_or_else(|| run.clone())
}
