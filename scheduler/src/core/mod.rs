//! The deciding part of the scheduler, as steppers: `step(now, event, actions)`. The threaded runtime and the simulator
//! drive the same ones.
//!
//! A core must not know devices, buffers, programs or threads: it knows micro-batches, slots, credits and points. Given
//! the same events it does the same actions; both are plain data, so that a run can be logged and replayed.

mod batch;
mod form;
mod pool;
mod run;
mod sample;
mod sequence;
mod stage;

pub use batch::{Item, LogitRows, MicroBatch, MicroBatchId, ParamsTooSmall, SequenceId, write_params};
pub use run::{Return, RunAction, RunCore, RunCounts, RunEvent, RunShape};
pub use sample::{Sample, Sampled};
pub use sequence::{FinishReason, Finished, Prompt, SequenceTimes, Want};
pub use stage::{StageAction, StageCore, StageEvent, StagePoints, StageShape, StageStats};

/// A moment, in nanoseconds since some epoch that the driver of the cores chooses.
pub type Nanoseconds = u64;

#[cfg(test)]
mod tests;
