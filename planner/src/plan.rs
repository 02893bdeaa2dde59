//! Defines the plan: the assignment of segments to devices, with routes, slots, memory and predictions. A
//! plan is plain data, stored as JSON.
//!
//! Knows nothing about the search or the execution.

mod chunks;
mod edges;
mod prefill;
#[cfg(test)]
mod tests;
mod upgrade;

use crate::cost::{DeviceFacts, FigureSource, QueuePart, RunSizes};
use crate::objective::{Objective, Workload};
use crate::split::{PartitionError, Span, Split, SplitPart, SplitPrefill, check_partition};
use crate::streaming::{Arenas, FEWEST, MAX_ARENAS, StagePart, parts, wrong_arenas, wrong_from_file};
pub use chunks::{Chunks, InvalidChunks, PromptChunk};
pub use edges::{PlanEdge, PlanPaths};
pub use prefill::PrefillStage;
use ragtag_graph::{Granularity, WireType};
use ragtag_kernels::{Activations, KvType};
use ragtag_transfer::Routes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Format version that this build writes. It also reads version 2.
pub const PLAN_VERSION: u32 = 3;

/// Maximum value of `decode_groups`, `credits` and `slots` in a valid plan.
const MAX_MICRO_BATCHES: u32 = 1 << 16;

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
    /// Host memory that the pipeline needs. If absent, zero.
    #[serde(default)]
    pub host_memory_bytes: HostMemory,
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

/// Explanation of a plan. Scores are values of the objective, in microseconds per request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Explanation {
    /// Score of the plan: the value of the objective.
    pub score_us: f64,
    /// Lower bound of the score over all placements that have one stage per device and meet the constraints,
    /// for every prefill chunk, number of decode groups and wire type that the planner considers. If the user
    /// requested a split, the bound still covers all other placements. 0 if the bound was not computed
    /// because there are too many devices and segments, or because the plan streams weights.
    pub bound_us: f64,
    /// The stage, edge, shared link or token return with the longest busy time per request.
    pub bottleneck: Bottleneck,
    /// Minimum, over all devices, of the fraction of time that the device is idle while a burst of prompts
    /// fills and drains the pipeline.
    pub prefill_bubble: f64,
    /// Fraction of a decode round during which the busiest stage is idle.
    pub decode_idle: f64,
    /// Unused devices, each with the best plan that includes the device.
    pub left_out: Vec<LeftOut>,
    /// Other plans, best first.
    pub alternatives: Vec<Alternative>,
    /// Limits that restrict the plan, with the gain from raising each limit. The limit with the largest gain
    /// is first.
    pub bindings: Vec<BindingLimit>,
    /// Number of input values from each source.
    pub figures: Vec<FigureCount>,
}

/// Busiest part of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bottleneck {
    /// Kind of the part.
    pub place: Place,
    /// Index from 0. Edge `n` leaves stage `n`.
    pub index: usize,
    /// Busy time per request, in microseconds.
    pub busy_us: f64,
    /// `busy_us` as a fraction of the total busy time of all stages and edges.
    pub share: f64,
}

/// Kind of a pipeline part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A stage.
    #[default]
    Stage,
    /// The edge from one stage to the next.
    Edge,
    /// A link that several edges share.
    SharedLink,
    /// The return of tokens to the first stage.
    TokenReturn,
}

/// A device that the plan does not use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// Label of the device.
    pub device: String,
    /// The best plan that includes the device. Absent if no such plan fits.
    pub best_with: Option<Alternative>,
    /// Whether the planner searched for plans that include the device. If there are many unused devices, the
    /// planner tries only the first ones. If absent, true.
    #[serde(default = "LeftOut::is_tried")]
    pub tried: bool,
    /// Whether plans that include the device fit into memory but violate the constraints. If absent, false.
    #[serde(default)]
    pub constrained: bool,
}

impl LeftOut {
    fn is_tried() -> bool {
        true
    }

