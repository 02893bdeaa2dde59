//! `ragtag plan`, and how the other commands come by their plan.

use super::args::{
    ActivationsArg, BoundaryArg, DeviceArgs, FleetArgs, GranularityArg, Kv, PlacementArgs, PlanArgs,
};
use super::output::{bytes, note, print, show, table};
use super::pictures::{Pictures, bars};
use crate::devices::Devices;
use crate::engine::{Engine, EngineOptions};
use crate::error::{Error, Result};
use crate::files::{MOST_JSON_BYTES, read_text};
use crate::model::Model;
use crate::pictures::{Gantt, Report};
use crate::planner::Planner;
use ragtag_graph::{Boundary, Granularity};
use ragtag_kernels::{Activations, KvType};
use ragtag_scheduler::plan::Plan;
use ragtag_scheduler::sim::{Arrivals, DrawnLoad, Lengths};
use ragtag_scheduler::{Fleet, Split, Workload};
use std::path::{Path, PathBuf};

/// Most segments that one pin names: no model has more, and a slip of the keyboard should not take long.
const MOST_PINS: usize = 1 << 16;

impl From<ActivationsArg> for Activations {
    fn from(arg: ActivationsArg) -> Self {
        match arg {
            ActivationsArg::F32 => Activations::F32,
            ActivationsArg::Int8 => Activations::Int8,
        }
    }
}

impl From<GranularityArg> for Granularity {
    fn from(arg: GranularityArg) -> Self {
        match arg {
            GranularityArg::Block => Granularity::Block,
            GranularityArg::Half => Granularity::HalfBlock,
        }
    }
}

impl PlacementArgs {
    fn kv(&self) -> KvType {
        kv_type(self.kv, self.activations())
    }

    /// The form of activations that was asked for, or the usual one.
    pub(super) fn activations(&self) -> ActivationsArg {
        self.activations.unwrap_or(ActivationsArg::Int8)
    }

    /// The form in which activations cross, if it is not left to the planner; `usual` where nothing is said.
    fn boundary(&self, usual: Option<Boundary>) -> Option<Boundary> {
        match self.boundary {
            None => usual,
            Some(BoundaryArg::Auto) => None,
            Some(BoundaryArg::F32) => Some(Boundary::F32),
            Some(BoundaryArg::F16) => Some(Boundary::F16),
        }
    }
}

/// The cache type that was asked for, or that goes with the activations.
pub(super) fn kv_type(wanted: Option<Kv>, activations: ActivationsArg) -> KvType {
    match (wanted, activations) {
        (Some(Kv::F32), _) | (None, ActivationsArg::F32) => KvType::F32,
        (Some(Kv::F16), _) | (None, ActivationsArg::Int8) => KvType::F16,
    }
}

/// What a command needs of its plan besides what the user says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Sequences at the same time, if the user says how many.
    pub(super) asked: Option<u32>,
    /// Sequences at the same time unless the user or a plan that is read says how many.
    pub(super) sequences: u32,
    /// Whether logits of every row of a micro-batch are wanted.
    pub(super) all_logits: bool,
    /// The context unless the user says another; by default what fits.
    pub(super) context: Option<u32>,
}

/// A planner for devices that are there, with what was measured of them. One that does not open is left out, unless `strict`
/// forbids it.
fn on_devices(
    model: &Model,
    devices: &Devices,
    args: &PlacementArgs,
    needs: Needs,
    strict: bool,
) -> Result<Planner> {
    let planner = Planner::new(model).devices(devices);
    let sequences = needs.asked.unwrap_or(needs.sequences);
    let Some(calibration) = super::calibrate::for_placement(model, devices, args, sequences) else {
        return Ok(planner);
    };
    if strict {
        super::strict::check_calibration(&calibration)?;
    }
    Ok(planner.calibrated(&calibration))
}

/// A planner for what the arguments describe: a plan that is read, split by hand, or made.
fn arranged(planner: Planner, model: &Model, args: &PlacementArgs, needs: Needs) -> Result<Planner> {
    let mut planner = match &args.plan {
        Some(path) => like_file(planner, path, model, args, needs.asked)?,
        None => {
            let planner = planner.sequences(needs.asked.unwrap_or(needs.sequences));
            by_arguments(planner, args, needs.context)?
        }
    };
    if needs.all_logits {
        planner = planner.all_logits();
    }
    Ok(planner)
}

