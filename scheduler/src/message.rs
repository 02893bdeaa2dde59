//! Messages between the threads of a pipeline.

use crate::core::{Prompt, Return, SequenceId, StageEvent};
use crate::error::Error;
use crate::mailbox::Address;
use crate::runtime::Client;

/// Messages to a device's actor.
#[derive(Debug)]
pub(crate) enum DeviceMessage {
    /// An event for one of its stages.
    Event {
        /// Index among the device's stages.
        stage: usize,
        /// The event.
        event: StageEvent,
    },
    /// A timeline that its core waits for has advanced.
    Progress,
    /// A slot of an outgoing ring came back, in the quiet queue.
    RingSlot,
}

/// Urgent messages to a device's actor.
#[derive(Debug)]
pub(crate) enum DeviceUrgent {
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

pub(crate) type DeviceAddress = Address<DeviceMessage, DeviceUrgent>;
pub(crate) type RunAddress = Address<RunMessage, RunUrgent>;
