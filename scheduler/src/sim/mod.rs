//! The simulator: pipelines of made-up devices on a virtual clock, driving the very cores that the threaded runtime
//! drives.
//!
//! Messages take random times (in order from one actor to another, in any order otherwise), queues run at random speeds
//! and honour points, requests come and are cancelled when they like, devices fail. What moves is checked as it moves:
//! each copy and computation looks at what its inputs hold at that moment, so a wait that is missing shows as wrong
//! data and not only as good luck. Everything follows from the [`SimSpec`], and that from a seed.

mod device;
mod spec;
mod world;

pub use spec::{Fault, SimRequest, SimSpec, SimStage, token_at};

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

/// One submission as it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimSpan {
    /// On which stage's device.
    pub stage: u32,
    /// On which queue.
    pub queue: QueueKind,
    /// For which micro-batch.
    pub micro_batch: MicroBatchId,
    /// Start.
    pub start_ns: Nanoseconds,
    /// End.
    pub end_ns: Nanoseconds,
}

/// What a simulated run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimReport {
    /// How each sequence ended; every request is here.
    pub outcomes: BTreeMap<SequenceId, Outcome>,
    /// What the devices did, in the order in which it ended.
    pub spans: Vec<SimSpan>,
    /// When the last thing happened.
    pub makespan_ns: Nanoseconds,
    /// All that the coordinator was told, and when.
    pub run_events: Vec<(Nanoseconds, RunEvent)>,
    /// All that the coordinator did.
    pub run_actions: Vec<RunAction>,
}

impl SimReport {
    /// The part of the whole time in which a queue was busy.
    pub fn utilisation(&self, stage: u32, queue: QueueKind) -> f64 {
        let spans = self.spans.iter().filter(|s| s.stage == stage && s.queue == queue);
        let busy: Nanoseconds = spans.map(|s| s.end_ns - s.start_ns).sum();
        busy as f64 / self.makespan_ns.max(1) as f64
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
mod tests;
