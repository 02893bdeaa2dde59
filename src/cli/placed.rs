//! Selects devices, makes plans for them, and starts engines. All commands that place a model use this.

use super::args::{DeviceArgs, FleetArgs, PlacementArgs};
use super::files::input_name;
use super::output::{bytes, inform, note};
use super::plan_table::summary;
use super::wanted::{AUTO, Needs, Wanted};
use crate::files::{MAX_JSON_BYTES, read_text};
use crate::{CheckedBlock, Devices, Engine, EngineOptions, Error, Model, Planner, ProbedLink, Result};
use ragtag_planner::plan::Plan;
use ragtag_planner::{Fleet, Workload};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread::Builder;

/// Devices, planner and plan of a command.
pub(super) struct Placed {
    pub(super) devices: Devices,
    pub(super) planner: Planner,
    pub(super) plan: Plan,
    /// File from which the plan was read, if any.
    pub(super) file: Option<PathBuf>,
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
    pub(super) fn start(&mut self, model: &Model, options: EngineOptions) -> Result<Engine> {
        let (trace, all_logits) = (options.trace, options.all_logits);
        let (verify_transfers, stall_timeout) = (options.verify_transfers, options.stall_timeout);
        let error = match self.start_here(model, options) {
            Err(error @ Error::Untrusted { .. }) if self.devices.choice().requested == AUTO => error,
            other => return other,
        };
        note(&format!("warning: {error}\nusing the CPU"));
        let device_args = DeviceArgs { device: Some("cpu".into()), ..self.device_args.clone() };
        *self = placed(model, &device_args, &self.placement, self.needs)?;
        inform(&summary(&self.plan));
        let mut options = EngineOptions::default();
        (options.trace, options.all_logits) = (trace, all_logits);
        (options.verify_transfers, options.stall_timeout) = (verify_transfers, stall_timeout);
        self.start_here(model, options)
    }

    /// Starts an engine on the selected devices.
    fn start_here(&mut self, model: &Model, mut options: EngineOptions) -> Result<Engine> {
        options.no_self_test = self.placement.no_self_test;
        let strict = self.device_args.strict;
        let Self { devices, planner, plan, file, .. } = self;
        if let Some(path) = file {
            return Engine::start_exact(model, devices, plan, options).map_err(|error| match error {
                error if strict => super::strict::refused(error),
                Error::Run(cause) if cause.refused_memory().is_some() => {
                    Error::PlanMemory { path: path.clone(), cause: Box::new(cause) }
                }
                other => other,
            });
        }
        if strict {
            return Engine::start_exact(model, devices, plan, options).map_err(super::strict::refused);
        }
        let mut known = planner.clone();
        let engine =
            Engine::start_replanning(model, devices, planner, plan, options, |error, bounded, next| {
                let what = match error {
                    Error::Device { device, .. } => format!("trying without {device}"),
                    Error::Untrusted { device, .. } => {
                        note(&format!("warning: {error}"));
                        format!("trying without {device}")
                    }
                    _ => "trying a smaller plan".into(),
                };
                note(&format!("{what}: {}", summary(next)));
                known = bounded.clone();
            })?;
        (*planner, *plan) = (known, engine.plan().clone());
        Ok(engine)
    }
}

/// Compares the first block of each stage with the CPU, and prints the errors to standard error.
pub(super) fn check_blocks(model: &Model, placed: &Placed, engine: &Engine) -> Result<()> {
    for block in crate::check_first_blocks(model, &placed.devices, engine.plan())? {
        let CheckedBlock { stage, device, segment, keys_to, error, bound } = block;
        let keys = keys_to.map_or_else(String::new, |to| format!(" with keys and values for {to}"));
        inform(&format!(
            "canary: stage {stage} on {device}: segment {segment}{keys} differs from the CPU's by \
             {error:.1e} (at most {bound:.0e})"
        ));
    }
    Ok(())
}

/// Probes and selects devices.
fn probe(model: &Model, args: &DeviceArgs, wanted: &Wanted<'_>) -> Result<Devices> {
    let options = super::device_options(args);
    match wanted.is_calibrated() {
        true => Devices::probe_for(&options, model, &super::calibrate::options(wanted)),
        false => Devices::probe(&options),
    }
}

/// Adds the CPU to the probed devices `gpus` if they need its help. If `--strict` is set, checks the devices and the
/// model's weights.
fn open_devices(model: &Model, args: &DeviceArgs, gpus: Devices) -> Result<Devices> {
    let options = super::device_options(args);
    let sizes = model.graph().weights().tensors().iter().map(|tensor| tensor.bytes);
    let (weight_bytes, selected) = (sizes.fold(0, u64::saturating_add), gpus.selected().len());
    let devices = super::opened(gpus.helped_by_cpu(&options, weight_bytes))?;
    if devices.selected().len() > selected {
        note(&format!(
            "note: the weights ({}) exceed the memory of the GPUs, so the CPU may help; --device gpu selects only GPUs",
            bytes(weight_bytes)
        ));
    }
    if args.strict {
        super::strict::check(&devices, model)?;
    }
    Ok(devices)
}

