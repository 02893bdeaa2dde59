//! Recording of steps in command buffers (`cl_khr_command_buffer`).
//!
//! Copies to and from host memory are never recorded, because such a copy depends on the contents and the
//! pinning of the memory at the time when it runs. A program is therefore a series of command buffers with
//! such copies between them.

use crate::api::{self, CommandBuffer, CommandBuffers};
use crate::driver::Step;
use crate::queue::{host, part};
use ragtag_hal::{Error, Result};
use std::ops::Range;

/// Consecutive steps recorded as one command buffer.
pub(crate) struct Recorded {
    /// Indices of the steps in the script. The script keeps their buffers and regions alive.
    pub(crate) steps: Range<usize>,
    pub(crate) buffer: CommandBuffer,
}

/// Records each sequence of two or more steps that do not access host memory. Omits a sequence that the
/// driver cannot record.
pub(crate) fn recorded(functions: CommandBuffers, queue: &api::Queue, steps: &[Step]) -> Vec<Recorded> {
    let stays = |step: &Step| match step {
        Step::Launch(_) | Step::Fill { .. } => true,
        Step::Copy { from, to } => host(from).or(host(to)).is_none(),
        Step::Upload { .. } | Step::Download { .. } => false,
    };
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
            Err(error) => tracing::debug!(%error, commands = run.len(), "cannot record commands"),
        }
    }
    all
}

fn record(functions: CommandBuffers, queue: &api::Queue, steps: &[Step]) -> Result<CommandBuffer> {
    let mut buffer = CommandBuffer::new(functions, queue)?;
    for step in steps {
        match step {
            Step::Launch(launch) => buffer.launch(&launch.code.kernel, &launch.code.size)?,
            Step::Copy { from, to } => buffer.copy(part(from)?, part(to)?)?,
            Step::Fill { to, word } => buffer.fill(part(to)?, *word)?,
            Step::Upload { .. } | Step::Download { .. } => {
                return Err(Error::invalid("this command cannot be recorded"));
            }
        }
    }
    buffer.finalize()?;
    Ok(buffer)
}