    /// Returns whether both devices have the same name, ignoring the device number, and equal values in all
    /// other fields that are reported.
    fn is_like(&self, other: &Self) -> bool {
        let name = |left: &Self| left.device.rsplit_once(':').map(|(name, _)| name.to_owned());
        let rates = |other: &Alternative| {
            (other.score_us, other.decode_tokens_per_s, other.prefill_tokens_per_s, other.why.clone())
        };
        let status = |left: &Self| (left.tried, left.constrained, left.best_with.as_ref().map(rates));
        name(self) == name(other) && status(self) == status(other)
    }
}

impl Explanation {
    /// Returns the unused devices in groups. The devices of a group have the same name, ignoring the device
    /// number, and equal predictions.
    pub fn left_out_alike(&self) -> Vec<Vec<&LeftOut>> {
        let mut groups: Vec<Vec<&LeftOut>> = Vec::new();
        for left in &self.left_out {
            match groups.iter_mut().find(|group| group[0].is_like(left)) {
                Some(group) => group.push(left),
                None => groups.push(vec![left]),
            }
        }
        groups
    }
}

/// A plan that was not chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Alternative {
    /// Placement of the plan, for example `0-5=cpu:0,6-13=cpu:1`.
    pub split: String,
    /// Score: the value of the objective.
    pub score_us: f64,
    /// Decode tokens per second of all sequences together.
    pub decode_tokens_per_s: f64,
    /// Prefill tokens per second.
    pub prefill_tokens_per_s: f64,
    /// Reason why the plan is listed, for example `best single device` or `even layers`.
    pub why: String,
}

impl Alternative {
    /// Value of `why` for the planner's own placement, which is listed if the user requests a split.
    pub const PLANNERS_OWN: &str = "the planner's own";
}

/// A limit that restricts the plan, with the gain from raising it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename = "Binding", deny_unknown_fields)]
pub struct BindingLimit {
    /// Subject of the limit: a device label, a link such as `cpu:0 -> cuda:0`, or the name of a shared link.
    pub of: String,
    /// Description of the raised limit, for example `8 GiB more memory`.
    pub more: String,
    /// Relative improvement of the score from raising the limit.
    pub gain: f64,
}

/// Number of input values that come from one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FigureCount {
    /// Source of the values.
    pub source: FigureSource,
    /// Number of values.
    pub figures: usize,
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

/// A stage: a run of segments on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanStage {
    /// The device's label, as in `cpu:0`.
    pub device: String,
    /// First and last segment.
    #[schemars(with = "[u32; 2]")]
    pub segments: Span,
    /// Streamed segments, in ascending order. Their weights stay in host memory or in the model's file, and the
    /// stage copies them to the device before each computation. If absent, none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streamed: Vec<u32>,
    /// Number of arenas that the streamed segments share. If absent, 2, or 3 for an odd number of segments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = MAX_ARENAS))]
    pub arenas: Option<u32>,
    /// Streamed segments whose weights host memory does not hold, in ascending order. The stage reads them
    /// from the model's file before each computation. If absent, none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from_file: Vec<u32>,
    /// Device memory that the stage needs.
    pub memory_bytes: StageMemory,
    /// Times that the cost model predicts for the stage.
    pub predicted: PredictedTimes,
}

impl PlanStage {
    /// Returns the arenas of the streamed segments. An impossible number of them counts as absent.
    pub fn arenas(&self) -> Arenas {
        let streamed = self.streamed.len();
        let given = Arenas::new(streamed, self.arenas.map(|count| count as usize));
        given.unwrap_or_else(|| Arenas::at_most(streamed, 0))
    }

    /// Returns the parts of the stage on `device`, for the model of its queues. `sizes` belongs to the
    /// model's segments. All segments compute for an equal time, and all of them together for `compute_us`.
    pub fn queue_parts(&self, sizes: &RunSizes, device: &DeviceFacts, compute_us: f64) -> Vec<QueuePart> {
        let streamed: Vec<_> = self.streamed.iter().map(|&segment| segment as usize).collect();
        let segments = self.segments.range();
        let segment_us = compute_us / segments.len() as f64;
        let bytes = |part: &StagePart| part.arena.map(|_| sizes.streamed_bytes(&[part.segments.start]));
        let is_read = |part: &StagePart| self.from_file.contains(&(part.segments.start as u32));
        let part = |part: StagePart| QueuePart {
            arena: part.arena,
            read_us: bytes(&part).filter(|_| is_read(&part)).map_or(0.0, |bytes| device.file_read_us(bytes)),
            copy_us: bytes(&part).map_or(0.0, |bytes| device.host_copy_us(bytes)),
            compute_us: part.segments.len() as f64 * segment_us,
        };
        parts(segments, &streamed, self.arenas()).into_iter().map(part).collect()
    }

