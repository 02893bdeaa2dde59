//! Starts an engine, and replans if a device has less memory than it reports, cannot be opened, or computes wrong
//! values in its self-test.
//!
//! A device may have less usable memory than it reports because other programs or the driver use part of it,
//! or because it is fragmented. After a failed allocation, Ragtag frees everything that it has loaded, and
//! the planner makes a plan for the memory that is available.

use crate::devices::Devices;
use crate::engine::{Engine, EngineOptions};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::planner::Planner;
use ragtag_planner::plan::{Plan, PlanStage};
use ragtag_scheduler::RefusedMemory;
use std::collections::HashMap;

/// Number of failed allocations on one device after which Ragtag gives up. After the first failure, the next
/// plan uses the free memory that the device then reports, if this value is plausible. After each later
/// failure, the next plan uses slightly less memory than Ragtag had allocated before the failure.
const REFUSALS: u32 = 4;

impl Engine {
    /// Makes a plan with `planner` and starts an engine that runs it. [`Engine::plan`] returns the plan that
    /// the engine finally uses.
    ///
    /// If a device is out of memory, makes a new plan for the available memory. The new plan moves segments
    /// to other devices, uses a smaller chunk or fewer slots, or, as a last resort, has a shorter context. It
    /// keeps a chunk or a context that the caller has set. If a device cannot be opened, or if it fails its
    /// self-test and the selection does not name it, makes a new plan without this device.
    ///
    /// # Errors
    /// Fails like [`Planner::plan`] and [`Engine::start_exact`]. If no smaller plan fits, returns the error
    /// of the first failed start.
    pub fn start(
        model: &Model,
        devices: &Devices,
        planner: &Planner,
        options: EngineOptions,
    ) -> Result<Self> {
        Self::start_replanning(model, devices, planner, &planner.plan()?, options, |_, _, _| ())
    }

    /// Starts an engine like [`Engine::start`], but begins with `plan`, which `planner` has already made.
    /// Whenever it replans, calls `less` with the error, the updated planner and the new plan.
    ///
    /// # Errors
    /// Fails like [`Engine::start`].
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
                Error::Untrusted { device, .. } if !devices.is_named(device) => {
                    tracing::debug!(device, "leaving the device out");
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

/// Returns the memory limit in bytes that the next plan must observe on the device whose allocation failed.
/// The limit is always less than the memory that `plan` uses on this device, so that replanning terminates.
fn most_bytes(refused: &RefusedMemory<'_>, believed: bool, plan: &Plan) -> u64 {
    let memory = plan.all_stages().filter(|stage| stage.device == refused.device);
    let (total, staging) = memory.fold((0u64, 0u64), |(total, staging), PlanStage { memory_bytes, .. }| {
        (total.saturating_add(memory_bytes.total), staging.saturating_add(memory_bytes.staging))
    });
    // Staging is part of the plan's memory but not a buffer of the device. If the reported memory is not
    // trusted, staging is not added, so that the limit is lower.
    let staging = if believed { staging } else { 0 };
    refused.available_bytes(believed).saturating_add(staging).min(total.saturating_sub(1))
}

fn log_refusal(refused: &RefusedMemory<'_>) {
    let RefusedMemory { device, wanted_bytes, free_bytes, held_bytes, needed_bytes } = *refused;
    tracing::warn!(device, wanted_bytes, free_bytes, held_bytes, needed_bytes, "the device is out of memory");
}
