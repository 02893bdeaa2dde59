//! The simulator: pipelines of made-up devices on a virtual clock, driving the very cores that the threaded runtime
//! drives.
//!
//! Messages take random times (in order from one actor to another, in any order otherwise), queues run at random speeds
//! and honour points, requests come and are cancelled when they like, devices fail. What moves is checked as it moves:
//! each copy and computation looks at what its inputs hold at that moment, so a wait that is missing shows as wrong
//! data and not only as good luck. Everything follows from the [`SimSpec`], and that from a seed.
//!
//! A plan is simulated as well ([`SimSpec::of_plan`]): its stages take the time that the cost model says, nothing is random
//! but the load, and what comes of it is a [`SimSummary`].

mod device;
mod load;
mod observe;
mod plan;
mod promises;
mod spec;
mod summary;
mod time;
mod world;

pub use load::{
    Arrivals, DrawnLoad, LATEST_S, LONGEST, Lengths, Load, LoadError, MOST_REQUESTS, MOST_TOKENS,
};
pub use observe::{EdgeWork, Level, Observations, SequenceWork, StageWork, Work};
pub use plan::SimPlanError;
pub use spec::{Fault, SimRequest, SimSharedLink, SimSpec, SimStage, token_at};
pub use summary::{Depth, LinkUse, Percentiles, SharedLinkUse, SimSummary, StageUse};
pub use time::{ComputeTime, CopyTime, StageCosts};

use crate::core::{FinishReason, MicroBatchId, Nanoseconds, RunAction, RunEvent, SequenceId};
use crate::error::Error;
use ragtag_hal::QueueKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How a simulated sequence ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// It finished, with these tokens.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Tokens emitted.
        tokens: Vec<u32>,
    },
    /// It failed or was refused.
    Failed {
        /// With this error.
        error: Error,
    },
}

/// What a submission did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimSpanKind {
    /// A stage computed a micro-batch with prompt rows.
    Prefill,
    /// A stage computed a micro-batch of decode steps alone.
    Decode,
    /// An activation entered.
    Upload,
    /// An activation left.
    Download,
    /// Logits went to the host.
    Logits,
}

/// One submission as it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimSpan {
    /// On which stage's device.
    pub stage: u32,
    /// On which queue.
    pub queue: QueueKind,
    /// What it did.
    pub kind: SimSpanKind,
    /// For which micro-batch.
    pub micro_batch: MicroBatchId,
    /// Rows that it computed; 0 for copies.
    pub rows: u32,
    /// Start.
    pub start_ns: Nanoseconds,
    /// End.
    pub end_ns: Nanoseconds,
}

/// Spans that the simulation of a plan keeps: enough for any chart.
pub const MOST_SPANS: usize = 1 << 14;

/// What a simulated run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimReport {
    /// How each sequence ended; every request is here.
    pub outcomes: BTreeMap<SequenceId, Outcome>,
    /// What the devices did, in the order in which it ended; the first [`SimSpec::max_spans`] of them.
    pub spans: Vec<SimSpan>,
    /// How many more spans there were.
    pub dropped_spans: u64,
    /// When the last thing happened.
    pub makespan_ns: Nanoseconds,
    /// How long everything was at work, and when tokens came.
    pub observations: Observations,
    /// All that the coordinator was told, and when; empty unless [`SimSpec::checked`].
    pub run_events: Vec<(Nanoseconds, RunEvent)>,
    /// All that the coordinator did; empty unless [`SimSpec::checked`].
    pub run_actions: Vec<RunAction>,
}

impl SimReport {
    /// The part of the whole time in which a queue was busy.
    pub fn utilisation(&self, stage: u32, queue: QueueKind) -> f64 {
        let stage = self.observations.stages.get(stage as usize);
        let busy_ns = stage.map_or(0, |stage| stage.queues[queue.index()].busy_ns);
        busy_ns as f64 / self.makespan_ns.max(1) as f64
    }
}

/// What a simulated run showed to be wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimFailure {
    /// Nothing can happen any more, and some sequences have not ended.
    #[error("deadlock at {at_ns} ns: {} sequences never end, first {}", sequences.len(), sequences[0])]
    Deadlock {
        /// When.
        at_ns: Nanoseconds,
        /// Which sequences; at least one.
        sequences: Vec<SequenceId>,
    },
    /// Something happened that must not.
    #[error("at {at_ns} ns: {what}")]
    Violation {
        /// When.
        at_ns: Nanoseconds,
        /// What.
        what: String,
    },
}

/// Runs a pipeline until nothing is left to do, and checks it.
///
/// # Errors
/// [`SimFailure`] if a property does not hold.
pub fn simulate(spec: &SimSpec) -> Result<SimReport, SimFailure> {
    world::World::new(spec)?.run()
}

#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod tests;
