//! Plans simulated: what a load of requests would get of a pipeline, without running it.

use crate::engine::lowering;
use crate::error::{Error, Result};
use crate::model::Model;
use ragtag_planner::plan::Plan;
use ragtag_planner::{DeviceFacts, Links};
use ragtag_scheduler::sim::{self, Load, SimSpec, SimSummary};

/// Simulates a plan under a load: the scheduler's own code decides what happens, on a virtual clock, and devices and
/// links take the time that the cost model says. The same input gives the same result.
///
/// ```
/// use ragtag::simulation::{Arrivals, DrawnLoad, Lengths};
/// use ragtag::{DeviceOptions, Devices, Links, Model, Planner};
///
/// # fn main() -> ragtag::Result<()> {
/// let model = Model::bundled()?;
/// let mut options = DeviceOptions::default();
/// options.cpu_devices = 2;
/// let devices = Devices::probe(&options)?;
/// let plan = Planner::new(&model).devices(&devices).sequences(4).plan()?;
/// let load = DrawnLoad {
///     requests: 20,
///     arrivals: Arrivals::Poisson { per_s: 2.0 },
///     prompt_tokens: Lengths::Uniform { least: 16, most: 64 },
///     new_tokens: Lengths::Geometric { mean: 32.0 },
///     seed: 1,
/// };
/// let summary = ragtag::simulate(&model, &plan, &devices.facts(), &Links::default(), &load.draw()?)?;
/// assert_eq!(summary.finished, 20);
/// println!("half of the first tokens come within {} µs", summary.first_token_us.p50);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Simulation`] if the plan is not one for this model and these devices, or a figure makes no sense.
pub fn simulate(
    model: &Model,
    plan: &Plan,
    devices: &[DeviceFacts],
    links: &Links,
    load: &Load,
) -> Result<SimSummary> {
    let spec = simulation_spec(model, plan, devices, links, load)?;
    let report = sim::simulate(&spec)?;
    Ok(SimSummary::new(&spec, report))
}

/// What [`simulate`] simulates, to be changed before it is.
///
/// # Errors
/// As [`simulate`].
pub fn simulation_spec(
    model: &Model,
    plan: &Plan,
    devices: &[DeviceFacts],
    links: &Links,
    load: &Load,
) -> Result<SimSpec> {
    let segments = model
        .graph()
        .with_granularity(plan.model.granularity)
        .segments(&lowering(plan, false))
        .map_err(|cause| Error::Model { name: model.name().into(), cause })?;
    let facts = crate::planner::model_facts(model)?;
    Ok(SimSpec::of_plan(plan, &facts, &segments, devices, links, load)?)
}
