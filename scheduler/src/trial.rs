//! Simulates plans for the planner. This module does not depend on the search.

use crate::sim::{Arrivals, DrawnLoad, Lengths, SimSpec, SimSummary, simulate};
use ragtag_graph::Segment;
use ragtag_planner::{Plan, PlannerInput, TrialLoad};

/// Simulates a plan and returns the number of requests that it serves per second. Returns `None` if the plan
/// cannot be simulated. Used as [`PlannerInput::trial`].
pub fn trial(input: &PlannerInput<'_>, plan: &Plan, segments: &[Segment], load: &TrialLoad) -> Option<f64> {
    let load = DrawnLoad {
        requests: load.requests,
        arrivals: Arrivals::Closed { at_once: load.at_once },
        prompt_tokens: Lengths::Fixed(load.prompt_tokens),
        new_tokens: Lengths::Fixed(load.new_tokens),
        seed: 1,
    };
    let load = load.draw().ok()?;
    let spec = SimSpec::of_plan(plan, input.model, segments, input.devices, input.links, &load).ok()?;
    // Spans are not needed.
    let spec = SimSpec { max_spans: 0, ..spec };
    let report = simulate(&spec).ok()?;
    Some(SimSummary::new(&spec, report).requests_per_s)
}
