//! Executes the actions of a stage's core.

use super::edge::{to_next, to_previous};
use super::{Actor, stage_error};
use crate::copies::{Copied, Pending};
use crate::core::{MicroBatch, StageAction, StageEvent};
use crate::error::{Error, Result};
use crate::message::RunMessage;
use crate::trace::{Label, SpanKind};
use ragtag_hal::{Command, Device, Point, QueueKind, Submission, Work};
use ragtag_transfer::ToReceiver;
use std::ops::Range;
use std::sync::Arc;

impl Actor {
    /// Executes an action of the stage at index `at` of this device.
    pub(super) fn act(&mut self, at: usize, action: StageAction) -> Result<()> {
        let stage = &self.stages[at];
        match action {
            StageAction::Copy { end, copy } => self.copy(at, end, copy),
            StageAction::Compute { slot, micro_batch, part, ends, waits, signal } => {
                self.compute(at, (slot, part), (&micro_batch, ends), (waits, signal))
            }
            StageAction::Logits { slot, micro_batch, waits, signal } => {
                self.logits(at, slot, &micro_batch, (waits, signal))
            }
            StageAction::HandOff { micro_batch } => {
                stage.recorder.leaves(&micro_batch, u64::from(micro_batch.rows()) * stage.row_bytes);
                to_next(&stage.next, StageEvent::HandOff { micro_batch })
            }
            StageAction::ToNext(ToReceiver::Written { transfer, .. }) if self.is_refused(at, transfer) => {
                Ok(())
            }
            StageAction::ToNext(message) => to_next(&stage.next, StageEvent::FromPrevious(message)),
            StageAction::ToPrevious(message) => to_previous(&stage.previous, message),
            StageAction::Return(returned) => self.run.send_quietly(RunMessage::Return(returned)),
            StageAction::Stream(action) => self.stream(at, action),
            StageAction::Passing(action) => self.pass(at, action),
            StageAction::Verify(action) => self.verify(at, action),
        }
    }

    fn compute(
        &mut self,
        at: usize,
        (slot, part): (u32, usize),
        (batch, ends): (&Arc<MicroBatch>, bool),
        (waits, signal): (Vec<Point>, Point),
    ) -> Result<()> {
        let stage = &mut self.stages[at];
        let (number, label) = (stage.stage, &self.label);
        let failed = |cause| stage_error(number, label, cause);
        let program = stage.memory.prepare(&mut self.device, (slot, part), batch, failed)?;
        tracing::trace!(stage = number, micro_batch = batch.id.0, rows = batch.rows(), slot, "compute");
        let submission = Submission::timed(QueueKind::Compute, Work::Program(program), waits, signal);
        let label = Label { ends, ..Label::of(SpanKind::Compute, batch, 0) };
        let label = label.of_part(stage.memory.part_segments(part));
        self.submit(at, submission, label, None)
    }

    /// Submits the copy of a micro-batch's results to the host memory of its credit: the rows of logits that the host
    /// reads whole, and the best logits of the others.
    fn logits(
        &mut self,
        at: usize,
        slot: u32,
        batch: &MicroBatch,
        (waits, signal): (Vec<Point>, Point),
    ) -> Result<()> {
        let stage = &self.stages[at];
        let (credit, whole, picks) =
            (batch.credit, batch.whole_rows(), batch.whole_rows()..batch.logit_rows());
        let mut commands = Vec::new();
        if !picks.is_empty() || whole > 0 {
            let none = || Error::protocol("logits without host memory");
            let (region, places) = stage.logits.ok_or_else(none)?;
            let rows = stage.memory.logits(slot, whole).map(|from| (from, places.whole(credit, whole)));
            let best =
                stage.memory.picks(slot, picks.clone()).map(|from| (from, places.picks(credit, picks)));
            let download = |(from, to): (_, Range<u64>)| Command::Download { from, region, offset: to.start };
            commands.extend(rows.into_iter().chain(best).map(download));
        }
        let copied = |command: &Command| match command {
            Command::Download { from, .. } => from.bytes,
            _ => 0,
        };
        let bytes = commands.iter().map(copied).sum();
        let work = Work::Commands(commands);
        let submission = Submission::timed(QueueKind::Download, work, waits, signal);
        stage.recorder.leaves(batch, bytes);
        self.submit(at, submission, Label::of(SpanKind::Logits, batch, bytes), Some(Copied::Logits))
    }

    /// Submits work of the stage at index `at` of this device. `copied` says what it copies, if anything.
    pub(super) fn submit(
        &mut self,
        at: usize,
        submission: Submission,
        label: Label,
        copied: Option<Copied>,
    ) -> Result<()> {
        self.enqueue(at, submission, label, copied).map_err(|cause| self.failed(at, cause))
    }

    /// Like [`Actor::submit`], but returns the error of the device.
    pub(super) fn enqueue(
        &mut self,
        at: usize,
        submission: Submission,
        label: Label,
        copied: Option<Copied>,
    ) -> ragtag_hal::Result<()> {
        let stage = &mut self.stages[at];
        let (signal, waits) = (submission.signal, submission.waits.clone());
        let pending = Pending { signal, waits, stage: stage.stage, copied };
        self.copies.add(pending, self.own[submission.queue.index()].value());
        stage.recorder.submitted(signal, label);
        self.device.submit(submission).inspect(|()| self.copies.accept(signal))
    }

    /// Returns an error that attributes a device failure to the stage at index `at` of this device.
    pub(super) fn failed(&self, at: usize, cause: ragtag_hal::Error) -> Error {
        stage_error(self.stages[at].stage, &self.label, cause)
    }
}
