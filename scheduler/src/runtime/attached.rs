//! The coordinator's side of loaded stages: their mailbox and addresses, the ends of the paths, the host memory for logits
//! and the watch. The coordinator loses it with the stages, and gets another one with those that replace them.

use crate::core::MicroBatch;
use crate::core::{Path, RunShape, StageEvent};
use crate::error::{Error, Result};
use crate::mailbox::{Envelope, Mailbox, Notice};
use crate::message::{DeviceAddress, DeviceMessage, DeviceUrgent, RunMessage, RunUrgent};
use crate::results::ResultPlaces;
use crate::runtime::spec::Layout;
use crate::transfers::Transfers;
use crate::watch::Watch;
use ragtag_hal::{DeviceId, HostRegion, Lease, Timeline};
use std::ops::Range;
use std::sync::Arc;

/// Host memory for logits.
pub(super) struct Logits {
    pub(super) region: Arc<HostRegion>,
    pub(super) places: ResultPlaces,
}

impl Logits {
    pub(super) fn new(layout: &Layout) -> Result<Self> {
        let (places, credits) = (layout.results, u64::from(layout.run.credits));
        let bytes = usize::try_from(places.part_bytes().saturating_mul(credits)).unwrap_or(usize::MAX);
        let region =
            HostRegion::new(bytes).map_err(|e| Error::spec(format!("host memory for logits: {e}")))?;
        Ok(Self { region: Arc::new(region), places })
    }

    /// Reads a range of bytes. The download must have completed, so that no device writes to them.
    pub(super) fn read(&self, range: Range<u64>) -> Result<Lease<'_>> {
        let rows = self.region.read(range.start as usize..range.end as usize);
        rows.map_err(|e| Error::protocol(format!("logits are not available yet: {e}")))
    }
}

/// Ends of a path of micro-batches.
pub(super) struct PathEnds {
    /// Index of the first stage's device, and of the stage among the stages of this device.
    pub(super) first: (usize, usize),
    /// The last stage's download timeline.
    pub(super) last: Arc<Timeline>,
    pub(super) notice: Notice,
    /// Latest value of this timeline that the thread has reported to the core.
    pub(super) progress: u64,
    /// Record of the transfers of the token return.
    pub(super) token_return: Transfers,
}

/// Loaded stages, as the coordinator sees them.
pub(super) struct Attached {
    pub(super) run: RunShape,
    pub(super) inbox: Mailbox<RunMessage, RunUrgent>,
    /// Addresses of the devices' mailboxes.
    pub(super) actors: Vec<DeviceAddress>,
    /// Ends of each path, indexed by [`Path`]. Without a prefill stage, there is one path.
    pub(super) ends: Vec<PathEnds>,
    /// Device id and device label of each stage.
    pub(super) devices: Vec<(DeviceId, String)>,
    pub(super) logits: Logits,
    /// Watches the work of all devices.
    pub(super) watch: Watch,
}

impl Attached {
    pub(super) fn poll(&self) -> Option<Envelope<RunMessage, RunUrgent>> {
        self.inbox.poll()
    }

    /// Sends a micro-batch to the first stage of its path.
    pub(super) fn enter(&self, path: Path, micro_batch: Arc<MicroBatch>) -> Result<()> {
        let (device, stage) = self.ends[path as usize].first;
        let event = StageEvent::HandOff { micro_batch };
        self.actors[device].send(DeviceMessage::Event { stage, event })
    }

    pub(super) fn stop_devices(&self) {
        self.actors.iter().for_each(|actor| actor.send_urgent(DeviceUrgent::Stop));
    }

