//! Keys and values that pass from the prefill stage to the stages that decode, in a simulation.

use super::World;
use crate::core::{MicroBatch, StageAction, StageEvent};
use crate::error::Error;
use crate::sim::device::{Job, Passing, Submitted};
use crate::sim::spec::SimPass;
use crate::sim::time::nanoseconds;
use ragtag_hal::QueueKind;
use std::sync::Arc;

impl<'a> World<'a> {
    /// Executes an action about keys and values.
    pub(super) fn pass(&mut self, device: usize, stage: usize, action: StageAction) -> Result<(), String> {
        match action {
            StageAction::Pass { to, place, part, micro_batch, waits, signal } => {
                let parts = self.passes().get(to).map_or(1, |pass| pass.parts.len());
                let job = Job::Pass { part, passing: self.passing((to, parts), place, micro_batch)? };
                self.submit(Submitted { stage, queue: QueueKind::Download, job, waits, signal });
            }
            StageAction::Passed { to, passed } => {
                let to = self.passes().get(to).ok_or("no such passage")?.stage;
                self.send_to_stage(device, to, StageEvent::Passed(passed))?;
            }
            StageAction::Keep { micro_batch, place, waits, signal } => {
                let passage = self.passes().iter().position(|pass| pass.stage == stage);
                let passage = (passage.ok_or("no passage")?, 1);
                let job = Job::Keep(self.passing(passage, place, micro_batch)?);
                self.submit(Submitted { stage, queue: QueueKind::Upload, job, waits, signal });
            }
            StageAction::ToPrefill(read) => {
                self.send_to_stage(device, self.spec.stages.len(), StageEvent::PlaceRead(read))?;
            }
            StageAction::SumPassed { to, place, micro_batch, waits, computed, signal } => {
                let own = self.passes().iter().position(|pass| pass.stage == stage);
                let passing = self.passing((own.unwrap_or(to), 1), place, micro_batch)?;
                let (queue, job) = (QueueKind::Compute, Job::ChecksumPassed(passing.clone()));
                self.submit(Submitted { stage, queue, job, waits, signal: computed });
                if self.devices[device].failure.is_none() {
                    let (queue, job) = (QueueKind::Download, Job::SumPassed(to, passing));
                    self.submit(Submitted { stage, queue, job, waits: vec![computed], signal });
                }
            }
            StageAction::SendSum { to, place, sum } => {
                let to = self.passes().get(to).ok_or("no such passage")?.stage;
                self.send_to_stage(device, to, StageEvent::PassedSum { place, sum })?;
            }
            StageAction::WrongKeysAndValues => {
                let label = |stage: usize| self.labels[stage].clone();
                let (from, to) = (label(self.spec.stages.len()), label(stage));
                self.end_run(stage, Error::WrongKeysAndValues { from, stage: stage as u32, to });
            }
            other => return Err(format!("not about keys and values: {other:?}")),
        }
        Ok(())
    }

    pub(super) fn passes(&self) -> &'a [SimPass] {
        self.spec.prefill.as_ref().map_or(&[], |prefill| &prefill.passes)
    }

    /// Returns one of `copies` copies of a micro-batch's keys and values, which take equally long.
    fn passing(
        &self,
        (passage, copies): (usize, usize),
        place: u32,
        micro_batch: Arc<MicroBatch>,
    ) -> Result<Passing, &'static str> {
        let pass = self.passes().get(passage).ok_or("no such passage")?;
        let duration_ns = nanoseconds(pass.row_ns * f64::from(micro_batch.rows()) / copies as f64 / 1e3);
        Ok(Passing { passage, place, micro_batch, duration_ns })
    }
}
