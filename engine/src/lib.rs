//! Ragtag runs one language model as a pipeline over the GPUs and CPUs of a machine.
//!
//! Open a [`Model`] and probe [`Devices`]. A [`Planner`] assigns the model's segments to devices, and an
//! [`Engine`] loads the weights and runs the pipeline. A [`Session`] turns prompts into streams of tokens:
//!
//! ```
//! use ragtag_engine::{
//!     Calibration, CalibrationOptions, DeviceOptions, Devices, Engine, EngineOptions, Generation, Model, Planner,
//! };
//!
//! # fn main() -> ragtag_engine::Result<()> {
//! let model = Model::bundled()?;
//! let mut options = DeviceOptions::default();
//! options.cpu_devices = 2;
//! let devices = Devices::probe(&options)?;
//! let options = CalibrationOptions::default();
//! # let folder = tempfile::tempdir().unwrap();
//! # let mut options = options;
//! # options.folder = Some(folder.path().into());
//! let calibration = Calibration::run(&model, &devices, &options, &|_, _| ())?;
//! let planner = Planner::new(&model).devices(&devices).calibrated(&calibration);
//! let engine = Engine::start(&model, &devices, &planner, EngineOptions::default())?;
//!
//! let generation = Generation { max_tokens: 8, ..Generation::greedy() };
//! let text = engine.session().generate("Once upon a time", &generation)?.blocking_text()?;
//! assert!(!text.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! The crate `ragtag` re-exports this crate, and adds the command.
//!
//! The crates that this crate builds on can also be used on their own. `ragtag-graph` reads model files and
//! builds operator graphs, `ragtag-planner` plans without devices, and `ragtag-hal` defines the traits that a
//! new backend implements.

#![forbid(unsafe_code)]

mod advice;
mod burst;
mod calibrate;
mod canary;
mod defaults;
mod device_change;
mod devices;
mod dialogue;
mod embedding;
mod engine;
mod error;
mod event_log;
pub mod files;
mod fitting;
#[cfg(feature = "grammars")]
pub mod grammar;
mod held;
#[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "only workers have other hosts"))]
mod hosts;
mod isolation;
mod ledger;
mod model;
pub mod npy;
mod planner;
mod prepared;
mod recovery;
#[cfg(feature = "remote")]
mod remote;
mod running;
mod session;
mod simulate;
mod source;
mod stage;
mod standby;
mod stop;
mod strict;
mod trace;
mod trust;

pub use advice::Advice;
pub use burst::BurstTimes;
pub use calibrate::{
    Calibration, CalibrationOptions, Hop, LinkClass, LinkOptions, LinkRate, LinkReport, Meter, ProbedLink,
    TriedKernel, TriedRoute, profile_age,
};
pub use canary::{CheckedBlock, check_first_blocks};
pub use defaults::{DEFAULT_CHUNK, MAX_CHUNK, SLOTS};
pub use device_change::DeviceChange;
pub use devices::{DeviceOptions, Devices};
pub use dialogue::{AnswerPrompt, Dialogue, Piece, ReasoningSplitter};
pub use embedding::{Embedding, Pooling};
pub use engine::{Engine, EngineOptions, Progress, Shutdown, VerifiedTransfers};
pub use error::{Error, Result};
pub use event_log::{EVENT_LOG_BYTES, LogEnd, LoggedRequest, LoggedRun, Loss, Replay, ReplayError, replay};
pub use isolation::Isolation;
pub use model::{BUNDLED_MODEL, Model};
pub use planner::{Planner, Replanned};
/// Renders conversations to prompts with chat templates.
pub use ragtag_chat as chat;
// These types appear in the public API of the items above.
pub use ragtag_devices::{MemoryCapError, MemoryCaps, ProbeChild, ThrottleError, ThrottleSpec};
pub use ragtag_graph::{ChatTemplates, Granularity, RopeScaling, Tokenizer, WireType};
pub use ragtag_hal::{AdapterKind, GemmChoice};
pub use ragtag_kernels::{Activations, CacheType, KvType, TensorType};
pub use ragtag_planner::{
    Baseline, BufferLimits, Constraints, DeviceFacts, EngineDecode, Family, Figure, FigureSource, Fleet,
    InvalidFleet, LinkFacts, Links, Mix, Objective, Pin, Plan, Remedy, SharedLink, Split, WeightSharing,
    Workload, fleet,
};
pub use ragtag_scheduler::core::{Limits, Priority};
/// Types for simulations: loads of requests, specifications and results.
pub use ragtag_scheduler::sim as simulation;
pub use ragtag_scheduler::{
    Error as RunError, LogProbabilities, Refusal, Sampling, Shaping, Span, SpanKind, TokenLogProbability,
    TokenMask, compare,
};
pub use recovery::{MAX_RECOVERIES, OnRecovery, RecoveryNews, RecoveryState};
#[cfg(feature = "remote")]
pub use remote::{WorkerAddress, WorkerKey, WorkerServer, WorkerSettings, rewritten_frames};
pub use session::{
    Event, Generation, LogitStream, MaskSource, Prompt, Reason, Session, Summary, TokenStream,
};
pub use simulate::{simulate, simulation_spec};
pub use stage::StageInfo;
pub use strict::suspicious_weights;
pub use trace::{Overlap, Trace, overlap};
