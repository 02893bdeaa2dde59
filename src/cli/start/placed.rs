//! Makes the plan of a command and starts its engine.

use super::wanted::{AUTO, Needs, Wanted};
use super::{devices, speeds};
use crate::cli::advice::worded;
use crate::cli::args::{DeviceArgs, FleetArgs, PlacementArgs};
use crate::cli::error::{Error, Result};
use crate::cli::files::{cannot_read, input_name};
use crate::cli::output::{inform, note};
use crate::cli::plan_table::summary;
use crate::cli::strict;
use crate::files::{MAX_JSON_BYTES, read_text};
use crate::{CheckedBlock, Devices, Engine, EngineOptions, Model, Planner, RecoveryNews};
use ragtag_planner::plan::Plan;
use ragtag_planner::{Fleet, Workload};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread::Builder;

/// Devices, planner and plan of a command.
pub(crate) struct Placed {
    pub(crate) devices: Devices,
    pub(crate) planner: Planner,
    pub(crate) plan: Plan,
    /// File from which the plan was read, if any.
    pub(crate) file: Option<PathBuf>,
    device_args: DeviceArgs,
    placement: PlacementArgs,
    needs: Needs,
}

impl Placed {
    /// Starts an engine with the plan. If a device is out of memory, cannot be opened or fails its self-test,
    /// replaces the plan and prints the new one to standard error. With `--strict` or a plan from a file, returns an error
    /// instead.
    ///
    /// If the GPUs of the selection `auto` fail their self-tests, uses the CPU, as if there were no GPU.
    pub(crate) fn start(&mut self, model: &Model, options: EngineOptions) -> Result<Engine> {
        let (trace, all_logits) = (options.trace, options.all_logits);
        let (verify_transfers, timeouts) =
            (options.verify_transfers, (options.stall_timeout, options.compute_timeout));
        let (limits, max_recoveries) = (options.limits, options.max_recoveries);
        let log_events = options.log_events.clone();
        let error = match self.start_here(model, options) {
            Err(error @ Error::Library(crate::Error::Untrusted { .. }))
                if self.devices.choice().requested == AUTO =>
            {
                error
            }
            other => return other,
        };
        note(&format!("warning: {error}\nusing the CPU"));
        let device_args = DeviceArgs { device: Some("cpu".into()), ..self.device_args.clone() };
        *self = placed(model, &device_args, &self.placement, self.needs)?;
        inform(&summary(&self.plan));
        let mut options = EngineOptions::default();
        (options.trace, options.all_logits) = (trace, all_logits);
        options.verify_transfers = verify_transfers;
        (options.stall_timeout, options.compute_timeout) = timeouts;
        (options.limits, options.max_recoveries) = (limits, max_recoveries);
        options.log_events = log_events;
        self.start_here(model, options)
    }

    /// Starts an engine on the selected devices.
    fn start_here(&mut self, model: &Model, mut options: EngineOptions) -> Result<Engine> {
        options.no_self_test = self.placement.no_self_test;
        let is_strict = self.device_args.strict;
        options.max_recoveries = if is_strict { 0 } else { options.max_recoveries };
        options.on_recovery = Some(Box::new(|news| note(&of_recovery(news))));
        let Self { devices, planner, plan, file, .. } = self;
        if let Some(path) = file {
            return Engine::start_exact(model, devices, plan, options).map_err(|error| match error {
                error if is_strict => strict::refused(error.into()),
                crate::Error::Run(cause) if cause.refused_memory().is_some() => {
                    Error::PlanMemory { path: path.clone(), cause: Box::new(cause) }
                }
                other => other.into(),
            });
        }
        if is_strict {
            let started = Engine::start_exact(model, devices, plan, options);
            return started.map_err(|error| strict::refused(error.into()));
        }
        let mut known = planner.clone();
        let engine =
            Engine::start_replanning(model, devices, planner, plan, options, |error, bounded, next| {
                let what = match error {
                    crate::Error::Device { device, .. } => format!("trying without {device}"),
                    crate::Error::Untrusted { device, .. } => {
                        note(&format!("warning: {}", worded(error)));
                        format!("trying without {device}")
                    }
                    _ => "trying a smaller plan".into(),
                };
                note(&format!("{what}: {}", summary(next)));
                known = bounded.clone();
            })?;
        (*planner, *plan) = (known, Plan::clone(&engine.plan()));
        Ok(engine)
    }

    /// Compares the first block of each stage with the CPU, and prints the errors to standard error.
    pub(crate) fn check_blocks(&self, model: &Model, engine: &Engine) -> Result<()> {
        for block in crate::check_first_blocks(model, &self.devices, &engine.plan())? {
            let CheckedBlock { stage, device, segment, keys_to, error, bound } = block;
            let keys = keys_to.map_or_else(String::new, |to| format!(" with keys and values for {to}"));
            inform(&format!(
                "canary: stage {stage} on {device}: segment {segment}{keys} differs from the CPU's by \
                 {error:.1e} (at most {bound:.0e})"
            ));
        }
        Ok(())
    }
}

