//! Keys and values that pass from the prefill stage to the stages that decode, in a simulation.

use super::World;
use crate::core::{MicroBatch, PassingAction, StageEvent};
use crate::error::Error;
use crate::sim::device::{Job, Passing, Submitted};
use crate::sim::time::nanoseconds;
use ragtag_hal::QueueKind;
use std::sync::Arc;

impl World<'_> {
    /// Executes an action about keys and values.
    pub(super) fn pass(&mut self, device: usize, stage: usize, action: PassingAction) -> Result<(), String> {
        let passes = self.topology.passes();
        let receiver = |to: usize| passes.get(to).map(|pass| pass.stage).ok_or("no such passage");
        match action {
            PassingAction::Pass { to, place, part, micro_batch, waits, signal } => {
                let parts = passes.get(to).map_or(1, |pass| pass.parts.len());
                let job = Job::Pass { part, passing: self.passing((to, parts), place, micro_batch)? };
                self.submit(Submitted { stage, queue: QueueKind::Download, job, waits, signal });
            }
            PassingAction::Announce { to, passed } => {
                self.send_to_stage(device, receiver(to)?, StageEvent::Passed(passed))?;
            }
            PassingAction::Keep { micro_batch, place, waits, signal } => {
                let passage = passes.iter().position(|pass| pass.stage == stage);
                let passage = (passage.ok_or("no passage")?, 1);
                let job = Job::Keep(self.passing(passage, place, micro_batch)?);
                self.submit(Submitted { stage, queue: QueueKind::Upload, job, waits, signal });
            }
            PassingAction::Answer(read) => {
                self.send_to_stage(device, self.spec.stages.len(), StageEvent::PlaceRead(read))?;
            }
            PassingAction::Sum { to, place, micro_batch, waits, computed, signal } => {
                let own = passes.iter().position(|pass| pass.stage == stage);
                let passing = self.passing((own.unwrap_or(to), 1), place, micro_batch)?;
                let jobs = [Job::ChecksumPassed(passing.clone()), Job::SumPassed(to, passing)];
                self.sum(stage, jobs, waits, [computed, signal]);
            }
            PassingAction::SendSum { to, place, sum } => {
                self.send_to_stage(device, receiver(to)?, StageEvent::PassedSum { place, sum })?;
            }
            PassingAction::Wrong => {
                let (from, to) = (self.topology.label(self.spec.stages.len()), self.topology.label(stage));
                self.end_run(stage, Error::WrongKeysAndValues { from, stage: stage as u32, to });
            }
        }
        Ok(())
    }

    /// Returns one of `copies` copies of a micro-batch's keys and values, which take equally long.
    fn passing(
        &self,
        (passage, copies): (usize, usize),
        place: u32,
        micro_batch: Arc<MicroBatch>,
    ) -> Result<Passing, &'static str> {
        let pass = self.topology.passes().get(passage).ok_or("no such passage")?;
        let duration_ns = nanoseconds(pass.row_ns * f64::from(micro_batch.rows()) / copies as f64 / 1e3);
        Ok(Passing { passage, place, micro_batch, duration_ns })
    }
}
