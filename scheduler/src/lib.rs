//! Planning and running: the cost model and the planner, sampling, the cores that decide what happens next, the actors
//! that make devices do it, and the simulator that proves the cores without a device.
//!
//! This crate must not name any backend; its planner and cores do no I/O, start no thread and read no clock.

#![forbid(unsafe_code)]

mod actor;
pub mod capacity;
pub mod compare;
pub mod core;
pub mod cost;
mod crossing;
mod error;
pub mod fleet;
mod json;
mod mailbox;
mod message;
pub mod objective;
pub mod plan;
pub mod planner;
mod runtime;
pub mod sampling;
pub mod schemas;
pub mod sim;
pub mod split;
mod trace;
pub mod wording;

pub use actor::{
    Crossing, SoloBatch, SoloDevice, SoloStage, StageReport, WEIGHT_STAGING_BYTES, WeightSource,
};
pub use cost::{BufferLimits, DeviceFacts, Figure, FigureSource, LinkFacts, Links, Profile, SharedLink};
pub use crossing::{Crossed, EdgeReport};
pub use error::{Error, Refusal, RefusedMemory, Result};
pub use fleet::{FLEET_VERSION, Fleet, InvalidFleet};
pub use objective::{Mix, Objective, Workload};
pub use plan::{
    Alternative, Binding, Bottleneck, Explanation, FigureCount, HostMemory, InvalidPlan, LeftOut,
    PLAN_VERSION, Place, Plan, PlanDeviceOptions, PlanEdge, PlanModel, PlanStage, PredictedRun,
    PredictedTimes, StageMemory,
};
pub use planner::{
    Baseline, Constraints, DoesNotFit, EngineDecode, ModelFacts, Pin, PlanError, PlanLimits, PlannerInput,
    Shortage, baseline, largest_context, plan, untuned_baseline,
};
pub use runtime::{
    Job, LoadProgress, Pipeline, PipelineOptions, PipelineReport, PipelineStats, Reply, ReplySink, Request,
    StageSpec,
};
pub use sampling::{Sampler, Sampling, SamplingError, token_log_probability};
pub use split::{PartitionError, Split, SplitError, SplitPart};
pub use trace::{Computed, SizeReport, Span, SpanKind, Trace, Turn};
