//! Runs of commands as command buffers of the driver (`cl_khr_command_buffer`), where it has them and takes the commands.
//!
//! Copies from and to host regions are never recorded: they use what the region holds, and where it is pinned, when they
//! run. So a program is command buffers with such copies between them. This module must not know programs' ids.

use crate::api::{self, CommandBuffer, CommandBuffers};
use crate::script::Step;
use ragtag_hal::Result;

/// Commands that the driver keeps and runs as one.
pub(crate) struct Recording {
    buffer: CommandBuffer,
    /// What it names stays alive with it.
    steps: Vec<Step>,
}

impl Recording {
    /// # Errors
    /// If the driver refuses, with the steps, for a plain loop.
    fn new(
        functions: CommandBuffers,
        queue: &api::Queue,
        steps: Vec<Step>,
    ) -> std::result::Result<Self, Vec<Step>> {
        match record(functions, queue, &steps) {
            Ok(buffer) => Ok(Self { buffer, steps }),
            Err(error) => {
                tracing::debug!(%error, commands = steps.len(), "commands are not recorded");
                Err(steps)
            }
        }
    }

    pub(crate) fn buffer(&self) -> &CommandBuffer {
        &self.buffer
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }
}

fn record(functions: CommandBuffers, queue: &api::Queue, steps: &[Step]) -> Result<CommandBuffer> {
    let mut buffer = CommandBuffer::new(functions, queue)?;
    for step in steps {
        match step {
            Step::Launch(launch) => buffer.launch(launch.kernel(), launch.size())?,
            Step::Copy { from, to } => buffer.copy(from.part(), to.part())?,
            Step::Fill { to, word } => buffer.fill(to.part(), *word)?,
            Step::Upload { .. } | Step::Download { .. } | Step::Recorded(_) => {
                return Err(ragtag_hal::Error::invalid("a command that cannot be recorded"));
            }
        }
    }
    buffer.finalize()?;
    Ok(buffer)
}

fn recordable(step: &Step) -> bool {
    matches!(step, Step::Launch(_) | Step::Copy { .. } | Step::Fill { .. })
}

/// The same steps with each run of two or more that stay on the device recorded for a queue.
pub(crate) fn recorded(functions: CommandBuffers, queue: &api::Queue, steps: Vec<Step>) -> Vec<Step> {
    let mut all: Vec<Step> = Vec::new();
    let mut run: Vec<Step> = Vec::new();
    let close = |run: &mut Vec<Step>, all: &mut Vec<Step>| {
        let run = std::mem::take(run);
        if run.len() < 2 {
            all.extend(run);
            return;
        }
        match Recording::new(functions, queue, run) {
            Ok(recording) => all.push(Step::Recorded(recording)),
            Err(steps) => all.extend(steps),
        }
    };
    for step in steps {
        if recordable(&step) {
            run.push(step);
        } else {
            close(&mut run, &mut all);
            all.push(step);
        }
    }
    close(&mut run, &mut all);
    all
}
