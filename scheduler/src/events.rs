//! The receiver of a record of a run: what the coordinator's core saw, and what it decided.
//!
//! Identical events produce identical actions, so another core that gets the recorded events repeats the run.

use crate::core::{Nanoseconds, RunAction, RunEvent, RunShape, SequenceId};
use crate::error::Error;
use crate::sampling::Sampling;

/// Receives what the coordinator's core sees and does. The coordinator's thread calls it, so no function may block.
pub trait EventSink: Send {
    /// The run starts with an idle core of this shape.
    fn started(&mut self, shape: &RunShape);

    /// The next event submits a sequence that samples its tokens with these settings and this seed. Not called for
    /// sequences with other samplers.
    fn samples(&mut self, sequence: SequenceId, settings: Sampling);

    /// The core is about to handle an event.
    fn event(&mut self, now: Nanoseconds, event: &RunEvent);

    /// The core has handled the event with these actions, or with an error after them.
    fn actions(&mut self, actions: &[RunAction], error: Option<&Error>);
}
