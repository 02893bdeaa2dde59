//! Messages between the threads of a pipeline.

use crate::core::{Prompt, Return, SequenceId, StageEvent};
use crate::error::Error;
use crate::mailbox::Address;
use crate::runtime::Client;

/// Messages to a stage's actor.
#[derive(Debug)]
pub(crate) enum StageMessage {
    /// An event for the stage's core.
    Event(StageEvent),
    /// The device's download timeline has advanced.
    Downloaded,
    /// A slot of the outgoing ring was returned. The slot itself is in the quiet queue.
    RingSlot,
}

/// Urgent messages to a stage's actor.
#[derive(Debug)]
pub(crate) enum StageUrgent {
    /// The run has ended.
    Stop,
    /// A timeline of the stage's device has failed.
    Failed(ragtag_hal::Error),
}

/// Messages from the stages to the coordinator.
#[derive(Debug)]
pub(crate) enum RunMessage {
    /// A micro-batch has passed the last stage.
    Return(Return),
    /// The last stage's download timeline has advanced.
    Downloaded,
}

/// Urgent messages to the coordinator.
#[derive(Debug)]
pub(crate) enum RunUrgent {
    /// Stop the pipeline.
    Stop,
    /// A stage has failed.
    Failed(Error),
}

/// Messages from users to the coordinator.
pub(crate) enum RequestMessage {
    /// A new sequence.
    Submit { sequence: SequenceId, prompt: Prompt, client: Client },
    /// Cancel a sequence.
    Cancel { sequence: SequenceId },
}

pub(crate) type StageAddress = Address<StageMessage, StageUrgent>;
pub(crate) type RunAddress = Address<RunMessage, RunUrgent>;