    /// Attributes an error to the device and the stage on which it began. Another stage may report the error
    /// first, because that stage waited for a point of the failed device. If a copy of activations has failed,
    /// names its edge. If the stage is unknown, names all stages of the device. Also returns the label of the device, if
    /// the error is the failure of a device.
    pub(super) fn attribute(&self, error: Error) -> (Error, Option<String>) {
        let (reporter, cause, is_known) = match &error {
            Error::Stage { stage, cause, .. } => (*stage, cause, true),
            Error::Device { stages, cause, .. } => (stages[0], cause, false),
            Error::Transfer { from, .. } => {
                let from = from.clone();
                return (error, Some(from));
            }
            _ => return (error, None),
        };
        let began = cause.culprit().filter(|id| self.devices.iter().any(|(other, _)| other == id));
        let id = began.unwrap_or(self.devices[reporter as usize].0);
        let cause = cause.root().clone();
        // All calls on a lost device return the loss, whichever stage makes them.
        let is_own = is_known && began.is_none() && !matches!(cause, ragtag_hal::Error::Lost { .. });
        let stages = (0..).zip(&self.devices).filter(|(_, (other, _))| *other == id);
        let stages = if is_own { vec![reporter] } else { stages.map(|(stage, _)| stage).collect() };
        let device = self.devices[stages[0] as usize].1.clone();
        let known = self.watch.failed(id, &cause, is_own.then_some(reporter));
        (known.unwrap_or_else(|| Error::of_device(stages, device.clone(), cause)), Some(device))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::capacity::Lanes;
    use crate::core::Limits;
    use crate::mailbox::mailbox;
    use crate::message::RunAddress;
    use ragtag_graph::execution::{Chunks, KvUse};
    use ragtag_hal::{QueueKind, TimelineId};

    /// Returns loaded stages on these devices, the address of the coordinator's mailbox, and the download timeline of the
    /// last stage.
    pub(crate) fn attached(devices: &[u16]) -> (Attached, RunAddress, Arc<Timeline>) {
        let run = RunShape {
            stages: 1,
            decode_groups: 2,
            credits: 2,
            context: 16,
            vocabulary: 4,
            has_picks: false,
            chunks: Chunks::fixed(4),
            max_rows: 4,
            max_logit_rows: 1,
            max_sequences: 1,
            kv_blocks: 8,
            kv_use: KvUse::default(),
            limits: Limits::default(),
            kv_ring: None,
            prefill_from: None,
            recompute_at: None,
        };
        let results = ResultPlaces { row_bytes: 16, rows: 1, has_picks: false };
        let layout = Layout { run, weight_bytes: 0, results, passing_blocks: 1 };
        let (address, inbox) = mailbox(Lanes::of_run(2));
        let (actor, _) = mailbox(Lanes::of_device(2, 1, false, [(None, None)]));
        let last = Timeline::new(TimelineId { device: DeviceId(0), queue: QueueKind::Download });
        let labels: Vec<_> = devices.iter().map(|device| format!("made-up:{device}")).collect();
        let ends = vec![PathEnds {
            first: (0, 0),
            last: Arc::clone(&last),
            notice: Notice::default(),
            progress: 0,
            token_return: Transfers::default(),
        }];
        let attached = Attached {
            logits: Logits::new(&layout).unwrap(),
            run: layout.run,
            inbox,
            actors: vec![actor],
            ends,
            devices: devices.iter().copied().map(DeviceId).zip(labels).collect(),
            watch: Watch::new(Vec::new(), [], Vec::new(), None),
        };
        (attached, address, last)
    }

    #[test]
    fn a_failure_names_the_device_on_which_it_began_and_all_stages_that_may_have_failed() {
        use ragtag_hal::Error as DeviceError;
        let attached = attached(&[0, 1, 0]).0;
        let attribute = |error| attached.attribute(error).0;
        let lost = DeviceError::Lost { cause: "unplugged".into() };
        let on = |stage, device: &str, cause| Error::Stage { stage, device: device.into(), cause };
        let both = attribute(Error::of_device(vec![0, 2], "made-up:0".into(), lost.clone()));
        assert_eq!(attached.attribute(both.clone()).1.as_deref(), Some("made-up:0"));
        assert_eq!(both.to_string(), "stages 0, 2 on made-up:0: device lost: unplugged");
        // The stage that meets the loss need not be the one whose work was lost.
        assert_eq!(attribute(on(2, "made-up:0", lost.clone())), both);
        let point = TimelineId { device: DeviceId(0), queue: QueueKind::Download }.at(3);
        let waited = DeviceError::Poisoned { point, cause: Box::new(lost.clone()) };
        assert_eq!(attribute(on(1, "made-up:1", waited)), both);
        assert_eq!(attribute(on(1, "made-up:1", lost.clone())), on(1, "made-up:1", lost));
        let refused = on(2, "made-up:0", DeviceError::Api { call: "launch".into(), code: 7 });
        assert_eq!(attribute(refused.clone()), refused);
    }
}
