//! Reasons why the planner cannot make a plan. This module knows nothing about the search.

use super::reasons;
use crate::cost::LargeBuffer;
use crate::plan::{HostMemory, OtherHost, StageMemory};
use crate::split::{PartitionError, Span};
use ragtag_graph::WireType;
use ragtag_kernels::KvType;
use std::fmt;
use thiserror::Error;

/// Reason why the planner cannot make a plan.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PlanError {
    /// There are no devices.
    #[error("there is no device to plan on")]
    NoDevice,
    /// There are no segments.
    #[error("the model has no segment")]
    NoSegment,
    /// A field of a device or link has an invalid value.
    #[error("{of}: invalid {field}")]
    BadFacts {
        /// Name of the device or link.
        of: String,
        /// Name of the field.
        field: &'static str,
    },
    /// A limit or the workload is zero.
    #[error("{what} must be at least 1")]
    BadLimit {
        /// Name of the limit.
        what: &'static str,
    },
    /// A constraint names an unknown segment or device, or contradicts another constraint.
    #[error("the constraints: {what}")]
    BadConstraint {
        /// Problem, as quoted in the error message.
        what: String,
    },
    /// The user's split does not match the model or the devices.
    #[error("the split: {0}")]
    Split(#[from] PartitionError),
    /// Exact (f32) activations are combined with a wire type other than f32.
    #[error("wire type {wire_type} needs int8 activations; exact activations (f32) need wire type f32")]
    ExactBoundary {
        /// Requested wire type.
        wire_type: WireType,
    },
    /// The model does not fit the devices.
    #[error("{}", .0.worded(Remedy::to_string))]
    DoesNotFit(Box<DoesNotFit>),
    /// The KV cache that the user requested does not hold one sequence.
    #[error("{}", reasons::small_cache(*context, *blocks, *needed_bytes))]
    SmallCache {
        /// Context in positions.
        context: u32,
        /// Number of blocks that the requested KV cache has.
        blocks: u32,
        /// Memory of a KV cache for one sequence at this context, in all devices together, in bytes.
        needed_bytes: u64,
    },
    /// The plan fits the devices, but it needs more host memory than is free.
    #[error("{}", reasons::host_does_not_fit(.0))]
    HostMemory(Box<HostMemory>),
    /// The plan fits the devices, but it needs more memory of another host than is free there.
    #[error("{}", reasons::other_host_does_not_fit(.0))]
    OtherHost(Box<OtherHost>),
}

/// Memory shortages of the placement that comes closest to fitting.
#[derive(Clone, Debug, PartialEq)]
pub struct DoesNotFit {
    /// Context length at which the placement does not fit, in positions.
    pub context: u32,
    /// Stages that lack memory. Never empty.
    pub shortages: Vec<Shortage>,
    /// Changes that may make the model fit. Never empty.
    pub remedies: Vec<Remedy>,
}

impl DoesNotFit {
    /// Returns the error message, in which `word` words each remedy.
    pub fn worded(&self, word: impl Fn(&Remedy) -> String) -> String {
        reasons::does_not_fit(self, word)
    }
}

/// Change that may make a model fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A context of this many positions, which fits.
    Context(u32),
    /// More memory on a device, with which it could stream the weights.
    Streaming {
        /// Label of the device.
        device: String,
        /// Memory that streaming needs in total, in bytes.
        needed_bytes: u64,
    },
    /// A type of keys and values that takes half of the memory, or nearly half.
    Kv(KvType),
    /// Fewer sequences at once.
    FewerSequences,
    /// Another split than that of the user.
    AnotherSplit,
    /// Another device.
    AnotherDevice,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::Context(positions) => write!(f, "a context of {positions} fits"),
            Remedy::Streaming { device, needed_bytes } => {
                let needed = reasons::bytes_up(*needed_bytes);
                write!(f, "with {needed} on {device}, the weights could be streamed")
            }
            Remedy::Kv(KvType::F16) => f.write_str("type f16 halves keys and values"),
            Remedy::Kv(kv) => write!(f, "type {kv} nearly halves keys and values"),
            Remedy::FewerSequences => f.write_str("fewer sequences at once need less"),
            Remedy::AnotherSplit => f.write_str("another split may fit"),
            Remedy::AnotherDevice => f.write_str("another device adds memory"),
        }
    }
}

/// A stage that does not fit its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Label of the device.
    pub device: String,
    /// Segments of the stage.
    pub segments: Span,
    /// Required and available memory.
    pub memory: StageMemory,
    /// A buffer that exceeds a limit of the device.
    pub too_large: Option<LargeBuffer>,
}

impl Shortage {
    /// Returns the number of missing bytes.
    pub fn missing_bytes(&self) -> u64 {
        self.memory.total.saturating_sub(self.memory.available)
    }
}
