//! Planning and running: the cost model and the planner, sampling, cores, actors, the runtime and the simulator.
//!
//! This crate must not know any backend; its planner and cores do no I/O, start no thread and read no clock.

#![forbid(unsafe_code)]

pub mod plan;
pub mod split;

pub use plan::{
    InvalidPlan, PLAN_VERSION, Plan, PlanModel, PlanRoute, PlanStage, PredictedRun, PredictedStage,
    StageMemory,
};
pub use split::{PartitionError, Span, Split, SplitError, SplitPart};
