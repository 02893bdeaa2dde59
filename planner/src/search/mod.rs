//! The planner: assigns segments to devices. Pure and deterministic: equal inputs give equal plans.
//!
//! A candidate is a sequence of distinct devices, in any order, with a contiguous run of segments for each. A
//! placement on a single device is also a candidate. `families` adds candidates in which devices have several
//! stages. The planner checks memory before speed. Stages work on different requests at the same time, so the
//! busiest stage limits throughput. The latency of a lone request is the sum of the stage times. `solver`
//! finds the best placement for given micro-batch sizes. `grid` chooses the micro-batch sizes.
//!
//! This module knows nothing about backends, files, the runtime or the simulator.

mod assemble;
mod baselines;
mod check;
mod chunks;
mod context;
mod error;
mod explain;
mod families;
mod from_file;
mod grid;
pub(crate) mod hosts;
mod hybrid;
mod input;
mod memory_fit;
mod placement;
mod pool;
mod problem;
mod reasons;
mod requested;
mod solver;
mod streamed;
#[cfg(test)]
mod tests;
mod trial;
mod workload_times;

use crate::plan::Plan;
pub use baselines::{Baseline, EngineDecode};
pub use context::largest_context;
pub use error::{DoesNotFit, PlanError, Remedy, Shortage};
use grid::{Choice, Grid};
pub use hosts::HostFacts;
pub use input::{Constraints, ModelFacts, Pin, PlanLimits, PlannerInput, Trial, TrialLoad};
use ragtag_graph::execution::Chunks;
use workload_times::Point;

/// Maximum relative loss in decode rate that the planner accepts for two decode groups in place of one, if
/// the only device is in host memory. The threads that form micro-batches and sample share the cores of a
/// CPU. With two groups, the device computes meanwhile. Calibration times single segments, so the prediction
/// leaves this out: on CPUs with two threads, several groups of 64 sequences were measured 12 to 15 % faster
/// than one.
const OVERLAP: f64 = 0.1;

/// Makes a plan.
///
/// # Errors
/// Returns [`PlanError::DoesNotFit`], which lists the missing bytes on each device,
/// [`PlanError::HostMemory`] or [`PlanError::OtherHost`], which give the required and available host memory, or an error that names the
/// invalid input.
pub fn plan(input: &PlannerInput<'_>) -> Result<Plan, PlanError> {
    check::check(input)?;
    let streaming = PlannerInput { from_file: false, ..*input };
    let resident = PlannerInput { streaming: false, ..streaming };
    // Without a prefill stage, or with resident weights, host memory may have room for a slower plan.
    let (has_prefill, has_pinned, error) = match for_devices(&streaming, true) {
        Ok(plan) if plan.fits_hosts() => return Ok(plan),
        Ok(plan) => {
            let memory = plan.host_memory_bytes;
            let error = match plan.other_hosts.into_iter().find(|host| !host.memory_bytes.fits()) {
                Some(host) if memory.fits() => PlanError::OtherHost(Box::new(host)),
                _ => PlanError::HostMemory(Box::new(memory)),
            };
            (plan.prefill_stage.is_some(), memory.weights > 0, error)
        }
        Err(error) => (false, false, error),
    };
    let is_short = matches!(error, PlanError::DoesNotFit(_) | PlanError::HostMemory(_));
    if matches!(error, PlanError::OtherHost(_)) {
        // Plans over several hosts have neither of these.
        return hosts::relieved(&resident, |input| for_devices(input, false).ok()).ok_or(error);
    }
    let attempts: [(bool, &dyn Fn() -> Option<Plan>); 3] = [
        (has_prefill, &|| for_devices(&streaming, false).ok()),
        (has_prefill || has_pinned, &|| for_devices(&resident, true).ok()),
        (is_short && input.from_file, &|| from_file::plan(input)),
    ];
    let open = attempts.into_iter().filter(|(is_open, _)| *is_open && input.may_stream());
    let mut plans = open.filter_map(|(_, plan)| plan());
    plans.find(Plan::fits_hosts).ok_or(error)
}

/// Makes a plan that fits the devices, without checking host memory. The planner adds a prefill stage only if
/// `may_prefill` is set.
fn for_devices(input: &PlannerInput<'_>, may_prefill: bool) -> Result<Plan, PlanError> {
    let grid = Grid::new(input, context::context(input)?);
    let found = match requested::runs(input) {
        Some(requested) => requested::settings(&grid, &requested, may_prefill)?,
        None => placement::search(&grid, may_prefill).ok_or_else(|| context::nothing_fits(&grid))?,
    };
    let (mut found, trials) = trial::choose(&grid, found);
    if let Some(best) = with_two_groups(&grid, &found.best) {
        found.best = best;
    }
    if let Some(best) = from_file::with_pinned_copies(&grid, &found.best) {
        found.best = best;
    }
    Ok(assemble::explained(&grid, &found, trials))
}

/// Returns the choice with two decode groups in place of one, if the only device is in host memory and the
/// loss is at most [`OVERLAP`].
fn with_two_groups(grid: &Grid<'_>, choice: &Choice) -> Option<Choice> {
    let [device] = grid.input.devices else { return None };
    let point = Point { groups: 2, ..choice.point };
    if !device.in_host_memory || choice.point.groups != 1 || !grid.points().any(|other| other == point) {
        return None;
    }
    let rate = |choice: &Choice| choice.evaluation.decode_tokens_per_s;
    grid.priced(point, choice.runs.clone()).filter(|two| rate(two) * (1.0 + OVERLAP) >= rate(choice))
}

/// Makes a plan for comparison. A simple rule chooses its placement. Micro-batch sizes and credits are chosen
/// as in [`plan`], but the plan has no explanation. Returns `None` if the rule's placement does not fit.
///
/// # Errors
/// Returns the same errors as [`plan`], except that a placement that does not fit is not an error.
pub fn baseline(input: &PlannerInput<'_>, rule: Baseline) -> Result<Option<Plan>, PlanError> {
    of_rule(input, rule, |grid, choice| {
        let choice = if input.is_tried() { trial::tuned(grid, choice) } else { choice };
        let chunks = chunks::fixed(grid, &choice);
        Some((choice, Some(chunks)))
    })
}

/// Makes a plan for comparison. A simple rule chooses its placement, and all other settings are the fixed
/// defaults of an inference engine. Prefill chunks have 512 rows, or the next shorter length that fits.
/// `decode` determines the number of decode groups, which is at most one per sequence. The maximum number of
/// micro-batches in flight is the number of stages plus one. Returns `None` if the placement does not fit.
///
/// # Errors
/// Returns the same errors as [`baseline`].
pub fn untuned_baseline(
    input: &PlannerInput<'_>,
    rule: Baseline,
    decode: EngineDecode,
) -> Result<Option<Plan>, PlanError> {
    of_rule(input, rule, |grid, choice| Some((grid.untuned(&choice.runs, decode)?, None)))
}

fn of_rule(
    input: &PlannerInput<'_>,
    rule: Baseline,
    then: impl FnOnce(&Grid<'_>, Choice) -> Option<(Choice, Option<Chunks>)>,
) -> Result<Option<Plan>, PlanError> {
    check::check(input)?;
    let grid = Grid::new(input, context::context(input)?);
    let choice = grid.baseline(rule).and_then(|choice| then(&grid, choice));
    Ok(choice.map(|(choice, chunks)| assemble::filled(&grid, &choice, chunks)))
}
