//! Starting an engine on devices that hold less than they said: another program took some, a driver keeps some for itself, or
//! what is free lies in pieces. Or on devices of which one does not open at all.
//!
//! What a device refuses is learnt from: everything that was loaded is given back, and the planner makes a plan for what the
//! device really gave, or for the other devices. This module must not know how an engine starts, or what a plan is made of.

use crate::devices::Devices;
use crate::engine::{Engine, EngineOptions};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::planner::Planner;
use ragtag_planner::plan::Plan;
use ragtag_scheduler::RefusedMemory;
use std::collections::HashMap;

/// How often a device may refuse memory. Once it is believed what it says, once it is known what it gave, and once there was no
/// room for what lies beside the buffers; after that something is wrong with it.
const REFUSALS: u32 = 4;

impl Engine {
    /// Starts the plan that `planner` makes. If a device holds less than it said, the planner makes a smaller plan for what it
    /// holds: with more of the model on other devices, or with a smaller chunk, fewer slots, in the end a shorter context, as
    /// far as these were not asked for. A device that does not open is left out. [`Engine::plan`] returns the plan that runs.
    ///
    /// # Errors
    /// As [`Planner::plan`] and [`Engine::start_exact`]; if nothing smaller fits, what a device said to the first plan, with
    /// sizes.
    pub fn start(
        model: &Model,
        devices: &Devices,
        planner: &Planner,
        options: EngineOptions,
    ) -> Result<Self> {
        Self::start_replanning(model, devices, planner, &planner.plan()?, options, |_, _, _| ())
    }

    /// [`Engine::start`] with a plan that `planner` has made. `less` receives the error that a smaller plan follows from, the
    /// planner with what it knows now, and that plan.
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
            let error = match Self::start_told(model, devices, &plan, &options) {
                Ok(engine) => return Ok(engine),
                Err(error) => error,
            };
            let next = match &error {
                Error::Device { device, cause } => {
                    tracing::warn!(device, %cause, "the device does not open");
                    planner = planner.exclude(device);
                    planner.plan().ok()
                }
                Error::Run(cause) if let Some(refused) = cause.refused_memory() => {
                    let count = refusals.entry(refused.device.into()).or_default();
                    *count += 1;
                    tell(&refused);
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

/// Most bytes that the next plan may take of the device: less than this one in any case, so that there is an end to it.
fn most_bytes(refused: &RefusedMemory<'_>, believed: bool, plan: &Plan) -> u64 {
    let stage = plan.stages.iter().find(|stage| stage.device == refused.device);
    let memory = stage.map(|stage| stage.memory_bytes);
    let (total, staging) = memory.map_or((0, 0), |memory| (memory.total, memory.staging));
    // Staging is planned for, but no buffer of the device; not to the byte for one that nobody believes.
    let staging = if believed { staging } else { 0 };
    refused.available_bytes(believed).saturating_add(staging).min(total.saturating_sub(1))
}

fn tell(refused: &RefusedMemory<'_>) {
    let RefusedMemory { device, wanted_bytes, free_bytes, held_bytes, needed_bytes } = *refused;
    tracing::warn!(device, wanted_bytes, free_bytes, held_bytes, needed_bytes, "the device refuses memory");
}
