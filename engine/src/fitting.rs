//! Starts an engine, and replans if a device has less memory than it reports, cannot be opened, or computes wrong
//! values in its self-test. Recoveries replan in the same way.
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
use ragtag_scheduler::{Error as RunError, RefusedMemory};
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
        let (mut fitting, options) = (Fitting::starting(planner.clone(), plan.clone()), options.into());
        loop {
            let planner = || fitting.planner.clone();
            let error = match Self::start_with(model, devices, &fitting.plan, &options, planner) {
                Ok(engine) => return Ok(engine),
                Err(error) => error,
            };
            fitting.next(devices, error)?;
            less(fitting.latest(), &fitting.planner, &fitting.plan);
        }
    }
}

/// Plans that replace each other until one can be started.
pub(crate) struct Fitting {
    planner: Planner,
    pub(crate) plan: Plan,
    /// Whether the engine has run before. Then no choice of the user prevents a plan.
    recovers: bool,
    /// Number of failed allocations on each device.
    refusals: HashMap<String, u32>,
    /// The errors so far.
    errors: Vec<Error>,
}

impl Fitting {
    fn starting(planner: Planner, plan: Plan) -> Self {
        Self { planner, plan, recovers: false, refusals: HashMap::new(), errors: Vec::new() }
    }

    /// Begins with a plan for an engine that recovers.
    pub(crate) fn recovering(planner: Planner, plan: Plan) -> Self {
        Self { recovers: true, ..Self::starting(planner, plan) }
    }

    pub(crate) fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Returns the error of the last failed start. There must be one.
    fn latest(&self) -> &Error {
        &self.errors[self.errors.len() - 1]
    }

    /// Replaces the plan after a failed start with this error.
    ///
    /// # Errors
    /// Returns the first error if there is no other plan, or this error if no other plan helps.
    pub(crate) fn next(&mut self, devices: &Devices, error: Error) -> Result<()> {
        let next = match &error {
            Error::Device { device, cause } => {
                tracing::warn!(device, %cause, "cannot open the device");
                self.without(&device.clone())
            }
            Error::Untrusted { device, .. } if self.recovers || !devices.is_named(device) => {
                tracing::debug!(device, "leaving the device out");
                self.without(&device.clone())
            }
            Error::Run(cause) if let Some(refused) = cause.refused_memory() => self.smaller(&refused),
            Error::Run(RunError::Stage { device, .. } | RunError::Device { device, .. }) if self.recovers => {
                self.without(&device.clone())
            }
            _ => return Err(error),
        };
        self.errors.push(error);
        self.plan = next.ok_or_else(|| self.errors.swap_remove(0))?;
        Ok(())
    }

    /// Excludes a device, and returns a plan without it.
    fn without(&mut self, device: &str) -> Option<Plan> {
        let planner = self.planner.clone();
        if !self.recovers {
            self.planner = planner.exclude(device);
            return self.planner.plan().ok();
        }
        let (planner, plan) = planner.avoiding(&[device.to_owned()]).near(&self.plan).ok()?;
        self.planner = planner;
        Some(plan)
    }

    /// Limits the memory of the device whose allocation has failed, and returns a plan for it.
    fn smaller(&mut self, refused: &RefusedMemory<'_>) -> Option<Plan> {
        let count = self.refusals.entry(refused.device.into()).or_default();
        *count += 1;
        log_refusal(refused);
        let (believed, is_last) = (*count == 1 && refused.is_plausible(), *count >= REFUSALS);
        let most = most_bytes(refused, believed, &self.plan);
        self.planner = self.planner.clone().holding_at_most(refused.device, most);
        if is_last { None } else { self.planner.smaller_than(&self.plan).ok() }
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
