//! Plans, the cost model and its inputs, descriptions of hypothetical fleets, and the search for the best
//! plan.
//!
//! This crate knows nothing about backends, the runtime or the simulator. The caller provides the function
//! that simulates a plan ([`Trial`]). The crate does no I/O, starts no thread of its own and reads no clock.

#![forbid(unsafe_code)]

pub mod cost;
pub mod fleet;
pub mod json;
pub mod objective;
pub mod plan;
pub mod schemas;
mod search;
pub mod split;
pub mod wording;

pub use cost::{
    BufferLimits, DeviceFacts, Figure, FigureSource, LinkFacts, Links, Profile, SharedLink, WeightSharing,
};
pub use fleet::{FLEET_VERSION, Fleet, InvalidFleet};
pub use objective::{Mix, Objective, Workload};
pub use plan::{
    Alternative, BindingLimit, Bottleneck, Explanation, Family, FigureCount, HostMemory, InvalidPlan,
    LeftOut, PLAN_VERSION, Place, Plan, PlanDeviceOptions, PlanEdge, PlanModel, PlanPaths, PlanStage,
    PredictedRun, PredictedTimes, PrefillStage, StageMemory,
};
pub use search::{
    Baseline, Constraints, DoesNotFit, EngineDecode, ModelFacts, Pin, PlanError, PlanLimits, PlannerInput,
    Remedy, Shortage, Trial, TrialLoad, baseline, largest_context, plan, untuned_baseline,
};
pub use split::{PartitionError, Split, SplitError, SplitPart, SplitPrefill};
