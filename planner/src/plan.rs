//! Defines the plan: the assignment of segments to devices, with routes, slots, memory and predictions. A
//! plan is plain data, stored as JSON.
//!
//! Knows nothing about the search or the execution.

mod edges;
mod explanation;
mod prefill;
mod stage;
#[cfg(test)]
mod tests;
mod upgrade;
mod validate;

use crate::objective::{Objective, Workload};
use crate::split::{Split, SplitPart, SplitPrefill};
pub use edges::{PlanEdge, PlanPaths};
pub use explanation::{Alternative, BindingLimit, Bottleneck, Explanation, FigureCount, LeftOut, Place};
pub use prefill::PrefillStage;
use ragtag_graph::execution::{Chunks, KvUse};
use ragtag_graph::{Granularity, WireType};
use ragtag_kernels::params::BLOCK_TOKENS;
use ragtag_kernels::{Activations, KvType};
use ragtag_transfer::Routes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use stage::{HostMemory, OtherHost, PlanStage, StageMemory};
pub use validate::InvalidPlan;

/// Format version that this build writes. It also reads versions 2 and 3.
pub const PLAN_VERSION: u32 = 4;

/// Maximum number of blocks of the KV cache in a valid plan.
pub(crate) const MAX_KV_BLOCKS: u32 = 1 << 24;

/// Assignment of a model's segments to devices.
///
/// [`Plan::validate`] checks a plan from a file against the model and the devices. It does not check memory,
/// because the available memory may have changed since planning. To check memory, plan again with the split
/// that [`Plan::split`] returns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "A plan of Ragtag")]
pub struct Plan {
    /// Format version: [`PLAN_VERSION`].
    #[schemars(extend("const" = PLAN_VERSION))]
    pub ragtag_plan: u32,
    /// Identity of the model that the plan was made for.
    pub model: PlanModel,
    /// Objective that the planner minimised.
    pub objective: Objective,
    /// The request that the plan is optimised for.
    pub workload: Workload,
    /// Device options that were in effect during planning. Absent if the plan was made for a fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_options: Option<PlanDeviceOptions>,
    /// Maximum length of a sequence, in positions.
    pub context: u32,
    /// Maximum number of sequences in the pipeline at once.
    pub sequences: u32,
    /// Number of blocks of the KV cache, which the sequences share. Each block holds 16 positions.
    pub kv_blocks: u32,
    /// When sequences take blocks of the KV cache, and whether it keeps the blocks of earlier sequences.
    pub kv_use: KvUse,
    /// Maximum number of rows (tokens) of a micro-batch. Also the maximum length of a prefill chunk.
    pub chunk: u32,
    /// Prefill chunks from which the coordinator chooses. If absent, every chunk has [`Plan::chunk`] rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Chunks>,
    /// Rows of a decode micro-batch: the number of sequences that decode together.
    pub decode_rows: u32,
    /// Number of decode micro-batches in flight. Several of them keep every stage busy.
    pub decode_groups: u32,
    /// Maximum number of micro-batches in flight.
    pub credits: u32,
    /// Number of slots of each stage: the maximum number of micro-batches that the stage holds at once.
    pub slots: u32,
    /// Storage type of keys and values. The types of keys and of values, if they differ.
    #[schemars(schema_with = "crate::schemas::kv_type")]
    pub kv: KvType,
    /// Activation type of matrix products.
    #[schemars(schema_with = "crate::schemas::activations")]
    pub activations: Activations,
    /// Wire type of activations between stages. If absent, f32.
    #[serde(default)]
    #[schemars(schema_with = "crate::schemas::wire_type")]
    pub wire_type: WireType,
    /// Family of the placement. If absent, one stage per device.
    #[serde(default, skip_serializing_if = "Family::is_one_stage")]
    pub family: Family,
    /// The stages, in segment order.
    pub stages: Vec<PlanStage>,
    /// Stage that computes long prompts in place of the other stages. If absent, the other stages compute all
    /// prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_stage: Option<PrefillStage>,
    /// Host memory that the pipeline needs on the coordinator's host. If absent, zero.
    #[serde(default)]
    pub host_memory_bytes: HostMemory,
    /// Host memory that the pipeline needs on each other host with stages. If absent, there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_hosts: Vec<OtherHost>,
    /// Edges between stages.
    pub edges: Vec<PlanEdge>,
    /// Stages that micro-batches pass through.
    pub paths: PlanPaths,
    /// Predicted times of the token return: copying logits to the host, and sending the next tokens to the
    /// first stage.
    pub token_return: PredictedTimes,
    /// Predictions for the whole pipeline.
    pub predicted: PredictedRun,
    /// Machine-readable explanation of the plan.
    pub explanation: Explanation,
    /// Explanation of the plan in sentences, for the user.
    pub reasons: Vec<String>,
}

impl Plan {
    /// Returns the prefill chunks from which the coordinator chooses.
    pub fn chunks(&self) -> Chunks {
        self.chunks.clone().unwrap_or_else(|| Chunks::fixed(self.chunk))
    }

    /// Returns whether all hosts have room for the pipeline. Unknown memory counts as sufficient.
    pub fn fits_hosts(&self) -> bool {
        self.host_memory_bytes.fits() && self.other_hosts.iter().all(|host| host.memory_bytes.fits())
    }

    /// Returns the number of cache blocks of one sequence at the full context.
    pub fn table_blocks(&self) -> u32 {
        self.context.div_ceil(BLOCK_TOKENS as u32)
    }

    /// Returns the number of cache blocks that all sequences need at the full context.
    pub fn full_blocks(&self) -> u32 {
        self.table_blocks().saturating_mul(self.sequences)
    }

