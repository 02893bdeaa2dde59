//! The plan: which device runs which segments, with routes, slots, memory and predictions. Plain data, written as JSON.
//!
//! This module must not know how a plan is found or carried out.

mod chunks;

use crate::cost::FigureSource;
use crate::objective::{Objective, Workload};
use crate::split::{PartitionError, Span, Split, SplitPart, check_partition};
pub use chunks::{Chunks, InvalidChunks, PromptChunk};
use ragtag_graph::{Boundary, Granularity};
use ragtag_kernels::{Activations, KvType};
use ragtag_transfer::Route;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Version of the format that this build reads and writes.
pub const PLAN_VERSION: u32 = 2;

/// Most decode groups, credits and slots of a plan.
const MOST_MICRO_BATCHES: u32 = 1 << 16;

/// Which device runs which segments of which model.
///
/// A plan that was read from a file is held against the model and the devices by [`Plan::validate`]; its memory is
/// proved again by planning with [`Plan::split`], for the devices may have less free than when it was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "A plan of Ragtag")]
pub struct Plan {
    /// Version of the format: [`PLAN_VERSION`].
    #[schemars(extend("const" = PLAN_VERSION))]
    pub ragtag_plan: u32,
    /// The model that it was made for.
    pub model: PlanModel,
    /// What it was made for.
    pub objective: Objective,
    /// The request that it was made for.
    pub workload: Workload,
    /// The device options that it was made with; none for a plan for a fleet, and where a plan does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_options: Option<PlanDeviceOptions>,
    /// Longest sequence, in positions.
    pub context: u32,
    /// Sequences that may be alive at once.
    pub sequences: u32,
    /// Most rows (tokens) of a micro-batch; the longest prefill chunk.
    pub chunk: u32,
    /// The prefill chunks among which the coordinator chooses; [`Plan::chunk`] alone where a plan does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Chunks>,
    /// Rows of a decode micro-batch: sequences that decode together, so that every stage has work.
    pub decode_rows: u32,
    /// Decode micro-batches that go round at once.
    pub decode_groups: u32,
    /// Micro-batches in flight at most.
    pub credits: u32,
    /// Slots of each stage: micro-batches that it may hold at once.
    pub slots: u32,
    /// How keys and values are kept.
    #[schemars(schema_with = "crate::schemas::kv_type")]
    pub kv: KvType,
    /// How activations enter matrix products.
    #[schemars(schema_with = "crate::schemas::activations")]
    pub activations: Activations,
    /// The form in which activations cross from each stage to the next; f32 where a plan does not say.
    #[serde(default)]
    #[schemars(schema_with = "crate::schemas::boundary")]
    pub boundary: Boundary,
    /// The stages, in the order of the segments.
    pub stages: Vec<PlanStage>,
    /// What the pipeline takes of the host's memory; nothing where a plan does not say.
    #[serde(default)]
    pub host_memory_bytes: HostMemory,
    /// How activations cross from each stage to the next: one less than there are stages.
    pub edges: Vec<PlanEdge>,
    /// The edge on which tokens return: logits to the host, and the next tokens to the first stage.
    pub token_return: PredictedTimes,
    /// What the cost model expects of the whole.
    pub predicted: PredictedRun,
    /// Why it is this plan, as data.
    pub explanation: Explanation,
    /// Why it is this plan, in words.
    pub reasons: Vec<String>,
}

impl Plan {
    /// The prefill chunks among which the coordinator chooses.
    pub fn chunks(&self) -> Chunks {
        self.chunks.clone().unwrap_or_else(|| Chunks::fixed(self.chunk))
    }

    /// Most logit rows of a micro-batch, where only the last row of each sequence is wanted.
    pub fn logit_rows(&self) -> u32 {
        logit_rows(self.sequences, self.decode_groups, self.chunk)
    }

    /// How activations cross from each stage to the next.
    pub fn routes(&self) -> Vec<Route> {
        self.edges.iter().map(|edge| edge.route).collect()
    }
}

/// Most logit rows of a micro-batch: the rows of a decode group, and one for a prompt that ends beside them.
pub(crate) fn logit_rows(sequences: u32, decode_groups: u32, chunk: u32) -> u32 {
    sequences.div_ceil(decode_groups.max(1)).saturating_add(1).min(sequences).min(chunk)
}