    /// Returns what is wrong with the streamed segments. `last` is the last segment of the model.
    fn wrong_streamed(&self, last: u32) -> Option<String> {
        let Self { segments, streamed, arenas, .. } = self;
        let is_outside = |at: &&u32| !(segments.first()..=segments.last()).contains(*at);
        if let Some(at) = streamed.iter().find(is_outside) {
            return Some(format!("segment {at} is outside segments {segments}"));
        }
        if let Some(at) = streamed.iter().find(|at| [0, last].contains(*at)) {
            return Some(format!("segment {at} is the embedding or the head, which are never streamed"));
        }
        if streamed.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Some("the segments must be in ascending order".into());
        }
        if !streamed.is_empty() && streamed.len() < FEWEST {
            return Some(format!("a stage streams at least {FEWEST} segments or none"));
        }
        if let Some(what) = wrong_from_file(streamed, &self.from_file) {
            return Some(what);
        }
        arenas.and_then(|count| wrong_arenas(streamed.len(), count as usize))
    }
}

/// Device memory of a stage, in bytes. Each buffer counts as the full size of its size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StageMemory {
    /// Weights in resident layout, without those of streamed segments. A tensor shared by two segments counts
    /// once.
    pub weights: u64,
    /// Arenas that the streamed segments share. If absent, zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub arenas: u64,
    /// Keys and values of all sequences at the full context.
    pub kv: u64,
    /// Scratch memory, sized for the segment that needs the most.
    pub scratch: u64,
    /// Slots: buffers for the parameters, activations and logits of the micro-batches that the stage can
    /// hold. If transfers are verified, their checksums.
    pub slots: u64,
    /// Staging ring of the route from the previous stage.
    pub staging: u64,
    /// Sum of the above.
    pub total: u64,
    /// Bytes available on the device.
    pub available: u64,
}

/// Host memory of a pipeline, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostMemory {
    /// Logits: one buffer for each credit.
    pub logits: u64,
    /// Staging rings between stages.
    pub staging: u64,
    /// Parameters of the micro-batches that the stages can hold. If transfers are verified, their checksums.
    pub parameters: u64,
    /// Memory of stages on devices that use host memory.
    pub devices: u64,
    /// Pinned copies of the streamed weights that no CPU device stores in this layout, and the places through
    /// which weights are read from the model's file. If absent, zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub weights: u64,
    /// Memory through which keys and values pass from the prefill stage to other devices. If absent, zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kv: u64,
    /// Sum of the above.
    pub total: u64,
    /// Free host memory. Absent if unknown.
    pub available: Option<u64>,
}

