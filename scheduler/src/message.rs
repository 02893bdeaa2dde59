//! Messages between the threads of a pipeline.

use crate::core::{Return, StageEvent};
use crate::error::Error;
use crate::mailbox::Address;

/// Messages to a device's actor.
#[derive(Debug)]
pub(crate) enum DeviceMessage {
    /// An event for one of the device's stages.
    Event {
        /// Index of the stage among the device's stages.
        stage: usize,
        /// The event.
        event: StageEvent,
    },
    /// A timeline that the core waits for has advanced.
    Progress,
    /// A next stage has put a message for which the device waits into the quiet queue.
    Quiet,
}

/// Urgent messages to a device's actor.
#[derive(Debug)]
pub(crate) enum DeviceUrgent {
    /// The run has ended.
    Stop,
    /// A timeline of the actor's device has failed.
    Failed(ragtag_hal::Error),
}

/// Messages from the actors to the coordinator.
#[derive(Debug)]
pub(crate) enum RunMessage {
    /// Announces the results of a micro-batch. They are in host memory once the point in the message passes.
    Return(Return),
    /// The last stage's download timeline has advanced.
    Downloaded,
}

/// Urgent messages to the coordinator.
#[derive(Debug)]
pub(crate) enum RunUrgent {
    /// A stage has failed.
    Failed(Error),
}

pub(crate) type DeviceAddress = Address<DeviceMessage, DeviceUrgent>;
pub(crate) type RunAddress = Address<RunMessage, RunUrgent>;