/// How the devices of a plan were found. With other options some of them may not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanDeviceOptions {
    /// The selection: `auto`, or names and filters separated by commas.
    pub selection: String,
    /// How many devices the processor is split into.
    pub cpu_devices: u32,
    /// Threads of each of them; by default the cores, divided evenly.
    pub threads: Option<u32>,
}

/// The way from one stage to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanEdge {
    /// How activations cross.
    #[schemars(schema_with = "crate::schemas::route")]
    pub route: Route,
    /// What the cost model expects of it.
    pub predicted: PredictedTimes,
}

/// Why a plan is as it is. Times are those of the objective: microseconds a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Explanation {
    /// What the objective makes of the plan.
    pub score_us: f64,
    /// No placement that keeps to the constraints can be better than this by the cost model, with any of the chunks, decode
    /// groups and forms of boundaries that were considered. It bounds a user's split as well: over all other placements.
    /// 0 where no bound is known: for very many devices and segments.
    pub bound_us: f64,
    /// What is busy for longest in a request.
    pub bottleneck: Bottleneck,
    /// The least share of time that a stage stands idle while a burst of prompts fills and drains the pipeline.
    pub prefill_bubble: f64,
    /// Share of a decode round in which the busiest stage stands idle.
    pub decode_idle: f64,
    /// Each device that the plan leaves out, with the best plan that has it.
    pub left_out: Vec<LeftOut>,
    /// Other plans, the best first.
    pub alternatives: Vec<Alternative>,
    /// What holds the plan back, and what would come of having more of it; the largest gain first.
    pub bindings: Vec<BindingLimit>,
    /// How many figures that the plan rests on come from where.
    pub figures: Vec<FigureCount>,
}

/// What is busy for longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bottleneck {
    /// Whether it is a stage or an edge.
    pub place: Place,
    /// Which, counted from 0: edge `n` leaves stage `n`.
    pub index: usize,
    /// How long it is busy for one request, in microseconds.
    pub busy_us: f64,
    /// Its share of the work of all stages and edges.
    pub share: f64,
}

/// A part of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A stage.
    #[default]
    Stage,
    /// The way from one stage to the next.
    Edge,
    /// Something that several edges share.
    SharedLink,
    /// The edge on which tokens return.
    TokenReturn,
}

/// A device that a plan leaves out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// Its label.
    pub device: String,
    /// The best plan with it; none fits if there is none.
    pub best_with: Option<Alternative>,
    /// Whether one was searched for: of many devices only the first are tried. True where a plan does not say.
    #[serde(default = "LeftOut::is_tried")]
    pub tried: bool,
    /// Whether plans with it would fit, and the constraints allow none of them. False where a plan does not say.
    #[serde(default)]
    pub constrained: bool,
}

impl LeftOut {
    fn is_tried() -> bool {
        true
    }

    /// Whether a device of the same name has the same figures and reason.
    fn is_like(&self, other: &Self) -> bool {
        let name = |left: &Self| left.device.rsplit_once(':').map(|(name, _)| name.to_owned());
        let rates = |other: &Alternative| {
            (other.score_us, other.decode_tokens_per_s, other.prefill_tokens_per_s, other.why.clone())
        };
        let told = |left: &Self| (left.tried, left.constrained, left.best_with.as_ref().map(rates));
        name(self) == name(other) && told(self) == told(other)
    }
}

impl Explanation {
    /// The devices that are left out, like devices of one name grouped.
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
    /// Its placement, as users write it: `0-5=cpu:0,6-13=cpu:1`.
    pub split: String,
    /// What the objective makes of it.
    pub score_us: f64,
    /// Tokens per second in decode, of all sequences together.
    pub decode_tokens_per_s: f64,
    /// Tokens per second in prefill.
    pub prefill_tokens_per_s: f64,
    /// Why it is shown: `best single device`, `even layers` …
    pub why: String,
}

impl Alternative {
    /// Why the planner's placement stands beside a user's split.
    pub const PLANNERS_OWN: &str = "the planner's own";
}

/// A limit, and what having more would give.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename = "Binding", deny_unknown_fields)]
pub struct BindingLimit {
    /// The device, the two ends of a link as `cpu:0 -> cuda:0`, or the name of what links share.
    pub of: String,
    /// What there would be more of, as in `8 GiB more memory`.
    pub more: String,
    /// The share by which the score would get better.
    pub gain: f64,
}

/// How many figures come from a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FigureCount {
    /// Where they come from.
    pub source: FigureSource,
    /// How many.
    pub figures: usize,
}

