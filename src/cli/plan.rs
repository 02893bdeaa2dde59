//! Implements `ragtag plan`. Also selects devices and makes plans for the other commands.

use super::args::{DeviceArgs, FleetArgs, PlacementArgs, PlanArgs};
use super::files::input_name;
use super::output::{bytes, inform, note, print, show, table};
use super::pictures::{Pictures, bars};
use super::wanted::{Needs, Wanted};
use crate::CheckedBlock;
use crate::calibrate::{LinkReport, ProbedLink};
use crate::devices::Devices;
use crate::engine::{Engine, EngineOptions};
use crate::error::{Error, Result};
use crate::files::{MAX_JSON_BYTES, read_text};
use crate::model::Model;
use crate::pictures::{Gantt, Report};
use crate::planner::Planner;
use ragtag_planner::Fleet;
use ragtag_planner::plan::{Plan, PlanStage};
use ragtag_scheduler::sim::{Arrivals, DrawnLoad, Lengths};
use std::path::{Path, PathBuf};

/// Creates a planner for the selected devices and calibrates it. Excludes devices that cannot be opened or
/// that have no verified route, or returns an error for them if `strict` is set.
fn on_devices(model: &Model, devices: &Devices, wanted: &Wanted<'_>, strict: bool) -> Result<Planner> {
    let planner = Planner::new(model).devices(devices);
    wanted.check(&planner, model)?;
    let Some(calibration) = super::calibrate::for_placement(model, devices, wanted) else {
        let links = LinkReport::kept(devices, None);
        if strict {
            super::strict::check_links(devices, &links)?;
        }
        links.links.iter().filter_map(ProbedLink::unverified).for_each(|why| note(&format!("note: {why}")));
        return Ok(planner.probed(&links));
    };
    if strict {
        super::strict::check_calibration(&calibration)?;
    }
    Ok(planner.calibrated(&calibration))
}

pub(super) fn run(args: &PlanArgs) -> Result<()> {
    let inputs = args.model.iter().chain(&args.placement.plan).map(PathBuf::as_path);
    let pictures = Pictures::new(&args.pictures, args.json, inputs.chain(args.fleet.file()))?;
    let model = super::open_metadata(args.model.as_deref(), args.described)?;
    let model = super::scaled(model, &args.placement)?;
    let needs = Needs { asked: args.parallel, request: args.request, ..Needs::of(1) };
    let (planner, devices) =
        for_fleet_or_devices(&model, &args.fleet, &args.devices, &args.placement, needs)?;
    let mut report = Report::new(planner.plan()?);
    if let Some(devices) = devices.as_ref().filter(|_| args.devices.strict) {
        super::strict::check_routes(devices, &report.plan)?;
    }
    if pictures.are_wanted() {
        // If the plan cannot be simulated, the report keeps the estimated timelines.
        report.timelines = simulated(&model, &planner, &report.plan).unwrap_or(report.timelines);
    }
    let printed = if args.json {
        print(&report.plan.to_json())
    } else if !pictures.take_standard_output() {
        let (plan, is_capped) =
            (&report.plan, devices.is_some_and(|devices| !devices.memory_caps().is_empty()));
        show(&format!("{}\n{}\n{}", summary(plan), as_table(plan, is_capped), bars(&report)))
    } else {
        Ok(())
    };
    printed.and(pictures.write(&report))
}

/// Creates a planner for the fleet that the arguments name, or for the devices of this machine if they name
/// none. Returns the planner and the devices of this machine.
pub(super) fn for_fleet_or_devices(
    model: &Model,
    fleet: &FleetArgs,
    devices: &DeviceArgs,
    placement: &PlacementArgs,
    needs: Needs,
) -> Result<(Planner, Option<Devices>)> {
    let wanted = Wanted::read(placement, needs)?;
    let (planner, devices) = match &fleet.fleet {
        // This is not declared as a conflict in clap, because clap would also reject RAGTAG_STRICT=0.
        Some(_) if devices.strict => {
            return Err(Error::Usage(
                "--fleet cannot be used with --strict (or RAGTAG_STRICT): its devices are not checked".into(),
            ));
        }
        Some(fleet) => (Planner::new(model).fleet(&open_fleet(fleet)?)?, None),
        None => {
            let opened = open_devices(model, devices, &wanted)?;
            (on_devices(model, &opened, &wanted, devices.strict)?, Some(opened))
        }
    };
    Ok((wanted.over(planner, model)?, devices))
}

/// Simulates a plan in which all sequences run concurrently, each with two requests of the planned workload.
/// Returns timelines of excerpts from the simulation, or `None` if the simulation fails or there is no
/// excerpt.
fn simulated(model: &Model, planner: &Planner, plan: &Plan) -> Option<Vec<Gantt>> {
    let prompt = plan.workload.prompt_tokens.clamp(1, (plan.context / 2).max(1));
    let new = plan.workload.generated_tokens.clamp(1, plan.context.saturating_sub(prompt).max(1));
    let load = DrawnLoad {
        requests: plan.sequences.saturating_mul(2),
        arrivals: Arrivals::Closed { at_once: plan.sequences },
        prompt_tokens: Lengths::Fixed(prompt),
        new_tokens: Lengths::Fixed(new),
        seed: 1,
    };
    let (devices, links) = planner.facts();
    let summary = crate::simulate(model, plan, devices, links, &load.draw().ok()?).ok()?;
    Some(Gantt::simulated(plan, &summary).excerpts()).filter(|charts| !charts.is_empty())
}