    /// Returns the maximum number of logit rows in a micro-batch, assuming that only the last row of each
    /// sequence needs logits.
    pub fn logit_rows(&self) -> u32 {
        logit_rows(self.sequences, self.decode_groups, self.chunk)
    }

    /// Returns all stages. The prefill stage comes last.
    pub fn all_stages(&self) -> impl Iterator<Item = &PlanStage> {
        self.stages.iter().chain(self.prefill_stage.iter().map(|prefill| &prefill.stage))
    }

    /// Returns the routes of each edge.
    pub fn routes(&self) -> Vec<Routes> {
        self.edges.iter().map(|edge| edge.routes.clone()).collect()
    }
}

/// Returns the maximum number of logit rows in a micro-batch: the rows of a decode group, plus one for a
/// prompt that ends in the same micro-batch.
pub(crate) fn logit_rows(sequences: u32, decode_groups: u32, chunk: u32) -> u32 {
    sequences.div_ceil(decode_groups.max(1)).saturating_add(1).min(sequences).min(chunk)
}

/// Family of placements. The planner searches only the first family exactly. From the other families, it
/// evaluates some placements as additional candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Each device has one stage. The lower bound of the score covers this family.
    #[default]
    OneStage,
    /// Every device has several stages. The devices take turns in a fixed order.
    Interleaved,
    /// One device runs the attention halves of all blocks, and another device runs the feed-forward halves.
    FeedForwardApart,
    /// At least one device has several stages, and the placement belongs to no other family.
    SeveralStages,
}

impl Family {
    /// Returns whether each device has one stage.
    pub fn is_one_stage(&self) -> bool {
        *self == Self::OneStage
    }
}

/// Options that determined the set of devices during planning. With other options, some of the plan's devices
/// may not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanDeviceOptions {
    /// The device selection: `auto`, or names and filters separated by commas.
    pub selection: String,
    /// Number of devices into which the CPU is split.
    pub cpu_devices: u32,
    /// Number of threads of each CPU device. By default, the CPU devices share the cores evenly.
    pub threads: Option<u32>,
}

/// Identity of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanModel {
    /// Display name.
    pub name: String,
    /// Digest of the model file's content.
    pub digest: String,
    /// Number of segments.
    pub segments: u32,
    /// Granularity of the segments: whole transformer blocks, or their halves. If absent, whole blocks.
    #[serde(default)]
    #[schemars(schema_with = "crate::schemas::granularity")]
    pub granularity: Granularity,
}

/// Predicted times of a stage or an edge, in microseconds, rounded to tenths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PredictedTimes {
    /// Time for one decode micro-batch.
    pub decode_us: f64,
    /// Time for one prefill chunk.
    pub prefill_us: f64,
}

/// Predictions for running the plan, rounded to tenths.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PredictedRun {
    /// Decode tokens per second, summed over all sequences. If the objective is `latency` or `first-token`,
    /// only one sequence decodes.
    pub decode_tokens_per_s: f64,
    /// Prefill tokens per second when the pipeline is full.
    pub prefill_tokens_per_s: f64,
    /// Number of rows in the prefill chunk that the predictions assume. If 0 or absent, [`Plan::chunk`].
    #[serde(default)]
    pub prefill_rows: u32,
    /// Time from a request's arrival at an empty pipeline to its first token, in microseconds.
    pub first_token_us: f64,
    /// Time between two consecutive tokens of a sequence while all sequences decode, in microseconds.
    pub token_us: f64,
}

impl Plan {
    /// Parses a plan. Use [`Plan::validate`] to check it against a model and devices.
    ///
    /// # Errors
    /// [`InvalidPlan::Version`] if the plan has another format version. Otherwise [`InvalidPlan::NotAPlan`],
    /// with the JSON path, line and column of the problem. Unknown fields are errors.
    pub fn from_json(json: &str) -> Result<Self, InvalidPlan> {
        let not_a_plan = |cause| InvalidPlan::NotAPlan { cause };
        match crate::json::version(json, "ragtag_plan") {
            Some(found) if upgrade::FROM.contains(&found) => {
                let plan = upgrade::upgraded(json).and_then(|json| crate::json::parse(&json));
                let says = |cause| format!("{cause} of its version {PLAN_VERSION}");
                plan.map_err(|cause| not_a_plan(says(cause)))
            }
            Some(found) if found != PLAN_VERSION => Err(InvalidPlan::Version { found }),
            _ => crate::json::parse(json).map_err(not_a_plan),
        }
    }

    /// Returns the plan as indented JSON with a final newline.
    pub fn to_json(&self) -> String {
        // JSON serialization cannot fail for structs of strings, integers and finite floats.
        serde_json::to_string_pretty(self).expect("plans are plain data") + "\n"
    }

    /// Returns the plan's placement, including its streamed segments and its prefill stage, as a split.
    pub fn split(&self) -> Split {
        let part = |s: &PlanStage| SplitPart {
            span: s.segments,
            device: s.device.clone(),
            streamed: Some(s.streamed.clone()),
            arenas: s.arenas,
            from_file: s.from_file.clone(),
        };
        let prefill = |PrefillStage { stage, from_tokens }: &PrefillStage| SplitPrefill {
            device: stage.device.clone(),
            streamed: stage.streamed.clone(),
            arenas: stage.arenas,
            from_tokens: *from_tokens,
        };
        Split {
            parts: self.stages.iter().map(part).collect(),
            prefill: self.prefill_stage.as_ref().map(prefill),
        }
    }
}
