//! Plans, the cost model and its inputs, descriptions of hypothetical fleets, and the search for the best
//! plan.
//!
//! This crate knows nothing about backends, the runtime or the simulator. The caller provides the function
//! that simulates a plan ([`Trial`]). The crate does no I/O, starts no thread of its own and reads no clock.
//!
//! The planner needs the segments of a model and figures of devices and links, for example those of a [`Fleet`]. The
//! crate `ragtag-engine` wraps this crate with defaults for all settings.
//!
//! ```
//! use ragtag_graph::{Lowering, MemorySource, Model, ModelFile, WireType};
//! use ragtag_kernels::{Activations, KvType};
//! use ragtag_planner::{Fleet, ModelFacts, PlanLimits, PlannerInput};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = test_support::model("tales-bitnet-tq2_0");
//! let source = MemorySource::new("model.gguf", std::fs::read(path)?);
//! let model = Model::new(ModelFile::open_headers(vec![std::sync::Arc::new(source)])?)?;
//! let lowering = Lowering {
//!     activations: Activations::Int8,
//!     kv: KvType::F16,
//!     context: 256,
//!     sequences: 4,
//!     kv_blocks: None,
//!     chunk: 128,
//!     logit_rows: 4,
//!     wire_type: WireType::F32,
//! };
//! let segments = model.segments(&lowering)?;
//! let facts = ModelFacts::new("model.gguf", "digest", model.hyperparameters());
//! let (devices, links) = Fleet::from_line("2x-arc-a770")?.facts()?;
//! let input = PlannerInput::new(&facts, &segments, &devices, &links, PlanLimits::from(&lowering));
//! let plan = ragtag_planner::plan(&input)?;
//! assert!(plan.stages.iter().all(|stage| stage.memory_bytes.total <= stage.memory_bytes.available));
//! println!("{} -> {} tokens/s", plan.split(), plan.predicted.decode_tokens_per_s);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod cost;
pub mod fleet;
pub mod json;
pub mod objective;
pub mod plan;
pub mod request;
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
    LeftOut, OtherHost, PLAN_VERSION, Place, Plan, PlanDeviceOptions, PlanEdge, PlanModel, PlanPaths,
    PlanStage, PredictedRun, PredictedTimes, PrefillStage, StageMemory,
};
pub use search::{
    Baseline, Constraints, DoesNotFit, EngineDecode, HostFacts, ModelFacts, Pin, PlanError, PlanLimits,
    PlannerInput, Remedy, Shortage, Trial, TrialLoad, baseline, largest_context, plan, untuned_baseline,
};
pub use split::{PartitionError, Split, SplitError, SplitPart, SplitPrefill};
