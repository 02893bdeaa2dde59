//! Ragtag's scheduler: the planner, the cores that decide what happens next, the actors that make devices do it, and the
//! simulator that proves the cores without a device.
//!
//! This crate must not name any backend. Its cores do no I/O, start no thread and read no clock.

#![forbid(unsafe_code)]

mod actor;
pub mod capacity;
pub mod core;
mod error;
mod mailbox;
mod message;
mod runtime;
pub mod sim;
mod trace;

pub use actor::{StageReport, WEIGHT_STAGING_BYTES, WeightChunk, WeightSource};
pub use error::{Error, Refusal, Result};
pub use runtime::{
    Job, LoadProgress, Pipeline, PipelineOptions, PipelineReport, PipelineStats, Reply, ReplySink, Request,
    StageSpec,
};
pub use trace::{Computed, Span, SpanKind, Trace};
