//! Starts an engine and replans if a device has less memory than reported, or cannot be opened.
//!
//! Reported memory can be too high because other programs or the driver use some, or because of
//! fragmentation. After a failed allocation, everything loaded is freed and the planner makes a plan for the
//! memory that the device provided. Knows nothing about how an engine starts or how a plan is built.

use crate::devices::Devices;
use crate::engine::{Engine, EngineOptions};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::planner::Planner;
use ragtag_planner::plan::Plan;
use ragtag_scheduler::RefusedMemory;
use std::collections::HashMap;

/// Number of failed allocations at which Ragtag gives up on a device. The first leads to a plan for the free
/// memory that the device reports, the second for what it provided, the third for less, because of
/// allocations besides the buffers.
const REFUSALS: u32 = 4;

impl Engine {
    /// Starts the plan that `planner` makes. If a device runs out of memory, replans for the memory that it
    /// has: with more of the model on other devices, a smaller chunk, fewer slots or, last, a shorter
    /// context. Settings made explicitly do not change. A device that cannot be opened is left out.
    /// [`Engine::plan`] returns the plan that runs.
    ///
    /// # Errors
    /// As [`Planner::plan`] and [`Engine::start_exact`]. If no smaller plan fits, the first device error,
    /// with sizes.
    pub fn start(
        model: &Model,
        devices: &Devices,
        planner: &Planner,
        options: EngineOptions,
    ) -> Result<Self> {
        Self::start_replanning(model, devices, planner, &planner.plan()?, options, |_, _, _| ())
    }

    /// As [`Engine::start`], with a plan that `planner` has already made. For each smaller plan, `less`
    /// receives the error, the updated planner and the new plan.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_replanning(
        model: &Model,
        devices: &Devices,
        planner: &Planner,
        plan: &Plan,
        options: EngineOptions,
        mut less: impl FnMut(&Error, &Planner, &Plan),
    ) -> Result<Self> {
        let (mut planner, mut plan, options) = (planner.clone(), plan.clone(), options.into());
        let mut refusals: HashMap<String, u32> = HashMap::new();
        let mut first: Option<Error> = None;
        loop {
            let error = match Self::start_with(model, devices, &plan, &options) {
                Ok(engine) => return Ok(engine),
                Err(error) => error,
            };
            let next = match &error {
                Error::Device { device, cause } => {
                    tracing::warn!(device, %cause, "cannot open the device");
                    planner = planner.exclude(device);
                    planner.plan().ok()
                }
                Error::Run(cause) if let Some(refused) = cause.refused_memory() => {
                    let count = refusals.entry(refused.device.into()).or_default();
                    *count += 1;
                    log_refusal(&refused);
                    let believed = *count == 1 && refused.is_plausible();
                    planner = planner.holding_at_most(refused.device, most_bytes(&refused, believed, &plan));
                    if *count < REFUSALS { planner.smaller_than(&plan).ok() } else { None }
                }
                _ => return Err(error),
            };
            let Some(next) = next else { return Err(first.unwrap_or(error)) };
            less(&error, &planner, &next);
            plan = next;
            first.get_or_insert(error);
        }
    }
}

/// Memory limit of the device for the next plan. Always less than this plan's, so that replanning ends.
fn most_bytes(refused: &RefusedMemory<'_>, believed: bool, plan: &Plan) -> u64 {
    let stage = plan.stages.iter().find(|stage| stage.device == refused.device);
    let memory = stage.map(|stage| stage.memory_bytes);
    let (total, staging) = memory.map_or((0, 0), |memory| (memory.total, memory.staging));
    // Staging is part of the plan but not a device buffer. Not added if the report is not trusted.
    let staging = if believed { staging } else { 0 };
    refused.available_bytes(believed).saturating_add(staging).min(total.saturating_sub(1))
}

fn log_refusal(refused: &RefusedMemory<'_>) {
    let RefusedMemory { device, wanted_bytes, free_bytes, held_bytes, needed_bytes } = *refused;
    tracing::warn!(device, wanted_bytes, free_bytes, held_bytes, needed_bytes, "the device is out of memory");
}
