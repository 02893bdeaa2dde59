//! The scheduling cores: state machines with a function `step(now, event, actions)`. The threaded runtime and
//! the simulator run the same cores.
//!
//! A core handles micro-batches, slots, credits and points. It uses no devices, buffers, programs or threads.
//! Identical events produce identical actions. Events and actions are plain data, so a run can be logged and
//! replayed.

mod batch;
mod device;
mod form;
mod passing;
mod pool;
mod run;
mod sample;
mod sequence;
mod stage;
mod stream;

pub use batch::{Item, LogitRows, MicroBatch, MicroBatchId, ParamsTooSmall, SequenceId, write_params};
pub use device::{DeviceAction, DeviceCore, DeviceEvent, Progress, QueuePoints};
pub use passing::{Passed, PlaceRead};
pub use run::{Path, Return, RunAction, RunCore, RunCounts, RunEvent, RunShape};
pub use sample::{Sample, Sampled};
pub use sequence::{FinishReason, Finished, Prompt, SequenceTimes, Want};
pub use stage::{End, StageAction, StageEvent, StageShape, StageStats, Verification};
pub use stream::FileParts;

/// Time in nanoseconds since an epoch that the caller of the cores chooses.
pub type Nanoseconds = u64;

#[cfg(test)]
mod tests;