/// What tells one model from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanModel {
    /// Name, for people.
    pub name: String,
    /// Digest of the file's content.
    pub digest: String,
    /// Number of segments.
    pub segments: u32,
    /// What of a transformer block is one segment; the block where a plan does not say.
    #[serde(default)]
    #[schemars(schema_with = "crate::schemas::granularity")]
    pub granularity: Granularity,
}

/// The segments that one device runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanStage {
    /// The device's label, as in `cpu:0`.
    pub device: String,
    /// Its segments, first and last.
    #[schemars(with = "[u32; 2]")]
    pub segments: Span,
    /// What it takes of the device's memory.
    pub memory_bytes: StageMemory,
    /// What the cost model expects of it.
    pub predicted: PredictedTimes,
}

/// What a stage takes of its device's memory, in bytes. Each buffer counts as its size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StageMemory {
    /// Weights in their resident layout; a tensor that two segments share counts once.
    pub weights: u64,
    /// Keys and values of all sequences at the full context.
    pub kv: u64,
    /// Scratch: the largest need of any segment.
    pub scratch: u64,
    /// Slots: parameters, rows and logits of the micro-batches that the stage may hold.
    pub slots: u64,
    /// Staging ring of the route that leads to the stage.
    pub staging: u64,
    /// Sum of the above.
    pub total: u64,
    /// What the device had to offer.
    pub available: u64,
}

/// What a pipeline takes of the host's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostMemory {
    /// Logits: a part for each credit.
    pub logits: u64,
    /// Staging rings between stages.
    pub staging: u64,
    /// Parameters of the micro-batches that the stages may hold.
    pub parameters: u64,
    /// The stages on devices whose memory is the host's.
    pub devices: u64,
    /// Sum of the above.
    pub total: u64,
    /// What was free; none where it is not known.
    pub available: Option<u64>,
}

/// What the cost model expects of a stage or an edge, in microseconds, rounded to tenths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PredictedTimes {
    /// One decode micro-batch.
    pub decode_us: f64,
    /// One prefill chunk.
    pub prefill_us: f64,
}

/// What the cost model expects of a run, rounded to tenths.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PredictedRun {
    /// Tokens per second in decode, of all sequences together; of one where the objective is that of one.
    pub decode_tokens_per_s: f64,
    /// Tokens per second in prefill, with the pipeline full.
    pub prefill_tokens_per_s: f64,
    /// Rows of the prefill chunk that all predictions of the plan are for; 0 where a plan does not say: [`Plan::chunk`].
    #[serde(default)]
    pub prefill_rows: u32,
    /// From the arrival of a request at an empty pipeline to its first token, in microseconds.
    pub first_token_us: f64,
    /// From one token of a sequence to its next, with all sequences going on, in microseconds.
    pub token_us: f64,
}