fn by_arguments(mut planner: Planner, args: &PlacementArgs, context: Option<u32>) -> Result<Planner> {
    planner = planner.kv(args.kv()).activations(args.activations().into());
    planner = planner.granularity(args.granularity.map(Granularity::from).unwrap_or_default());
    if let Some(context) = args.ctx.or(context) {
        planner = planner.context(context);
    }
    if let Some(rows) = args.chunk {
        planner = planner.chunk(rows);
    }
    if let Some(boundary) = args.boundary(None) {
        planner = planner.boundary(boundary);
    }
    if let Some(split) = &args.split {
        planner = planner.split(split.parse()?);
    }
    for pin in &args.pin {
        for part in pin.parse::<Split>().map_err(Error::Pin)?.parts {
            planner = (part.span.first()..=part.span.last())
                .take(MOST_PINS)
                .fold(planner, |planner, segment| planner.pin(segment, &part.device));
        }
    }
    for device in &args.exclude {
        planner = planner.exclude(device);
    }
    if let Some(stages) = args.max_stages {
        planner = planner.max_stages(stages);
    }
    Ok(planner)
}

/// A plan from a file is held against this model and these devices, and its memory is proved again: less may be free
/// than when it was made. What the arguments say goes before it; the rest is as it was written.
fn like_file(
    planner: Planner,
    path: &Path,
    model: &Model,
    args: &PlacementArgs,
    sequences: Option<u32>,
) -> Result<Planner> {
    let json = read_text(path, MOST_JSON_BYTES).map_err(|cause| Error::File {
        action: "read",
        path: path.into(),
        cause,
    })?;
    let invalid = |cause| Error::PlanFile { path: path.into(), cause: Box::new(cause) };
    let plan = Plan::from_json(&json).map_err(invalid)?;
    let labels = planner.labels();
    let labels: Vec<_> = labels.iter().map(String::as_str).collect();
    let granularity = args.granularity.map_or(plan.model.granularity, Granularity::from);
    plan.validate(&crate::planner::plan_model(model, granularity)?, &labels).map_err(invalid)?;
    let activations = args.activations.map_or(plan.activations, Activations::from);
    // Exact activations cross as f32, whatever suited the fast ones of the plan.
    let usual = if activations == plan.activations { plan.boundary } else { Boundary::F32 };
    let planner = match args.boundary(Some(usual)) {
        Some(boundary) => planner.boundary(boundary),
        None => planner,
    };
    let sequences = sequences.unwrap_or(plan.sequences);
    // For another number of sequences the micro-batches are chosen anew.
    let planner = match sequences == plan.sequences {
        true => planner.decode_groups(plan.decode_groups).credits(plan.credits),
        false => planner,
    };
    let ends = plan.stages.windows(2).map(|pair| (&pair[0].device, &pair[1].device));
    let planner =
        ends.zip(plan.routes()).fold(planner, |planner, ((from, to), route)| planner.route(from, to, route));
    Ok(planner
        .granularity(granularity)
        .context(args.ctx.unwrap_or(plan.context))
        .sequences(sequences)
        .chunk(args.chunk.unwrap_or(plan.chunk))
        .slots(plan.slots)
        .kv(if args.kv.is_some() || activations != plan.activations { args.kv() } else { plan.kv })
        .activations(activations)
        .objective(plan.objective)
        .workload(plan.workload)
        .split(plan.split()))
}

pub(super) fn run(args: &PlanArgs) -> Result<()> {
    let inputs = args.model.iter().chain(&args.placement.plan).map(PathBuf::as_path);
    let pictures = Pictures::new(&args.pictures, args.json, inputs.chain(args.fleet.file()))?;
    let model = super::open_metadata(args.model.as_deref(), args.described)?;
    let needs = Needs { asked: args.parallel, sequences: 1, all_logits: false, context: None };
    let planner = for_fleet_or_devices(&model, &args.fleet, &args.devices, &args.placement, needs)?;
    let planner = aimed(planner, args);
    let mut report = Report::new(planner.plan()?);
    if pictures.are_wanted() {
        // A plan that cannot be simulated keeps the charts that its times allow.
        report.timelines = simulated(&model, &planner, &report.plan).unwrap_or(report.timelines);
    }
    let printed = if args.json {
        print(&report.plan.to_json())
    } else if !pictures.take_standard_output() {
        show(&format!("{}\n{}", as_table(&report.plan), bars(&report)))
    } else {
        Ok(())
    };
    printed.and(pictures.write(&report))
}

/// A planner for a fleet, or for the devices that are there.
pub(super) fn for_fleet_or_devices(
    model: &Model,
    fleet: &FleetArgs,
    devices: &DeviceArgs,
    placement: &PlacementArgs,
    needs: Needs,
) -> Result<Planner> {
    let planner = match &fleet.fleet {
        // Not for clap: a variable that says no would be a contradiction to it.
        Some(_) if devices.strict => {
            return Err(Error::Usage(
                "--fleet cannot be used with --strict (or RAGTAG_STRICT): its devices are not asked".into(),
            ));
        }
        Some(fleet) => Planner::new(model).fleet(&open_fleet(fleet)?)?,
        None => on_devices(model, &open_devices(model, devices)?, placement, needs, devices.strict)?,
    };
    arranged(planner, model, placement, needs)
}

