//! Simulation of a plan under a load of requests. It does not run the model.

use crate::error::{Error, Result};
use crate::model::Model;
use crate::stage::lowering;
use ragtag_planner::plan::Plan;
use ragtag_planner::{DeviceFacts, Links};
use ragtag_scheduler::sim::{self, Load, SimSpec, SimSummary};

/// Simulates a plan under a load of requests. The simulation runs the real scheduler on a virtual clock, and
/// takes the times of devices and links from the cost model. It is deterministic.
///
/// ```
/// use ragtag_engine::simulation::{Arrivals, DrawnLoad, Lengths};
/// use ragtag_engine::{DeviceOptions, Devices, Links, Model, Planner};
///
/// # fn main() -> ragtag_engine::Result<()> {
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
/// let summary = ragtag_engine::simulate(&model, &plan, &devices.facts(), &Links::default(), &load.draw()?)?;
/// assert_eq!(summary.finished, 20);
/// println!("half of the first tokens come within {} µs", summary.first_token_us.p50);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns [`Error::Simulation`] if the plan was made for another model or other devices, or if a figure is
/// invalid.
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

/// Builds the specification that [`simulate`] runs. The caller can change it before running it.
///
/// # Errors
/// Fails like [`simulate`].
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
