//! Steps the core of a device, and executes its actions.

use super::World;
use super::mailboxes::Message;
use crate::core::{
    DeviceAction, DeviceEvent, End, MicroBatchId, RunEvent, StageAction, StageEvent, StreamAction,
};
use crate::sim::device::{Job, Submitted};
use ragtag_hal::QueueKind;
use ragtag_transfer::{Copy, OtherEnd, ToReceiver, ToSender};

/// Refused copies, each with the index of its stage among the stages of the device.
type Refused = Vec<(usize, Copy)>;

impl World<'_> {
    pub(super) fn device_event(&mut self, device: usize, event: DeviceEvent) -> Result<(), String> {
        if self.stopped || self.devices[device].failure.is_some() {
            return Ok(());
        }
        let (mut actions, mut refused) = (Vec::new(), Refused::new());
        let stepped = self.cores[device].step(self.queue.now, event, &mut actions);
        stepped.map_err(|e| format!("device {device}: {e}"))?;
        for DeviceAction { stage, action } in actions {
            if self.devices[device].failure.is_some() {
                break;
            }
            self.interpret(device, stage, action, &mut refused)?;
        }
        for (stage, copy) in refused {
            self.device_event(device, DeviceEvent::Stage { stage, event: StageEvent::Refused { copy } })?;
        }
        self.start_around(device)
    }

    /// Executes an action of the stage at index `own` of a device.
    fn interpret(
        &mut self,
        device: usize,
        own: usize,
        action: StageAction,
        refused: &mut Refused,
    ) -> Result<(), String> {
        let stage = self.topology.hosted[device][own];
        match action {
            StageAction::Copy { end, copy } => {
                if let Some(copy) = self.copy(stage, end, copy) {
                    refused.push((own, copy));
                }
            }
            StageAction::ToNext(ToReceiver::Written { transfer, .. })
                if refused.iter().any(|(other, copy)| (*other, copy.transfer) == (own, transfer)) => {}
            StageAction::Compute { slot, micro_batch, part, ends, waits, signal } => {
                if (stage == 0 || stage == self.spec.stages.len()) && part == 0 {
                    self.report.observations.stages[stage].waiting.add(self.queue.now);
                }
                let job = Job::Compute { slot, micro_batch, part, ends };
                self.submit(Submitted { stage, queue: QueueKind::Compute, job, waits, signal });
            }
            StageAction::Logits { slot, micro_batch, waits, signal } => {
                let job = Job::Logits { slot, micro_batch };
                self.submit(Submitted { stage, queue: QueueKind::Download, job, waits, signal });
            }
            StageAction::HandOff { micro_batch } => {
                self.send_to_stage(device, stage + 1, StageEvent::HandOff { micro_batch })?;
            }
            StageAction::ToNext(message) => {
                self.send_to_stage(device, stage + 1, StageEvent::FromPrevious(message))?;
            }
            StageAction::ToPrevious(message) => {
                if let ToSender::Again { slot, .. } = message {
                    self.memory.discard(stage, slot)?;
                }
                self.send_to_stage(device, stage - 1, StageEvent::FromNext(message))?;
            }
            StageAction::Return(returned) => {
                let (ends, message) = ((device, self.cores.len()), Message::Run(RunEvent::Return(returned)));
                self.mailboxes.send(&mut self.queue, ends, message)?;
            }
            StageAction::Stream(action) => self.stream(stage, action)?,
            StageAction::Passing(action) => self.pass(device, stage, action)?,
            StageAction::Verify(action) => self.verify(stage, action),
        }
        Ok(())
    }

    /// Submits a copy of activations. If the device refuses it, submits no work in its place, and returns the
    /// copy.
    fn copy(&mut self, stage: usize, end: End, copy: Copy) -> Option<Copy> {
        let (waits, signal, id) = (copy.waits.clone(), copy.signal, MicroBatchId(copy.transfer.0));
        let is_refused = self.memory.refuses(stage, end, &copy);
        let total = self.bytes.get(&id).copied().unwrap_or(0);
        let last = copy.other == OtherEnd::None || copy.offset + copy.bytes == total;
        let (job, refused) = match is_refused {
            true => (Job::Refused(id), Some(copy)),
            false => (Job::Copy { end, copy, last }, None),
        };
        self.submit(Submitted { stage, queue: end.queue(), job, waits, signal });
        refused
    }

    /// Executes an action about streamed weights.
    fn stream(&mut self, stage: usize, action: StreamAction) -> Result<(), String> {
        let queue = QueueKind::Upload;
        match action {
            StreamAction::Read { part, place, after, signal } => {
                let none = || format!("stage {stage} reads no weights");
                let reader = self.topology.readers[stage].ok_or_else(none)?;
                let (job, waits) = (Job::Read { part, place }, after.into_iter().collect());
                self.devices[reader].submit(Submitted { stage, queue, job, waits, signal });
            }
            StreamAction::Copy { part, place, waits, signal } => {
                self.submit(Submitted { stage, queue, job: Job::Stream { part, place }, waits, signal });
            }
        }
        Ok(())
    }

    pub(super) fn send_to_stage(
        &mut self,
        from: usize,
        stage: usize,
        event: StageEvent,
    ) -> Result<(), String> {
        let ends = (from, self.topology.hosts[stage]);
        self.mailboxes.send(&mut self.queue, ends, Message::Stage(stage, event))
    }
}
