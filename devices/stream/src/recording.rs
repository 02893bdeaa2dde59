//! Programs as graphs of the driver, launched with one call.
//!
//! A program is captured once and launched unchanged ever after: what differs from one run to the next is in the parameter
//! block, which its first step copies from a host region. This module must not know programs' ids.

use crate::driver::Driver;
use crate::script::Step;
use ragtag_hal::Result;

/// Steps that the driver keeps and runs as one.
pub(crate) struct Recording<D: Driver> {
    // Before the steps, which keep what it uses.
    graph: D::Graph,
    steps: Vec<Step<D>>,
}

impl<D: Driver> Recording<D> {
    pub(crate) fn graph(&self) -> &D::Graph {
        &self.graph
    }

    pub(crate) fn steps(&self) -> &[Step<D>] {
        &self.steps
    }
}

/// The same steps as a graph; unchanged if one call would gain nothing, or the driver will not.
///
/// # Errors
/// If the device is lost.
pub(crate) fn recorded<D: Driver>(
    driver: &D,
    stream: &D::Stream,
    steps: Vec<Step<D>>,
) -> Result<Vec<Step<D>>> {
    if steps.len() < 2 {
        return Ok(steps);
    }
    match captured(driver, stream, &steps) {
        Ok(graph) => Ok(vec![Step::Recorded(Recording { graph, steps })]),
        Err(error @ ragtag_hal::Error::Lost { .. }) => Err(error),
        Err(error) => {
            tracing::debug!(%error, commands = steps.len(), api = driver.api(), "commands are not recorded");
            Ok(steps)
        }
    }
}

fn captured<D: Driver>(driver: &D, stream: &D::Stream, steps: &[Step<D>]) -> Result<D::Graph> {
    driver.begin_capture(stream)?;
    let enqueued = steps.iter().try_for_each(|step| step.enqueue(driver, stream));
    let graph = driver.end_capture(stream);
    enqueued.and(graph)
}