/// Describes news about a recovery.
fn of_recovery(news: &RecoveryNews) -> String {
    match news {
        RecoveryNews::Lost { error, .. } => format!("warning: {error}; planning for the other devices"),
        RecoveryNews::Recovered { plan, after, changes, .. } => {
            let changes: String = changes.iter().map(|change| format!("; {change}")).collect();
            format!("recovered after {:.1} s: {}{changes}", after.as_secs_f64(), summary(plan))
        }
        RecoveryNews::Changed { plan, after, changes, .. } => {
            let changes: String = changes.iter().map(|change| format!("; {change}")).collect();
            format!("changed the devices within {:.1} s: {}{changes}", after.as_secs_f64(), summary(plan))
        }
        RecoveryNews::Suspended => "suspended; the devices are free, and requests wait".into(),
        RecoveryNews::GivenUp { reason, .. } => format!("warning: cannot recover: {reason}"),
        _ => String::new(),
    }
}

/// Selects devices and makes a plan for them that meets the arguments and `needs`.
pub(crate) fn placed(
    model: &Model,
    device_args: &DeviceArgs,
    placement: &PlacementArgs,
    needs: Needs,
) -> Result<Placed> {
    placed_while(model, device_args, placement, needs, || Ok(needs.workload))
}

/// Places the model like [`placed`], for the workload that `prepare` returns. Runs `prepare` while the drivers of
/// the devices start.
pub(crate) fn placed_while(
    model: &Model,
    device_args: &DeviceArgs,
    placement: &PlacementArgs,
    needs: Needs,
    prepare: impl FnOnce() -> Result<Workload>,
) -> Result<Placed> {
    let (mut wanted, options) = (Wanted::read(placement, needs)?, devices::options(device_args));
    let (workload, probed) = std::thread::scope(|scope| {
        let probe = || devices::probe(model, &options, &wanted);
        let probing = Builder::new().spawn_scoped(scope, probe);
        let workload = prepare();
        // Without memory for a thread, this thread probes.
        (
            workload,
            probing.map_or_else(|_| probe(), |it| it.join().unwrap_or_else(|panic| resume_unwind(panic))),
        )
    });
    wanted.needs.workload = workload?;
    let devices = devices::helped(probed?, model, &options, &wanted, device_args.strict)?;
    #[cfg(feature = "remote")]
    let devices = devices::joined(devices, model, &wanted)?;
    let planner = on_devices(model, &devices, &wanted, device_args.strict)?;
    let plan = planner.plan()?;
    let file = placement.plan.as_deref().map(|path| input_name(path).into());
    let (device_args, placement) = (device_args.clone(), placement.clone());
    Ok(Placed { devices, planner, plan, file, device_args, placement, needs })
}

/// Creates a planner for a fleet, or for the devices of this machine if there is none. Returns the planner and the
/// devices of this machine.
pub(crate) fn for_fleet_or_devices(
    model: &Model,
    fleet: Option<&Fleet>,
    devices: &DeviceArgs,
    placement: &PlacementArgs,
    needs: Needs,
) -> Result<(Planner, Option<Devices>)> {
    let wanted = Wanted::read(placement, needs)?;
    match fleet {
        // This is not declared as a conflict in clap, because clap would also reject RAGTAG_STRICT=0.
        Some(_) if devices.strict => Err(Error::Usage(
            "--fleet cannot be used with --strict (or RAGTAG_STRICT): its devices are not checked".into(),
        )),
        Some(fleet) => {
            let planner = Planner::new(model).fleet(fleet)?;
            wanted.check(&planner, model)?;
            Ok((wanted.over(planner, model), None))
        }
        None => {
            let (options, is_strict) = (devices::options(devices), devices.strict);
            let found = devices::probe(model, &options, &wanted)?;
            let found = devices::helped(found, model, &options, &wanted, is_strict)?;
            #[cfg(feature = "remote")]
            let found = devices::joined(found, model, &wanted)?;
            Ok((on_devices(model, &found, &wanted, is_strict)?, Some(found)))
        }
    }
}

/// Creates a planner for the selected devices with their measured speeds, and with the requested placement. Returns an
/// error if a plan file may take a route that must not be used.
fn on_devices(model: &Model, devices: &Devices, wanted: &Wanted<'_>, is_strict: bool) -> Result<Planner> {
    let planner = Planner::new(model).devices(devices);
    wanted.check(&planner, model)?;
    let planner = speeds::measured(planner, model, devices, wanted, is_strict)?;
    wanted.check_routes(&planner, is_strict)?;
    Ok(wanted.over(planner, model))
}

/// Reads the fleet that the arguments name, if any.
pub(crate) fn fleet(args: &FleetArgs) -> Result<Option<Fleet>> {
    args.fleet.as_deref().map(open_fleet).transpose()
}

/// Reads a fleet. `text` is the path of a `.json` file, or a list of cards.
pub(crate) fn open_fleet(text: &str) -> Result<Fleet> {
    if !text.ends_with(".json") {
        let invalid = |cause| crate::Error::Fleet { of: "--fleet".into(), cause };
        return Ok(Fleet::from_line(text).map_err(invalid)?);
    }
    let json = read_text(Path::new(text), MAX_JSON_BYTES);
    let json = json.map_err(cannot_read(Path::new(text)))?;
    Ok(Fleet::from_json(&json).map_err(|cause| crate::Error::Fleet { of: text.into(), cause })?)
}
