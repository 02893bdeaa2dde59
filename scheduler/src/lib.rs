//! Executes plans. Contains token sampling, the scheduling cores, the actors that drive devices, and a
//! simulator that runs the same cores without devices.
//!
//! The crate does not depend on any backend. Its cores do no I/O, start no thread and read no clock.

#![forbid(unsafe_code)]

mod actor;
pub mod capacity;
pub mod compare;
mod copies;
pub mod core;
/// Parts of an actor, for measurements that submit work to a device themselves.
pub mod direct {
    pub use crate::actor::{Checksums, LoneStage, OwnedDevice, share_semaphore};
}
mod error;
mod events;
#[cfg(test)]
mod made_up;
mod mailbox;
mod message;
pub mod remote;
mod results;
mod runtime;
pub mod sampling;
pub mod sim;
mod trace;
mod transfers;
mod trial;
mod watch;

pub use actor::{StageReport, StageSpec, WEIGHT_CHUNK_BYTES, WeightSource, weight_staging_bytes};
pub use error::{Error, Refusal, RefusedMemory, Result};
pub use events::EventSink;
pub use runtime::{
    Busy, Flow, Interruption, Interruptions, Job, LoadProgress, Pipeline, PipelineOptions, PipelineReport,
    PipelineSpec, PipelineStats, Recovery, Reply, ReplySink, Request, STALL_TIMEOUT, StopRule, Stopped,
};
pub use sampling::shaping::{LogProbabilities, ShapedSampler, Shaping, TokenLogProbability, TokenMask};
pub use sampling::{Noise, Picks, Sampler, Sampling, SamplingError, token_log_probability};
pub use trace::{Computed, SizeReport, Span, SpanKind, Trace, Turn};
pub use transfers::{Crossed, EdgeReport};
pub use trial::trial;