/// Selects devices and makes a plan for them that meets the arguments and `needs`.
pub(super) fn placed(
    model: &Model,
    device_args: &DeviceArgs,
    placement: &PlacementArgs,
    needs: Needs,
) -> Result<Placed> {
    placed_while(model, device_args, placement, needs, || Ok(needs.workload))
}

/// Places the model like [`placed`], for the workload that `prepare` returns. Runs `prepare` while the drivers of
/// the devices start.
pub(super) fn placed_while(
    model: &Model,
    device_args: &DeviceArgs,
    placement: &PlacementArgs,
    needs: Needs,
    prepare: impl FnOnce() -> Result<Workload>,
) -> Result<Placed> {
    let mut wanted = Wanted::read(placement, needs)?;
    let (workload, probed) = std::thread::scope(|scope| {
        let probe = || probe(model, device_args, &wanted);
        let probing = Builder::new().spawn_scoped(scope, probe);
        let workload = prepare();
        // Without memory for a thread, this thread probes.
        (
            workload,
            probing.map_or_else(|_| probe(), |it| it.join().unwrap_or_else(|panic| resume_unwind(panic))),
        )
    });
    wanted.needs.workload = workload?;
    let devices = open_devices(model, device_args, probed?)?;
    let planner = on_devices(model, &devices, &wanted, device_args.strict)?;
    let planner = wanted.over(planner, model)?;
    let plan = planner.plan()?;
    let file = placement.plan.as_deref().map(|path| input_name(path).into());
    let (device_args, placement) = (device_args.clone(), placement.clone());
    Ok(Placed { devices, planner, plan, file, device_args, placement, needs })
}

/// Creates a planner for a fleet, or for the devices of this machine if there is none. Returns the planner and the
/// devices of this machine.
pub(super) fn for_fleet_or_devices(
    model: &Model,
    fleet: Option<&Fleet>,
    devices: &DeviceArgs,
    placement: &PlacementArgs,
    needs: Needs,
) -> Result<(Planner, Option<Devices>)> {
    let wanted = Wanted::read(placement, needs)?;
    let (planner, devices) = match fleet {
        // This is not declared as a conflict in clap, because clap would also reject RAGTAG_STRICT=0.
        Some(_) if devices.strict => {
            return Err(Error::Usage(
                "--fleet cannot be used with --strict (or RAGTAG_STRICT): its devices are not checked".into(),
            ));
        }
        Some(fleet) => (Planner::new(model).fleet(fleet)?, None),
        None => {
            let opened = open_devices(model, devices, probe(model, devices, &wanted)?)?;
            (on_devices(model, &opened, &wanted, devices.strict)?, Some(opened))
        }
    };
    Ok((wanted.over(planner, model)?, devices))
}

/// Creates a planner for the selected devices and calibrates it. Excludes devices that cannot be opened or
/// that have no verified route, or returns an error for them if `strict` is set. Returns an error if a plan file
/// may take a route that must not be used.
fn on_devices(model: &Model, devices: &Devices, wanted: &Wanted<'_>, strict: bool) -> Result<Planner> {
    let planner = Planner::new(model).devices(devices);
    wanted.check(&planner, model)?;
    let planner = match super::calibrate::for_placement(model, devices, wanted) {
        Some(calibration) => {
            if strict {
                super::strict::check_calibration(&calibration)?;
            }
            planner.calibrated(&calibration)
        }
        None => {
            let links = super::links::for_placement(devices, wanted);
            if strict {
                super::strict::check_links(devices, &links)?;
            }
            let unverified = links.links.iter().filter_map(ProbedLink::unverified);
            unverified.for_each(|why| note(&format!("note: {why}")));
            let last = super::calibrate::last_good(model, devices, wanted);
            last.iter().fold(planner, Planner::calibrated).probed(&links)
        }
    };
    wanted.check_routes(&planner, strict)?;
    Ok(planner)
}

/// Reads the fleet that the arguments name, if any.
pub(super) fn fleet(args: &FleetArgs) -> Result<Option<Fleet>> {
    args.fleet.as_deref().map(open_fleet).transpose()
}

/// Reads a fleet. `text` is the path of a `.json` file, or a list of cards.
pub(super) fn open_fleet(text: &str) -> Result<Fleet> {
    if !text.ends_with(".json") {
        return Fleet::from_line(text).map_err(|cause| Error::Fleet { of: "--fleet".into(), cause });
    }
    let json = read_text(Path::new(text), MAX_JSON_BYTES);
    let json = json.map_err(|cause| Error::File { action: "read", path: text.into(), cause })?;
    Fleet::from_json(&json).map_err(|cause| Error::Fleet { of: text.into(), cause })
}
