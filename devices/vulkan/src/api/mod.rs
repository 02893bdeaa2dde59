//! Vulkan calls, and owned objects that release their resources.
//!
//! All `unsafe` calls are here. Functions state what their callers must guarantee: memory that a command
//! names lives until the command has ended, and a submission's waits can be satisfied.

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

/// Converts the result of a call to an error of `ragtag-hal`.
fn said<T>(call: &str, result: VkResult<T>) -> Result<T> {
    result.map_err(|code| failure(call, code))
}