impl HostMemory {
    /// Returns whether host memory has room for the pipeline. Unknown memory counts as sufficient.
    pub fn fits(&self) -> bool {
        self.available.is_none_or(|available| self.total <= available)
    }
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
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
    #[error("the plan has version {found}, but this build reads versions 2 and {PLAN_VERSION}")]
    Version {
        /// Version of the plan.
        found: u32,
    },
    /// The plan was made for a different model.
    #[error(
        "the plan was made for the model {plan_name} ({plan_segments} segments, digest {plan_digest}), \
         not for {name} ({segments} segments, digest {digest})"
    )]
    OtherModel {
        /// Name of the plan's model.
        plan_name: String,
        /// Digest of the plan's model.
        plan_digest: String,
        /// Number of segments of the plan's model.
        plan_segments: u32,
        /// Name of the loaded model.
        name: String,
        /// Digest of the loaded model.
        digest: String,
        /// Number of segments of the loaded model.
        segments: u32,
    },
    /// The plan was made for a different segment granularity.
    #[error(
        "the plan has granularity {plan} ({plan_segments} segments), but granularity {wanted} ({segments} segments) \
         is requested"
    )]
    OtherGranularity {
        /// Granularity of the plan.
        plan: Granularity,
        /// Number of segments at the plan's granularity.
        plan_segments: u32,
        /// Requested granularity.
        wanted: Granularity,
        /// Number of segments at the requested granularity.
        segments: u32,
    },
    /// The stages do not cover all segments, or they name unknown devices.
    #[error("the plan's stages: {0}")]
    Stages(#[from] PartitionError),
    /// The streamed segments of a stage are invalid.
    #[error("the plan's stages[{stage}].streamed: {what}")]
    Streamed {
        /// Index of the stage.
        stage: usize,
        /// Problem, as quoted in the error message.
        what: String,
    },
    /// The prefill stage is invalid.
    #[error("the plan's prefill_stage: {what}")]
    PrefillStage {
        /// Problem, as quoted in the error message.
        what: String,
    },
    /// The edges do not lead from each stage to the next.
    #[error("the plan has {stages} stages; its edges must lead from each stage to the next, in order")]
    Edges {
        /// Number of stages.
        stages: usize,
    },
    /// A path does not pass through all stages in order.
    #[error("the plan's paths.{phase} must list all {stages} stages in order")]
    Path {
        /// `prefill` or `decode`.
        phase: &'static str,
        /// Number of stages.
        stages: usize,
    },
    /// The plan combines exact (f32) activations with a wire type other than f32.
    #[error("the plan's wire type is {wire_type}, but exact activations need f32")]
    WireType {
        /// Wire type of the plan.
        wire_type: WireType,
    },
    /// The routes of an edge are unusable.
    #[error("the plan's edges[{edge}].routes: {what}")]
    Routes {
        /// Index of the edge.
        edge: usize,
        /// Problem, as quoted in the error message.
        what: String,
    },
    /// The list of prefill chunks is invalid.
    #[error("the plan's chunks: {0}")]
    Chunks(#[from] InvalidChunks),
    /// A field has an invalid value.
    #[error("the plan's {field} is {value}; {wanted}")]
    Figure {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
        /// Description of the valid values, as quoted in the error message.
        wanted: &'static str,
    },
}

impl Plan {
    /// Parses a plan. Use [`Plan::validate`] to check it against a model and devices.
    ///
    /// # Errors
    /// [`InvalidPlan::Version`] if the plan has another format version. Otherwise [`InvalidPlan::NotAPlan`],
    /// with the JSON path, line and column of the problem. Unknown fields are errors.
    pub fn from_json(json: &str) -> Result<Self, InvalidPlan> {
        // Check the version first. A later format may have fields that this build does not know.
        #[derive(Deserialize)]
        struct Head {
            ragtag_plan: u32,
        }
        let not_a_plan = |cause| InvalidPlan::NotAPlan { cause };
        match crate::json::parse(json) {
            Ok(Head { ragtag_plan: upgrade::FROM }) => {
                let plan = upgrade::upgraded(json).and_then(|json| crate::json::parse(&json));
                let says = |cause| format!("{cause} of its version {PLAN_VERSION}");
                plan.map_err(|cause| not_a_plan(says(cause)))
            }
            Ok(Head { ragtag_plan: found }) if found != PLAN_VERSION => Err(InvalidPlan::Version { found }),
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

    /// Checks the plan against the model and the labels of the available devices.
    ///
    /// # Errors
    /// Returns the first problem found: another version, model or granularity, missing or overlapping
    /// segments, an unknown device, neighbouring stages on the same device, or an invalid value.
    pub fn validate(&self, model: &PlanModel, devices: &[&str]) -> Result<(), InvalidPlan> {
        if self.ragtag_plan != PLAN_VERSION {
            return Err(InvalidPlan::Version { found: self.ragtag_plan });
        }
        if self.model.digest == model.digest && self.model.granularity != model.granularity {
            return Err(InvalidPlan::OtherGranularity {
                plan: self.model.granularity,
                plan_segments: self.model.segments,
                wanted: model.granularity,
                segments: model.segments,
            });
        }
        if self.model.digest != model.digest || self.model.segments != model.segments {
            return Err(InvalidPlan::OtherModel {
                plan_name: self.model.name.clone(),
                plan_digest: self.model.digest.clone(),
                plan_segments: self.model.segments,
                name: model.name.clone(),
                digest: model.digest.clone(),
                segments: model.segments,
            });
        }
        let parts: Vec<_> = self.stages.iter().map(|s| (s.segments, s.device.as_str())).collect();
        check_partition(&parts, model.segments, devices)?;
        self.validate_streamed()?;
        self.validate_prefill_stage(devices)?;
        self.validate_edges()?;
        if self.activations == Activations::F32 && self.wire_type != WireType::F32 {
            return Err(InvalidPlan::WireType { wire_type: self.wire_type });
        }
        self.validate_figures()
    }

    fn validate_streamed(&self) -> Result<(), InvalidPlan> {
        let last = self.model.segments - 1;
        let wrong = |(stage, of): (usize, &PlanStage)| Some((stage, of.wrong_streamed(last)?));
        match self.stages.iter().enumerate().find_map(wrong) {
            Some((stage, what)) => Err(InvalidPlan::Streamed { stage, what }),
            None => Ok(()),
        }
    }

    fn validate_edges(&self) -> Result<(), InvalidPlan> {
        let stages = self.stages.len();
        let leads = |(from, edge): (u32, &PlanEdge)| (edge.from, edge.to) == (from, from + 1);
        if self.edges.len() + 1 != stages || !(0..).zip(&self.edges).all(leads) {
            return Err(InvalidPlan::Edges { stages });
        }
        let all = PlanPaths::through(stages);
        for (phase, path) in [("prefill", &self.paths.prefill), ("decode", &self.paths.decode)] {
            if *path != all.prefill {
                return Err(InvalidPlan::Path { phase, stages });
            }
        }
        let check = |(edge, of): (usize, &PlanEdge)| match of.routes.check() {
            Ok(()) => Ok(()),
            Err(error) => Err(InvalidPlan::Routes { edge, what: error.to_string() }),
        };
        self.edges.iter().enumerate().try_for_each(check)
    }

    /// Returns the number of rows of a decode micro-batch, derived from the number of groups.
    fn rows_of_groups(&self) -> u32 {
        let sequences = match self.objective {
            Objective::Latency | Objective::FirstToken => 1,
            Objective::Throughput | Objective::Mix(_) => self.sequences,
        };
        sequences.div_ceil(self.decode_groups).min(self.chunk)
    }

    fn validate_figures(&self) -> Result<(), InvalidPlan> {
        let positive = [
            ("context", self.context),
            ("sequences", self.sequences),
            ("chunk", self.chunk),
            ("decode_rows", self.decode_rows),
            ("decode_groups", self.decode_groups),
            ("credits", self.credits),
            ("slots", self.slots),
        ];
        for (field, value) in positive {
            if value == 0 {
                return Err(InvalidPlan::Figure { field, value: 0, wanted: "it must be at least 1" });
            }
        }
        let counted =
            [("decode_groups", self.decode_groups), ("credits", self.credits), ("slots", self.slots)];
        if let Some((field, value)) = counted.into_iter().find(|(_, value)| *value > MAX_MICRO_BATCHES) {
            return Err(InvalidPlan::Figure {
                field,
                value: value.into(),
                wanted: "it must be at most 65536",
            });
        }
        if self.decode_rows != self.rows_of_groups() {
            return Err(InvalidPlan::Figure {
                field: "decode_rows",
                value: self.decode_rows.into(),
                wanted: "it must be the sequences per decode group, from sequences and decode_groups",
            });
        }
        let chunks = self.chunks();
        chunks.check()?;
        if chunks.most_rows() > self.chunk {
            return Err(InvalidPlan::Figure {
                field: "longest of chunks",
                value: chunks.most_rows().into(),
                wanted: "it must be at most the plan's chunk",
            });
        }
        Ok(())
    }
}
