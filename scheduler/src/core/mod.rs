//! The scheduling cores: state machines with a function `step(now, event, actions)`. The threaded runtime and
//! the simulator run the same cores.
//!
//! A core handles micro-batches, slots, credits and points. It uses no devices, buffers, programs or threads.
//! Identical events produce identical actions. Events and actions are plain data, so a run can be logged and
//! replayed.

mod action;
mod admit;
mod batch;
mod device;
mod event;
mod form;
mod interruption;
mod passing;
mod pool;
mod run;
mod sample;
mod sequence;
mod stage;
mod stream;
mod verify;

pub use action::{PassingAction, StageAction, StreamAction, VerifyAction};
pub use batch::{Item, LogitRows, MicroBatch, MicroBatchId, ParamsTooSmall, SequenceId, write_params};
pub use device::{DeviceAction, DeviceCore, DeviceEvent, Progress, QueuePoints};
pub use event::{End, StageEvent, StageShape};
pub use passing::{Passed, PlaceRead};
pub use run::{Limits, Path, ResultRows, Return, RunAction, RunCore, RunCounts, RunEvent, RunShape};
pub use sample::{Sample, Sampled};
pub use sequence::{FinishReason, Finished, Priority, Prompt, SequenceTimes, Want};
pub use stage::StageStats;
pub use stream::FileParts;
pub use verify::Verification;

/// Time in nanoseconds since an epoch that the caller of the cores chooses.
pub type Nanoseconds = u64;

#[cfg(test)]
mod pressure_tests;
#[cfg(test)]
mod tests;
