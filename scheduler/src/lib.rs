//! Planning and running: the cost model and the planner, sampling, cores, actors, the runtime and the simulator.
//!
//! This crate must not know any backend; its planner and cores do no I/O, start no thread and read no clock.

#![forbid(unsafe_code)]

pub mod cost;
pub mod plan;
pub mod planner;
pub mod sampling;
pub mod split;

pub use cost::{DeviceFacts, Figure, FigureSource, LinkFacts, Links};
pub use plan::{
    InvalidPlan, PLAN_VERSION, Plan, PlanModel, PlanRoute, PlanStage, PredictedRun, PredictedStage,
    StageMemory,
};
pub use planner::{
    DoesNotFit, ModelFacts, Objective, PlanError, PlanLimits, PlannerInput, Shortage, Workload,
    largest_context, plan,
};
pub use sampling::{Sampler, Sampling, SamplingError, token_log_probability};
pub use split::{PartitionError, Span, Split, SplitError, SplitPart};