/// Charts of what a plan does with its sequences at once, two rounds of the request that it was made for.
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

/// The objective and the request that were asked for, over those of a plan that was read.
fn aimed(planner: Planner, args: &PlanArgs) -> Planner {
    let planner = match args.objective {
        Some(objective) => planner.objective(objective),
        None => planner,
    };
    let usual = planner.request();
    planner.workload(Workload {
        prompt_tokens: args.prompt_tokens.unwrap_or(usual.prompt_tokens),
        generated_tokens: args.new_tokens.unwrap_or(usual.generated_tokens),
    })
}

/// A fleet from a file, whose name ends in `.json`, or of cards.
fn open_fleet(text: &str) -> Result<Fleet> {
    if !text.ends_with(".json") {
        return Fleet::from_line(text).map_err(|cause| Error::Fleet { of: "--fleet".into(), cause });
    }
    let json = read_text(Path::new(text), MOST_JSON_BYTES);
    let json = json.map_err(|cause| Error::File { action: "read", path: text.into(), cause })?;
    Fleet::from_json(&json).map_err(|cause| Error::Fleet { of: text.into(), cause })
}

/// The plan as a table, with the reasons for it below.
pub(super) fn as_table(plan: &Plan) -> String {
    let mut table = table(&[
        ">stage",
        "device",
        "segments",
        ">weights",
        ">KV cache",
        ">scratch, slots",
        ">staging",
        ">of free",
        ">decode",
        ">prefill",
    ]);
    for (index, stage) in plan.stages.iter().enumerate() {
        let memory = &stage.memory_bytes;
        table.add_row([
            index.to_string(),
            stage.device.clone(),
            stage.segments.to_string(),
            bytes(memory.weights),
            bytes(memory.kv),
            bytes(memory.scratch + memory.slots),
            bytes(memory.staging),
            format!("{:.1} %", 100.0 * memory.total as f64 / memory.available.max(1) as f64),
            format!("{:.2} ms", stage.predicted.decode_us / 1e3),
            format!("{:.2} ms", stage.predicted.prefill_us / 1e3),
        ]);
    }
    let mut text = format!("{table}\n");
    for reason in &plan.reasons {
        text.push_str(&format!("- {reason}\n"));
    }
    text
}

/// A line for standard error: where the segments run, and the context.
pub(super) fn summary(plan: &Plan) -> String {
    format!("plan: {} · context {} · chunk {}", plan.split(), plan.context, plan.chunk)
}

/// Devices and placement of one command.
pub(super) struct Placed {
    pub(super) devices: Devices,
    pub(super) planner: Planner,
    pub(super) plan: Plan,
    /// Where the plan was read from.
    pub(super) file: Option<PathBuf>,
    strict: bool,
}

impl Placed {
    /// Starts the engine. A device that holds less than it said gets a smaller plan, one that does not open none; that takes this
    /// plan's place and is told on standard error, below the warning of what was refused; `--strict` refuses that, and so does a
    /// plan from a file.
    pub(super) fn start(&mut self, model: &Model, options: EngineOptions) -> Result<Engine> {
        let Self { devices, planner, plan, file, strict } = self;
        if let Some(path) = file {
            return Engine::start(model, devices, plan, options).map_err(|error| match error {
                Error::Run(cause) if cause.refused_memory().is_some() => {
                    Error::PlanMemory { path: path.clone(), cause: Box::new(cause) }
                }
                other => other,
            });
        }
        if *strict {
            return Engine::start(model, devices, plan, options);
        }
        let mut known = planner.clone();
        let engine =
            Engine::start_fitting(model, devices, planner, plan, options, |error, bounded, next| {
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

/// Selects devices, which `--strict` may have something against.
fn open_devices(model: &Model, args: &DeviceArgs) -> Result<Devices> {
    let devices = super::open_devices(args)?;
    if args.strict {
        super::strict::check(&devices, model)?;
    }
    Ok(devices)
}

/// Selects devices and makes a plan for them.
pub(super) fn placed(
    model: &Model,
    device_args: &DeviceArgs,
    placement: &PlacementArgs,
    needs: Needs,
) -> Result<Placed> {
    let devices = open_devices(model, device_args)?;
    let planner = on_devices(model, &devices, placement, needs, device_args.strict)?;
    let planner = arranged(planner, model, placement, needs)?;
    let plan = planner.plan()?;
    Ok(Placed { devices, planner, plan, file: placement.plan.clone(), strict: device_args.strict })
}
