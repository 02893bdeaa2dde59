//! Checks of a plan from a file against the model and the devices.

use super::{MAX_KV_BLOCKS, PLAN_VERSION, Plan, PlanEdge, PlanModel, PlanPaths, PlanStage};
use crate::split::{PartitionError, check_partition};
use ragtag_graph::WireType;
use ragtag_graph::execution::{Chunks, InvalidChunks};
use ragtag_kernels::Activations;
use thiserror::Error;

/// Maximum value of `decode_groups`, `credits` and `slots` in a valid plan.
const MAX_MICRO_BATCHES: u32 = 1 << 16;

/// Reason why a plan cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidPlan {
    /// The input is not JSON, or not in the plan format.
    #[error("not a plan: {cause}")]
    NotAPlan {
        /// JSON path, parser message, line and column.
        cause: String,
    },
    /// The plan has another format version.
    #[error("the plan has version {found}, but this build reads versions 2 to {PLAN_VERSION}")]
    Version {
        /// Version of the plan.
        found: u32,
    },
    /// The plan was made for a different model.
    #[error(
        "the plan was made for the model {} ({} segments, digest {}), not for {} ({} segments, digest {})",
        .plan.name, .plan.segments, .plan.digest, .loaded.name, .loaded.segments, .loaded.digest
    )]
    OtherModel {
        /// The plan's model.
        plan: PlanModel,
        /// The loaded model.
        loaded: PlanModel,
    },
    /// The plan was made for a different segment granularity.
    #[error(
        "the plan has granularity {} ({} segments), but granularity {} ({} segments) is requested",
        .plan.granularity, .plan.segments, .wanted.granularity, .wanted.segments
    )]
    OtherGranularity {
        /// The plan's model.
        plan: PlanModel,
        /// The same model at the requested granularity.
        wanted: PlanModel,
    },
    /// The stages do not cover all segments, or they name unknown devices.
    #[error("the plan's stages: {0}")]
    Stages(#[from] PartitionError),
    /// The list of prefill chunks is invalid.
    #[error("the plan's chunks: {0}")]
    Chunks(#[from] InvalidChunks),
    /// Another field is invalid. The text names the field and the problem.
    #[error("{0}")]
    Field(String),
}

/// Returns the error for an invalid field of a plan.
pub(super) fn wrong(what: impl AsRef<str>) -> Result<(), InvalidPlan> {
    Err(InvalidPlan::Field(format!("the plan's {}", what.as_ref())))
}

impl Plan {
    /// Checks the plan against the model and the labels of the available devices.
    ///
    /// # Errors
    /// Returns the first problem found: another version, model or granularity, missing or overlapping
    /// segments, an unknown device, neighbouring stages on the same device, or an invalid value.
    pub fn validate(&self, model: &PlanModel, devices: &[&str]) -> Result<(), InvalidPlan> {
        if self.ragtag_plan != PLAN_VERSION {
            return Err(InvalidPlan::Version { found: self.ragtag_plan });
        }
        let own = &self.model;
        if own.digest == model.digest && own.granularity != model.granularity {
            return Err(InvalidPlan::OtherGranularity { plan: own.clone(), wanted: model.clone() });
        }
        if own.digest != model.digest || own.segments != model.segments {
            return Err(InvalidPlan::OtherModel { plan: own.clone(), loaded: model.clone() });
        }
        let parts: Vec<_> = self.stages.iter().map(|s| (s.segments, s.device.as_str())).collect();
        check_partition(&parts, model.segments, devices)?;
        self.validate_streamed()?;
        self.validate_prefill_stage(devices)?;
        self.validate_edges()?;
        if self.activations == Activations::F32 && self.wire_type != WireType::F32 {
            return wrong(format!("wire type is {}, but exact activations need f32", self.wire_type));
        }
        self.validate_figures()
    }

    fn validate_streamed(&self) -> Result<(), InvalidPlan> {
        let last = self.model.segments - 1;
        let check = |(stage, of): (usize, &PlanStage)| match of.wrong_streamed(last) {
            Some(what) => wrong(format!("stages[{stage}].streamed: {what}")),
            None => Ok(()),
        };
        self.stages.iter().enumerate().try_for_each(check)
    }

    fn validate_edges(&self) -> Result<(), InvalidPlan> {
        let stages = self.stages.len();
        let leads = |(from, edge): (u32, &PlanEdge)| (edge.from, edge.to) == (from, from + 1);
        if self.edges.len() + 1 != stages || !(0..).zip(&self.edges).all(leads) {
            let what = "its edges must lead from each stage to the next, in order";
            return Err(InvalidPlan::Field(format!("the plan has {stages} stages; {what}")));
        }
        let all = PlanPaths::through(stages);
        for (phase, path) in [("prefill", &self.paths.prefill), ("decode", &self.paths.decode)] {
            if *path != all.prefill {
                return wrong(format!("paths.{phase} must list all {stages} stages in order"));
            }
        }
        let check = |(edge, of): (usize, &PlanEdge)| match of.routes.check() {
            Ok(()) => Ok(()),
            Err(error) => wrong(format!("edges[{edge}].routes: {error}")),
        };
        self.edges.iter().enumerate().try_for_each(check)
    }

    /// Returns the number of rows of a decode micro-batch, derived from the number of groups.
    fn rows_of_groups(&self) -> u32 {
        self.objective.sequences(self.sequences).div_ceil(self.decode_groups).min(self.chunk)
    }

    fn validate_figures(&self) -> Result<(), InvalidPlan> {
        let counted =
            [("decode_groups", self.decode_groups), ("credits", self.credits), ("slots", self.slots)];
        let sizes = [
            ("context", self.context),
            ("sequences", self.sequences),
            ("chunk", self.chunk),
            ("decode_rows", self.decode_rows),
        ];
        if let Some((field, _)) = sizes.into_iter().chain(counted).find(|(_, value)| *value == 0) {
            return wrong(format!("{field} is 0; it must be at least 1"));
        }
        if let Some((field, value)) = counted.into_iter().find(|(_, value)| *value > MAX_MICRO_BATCHES) {
            return wrong(format!("{field} is {value}; it must be at most {MAX_MICRO_BATCHES}"));
        }
        if self.decode_rows != self.rows_of_groups() {
            let wanted = "it must be the sequences per decode group, from sequences and decode_groups";
            return wrong(format!("decode_rows is {}; {wanted}", self.decode_rows));
        }
        let blocks = self.table_blocks()..=MAX_KV_BLOCKS.max(self.table_blocks());
        if !blocks.contains(&self.kv_blocks) {
            let (least, most) = blocks.into_inner();
            let why = "one sequence at the full context needs the least";
            return wrong(format!("kv_blocks is {}; it must be {least} to {most}: {why}", self.kv_blocks));
        }
        let chunks: Chunks = self.chunks();
        chunks.check()?;
        match chunks.most_rows() {
            rows if rows > self.chunk => {
                wrong(format!("longest of chunks is {rows}; it must be at most the plan's chunk"))
            }
            _ => Ok(()),
        }
    }
}
