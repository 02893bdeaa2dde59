//! The core of one device: its stages, which share three queues.
//!
//! A device with one stage computes ahead, because its micro-batches follow each other anyway. With several
//! stages, a computation that waits for another device would hold up the other stages in the compute queue.
//! So a computation enters the queue only when its input has arrived. The oldest micro-batch goes first,
//! because its result is needed first. A micro-batch is never ready at two stages at once, so age alone
//! decides. A second computation waits in the queue only if no older micro-batch can still arrive.
//!
//! Stages cannot deadlock, even if they form loops over devices. A queue is in order, and a submission waits
//! only for points of earlier submissions. Each stage has its own slots and rings, and the last stage returns
//! its slots without waiting for another stage.

use crate::core::stage::StageCore;
use crate::core::{MicroBatchId, Nanoseconds, StageAction, StageEvent, StageShape, StageStats};
use crate::error::{Error, Result};
use ragtag_hal::{QueueKind, TimelineId};
use ragtag_transfer::Points;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};

/// Maximum number of computations in the queue of a device with several stages. One runs, and the next hides
/// the delay until the host learns of its end.
const COMPUTING: usize = 2;

/// Next points of a device's queues.
#[derive(Clone, Debug)]
pub struct QueuePoints {
    /// Compute queue.
    pub compute: Points,
    /// Upload queue.
    pub upload: Points,
    /// Download queue.
    pub download: Points,
}

impl QueuePoints {
    /// Returns the points of queues without submissions.
    pub fn new(timeline: impl Fn(QueueKind) -> TimelineId) -> Self {
        use QueueKind::{Compute, Download, Upload};
        let points = |queue| Points::new(timeline(queue));
        Self { compute: points(Compute), upload: points(Upload), download: points(Download) }
    }
}

/// Values of a device's timelines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Of the compute timeline. Used only with several stages.
    pub computed: u64,
    /// Of the upload timeline. Used only with several stages.
    pub uploaded: u64,
    /// Of the download timeline.
    pub downloaded: u64,
}

/// Inputs of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DeviceEvent {
    /// An event of one of its stages.
    Stage {
        /// Index among the device's stages.
        stage: usize,
        /// The event.
        event: StageEvent,
    },
    /// Its timelines have advanced.
    Progress(Progress),
}

/// Action of one of a device's stages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceAction {
    /// Index among the device's stages.
    pub stage: usize,
    /// The action.
    pub action: StageAction,
}

/// The state machine of one device.
#[derive(Debug)]
pub struct DeviceCore {
    stages: Vec<StageCore>,
    points: QueuePoints,
    progress: Progress,
    /// Timeline values of the computations in the queue. Unused with one stage.
    computing: VecDeque<u64>,
    /// Micro-batches that the device's last stage has not computed yet. Unused with one stage.
    unfinished: BTreeSet<MicroBatchId>,
    /// Actions of one stage.
    actions: Vec<StageAction>,
}

impl DeviceCore {
    /// Creates a device with idle stages, in the order of the pipeline.
    ///
    /// # Errors
    /// [`Error::Spec`] without stages, and for an invalid stage.
    pub fn new(shapes: &[StageShape], points: QueuePoints) -> Result<Self> {
        if shapes.is_empty() {
            return Err(Error::Spec { what: "a device without stages".into() });
        }
        let ahead = shapes.len() == 1;
        let stages = shapes.iter().map(|shape| StageCore::new(shape, ahead)).collect::<Result<_>>()?;
        let (progress, computing, unfinished, actions) = Default::default();
        Ok(Self { stages, points, progress, computing, unfinished, actions })
    }

    /// Returns the counts of a stage so far.
    pub fn stats(&self, stage: usize) -> StageStats {
        self.stages[stage].stats()
    }

    /// Returns the queues whose progress the core waits for. It needs no other progress events.
    pub fn awaited(&self) -> Vec<QueueKind> {
        let mut queues = Vec::new();
        if self.stages.iter().any(StageCore::wants_slot) {
            queues.push(QueueKind::Download);
        }
        if self.stages.iter().any(|stage| stage.oldest().is_some()) {
            queues.extend([QueueKind::Upload, QueueKind::Compute]);
        }
        queues
    }

    /// Returns whether activations of a stage wait for a slot of its outgoing ring. Until then returned slots
    /// are not urgent.
    pub fn wants_ring_slot(&self, stage: usize) -> bool {
        self.stages[stage].wants_ring_slot()
    }

    /// Returns whether no stage holds a micro-batch, and all slots and ring slots are free.
    pub fn is_idle(&self) -> bool {
        self.stages.iter().all(StageCore::is_idle)
    }

    /// Handles an event and appends the resulting actions, to be executed in order.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an event that is not allowed now.
    pub fn step(
        &mut self,
        now: Nanoseconds,
        event: DeviceEvent,
        actions: &mut Vec<DeviceAction>,
    ) -> Result<()> {
        match event {
            DeviceEvent::Stage { stage, event } => {
                if let StageEvent::HandOff { micro_batch } = &event
                    && self.stages.len() > 1
                {
                    self.unfinished.insert(micro_batch.id);
                }
                self.at(stage, actions, |core, points, out| core.step(now, event, points, out))?;
            }
            DeviceEvent::Progress(progress) => {
                self.progress = progress;
                while self.computing.pop_front_if(|value| *value <= progress.computed).is_some() {}
                for stage in 0..self.stages.len() {
                    let value = progress.downloaded;
                    self.at(stage, actions, |core, points, out| core.downloaded(now, value, points, out))?;
                }
            }
        }
        self.compute(actions)
    }

    /// Steps one stage and appends its actions.
    fn at(
        &mut self,
        stage: usize,
        actions: &mut Vec<DeviceAction>,
        step: impl FnOnce(&mut StageCore, &mut QueuePoints, &mut Vec<StageAction>) -> Result<()>,
    ) -> Result<()> {
        let Some(core) = self.stages.get_mut(stage) else {
            return Err(Error::protocol("an event for a stage that does not exist"));
        };
        step(core, &mut self.points, &mut self.actions)?;
        actions.extend(self.actions.drain(..).map(|action| DeviceAction { stage, action }));
        Ok(())
    }

    /// Computes the oldest micro-batches whose inputs have arrived, while the queue is short.
    fn compute(&mut self, actions: &mut Vec<DeviceAction>) -> Result<()> {
        loop {
            let uploaded = self.progress.uploaded;
            let arrived = |stage: usize| {
                let (micro_batch, received) = self.stages[stage].oldest()?;
                received.is_none_or(|point| point.value <= uploaded).then_some((micro_batch, stage))
            };
            let oldest = (0..self.stages.len()).filter_map(arrived).min();
            let Some((micro_batch, stage)) = oldest else { return Ok(()) };
            let is_oldest = self.unfinished.first().is_none_or(|first| micro_batch <= *first);
            if self.computing.len() >= if is_oldest { COMPUTING } else { 1 } {
                return Ok(());
            }
            if stage + 1 == self.stages.len() {
                self.unfinished.remove(&micro_batch);
            }
            self.at(stage, actions, |core, points, out| core.compute_oldest(points, out))?;
            self.computing.push_back(self.points.compute.last().value);
        }
    }
}