/// Why a plan cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidPlan {
    /// Not JSON, or not a plan.
    #[error("not a plan: {cause}")]
    NotAPlan {
        /// The path in the file, what the reader says, line and column.
        cause: String,
    },
    /// Written by a later version.
    #[error("the plan is of version {found}, this build reads version {PLAN_VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// Made for another model.
    #[error(
        "the plan was made for the model {plan_name} ({plan_segments} segments, digest {plan_digest}), \
         not for {name} ({segments} segments, digest {digest})"
    )]
    OtherModel {
        /// Model of the plan.
        plan_name: String,
        /// Its digest.
        plan_digest: String,
        /// Its segments.
        plan_segments: u32,
        /// The model at hand.
        name: String,
        /// Its digest.
        digest: String,
        /// Its segments.
        segments: u32,
    },
    /// Made for segments of another granularity.
    #[error(
        "the plan's segments are of granularity {plan} ({plan_segments} of them), those wanted of granularity {wanted} \
         ({segments} of them)"
    )]
    OtherGranularity {
        /// Granularity of the plan.
        plan: Granularity,
        /// Its segments.
        plan_segments: u32,
        /// What is wanted.
        wanted: Granularity,
        /// The model's segments, then.
        segments: u32,
    },
    /// The stages do not cover the segments, or name devices that are not there.
    #[error("the plan's stages: {0}")]
    Stages(#[from] PartitionError),
    /// Not one route between each pair of neighbours.
    #[error("the plan has {routes} routes for {stages} stages; it needs one between each stage and the next")]
    Routes {
        /// Number of routes.
        routes: usize,
        /// Number of stages.
        stages: usize,
    },
    /// Activations that cross in a form which is not of the class that the plan is for.
    #[error("the plan's boundary is {boundary} with exact activations, which cross as f32")]
    Boundary {
        /// The form.
        boundary: Boundary,
    },
    /// A way from one stage to the next that cannot be.
    #[error("the plan's edges[{edge}].route: {what}")]
    Route {
        /// Which edge.
        edge: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// An invalid list of prefill chunks.
    #[error("the plan's chunks: {0}")]
    Chunks(#[from] InvalidChunks),
    /// An invalid figure.
    #[error("the plan's {field} is {value}; {wanted}")]
    Figure {
        /// Which.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What it should be.
        wanted: &'static str,
    },
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// [`InvalidPlan::Version`] for a later format, else [`InvalidPlan::NotAPlan`] with the path in the file, line and column,
    /// also for a field that the format does not have. Whether it suits a model and devices is [`Plan::validate`]'s question.
    pub fn from_json(json: &str) -> Result<Self, InvalidPlan> {
        // The version comes first: a later format may well have fields that this build would call unknown.
        #[derive(Deserialize)]
        struct Head {
            ragtag_plan: u32,
        }
        if let Ok(Head { ragtag_plan: found }) = crate::json::parse(json)
            && found != PLAN_VERSION
        {
            return Err(InvalidPlan::Version { found });
        }
        crate::json::parse(json).map_err(|cause| InvalidPlan::NotAPlan { cause })
    }

    /// Writes the plan, indented, with a newline at its end.
    pub fn to_json(&self) -> String {
        // Strings, integers and finite floats in structs: nothing here that JSON cannot hold.
        serde_json::to_string_pretty(self).expect("plans are plain data") + "\n"
    }

    /// The plan's placement, as users write it.
    pub fn split(&self) -> Split {
        let part = |s: &PlanStage| SplitPart { span: s.segments, device: s.device.clone() };
        Split { parts: self.stages.iter().map(part).collect() }
    }

    /// Holds the plan against the model and the labels of the devices at hand.
    ///
    /// # Errors
    /// Names the first thing that is wrong: version, model, granularity, a hole, an overlap, an unknown device, a device used twice.
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
        if self.edges.len() + 1 != self.stages.len() {
            return Err(InvalidPlan::Routes { routes: self.edges.len(), stages: self.stages.len() });
        }
        if self.activations == Activations::F32 && self.boundary != Boundary::F32 {
            return Err(InvalidPlan::Boundary { boundary: self.boundary });
        }
        self.validate_figures()
    }

    /// The rows that a decode micro-batch has with the plan's groups.
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
        if let Some((field, value)) = counted.into_iter().find(|(_, value)| *value > MOST_MICRO_BATCHES) {
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
                wanted: "it must be the sequences of a decode group, as sequences and decode_groups make it",
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
        let wrong = self.edges.iter().enumerate().find_map(|(edge, e)| Some((edge, unusable(e.route)?)));
        if let Some((edge, what)) = wrong {
            return Err(InvalidPlan::Route { edge, what });
        }
        Ok(())
    }
}

/// Why activations cannot cross from stage to stage in this way, if they cannot.
fn unusable(route: Route) -> Option<&'static str> {
    match route {
        Route::HostStaged { chunk_bytes: 1.., depth: 1.. } => None,
        Route::HostStaged { .. } => Some("a ring needs chunks of at least a byte, and at least one of them"),
        Route::SameDevice => Some("neighbouring stages are on different devices"),
        Route::Peer | Route::Import => Some("this build knows no way between devices but host-staged"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> PlanModel {
        let granularity = Granularity::Block;
        PlanModel { name: "tales".into(), digest: "ab12".into(), segments: 14, granularity }
    }

    fn stage(device: &str, first: u32, last: u32) -> PlanStage {
        PlanStage {
            device: device.into(),
            segments: Span::new(first, last).expect("in order"),
            memory_bytes: StageMemory {
                weights: 1,
                kv: 2,
                scratch: 3,
                slots: 4,
                staging: 5,
                total: 15,
                available: 1 << 40,
            },
            predicted: PredictedTimes { decode_us: 1234.5, prefill_us: 0.1 },
        }
    }

    fn plan() -> Plan {
        Plan {
            ragtag_plan: PLAN_VERSION,
            model: model(),
            objective: Objective::Throughput,
            workload: Workload::default(),
            device_options: Some(PlanDeviceOptions {
                selection: "auto".into(),
                cpu_devices: 2,
                threads: None,
            }),
            context: 512,
            sequences: 2,
            chunk: 128,
            chunks: None,
            decode_rows: 1,
            decode_groups: 2,
            credits: 3,
            slots: 2,
            kv: KvType::F16,
            activations: Activations::Int8,
            boundary: Boundary::F32,
            stages: vec![stage("cpu:0", 0, 5), stage("cpu:1", 6, 13)],
            host_memory_bytes: HostMemory { total: 7, available: Some(1 << 40), ..HostMemory::default() },
            edges: vec![PlanEdge {
                route: Route::HostStaged { chunk_bytes: 65536, depth: 4 },
                predicted: PredictedTimes { decode_us: 21.5, prefill_us: 40.0 },
            }],
            token_return: PredictedTimes { decode_us: 20.0, prefill_us: 20.0 },
            predicted: PredictedRun {
                decode_tokens_per_s: 123.4,
                prefill_tokens_per_s: 4567.8,
                prefill_rows: 0,
                first_token_us: 98765.4,
                token_us: 8103.7,
            },
            explanation: Explanation::default(),
            reasons: vec!["because".into()],
        }
    }

    const DEVICES: [&str; 2] = ["cpu:0", "cpu:1"];

    #[test]
    fn json_round_trips() {
        let json = plan().to_json();
        assert!(json.contains("\"ragtag_plan\": 2"), "{json}");
        assert_eq!(Plan::from_json(&json), Ok(plan()));
    }

    #[test]
    fn unknown_fields_are_refused_wherever_they_are() {
        let json = plan().to_json();
        for (place, with) in [
            ("\"context\"", "\"contxt\": 1, \"context\""),
            ("\"digest\"", "\"extra\": 1, \"digest\""),
            ("\"decode_us\"", "\"extra\": 1, \"decode_us\""),
            ("\"weights\"", "\"extra\": 1, \"weights\""),
            ("\"chunk_bytes\"", "\"extra\": 1, \"chunk_bytes\""),
            ("\"device\"", "\"extra\": 1, \"device\""),
        ] {
            let changed = json.replacen(place, with, 1);
            assert_ne!(changed, json, "{place}");
            let error = Plan::from_json(&changed).expect_err("unknown field");
            assert!(
                matches!(&error, InvalidPlan::NotAPlan { cause } if cause.contains("unknown field")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_newer_version_is_named_even_with_new_fields() {
        let json = plan().to_json().replacen("\"ragtag_plan\": 2", "\"ragtag_plan\": 7, \"novelty\": {}", 1);
        assert_eq!(Plan::from_json(&json), Err(InvalidPlan::Version { found: 7 }));
        let mut newer = plan();
        newer.ragtag_plan = 3;
        assert_eq!(newer.validate(&model(), &DEVICES), Err(InvalidPlan::Version { found: 3 }));
    }

    #[test]
    fn what_is_no_plan_is_refused() {
        for json in ["", "{}", "[]", "GGUF", "{\"ragtag_plan\": -1}", "{\"ragtag_plan\": 2}"] {
            assert!(matches!(Plan::from_json(json), Err(InvalidPlan::NotAPlan { .. })), "{json}");
        }
        let pretty = plan().to_json();
        let compact: String = pretty.split_whitespace().collect();
        let reversed = compact.replacen("[0,5]", "[5,0]", 1);
        assert_ne!(reversed, compact);
        let error = Plan::from_json(&reversed).expect_err("reversed");
        assert!(error.to_string().contains("the last comes before the first"), "{error}");
        for cut in 0..pretty.len() - 2 {
            assert!(Plan::from_json(&pretty[..cut]).is_err(), "cut at {cut}");
        }
    }

    /// Found by fuzzing: what the reader quotes was as long as the file, and might have cleared the screen.
    #[test]
    fn messages_are_short_and_without_control_characters() {
        let long = "\\u001b[2J\\\\".repeat(1000);
        let json = plan().to_json();
        for changed in [
            json.replacen("\"context\"", &format!("\"{long}\": 1, \"context\""), 1),
            json.replacen("\"f16\"", &format!("\"{long}\""), 1),
            json.replacen("512", &format!("\"{long}\""), 1),
            format!("\"{long}\""),
        ] {
            let message = Plan::from_json(&changed).expect_err("not a plan").to_string();
            assert!(message.len() < 1600 && !message.contains(char::is_control), "{message}");
            assert!(message.contains(" at line "), "{message}");
        }
    }

    #[test]
    fn validation_names_what_is_wrong() {
        assert_eq!(plan().validate(&model(), &DEVICES), Ok(()));
        let with = |change: &dyn Fn(&mut Plan)| {
            let mut changed = plan();
            change(&mut changed);
            changed.validate(&model(), &DEVICES).expect_err("invalid").to_string()
        };
        assert!(with(&|p| p.model.digest = "cd".into()).contains("digest cd"));
        assert!(
            with(&|p| p.model.granularity = Granularity::HalfBlock).contains("granularity half-block (14")
        );
        assert!(with(&|p| p.model.segments = 15).contains("15 segments"));
        assert!(with(&|p| p.stages[1] = stage("cpu:1", 8, 13)).contains("segments 6-7 are on no device"));
        assert!(
            with(&|p| p.stages[1] = stage("cpu:1", 5, 13)).contains("segments 5 are on cpu:0 and on cpu:1")
        );
        assert!(with(&|p| p.stages[1] = stage("cpu:1", 6, 14)).contains("last segment is 13"));
        assert!(with(&|p| p.stages[1].device = "cuda:0".into()).contains("no device cuda:0"));
        assert!(with(&|p| p.stages[1].device = "cpu:0".into()).contains("cpu:0 is named twice"));
        assert!(with(&|p| p.stages.swap(0, 1)).contains("in the order of the segments"));
        assert!(with(&|p| p.stages.clear()).contains("no segment is placed"));
        assert!(with(&|p| p.edges.clear()).contains("0 routes for 2 stages"));
        assert!(with(&|p| p.context = 0).contains("context is 0"));
        assert!(with(&|p| p.chunks = Some(Chunks::fixed(129))).contains("longest of chunks is 129"));
        let none = Chunks { by_prompt: Vec::new(), beside_decode: 1 };
        assert!(with(&|p| p.chunks = Some(none.clone())).contains("must start at 0 tokens"));
        assert!(with(&|p| p.decode_rows = 129).contains("decode_rows is 129"));
        let exact = with(&|p| (p.boundary, p.activations) = (Boundary::F16, Activations::F32));
        assert!(exact.contains("boundary is f16 with exact activations"), "{exact}");
        let ring = Route::HostStaged { chunk_bytes: 1, depth: 0 };
        assert!(with(&|p| p.edges[0].route = ring).contains("a ring needs"));
    }

    #[test]
    fn a_plan_that_names_no_granularity_is_one_of_blocks() {
        let mut halves = plan();
        halves.model.granularity = Granularity::HalfBlock;
        let json = halves.to_json();
        let field = ",\n    \"granularity\": \"half-block\"";
        assert!(json.contains(field), "{json}");
        assert_eq!(Plan::from_json(&json), Ok(halves));
        assert_eq!(Plan::from_json(&json.replacen(field, "", 1)), Ok(plan()));
        assert!(Plan::from_json(&json.replacen("half-block", "third", 1)).is_err());
    }

    #[test]
    fn a_plan_need_not_name_its_device_options() {
        let unnamed = Plan { device_options: None, ..plan() };
        assert!(!unnamed.to_json().contains("device_options"));
        assert_eq!(Plan::from_json(&unnamed.to_json()), Ok(unnamed));
        let misspelt = plan().to_json().replacen("\"cpu_devices\"", "\"cpus\"", 1);
        assert!(Plan::from_json(&misspelt).is_err());
    }

    #[test]
    fn a_plan_that_names_no_boundary_crosses_as_f32() {
        let mut narrow = plan();
        narrow.boundary = Boundary::F16;
        let json = narrow.to_json();
        let field = "  \"boundary\": \"f16\",\n";
        assert!(json.contains(field), "{json}");
        assert_eq!(Plan::from_json(&json), Ok(narrow));
        assert_eq!(Plan::from_json(&json.replacen(field, "", 1)), Ok(plan()));
        let error =
            Plan::from_json(&json.replacen(field, "  \"boundary\": \"f8\",\n", 1)).expect_err("unknown");
        assert!(error.to_string().contains("boundary"), "{error}");
    }

    #[test]
    fn the_split_of_a_plan_is_what_users_write() {
        assert_eq!(plan().split().to_string(), "0-5=cpu:0,6-13=cpu:1");
    }
}
