//! Logs of runs: the events that the coordinator's core saw, with a digest of the actions that followed from each.
//! [`replay`] steps another core with them, and checks that it decides the same.
//!
//! A log consists of lines of JSON. The first one is the header. Each line ends with a check, which covers the line and
//! all lines before it. The last line says why the log ends, so a truncated log is recognized.

mod replay;
#[cfg(test)]
mod tests;
mod writer;

pub use replay::{LoggedRequest, Loss, Replay, ReplayError, replay};
pub(crate) use writer::EventLog;

use ragtag_kernels::{Activations, KvType};
use ragtag_scheduler::core::{RunAction, RunShape, SequenceId};
use ragtag_scheduler::{Error as RunError, Sampling};
use serde::{Deserialize, Serialize};

/// Maximum size of a log in bytes. A log that reaches it ends there, and the run goes on.
pub const EVENT_LOG_BYTES: u64 = 1 << 30;
/// Version of the format.
const VERSION: u32 = 1;
/// Maximum length of a line in bytes.
const LINE_BYTES: usize = 16 << 20;
/// Text before the check of a line. The check has 16 hexadecimal digits.
const CHECK: &[u8] = b",\"check\":\"";
/// Text after the check.
const AFTER_CHECK: &[u8] = b"\"}\n";

/// First line of a log.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Header {
    ragtag_events: u32,
    run: LoggedRun,
    /// Size at which the log ends.
    limit_bytes: u64,
    shape: RunShape,
}

/// The run that a log records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LoggedRun {
    /// Version of Ragtag.
    pub ragtag: String,
    /// Name of the model.
    pub model: String,
    /// Fingerprint of the model.
    pub fingerprint: String,
    /// Digest of the plan with which the run starts.
    pub plan: String,
    /// Split of this plan.
    pub split: String,
    /// Type of activations in matmuls with quantized weights.
    pub activations: Activations,
    /// Types of keys and values.
    pub kv: KvType,
}

/// Reason why a log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LogEnd {
    /// The run has ended.
    Stopped,
    /// The log has reached its limit.
    Limit,
    /// The disk was too slow, or an event was too long.
    Behind,
}

/// Sampling settings of a sequence, which determine its tokens.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Samples {
    sequence: SequenceId,
    settings: Sampling,
}

/// Check of a line and of all lines before it.
#[derive(Clone, Debug)]
struct Chain(blake3::Hasher);

impl Chain {
    fn new() -> Self {
        Self(blake3::Hasher::new())
    }

    /// Returns the check of the next line. `body` is the line without the check and what follows.
    fn next(&mut self, body: &[u8]) -> String {
        self.0.update(body);
        short(&self.0)
    }
}

/// Returns the first 16 digits of a digest.
fn short(hasher: &blake3::Hasher) -> String {
    hasher.finalize().to_hex()[..16].to_owned()
}

/// Returns the digest of the actions of a step, and of its error.
fn digest(actions: &[RunAction], error: Option<&RunError>) -> String {
    let mut hasher = blake3::Hasher::new();
    // A hasher takes all bytes, and actions are plain data.
    let _ = serde_json::to_writer(&mut hasher, &(actions, error));
    short(&hasher)
}
