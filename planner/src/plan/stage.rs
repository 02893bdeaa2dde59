//! The stages of a plan, and the memory that they need.

use super::PredictedTimes;
use crate::cost::{DeviceFacts, QueuePart, RunSizes};
use crate::split::Span;
use ragtag_graph::execution::{Arenas, FEWEST, MAX_ARENAS, StagePart, wrong_arenas, wrong_from_file};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
        StagePart::all(segments, &streamed, self.arenas()).into_iter().map(part).collect()
    }

    /// Returns what is wrong with the streamed segments. `last` is the last segment of the model.
    pub(super) fn wrong_streamed(&self, last: u32) -> Option<String> {
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
    /// Keys and values: the blocks of the KV cache, and the KV rings of layers with a window.
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

/// Host memory of a pipeline on another host than the coordinator's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OtherHost {
    /// Name of the host. Labels of its devices begin with it and a slash.
    pub name: String,
    /// Its host memory.
    pub memory_bytes: HostMemory,
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
