//! The scheduling cores, as state machines: `step(now, event, actions)`. The threaded runtime and the
//! simulator run the same cores.
//!
//! A core knows micro-batches, slots, credits and points, but no devices, buffers, programs or threads. Equal
//! events give equal actions. Both are plain data, so a run can be logged and replayed.

mod batch;
mod device;
mod form;
mod pool;
mod run;
mod sample;
mod sequence;
mod stage;

pub use batch::{Item, LogitRows, MicroBatch, MicroBatchId, ParamsTooSmall, SequenceId, write_params};
pub use device::{DeviceAction, DeviceCore, DeviceEvent, Progress, QueuePoints};
pub use run::{Return, RunAction, RunCore, RunCounts, RunEvent, RunShape};
pub use sample::{Sample, Sampled};
pub use sequence::{FinishReason, Finished, Prompt, SequenceTimes, Want};
pub use stage::{StageAction, StageEvent, StageShape, StageStats};

/// A time in nanoseconds since an epoch chosen by the driver of the cores.
pub type Nanoseconds = u64;

#[cfg(test)]
mod tests;
