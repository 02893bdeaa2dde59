//! Vulkan's calls, and objects that give back what they hold.
//!
//! All `unsafe` calls are here. What callers promise is said where it is asked for: that memory which a command names lives
//! until the command has ended, and that a submission's waits can be met.

mod instance;
mod logical;
mod matrices;
mod memory;
mod messages;
mod physical;
mod pipeline;
mod recorder;
mod semaphore;

pub(crate) use instance::Instance;
pub(crate) use logical::{Logical, SharedQueue};
pub(crate) use memory::{Memory, Part};
pub(crate) use messages::Messages;
pub(crate) use physical::{Facts, Family};
pub(crate) use pipeline::{Pipeline, PipelineCache};
pub(crate) use recorder::{Recorder, Stamps};
pub(crate) use semaphore::Semaphore;

use crate::error::failure;
use ash::prelude::VkResult;
use ragtag_hal::Result;

/// The result of a call in the words of `ragtag-hal`.
fn said<T>(call: &str, result: VkResult<T>) -> Result<T> {
    result.map_err(|code| failure(call, code))
}
