//! Inputs of the planner. This module knows nothing about the search.

use super::hosts::HostFacts;
use super::problem::Run;
use crate::cost::{DeviceFacts, Links};
use crate::objective::{Objective, Workload};
use crate::plan::{Plan, logit_rows};
use crate::split::Split;
use ragtag_graph::execution::KvUse;
use ragtag_graph::{Hyperparameters, Lowering, Segment, StageResult, WireType};
use ragtag_kernels::picks::RECORD_BYTES;
use ragtag_kernels::{Activations, KvType};

/// Facts about the model that the planner needs in addition to the segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// Display name.
    pub name: String,
    /// Digest of the model file.
    pub digest: String,
    /// Trained context length, in positions.
    pub context: u32,
    /// Bytes of one row of activations in device memory.
    pub row_bytes: u64,
    /// Number of values in a row of results: one for each token of the vocabulary, or those of a hidden row.
    pub vocabulary: u32,
    /// Number of RoPE frequencies of a sequence that depend on its length.
    pub sequence_frequencies: u32,
}

impl ModelFacts {
    /// Returns the facts of a model with these hyperparameters.
    pub fn new(name: impl Into<String>, digest: impl Into<String>, h: &Hyperparameters) -> Self {
        Self {
            name: name.into(),
            digest: digest.into(),
            context: h.context,
            row_bytes: u64::from(h.width) * 4,
            vocabulary: (h.result().row_bytes() / 4) as u32,
            sequence_frequencies: h.rope.sequence_frequencies(),
        }
    }

    /// Bytes that return to the host per sampled row: its best logits. Sampling that reads whole rows takes longer than
    /// planned.
    pub const RETURN_ROW_BYTES: u64 = RECORD_BYTES;

    /// Returns the bytes of one row of results.
    pub fn logit_row_bytes(&self) -> u64 {
        StageResult::Picks { vocabulary: self.vocabulary }.row_bytes()
    }
}

/// Capacity limits and micro-batch sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// Maximum length of a sequence, in positions. Default: the longest context that fits, up to the model's
    /// trained context. If weights must be streamed: up to 4096, or up to the length of the planned request.
    pub context: Option<u32>,
    /// Maximum number of sequences in the pipeline at once.
    pub sequences: u32,
    /// Maximum number of rows in a micro-batch. Also the requested length of a prefill chunk.
    pub chunk: u32,
    /// Maximum number of logit rows in a micro-batch.
    pub logit_rows: u32,
    /// Maximum number of micro-batches that a stage holds at once.
    pub slots: u32,
    /// Number of decode groups. Default: chosen by the planner.
    pub decode_groups: Option<u32>,
    /// Maximum number of micro-batches in flight. Default: chosen by the planner. With several sequences, a plan
    /// has at least one more than decode groups.
    pub credits: Option<u32>,
    /// Number of blocks of the KV cache. Default: chosen by the planner.
    pub kv_blocks: Option<u32>,
    /// Memory for keys and values in all devices together, in bytes. Without it, and without a number of blocks,
    /// the KV cache gets the memory that is left, at most as much as all sequences need at the full context.
    pub kv_memory_bytes: Option<u64>,
    /// When sequences take blocks of the KV cache, and whether it keeps the blocks of earlier sequences.
    pub kv_use: KvUse,
    /// Element type of the KV cache. The costs in [`PlannerInput::segments`] must be computed for this type.
    pub kv: KvType,
    /// Activation type of matrix products.
    pub activations: Activations,
    /// Wire type of activations. Default: chosen by the planner. With f32 activations it is always f32.
    pub wire_type: Option<WireType>,
    /// Whether the stages verify transfers, which takes memory for checksums.
    pub verified: bool,
}

impl From<&Lowering> for PlanLimits {
    /// Returns the limits of a lowering, with three slots, the wire type and the KV cache of the lowering.
    fn from(lowering: &Lowering) -> Self {
        Self {
            context: Some(lowering.context),
            sequences: lowering.sequences,
            chunk: lowering.chunk,
            logit_rows: lowering.logit_rows,
            slots: 3,
            decode_groups: None,
            credits: None,
            kv_blocks: Some(lowering.cache_blocks()),
            kv_memory_bytes: None,
            kv_use: KvUse::default(),
            kv: lowering.kv,
            activations: lowering.activations,
            wire_type: Some(lowering.wire_type),
            verified: false,
        }
    }
}

impl PlanLimits {
    /// Returns the maximum number of logit rows in a micro-batch of at most `chunk` rows. If only the last
    /// row of each sequence needs logits, this number depends on the size of a decode group.
    pub(super) fn logit_rows_of(&self, groups: u32, chunk: u32) -> u32 {
        match self.logit_rows <= self.sequences {
            true => logit_rows(self.sequences, groups, chunk).min(self.logit_rows),
            false => self.logit_rows.min(chunk),
        }
    }
}

/// A constraint that pins a segment to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Index of the segment.
    pub segment: u32,
    /// Label of the device.
    pub device: String,
}

