//! What a command wants of its placement: what the arguments and the plan that they name say, read before any device is asked.
//!
//! This module must not know how devices are selected or measured.

use super::args::{ActivationsArg, BoundaryArg, GranularityArg, Kv, PlacementArgs};
use crate::error::{Error, Result};
use crate::files::{MOST_JSON_BYTES, read_text};
use crate::model::Model;
use crate::planner::Planner;
use ragtag_graph::{Boundary, Granularity};
use ragtag_kernels::{Activations, KvType};
use ragtag_scheduler::Split;
use ragtag_scheduler::plan::{InvalidPlan, Plan};
use std::path::Path;

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

/// A placement as it is wanted. What the arguments say goes before what their plan says.
pub(super) struct Wanted<'a> {
    args: &'a PlacementArgs,
    needs: Needs,
    file: Option<(&'a Path, Plan)>,
    split: Option<Split>,
    pins: Vec<Split>,
}

impl<'a> Wanted<'a> {
    /// # Errors
    /// If the plan, the split or a pin cannot be read.
    pub(super) fn read(args: &'a PlacementArgs, needs: Needs) -> Result<Self> {
        let file = args.plan.as_deref().map(|path| read_plan(path).map(|plan| (path, plan))).transpose()?;
        let split = args.split.as_deref().map(str::parse).transpose()?;
        let pins = args.pin.iter().map(|pin| pin.parse().map_err(Error::Pin)).collect::<Result<_>>()?;
        Ok(Self { args, needs, file, split, pins })
    }

    fn plan(&self) -> Option<&Plan> {
        self.file.as_ref().map(|(_, plan)| plan)
    }

    pub(super) fn is_calibrated(&self) -> bool {
        !self.args.no_calibration
    }

    pub(super) fn activations(&self) -> Activations {
        match (self.args.activations, self.plan()) {
            (None, Some(plan)) => plan.activations,
            (form, _) => form.unwrap_or(ActivationsArg::Int8).into(),
        }
    }

    pub(super) fn kv(&self) -> KvType {
        match (self.args.kv, self.plan()) {
            (None, Some(plan)) if plan.activations == self.activations() => plan.kv,
            (kv, _) => kv_type(kv, self.args.activations.unwrap_or(ActivationsArg::Int8)),
        }
    }

    pub(super) fn sequences(&self) -> u32 {
        let usual = self.plan().map_or(self.needs.sequences, |plan| plan.sequences);
        self.needs.asked.unwrap_or(usual)
    }

    /// The form in which activations cross, if it is not left to the planner; `usual` where nothing is said.
    fn boundary(&self, usual: Option<Boundary>) -> Option<Boundary> {
        match self.args.boundary {
            None => usual,
            Some(BoundaryArg::Auto) => None,
            Some(BoundaryArg::F32) => Some(Boundary::F32),
            Some(BoundaryArg::F16) => Some(Boundary::F16),
        }
    }

    fn granularity(&self) -> Granularity {
        let usual = self.plan().map(|plan| plan.model.granularity).unwrap_or_default();
        self.args.granularity.map_or(usual, Granularity::from)
    }

    /// Holds a plan that was read against this model and these devices.
    ///
    /// # Errors
    /// If it is of others, or damaged.
    pub(super) fn check(&self, planner: &Planner, model: &Model) -> Result<()> {
        let Some((path, plan)) = &self.file else { return Ok(()) };
        let labels = planner.labels();
        let labels: Vec<_> = labels.iter().map(String::as_str).collect();
        plan.validate(&crate::planner::plan_model(model, self.granularity())?, &labels).map_err(invalid(path))
    }

    /// A planner for it.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(super) fn over(&self, planner: Planner, model: &Model) -> Result<Planner> {
        self.check(&planner, model)?;
        let planner = planner
            .granularity(self.granularity())
            .sequences(self.sequences())
            .kv(self.kv())
            .activations(self.activations());
        let planner = match self.plan() {
            Some(plan) => self.like(plan, planner),
            None => self.by_arguments(planner),
        };
        Ok(if self.needs.all_logits { planner.all_logits() } else { planner })
    }

    fn by_arguments(&self, mut planner: Planner) -> Planner {
        if let Some(context) = self.args.ctx.or(self.needs.context) {
            planner = planner.context(context);
        }
        if let Some(rows) = self.args.chunk {
            planner = planner.chunk(rows);
        }
        if let Some(boundary) = self.boundary(None) {
            planner = planner.boundary(boundary);
        }
        if let Some(split) = &self.split {
            planner = planner.split(split.clone());
        }
        for part in self.pins.iter().flat_map(|pin| &pin.parts) {
            planner = (part.span.first()..=part.span.last())
                .take(MOST_PINS)
                .fold(planner, |planner, segment| planner.pin(segment, &part.device));
        }
        for device in &self.args.exclude {
            planner = planner.exclude(device);
        }
        if let Some(stages) = self.args.max_stages {
            planner = planner.max_stages(stages);
        }
        planner
    }

    /// The plan's memory is proved again, for less may be free than when it was made; the rest is as it was written.
    fn like(&self, plan: &Plan, mut planner: Planner) -> Planner {
        // Exact activations cross as f32, whatever suited the fast ones of the plan.
        let usual = if self.activations() == plan.activations { plan.boundary } else { Boundary::F32 };
        if let Some(boundary) = self.boundary(Some(usual)) {
            planner = planner.boundary(boundary);
        }
        // For another number of sequences the micro-batches are chosen anew.
        if self.sequences() == plan.sequences {
            planner = planner.decode_groups(plan.decode_groups).credits(plan.credits);
        }
        let ends = plan.stages.windows(2).map(|pair| (&pair[0].device, &pair[1].device));
        for ((from, to), route) in ends.zip(plan.routes()) {
            planner = planner.route(from, to, route);
        }
        planner
            .context(self.args.ctx.unwrap_or(plan.context))
            .chunk(self.args.chunk.unwrap_or(plan.chunk))
            .slots(plan.slots)
            .objective(plan.objective)
            .workload(plan.workload)
            .split(plan.split())
    }
}

fn read_plan(path: &Path) -> Result<Plan> {
    let cannot = |cause| Error::File { action: "read", path: path.into(), cause };
    Plan::from_json(&read_text(path, MOST_JSON_BYTES).map_err(cannot)?).map_err(invalid(path))
}

fn invalid(path: &Path) -> impl Fn(InvalidPlan) -> Error {
    |cause| Error::PlanFile { path: path.into(), cause: Box::new(cause) }
}
