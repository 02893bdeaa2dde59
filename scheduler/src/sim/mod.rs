//! The simulator: it runs pipelines of simulated devices on a virtual clock, with the same cores as the
//! threaded runtime.
//!
//! Random pipelines test the cores. Message delays and queue speeds are random, requests arrive, pause and are
//! cancelled at random times, sequences share prefixes in caches that are too small for all, and devices fail. Messages between the same two actors keep their order, but
//! other messages can overtake each other. Each copy and computation checks the current contents of its
//! inputs, so a missing wait always shows as wrong data. A [`SimSpec`] fully determines a run, and it can be
//! drawn from a seed.
//!
//! The simulator also runs plans ([`SimSpec::of_plan`]). The cost model then gives the times of the stages,
//! and only the load is random. [`SimSummary`] summarises the result.

mod device;
mod expected;
mod invariants;
mod load;
mod memory;
mod observe;
mod plan;
mod request;
mod spec;
mod summary;
mod time;
mod world;

pub use load::{
    Arrivals, DrawnLoad, DrawnText, LATEST_S, LONGEST, Lengths, Load, LoadError, MAX_REQUESTS, MAX_TOKENS,
};
pub use observe::{CacheWork, EdgeWork, Level, Observations, SequenceWork, StageWork, Work};
pub use plan::SimPlanError;
pub use request::SimRequest;
pub use spec::{Fault, SimNetwork, SimPart, SimPass, SimPrefill, SimSharedLink, SimSpec, SimStage};
pub use summary::{Depth, LinkUse, Percentiles, SharedLinkUse, SimSummary, StageUse};
pub use time::{ComputeTime, CopyTime, StageCosts};

use crate::core::{FinishReason, MicroBatchId, Nanoseconds, RunAction, RunEvent, SequenceId};
use crate::error::Error;
use ragtag_hal::QueueKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Result of a simulated sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SimOutcome {
    /// The sequence finished and produced these tokens.
    Finished {
        /// Reason for the end of the sequence.
        reason: FinishReason,
        /// The emitted tokens.
        tokens: Vec<u32>,
    },
    /// The sequence failed or was rejected.
    Failed {
        /// Error that ended the sequence.
        error: Error,
    },
}

/// Kind of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimSpanKind {
    /// Computation of a micro-batch that has prompt rows.
    Prefill,
    /// Computation of a micro-batch that contains only decode steps.
    Decode,
    /// Read of streamed weights from the model's file.
    Read,
    /// Copy of streamed weights to an arena.
    Weights,
    /// Upload of activations.
    Upload,
    /// Download of activations.
    Download,
    /// Download of logits.
    Logits,
    /// Copy of keys and values between the cache and host memory.
    KeysAndValues,
    /// Computation or download of a checksum of activations.
    Checksum,
}

/// A submission with its start and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimSpan {
    /// Index of the stage.
    pub stage: u32,
    /// Queue of the stage's device that ran the submission.
    pub queue: QueueKind,
    /// Work of the submission.
    pub kind: SimSpanKind,
    /// The micro-batch. Absent for streamed weights.
    pub micro_batch: Option<MicroBatchId>,
    /// Number of computed rows. The value is 0 for copies.
    pub rows: u32,
    /// Start of the submission.
    pub start_ns: Nanoseconds,
    /// End of the submission.
    pub end_ns: Nanoseconds,
}

/// Maximum number of spans that the simulation of a plan keeps. A chart needs no more.
pub const MAX_SPANS: usize = 1 << 14;

/// Result of a simulated run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SimReport {
    /// Results of all requests.
    pub outcomes: BTreeMap<SequenceId, SimOutcome>,
    /// The first [`SimSpec::max_spans`] submissions, in order of completion.
    pub spans: Vec<SimSpan>,
    /// Number of submissions that are missing in `spans` because the limit was reached.
    pub dropped_spans: u64,
    /// Time of the last event.
    pub makespan_ns: Nanoseconds,
    /// Number of transfers that were sent again, because wrong bytes had arrived or a copy was refused.
    #[serde(default)]
    pub resent: u64,
    /// Utilisation of the devices and links, and times of the tokens.
    pub observations: Observations,
    /// All events of the coordinator, with their times. Empty unless [`SimSpec::checked`] is set.
    pub run_events: Vec<(Nanoseconds, RunEvent)>,
    /// All actions of the coordinator. Empty unless [`SimSpec::checked`] is set.
    pub run_actions: Vec<RunAction>,
}

impl SimReport {
    /// Returns the fraction of the total time in which a queue of the stage was busy.
    pub fn utilisation(&self, stage: u32, queue: QueueKind) -> f64 {
        let stage = self.observations.stages.get(stage as usize);
        let busy_ns = stage.map_or(0, |stage| stage.queues[queue.index()].busy_ns);
        busy_ns as f64 / self.makespan_ns.max(1) as f64
    }
}

/// A defect that a simulated run revealed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimFailure {
    /// No event is left, but some sequences have not ended.
    #[error("deadlock at {at_ns} ns: {} sequences never end, first {}", sequences.len(), sequences[0])]
    Deadlock {
        /// Time of the deadlock.
        at_ns: Nanoseconds,
        /// The sequences that have not ended, at least one.
        sequences: Vec<SequenceId>,
    },
    /// A property was violated.
    #[error("at {at_ns} ns: {what}")]
    Violation {
        /// Time of the violation.
        at_ns: Nanoseconds,
        /// Description of the violation.
        what: String,
    },
}

/// Simulates a pipeline to the end and checks its invariants.
///
/// # Errors
/// [`SimFailure`] if a property is violated.
pub fn simulate(spec: &SimSpec) -> Result<SimReport, SimFailure> {
    world::World::new(spec)?.run()
}

#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod tests;