/// Constraints on a placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraints {
    /// Pinned segments. Segment 0 is the embedding, and the last segment is the head.
    pub pins: Vec<Pin>,
    /// Labels of excluded devices.
    pub excluded: Vec<String>,
    /// Maximum number of stages.
    pub max_stages: Option<u32>,
}

impl Constraints {
    /// No constraints.
    pub const NONE: &'static Self = &Self { pins: Vec::new(), excluded: Vec::new(), max_stages: None };
}

/// Load of a trial: equal requests in a closed loop, in which a new request arrives when another one ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialLoad {
    /// Number of requests.
    pub requests: u32,
    /// Number of concurrent requests.
    pub at_once: u32,
    /// Prompt tokens per request.
    pub prompt_tokens: u32,
    /// Generated tokens per request.
    pub new_tokens: u32,
}

/// Function that simulates a plan for the given segments. Returns the requests served per second, or `None`
/// if the plan cannot be simulated.
pub type Trial = fn(&PlannerInput<'_>, &Plan, &[Segment], &TrialLoad) -> Option<f64>;

/// All inputs of the planner.
#[derive(Clone, Copy, Debug)]
pub struct PlannerInput<'a> {
    /// The model.
    pub model: &'a ModelFacts,
    /// The model's segments, in order, lowered for [`PlanLimits::chunk`].
    pub segments: &'a [Segment],
    /// Other prefill chunk lengths to consider, each paired with the segments lowered for that length.
    pub other_chunks: &'a [(u32, &'a [Segment])],
    /// The devices. Among equally good plans, the planner prefers one that uses devices in this order.
    pub devices: &'a [DeviceFacts],
    /// The links between the devices.
    pub links: &'a Links,
    /// Free memory of the coordinator's host, in bytes. If `None`, the planner does not check host memory.
    pub host_memory_bytes: Option<u64>,
    /// Other hosts with devices.
    pub hosts: &'a [HostFacts],
    /// The objective to minimise.
    pub objective: Objective,
    /// The request that the plan is optimised for.
    pub workload: Workload,
    /// Capacity limits.
    pub limits: PlanLimits,
    /// Constraints on the placement. A user's split may violate them, but it must not use an excluded device.
    pub constraints: &'a Constraints,
    /// Function that simulates a plan. If it is set and the plan serves many sequences, the planner simulates
    /// the few best placements and chooses among them.
    pub trial: Option<Trial>,
    /// Whether the planner considers placements in which devices have several stages.
    pub several_stages: bool,
    /// Whether devices may stream weights from host memory if the model does not fit otherwise.
    pub streaming: bool,
    /// Whether devices may also stream weights from the model's file, if host memory is short.
    pub from_file: bool,
    /// Whether to explain the plan. Evaluating the alternatives for the explanation takes longer than the
    /// search.
    pub explained: bool,
    /// Placement that the user requested. The planner checks it but does not improve it.
    pub split: Option<&'a Split>,
}

impl<'a> PlannerInput<'a> {
    /// Returns inputs for the objective throughput and the default request, without constraints, simulated trials or
    /// a check of host memory. The segments must be lowered for `limits`.
    pub fn new(
        model: &'a ModelFacts,
        segments: &'a [Segment],
        devices: &'a [DeviceFacts],
        links: &'a Links,
        limits: PlanLimits,
    ) -> Self {
        Self {
            model,
            segments,
            other_chunks: &[],
            devices,
            links,
            host_memory_bytes: None,
            hosts: &[],
            objective: Objective::Throughput,
            workload: Workload::default(),
            limits,
            constraints: Constraints::NONE,
            trial: None,
            several_stages: true,
            streaming: true,
            from_file: true,
            explained: true,
            split: None,
        }
    }

    /// Returns whether the planner simulates placements. It does so if the objective is throughput, there are
    /// several sequences, a [`Trial`] is set and the user requested no split.
    pub(super) fn is_tried(&self) -> bool {
        self.trial.is_some()
            && self.split.is_none()
            && self.objective == Objective::Throughput
            && self.limits.sequences > 1
    }

    /// Returns the number of segments as plans state it.
    pub(super) fn segment_count(&self) -> u32 {
        u32::try_from(self.segments.len()).expect("a model has fewer than 2^32 segments")
    }

    /// Returns whether the planner may choose streamed segments. If the user's split names the streamed
    /// segments or the prefill stage, the planner does not change them.
    pub(super) fn may_stream(&self) -> bool {
        let is_open =
            |split: &Split| split.prefill.is_none() && split.parts.iter().all(|part| part.streamed.is_none());
        self.streaming && self.split.is_none_or(is_open)
    }

    /// Returns whether a placement meets the constraints. Does not check memory.
    pub(super) fn allows(&self, runs: &[Run]) -> bool {
        let Constraints { pins, excluded, max_stages } = self.constraints;
        let label = |run: &Run| &self.devices[run.device].label;
        let holds = |pin: &Pin| {
            let on = runs.iter().find(|run| run.segments.contains(&(pin.segment as usize)));
            on.is_some_and(|run| *label(run) == pin.device)
        };
        max_stages.is_none_or(|most| runs.len() <= most as usize)
            && pins.iter().all(holds)
            && !runs.iter().any(|run| excluded.contains(label(run)))
    }
}
