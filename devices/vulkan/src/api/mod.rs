//! Vulkan calls, and owned Vulkan objects.
//!
//! This module contains all `unsafe` calls of the crate. Each function states its requirements. In general,
//! the objects that a command uses must live until the command has ended, and the waits of a submission must
//! be satisfiable.

mod instance;
mod logical;
mod matrices;
mod memory;
mod messages;
mod physical;
mod pipeline;
mod recorder;
mod semaphore;
#[cfg(unix)]
mod shared;

pub(crate) use instance::Instance;
pub(crate) use logical::{Logical, SharedQueue};
pub(crate) use memory::{BufferPart, Memory};
pub(crate) use messages::Messages;
pub(crate) use physical::{Facts, Family};
pub(crate) use pipeline::{Pipeline, PipelineCache};
pub(crate) use recorder::{Recorder, Stamps};
pub(crate) use semaphore::Semaphore;

use crate::error::failure;
use ash::prelude::VkResult;
use ragtag_hal::Result;

/// Converts the result of a Vulkan call to a result of `ragtag-hal`.
fn said<T>(call: &str, result: VkResult<T>) -> Result<T> {
    result.map_err(|code| failure(call, code))
}
