//! What the threads of a pipeline tell each other.

use crate::core::{Prompt, Return, SequenceId, StageEvent};
use crate::error::Error;
use crate::mailbox::Address;
use crate::runtime::Client;

/// To a stage's actor.
#[derive(Debug)]
pub(crate) enum StageMessage {
    /// For its core.
    Event(StageEvent),
    /// Its download timeline has moved.
    Downloaded,
    /// A slot of the outgoing ring came back on the quiet lane.
    RingSlot,
}

/// To a stage's actor, before anything else.
#[derive(Debug)]
pub(crate) enum StageUrgent {
    /// The run has ended.
    Stop,
    /// One of its device's timelines has failed.
    Failed(ragtag_hal::Error),
}

/// To the coordinator, from the stages.
#[derive(Debug)]
pub(crate) enum RunMessage {
    /// A micro-batch has gone through the last stage.
    Return(Return),
    /// The last stage's download timeline has moved.
    Downloaded,
}

/// To the coordinator, before anything else.
#[derive(Debug)]
pub(crate) enum RunUrgent {
    /// The pipeline is to end.
    Stop,
    /// A stage has failed.
    Failed(Error),
}

/// To the coordinator, from outside.
pub(crate) enum RequestMessage {
    /// A new sequence.
    Submit { sequence: SequenceId, prompt: Prompt, client: Client },
    /// Nobody wants a sequence any more.
    Cancel { sequence: SequenceId },
}

pub(crate) type StageAddress = Address<StageMessage, StageUrgent>;
pub(crate) type RunAddress = Address<RunMessage, RunUrgent>;
