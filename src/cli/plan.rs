//! `ragtag plan`, and how the other commands come by their plan.

use super::args::{ActivationsArg, DeviceArgs, Kv, PlacementArgs, PlanArgs};
use super::output::{bytes, note, print, table};
use crate::devices::Devices;
use crate::engine::{Engine, EngineOptions};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::planner::Planner;
use ragtag_kernels::{Activations, KvType};
use ragtag_scheduler::plan::Plan;
use std::path::Path;

impl From<ActivationsArg> for Activations {
    fn from(arg: ActivationsArg) -> Self {
        match arg {
            ActivationsArg::F32 => Activations::F32,
            ActivationsArg::Int8 => Activations::Int8,
        }
    }
}

impl PlacementArgs {
    /// The cache type that was asked for, or that goes with the activations.
    fn kv(&self) -> KvType {
        match (self.kv, self.activations) {
            (Some(Kv::F32), _) | (None, ActivationsArg::F32) => KvType::F32,
            (Some(Kv::F16), _) | (None, ActivationsArg::Int8) => KvType::F16,
        }
    }
}

/// What a command needs of its plan besides what the user says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Sequences at the same time.
    pub(super) sequences: u32,
    /// Whether logits of every row of a micro-batch are wanted.
    pub(super) all_logits: bool,
    /// The context unless the user says another; by default what fits.
    pub(super) context: Option<u32>,
}

/// A planner for what the arguments describe: a plan that is read, split by hand, or made.
fn planner(model: &Model, devices: &Devices, args: &PlacementArgs, needs: Needs) -> Result<Planner> {
    let mut planner = Planner::new(model).devices(devices).sequences(needs.sequences);
    planner = match &args.plan {
        Some(path) => like_file(planner, path, model, devices, args)?,
        None => by_arguments(planner, args, needs.context)?,
    };
    if needs.all_logits {
        planner = planner.all_logits();
    }
    Ok(planner)
}

fn by_arguments(mut planner: Planner, args: &PlacementArgs, context: Option<u32>) -> Result<Planner> {
    planner = planner.kv(args.kv()).activations(args.activations.into());
    if let Some(context) = args.ctx.or(context) {
        planner = planner.context(context);
    }
    if let Some(rows) = args.chunk {
        planner = planner.chunk(rows);
    }
    if let Some(split) = &args.split {
        planner = planner.split(split.parse()?);
    }
    Ok(planner)
}

/// A plan from a file is held against this model and these devices, and its memory is proved again: less may be free
/// than when it was made.
fn like_file(
    planner: Planner,
    path: &Path,
    model: &Model,
    devices: &Devices,
    args: &PlacementArgs,
) -> Result<Planner> {
    let json = std::fs::read_to_string(path).map_err(|cause| Error::File {
        action: "read",
        path: path.into(),
        cause,
    })?;
    let invalid = |cause| Error::PlanFile { path: path.into(), cause: Box::new(cause) };
    let plan = Plan::from_json(&json).map_err(invalid)?;
    let labels = devices.labels();
    let labels: Vec<_> = labels.iter().map(String::as_str).collect();
    plan.validate(&crate::planner::plan_model(model)?, &labels).map_err(invalid)?;
    Ok(planner
        .context(args.ctx.unwrap_or(plan.context))
        .sequences(plan.sequences)
        .chunk(args.chunk.unwrap_or(plan.chunk))
        .kv(if args.kv.is_some() { args.kv() } else { plan.kv })
        .activations(plan.activations)
        .split(plan.split()))
}

pub(super) fn run(args: &PlanArgs) -> Result<()> {
    let model = super::open_model(args.model.as_deref())?;
    let needs = Needs { sequences: args.parallel, all_logits: false, context: None };
    let Placed { plan, .. } = placed(&model, &args.devices, &args.placement, needs)?;
    if args.json {
        print(&plan.to_json());
    } else {
        print(&as_table(&plan));
    }
    Ok(())
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
    strict: bool,
}

impl Placed {
    /// Starts the engine. A device that holds less than it said gets a smaller plan, which is told on standard error;
    /// `--strict` refuses that.
    pub(super) fn start(&self, model: &Model, options: EngineOptions) -> Result<Engine> {
        let Self { devices, planner, plan, strict } = self;
        if *strict {
            return Engine::start(model, devices, plan, options);
        }
        Engine::start_fitting(model, devices, planner, plan, options, |error, smaller| {
            note(&format!("{error}\ntrying a smaller plan: {}", summary(smaller)));
        })
    }
}

/// Selects devices and makes a plan for them.
pub(super) fn placed(
    model: &Model,
    device_args: &DeviceArgs,
    placement: &PlacementArgs,
    needs: Needs,
) -> Result<Placed> {
    let devices = super::open_devices(device_args)?;
    if device_args.strict {
        super::strict::check(&devices, model)?;
    }
    let planner = planner(model, &devices, placement, needs)?;
    let plan = planner.plan()?;
    Ok(Placed { devices, planner, plan, strict: device_args.strict })
}
