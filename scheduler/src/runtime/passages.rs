//! Passages of keys and values from the prefill stage to the stages that decode.

use crate::actor::StageSpec;
use crate::actor::passing::{Passage, region_bytes};
use crate::error::{Error, Result};
use crate::message::DeviceAddress;
use crate::runtime::spec::{Layout, PipelineSpec};
use ragtag_hal::{HostRegion, QueueKind, Timeline};
use std::ops::Range;
use std::sync::Arc;

/// A stage that decodes segments which the prefill stage computes on another device.
struct Receiver {
    /// Index of the stage in the pipeline.
    stage: usize,
    device: usize,
    /// Index of the stage among the stages of its device.
    local: usize,
    segments: Range<usize>,
    region: Arc<HostRegion>,
}

/// The prefill stage.
#[derive(Clone, Copy)]
struct PrefillStage {
    device: usize,
    /// Index of the stage among the stages of its device.
    local: usize,
}

/// All passages of a pipeline.
pub(super) struct Passages {
    /// `None` without a prefill stage.
    source: Option<PrefillStage>,
    receivers: Vec<Receiver>,
    /// Maximum number of blocks in a place.
    blocks: u64,
}

/// Label, mailbox and timelines of a device.
#[derive(Clone)]
pub(super) struct Reach {
    /// Label of the device.
    pub(super) label: String,
    /// Address of its mailbox.
    pub(super) address: DeviceAddress,
    /// Timelines of its queues, for other devices.
    pub(super) timelines: [Arc<Timeline>; 3],
}

impl Passages {
    /// Allocates the host memory of all passages.
    ///
    /// # Errors
    /// [`Error::Spec`] if this memory cannot be allocated.
    pub(super) fn new(pipeline: &PipelineSpec, layout: &Layout) -> Result<Self> {
        let stages = &pipeline.stages;
        let local = |device: usize, end: usize| stages[..end].iter().filter(|s| s.device == device).count();
        let source = pipeline.prefill.as_ref().map(|prefill| prefill.device);
        let source = source.map(|device| PrefillStage { device, local: local(device, stages.len()) });
        let blocks = layout.passing_blocks;
        let receives = |(_, stage): &(usize, &_)| {
            let stage: &StageSpec = stage;
            source.is_some_and(|source| source.device != stage.device) && !stage.compiled.kv_bytes.is_empty()
        };
        let receiver = |(at, stage): (usize, &StageSpec)| {
            let bytes = usize::try_from(region_bytes(&stage.compiled, blocks)).unwrap_or(usize::MAX);
            let region = HostRegion::new(bytes)
                .map_err(|e| Error::spec(format!("host memory for keys and values: {e}")))?;
            let (device, segments) = (stage.device, stage.compiled.segments.clone());
            Ok(Receiver { stage: at, device, local: local(device, at), segments, region: Arc::new(region) })
        };
        let receivers = stages.iter().enumerate().filter(receives).map(receiver).collect::<Result<_>>()?;
        Ok(Self { source, receivers, blocks })
    }

    /// Returns the number of passages that begin or end on a device.
    pub(super) fn on(&self, device: usize) -> usize {
        let is_here = |receiver: &&Receiver| receiver.device == device || self.starts_on(device);
        self.receivers.iter().filter(is_here).count()
    }

    /// Returns whether the prefill stage is on a device.
    pub(super) fn starts_on(&self, device: usize) -> bool {
        self.source.is_some_and(|source| source.device == device)
    }

    /// Returns the passages of a stage. The prefill stage comes after the other stages.
    pub(super) fn of_stage(&self, stage: usize, is_prefill: bool, reach: &[Reach]) -> Vec<Passage> {
        let Some(source) = self.source else { return Vec::new() };
        let ends = |receiver: &&Receiver| is_prefill || receiver.stage == stage;
        let other = |receiver: &Receiver| match is_prefill {
            true => self.passage(receiver, reach, (receiver.device, receiver.local, QueueKind::Upload)),
            false => self.passage(receiver, reach, (source.device, source.local, QueueKind::Download)),
        };
        self.receivers.iter().filter(ends).map(other).collect()
    }

    /// Returns a passage as the stage sees it whose other stage is at `local` on `device`. `queue` makes the
    /// copies of the other stage.
    fn passage(
        &self,
        receiver: &Receiver,
        reach: &[Reach],
        (device, stage, queue): (usize, usize, QueueKind),
    ) -> Passage {
        let Reach { label, address, timelines } = reach[device].clone();
        let (segments, region) = (receiver.segments.clone(), Arc::clone(&receiver.region));
        let timeline = Arc::clone(&timelines[queue.index()]);
        Passage { segments, region, blocks: self.blocks, label, address, stage, timeline }
    }
}
