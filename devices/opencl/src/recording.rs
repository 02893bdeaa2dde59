//! Runs of commands as command buffers of the driver (`cl_khr_command_buffer`), where it has them and takes the commands.
//!
//! Copies from and to host regions are never recorded: they use what the region holds, and where it is pinned, when they
//! run. So a program is command buffers with such copies between them. This module must not know programs' ids.

use crate::api::{self, CommandBuffer, CommandBuffers};
use crate::driver::Step;
use crate::queue::part;
use ragtag_hal::{Error, Result};
use std::ops::Range;

/// A run of steps that the driver keeps and runs as one.
pub(crate) struct Recorded {
    /// Their places in the script, which keeps what they name.
    pub(crate) steps: Range<usize>,
    pub(crate) buffer: CommandBuffer,
}

/// Records each run of two or more steps that stay on the device, for a queue. A run that the driver refuses is left out.
pub(crate) fn recorded(functions: CommandBuffers, queue: &api::Queue, steps: &[Step]) -> Vec<Recorded> {
    let stays = |step: &Step| matches!(step, Step::Launch(_) | Step::Copy { .. } | Step::Fill { .. });
    let mut all = Vec::new();
    let mut end = 0;
    for run in steps.chunk_by(|a, b| stays(a) == stays(b)) {
        let start = end;
        end += run.len();
        if run.len() < 2 || !stays(&run[0]) {
            continue;
        }
        match record(functions, queue, run) {
            Ok(buffer) => all.push(Recorded { steps: start..end, buffer }),
            Err(error) => tracing::debug!(%error, commands = run.len(), "commands are not recorded"),
        }
    }
    all
}

fn record(functions: CommandBuffers, queue: &api::Queue, steps: &[Step]) -> Result<CommandBuffer> {
    let mut buffer = CommandBuffer::new(functions, queue)?;
    for step in steps {
        match step {
            Step::Launch(launch) => buffer.launch(&launch.code.kernel, &launch.code.size)?,
            Step::Copy { from, to } => buffer.copy(part(from), part(to))?,
            Step::Fill { to, word } => buffer.fill(part(to), *word)?,
            Step::Upload { .. } | Step::Download { .. } => {
                return Err(Error::invalid("a command that cannot be recorded"));
            }
        }
    }
    buffer.finalize()?;
    Ok(buffer)
}
