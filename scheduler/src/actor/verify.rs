//! Checksums that a device computes, and transfers that are sent again.

use super::Actor;
use super::checksum::place_of;
use super::passing::SummedRanges;
use crate::copies::Copied;
use crate::core::{DeviceEvent, End, MicroBatchId, StageEvent, VerifyAction};
use crate::error::{Error, Result};
use crate::trace::{Label, SpanKind};
use ragtag_hal::{Command, Point, QueueKind, Submission, Work};
use ragtag_transfer::{Route, TransferId};

/// A checksum that the device computes.
pub(super) struct PendingSum {
    /// Value of the download timeline at which the checksum is on the host.
    pub(super) value: u64,
    /// Index of the stage among the device's stages.
    stage: usize,
    of: Summed,
}

/// Bytes whose checksum a device computes.
pub(super) enum Summed {
    /// Activations at one end of a slot.
    Activations { end: End, transfer: TransferId, slot: u32, bytes: u64 },
    /// Keys and values that pass through a place of a passage.
    KeysAndValues { to: usize, place: u32, ranges: SummedRanges },
}

impl Actor {
    /// Executes an action about the transfers of the stage at index `at` of this device.
    pub(super) fn verify(&mut self, at: usize, action: VerifyAction) -> Result<()> {
        let stage = &self.stages[at];
        match action {
            VerifyAction::Sum { end, transfer, slot, bytes, waits, computed, signal } => {
                let rows = stage.memory.edge_rows(slot, 0, bytes);
                let Some(checksums) = &stage.checksums else {
                    return Err(Error::protocol("a checksum without verification"));
                };
                let place = (place_of(end, slot), 1);
                let commands = checksums.commands(&self.device, place, rows).map(|c| vec![c]);
                let label = Label::copy(SpanKind::Checksum, MicroBatchId(transfer.0), bytes, false);
                let of = Summed::Activations { end, transfer, slot, bytes };
                self.sum(at, (commands, label, of), waits, [computed, signal])
            }
            VerifyAction::Resent { wrong, over } => {
                self.resent(at, wrong, over);
                Ok(())
            }
            VerifyAction::Unreplaced => {
                Err(self.refusal.take().unwrap_or_else(|| Error::protocol("no copy was refused")))
            }
            VerifyAction::Corrupted { route } => {
                let to = stage.next.as_ref().map_or_else(String::new, |next| next.label.clone());
                Err(Error::Corrupted { from: self.label.clone(), to, route })
            }
        }
    }

    /// Submits the computation of a checksum and its copy to the host, which signal `computed` and `signal`.
    pub(super) fn sum(
        &mut self,
        at: usize,
        ([sum, download], label, of): ([Vec<Command>; 2], Label, Summed),
        waits: Vec<Point>,
        [computed, signal]: [Point; 2],
    ) -> Result<()> {
        let sum = Submission::timed(QueueKind::Compute, Work::Commands(sum), waits, computed);
        self.submit(at, sum, label, None)?;
        let (queue, work, waits) = (QueueKind::Download, Work::Commands(download), vec![computed]);
        self.submit(at, Submission::timed(queue, work, waits, signal), label, Some(Copied::Checksum))?;
        self.sums.push_back(PendingSum { value: signal.value, stage: at, of });
        Ok(())
    }

    /// Passes a checksum that is on the host to the core.
    pub(super) fn summed(&mut self, sum: &PendingSum) -> Result<()> {
        let PendingSum { stage, of, .. } = sum;
        let event = match *of {
            Summed::Activations { end, transfer, slot, bytes } => {
                let Some(checksums) = &self.stages[*stage].checksums else { return Ok(()) };
                let sum = checksums.read(place_of(end, slot), bytes)?;
                StageEvent::Summed { end, transfer, sum }
            }
            Summed::KeysAndValues { to, place, ref ranges } => {
                let sum = self.stages[*stage].passage(to)?.sum(ranges)?;
                StageEvent::SummedPassed { to, place, sum }
            }
        };
        self.step(DeviceEvent::Stage { stage: *stage, event })
    }

    /// Warns that wrong bytes have arrived at the next stage, or that its device has refused a copy. If
    /// another route replaces the previous one, records the routes that are left.
    fn resent(&mut self, at: usize, wrong: Route, over: Route) {
        let Some(next) = &self.stages[at].next else { return };
        let (from, to, route) = (&self.label, &next.label, wrong.name());
        let by = over.name();
        if let Some(Error::Transfer { cause, .. }) = self.refusal.take() {
            tracing::warn!(from, to, route, by, %cause, "another route replaces this one");
        } else if wrong == over {
            tracing::warn!(from, to, route, "activations arrived with wrong bytes; sending them again");
            return;
        } else {
            let what = "activations arrived with wrong bytes; another route replaces this one";
            tracing::warn!(from, to, route, by, "{what}");
        }
        self.stages[at].recorder.replaced(wrong);
    }
}