/// Reads a fleet. `text` is the path of a `.json` file, or a list of cards.
fn open_fleet(text: &str) -> Result<Fleet> {
    if !text.ends_with(".json") {
        return Fleet::from_line(text).map_err(|cause| Error::Fleet { of: "--fleet".into(), cause });
    }
    let json = read_text(Path::new(text), MAX_JSON_BYTES);
    let json = json.map_err(|cause| Error::File { action: "read", path: text.into(), cause })?;
    Fleet::from_json(&json).map_err(|cause| Error::Fleet { of: text.into(), cause })
}

/// Formats a plan as a table of its stages, followed by the plan's reasons. If memory is capped, the table
/// shows the available bytes instead of the share that the plan uses.
pub(super) fn as_table(plan: &Plan, is_capped: bool) -> String {
    let streams = plan.all_stages().any(|stage| !stage.streamed.is_empty());
    let mut table = table(&[
        ">stage",
        "device",
        "segments",
        if streams { "+>weights, arenas" } else { "+>weights" },
        "+>KV cache",
        "+>scratch, slots",
        "+>staging",
        ">memory",
        ">of free",
        ">decode",
        ">prefill",
    ]);
    for (index, stage) in plan.all_stages().enumerate() {
        let memory = &stage.memory_bytes;
        let of_free = match is_capped {
            true => format!("of {}", bytes(memory.available)),
            false => format!("{:.1} %", 100.0 * memory.total as f64 / memory.available.max(1) as f64),
        };
        table.add_row([
            if index < plan.stages.len() { index.to_string() } else { "prefill".into() },
            stage.device.clone(),
            segments(stage),
            bytes(memory.weights.saturating_add(memory.arenas)),
            bytes(memory.kv),
            bytes(memory.scratch + memory.slots),
            bytes(memory.staging),
            bytes(memory.total),
            of_free,
            format!("{:.2} ms", stage.predicted.decode_us / 1e3),
            format!("{:.2} ms", stage.predicted.prefill_us / 1e3),
        ]);
    }
    let host = &plan.host_memory_bytes;
    let [logits, staging, parameters, devices, total] =
        [host.logits, host.staging, host.parameters, host.devices, host.total].map(bytes);
    let weights = match host.weights {
        0 => String::new(),
        weights => format!(", streamed weights {}", bytes(weights)),
    };
    let passing = match host.kv {
        0 => String::new(),
        kv => format!(", keys and values in transit {}", bytes(kv)),
    };
    let mut text = format!(
        "{table}\nhost memory: {total} (logits {logits}, staging {staging}, parameters {parameters}, stages in host \
         memory {devices}{weights}{passing})\n"
    );
    for reason in &plan.reasons {
        text.push_str(&format!("- {reason}\n"));
    }
    text
}

/// Formats the segments of a stage, and the numbers of streamed ones, of their arenas and of those that are read
/// from the model's file.
fn segments(stage: &PlanStage) -> String {
    let from_file = match stage.from_file.len() {
        0 => String::new(),
        read => format!(", {read} from the file"),
    };
    match stage.streamed.len() {
        0 => stage.segments.to_string(),
        streamed => {
            format!("{}, {streamed} streamed in {} arenas{from_file}", stage.segments, stage.arenas().count())
        }
    }
}

/// Summarizes a plan in one line: split, context and chunk.
pub(super) fn summary(plan: &Plan) -> String {
    let chunks = plan.chunks();
    let chunk = match (chunks.least_rows(), chunks.most_rows()) {
        (shortest, longest) if shortest < longest => format!("chunks {shortest} to {longest}"),
        (_, longest) => format!("chunk {longest}"),
    };
    format!("plan: {} · context {} · {chunk}", plan.split(), plan.context)
}

/// Devices, planner and plan of a command.
pub(super) struct Placed {
    pub(super) devices: Devices,
    pub(super) planner: Planner,
    pub(super) plan: Plan,
    /// File from which the plan was read, if any.
    pub(super) file: Option<PathBuf>,
    strict: bool,
}

impl Placed {
    /// Starts an engine with the plan. If a device is out of memory or cannot be opened, replaces the plan
    /// and prints the new one to standard error. With `--strict` or a plan from a file, returns an error
    /// instead. With `--strict`, also returns an error if a route of the plan is not verified.
    pub(super) fn start(&mut self, model: &Model, options: EngineOptions) -> Result<Engine> {
        let Self { devices, planner, plan, file, strict } = self;
        if *strict {
            super::strict::check_routes(devices, plan)?;
        }
        if let Some(path) = file {
            return Engine::start_exact(model, devices, plan, options).map_err(|error| match error {
                Error::Run(cause) if cause.refused_memory().is_some() => {
                    Error::PlanMemory { path: path.clone(), cause: Box::new(cause) }
                }
                other => other,
            });
        }
        if *strict {
            return Engine::start_exact(model, devices, plan, options);
        }
        let mut known = planner.clone();
        let engine =
            Engine::start_replanning(model, devices, planner, plan, options, |error, bounded, next| {
                let what = match error {
                    Error::Device { device, .. } => format!("trying without {device}"),
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

/// Probes and selects devices. If `--strict` is set, checks them and the model's weights.
fn open_devices(model: &Model, args: &DeviceArgs, wanted: &Wanted<'_>) -> Result<Devices> {
    let options = super::device_options(args);
    let gpus = match wanted.is_calibrated() {
        true => Devices::probe_for(&options, model, &super::calibrate::options(wanted)),
        false => Devices::probe(&options),
    }?;
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
    let wanted = Wanted::read(placement, needs)?;
    let devices = open_devices(model, device_args, &wanted)?;
    let planner = on_devices(model, &devices, &wanted, device_args.strict)?;
    let planner = wanted.over(planner, model)?;
    let plan = planner.plan()?;
    let file = placement.plan.as_deref().map(|path| input_name(path).into());
    Ok(Placed { devices, planner, plan, file, strict: device_args.strict })
}
