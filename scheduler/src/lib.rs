//! Planning and running: the cost model and the planner, sampling, the cores that decide what happens next, the actors
//! that make devices do it, and the simulator that proves the cores without a device.
//!
//! This crate must not name any backend; its planner and cores do no I/O, start no thread and read no clock.

#![forbid(unsafe_code)]

mod actor;
pub mod capacity;
pub mod core;
pub mod cost;
mod error;
mod mailbox;
mod message;
pub mod plan;
pub mod planner;
mod runtime;
pub mod sampling;
pub mod sim;
pub mod split;
mod trace;

pub use actor::{StageReport, WEIGHT_STAGING_BYTES, WeightSource};
pub use cost::{DeviceFacts, Figure, FigureSource, LinkFacts, Links};
pub use error::{Error, Refusal, Result};
pub use plan::{
    InvalidPlan, PLAN_VERSION, Plan, PlanModel, PlanStage, PredictedRun, PredictedStage, StageMemory,
};
pub use planner::{
    DoesNotFit, ModelFacts, Objective, PlanError, PlanLimits, PlannerInput, Shortage, Workload,
    largest_context, plan,
};
pub use runtime::{
    Job, LoadProgress, Pipeline, PipelineOptions, PipelineReport, PipelineStats, Reply, ReplySink, Request,
    StageSpec,
};
pub use sampling::{Sampler, Sampling, SamplingError, token_log_probability};
pub use split::{PartitionError, Split, SplitError, SplitPart};
pub use trace::{Computed, Span, SpanKind, Trace, Turn};
