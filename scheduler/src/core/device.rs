//! The core of one device. Its stages share the device's three queues.
//!
//! A device with one stage submits computations before their inputs have arrived, because its micro-batches
//! follow each other in order. On a device with several stages, a computation that waits for another device
//! would block the other stages in the compute queue. The core therefore submits a computation only after its
//! input has arrived, unless there is only one micro-batch. It submits the oldest micro-batch first, because the
//! pipeline needs its result first. A
//! micro-batch is never ready at two stages at once, so its age alone determines the order. The core queues a
//! second computation only if no older micro-batch can still arrive.
//!
//! A prefill stage shares its device with stages of the other path. Its micro-batches pass through no other
//! stage.
//!
//! Stages cannot deadlock, even if the pipeline visits a device several times. A queue runs in order, and a
//! submission waits only for points of earlier submissions. Each stage has its own slots and rings, and the
//! last stage frees its slots without waiting for another stage.

use crate::core::action::Requests;
use crate::core::stage::StageCore;
use crate::core::{MicroBatchId, Nanoseconds, StageAction, StageEvent, StageShape, StageStats};
use crate::error::{Error, Result};
use ragtag_hal::{QueueKind, TimelineId};
use ragtag_transfer::Points;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};

/// Maximum number of computations in the compute queue of a device with several stages. One of them runs. The
/// other hides the delay until the host learns that the first has ended.
const COMPUTING: usize = 2;

/// Allocators of the points that the queues of a device signal.
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
    /// Returns allocators for queues without submissions. `timeline` returns the timeline of a queue.
    pub fn new(timeline: impl Fn(QueueKind) -> TimelineId) -> Self {
        use QueueKind::{Compute, Download, Upload};
        let points = |queue| Points::new(timeline(queue));
        Self { compute: points(Compute), upload: points(Upload), download: points(Download) }
    }
}

/// Values that a device's timelines have reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Value of the compute timeline. Used only on devices with several stages.
    pub computed: u64,
    /// Value of the upload timeline. Used only on devices with several stages, and to verify transfers.
    pub uploaded: u64,
    /// Value of the download timeline.
    pub downloaded: u64,
}

/// Inputs of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DeviceEvent {
    /// An event for one of the device's stages.
    Stage {
        /// Index of the stage among the device's stages.
        stage: usize,
        /// The event.
        event: StageEvent,
    },
    /// The device's timelines have advanced.
    Progress(Progress),
}

/// An action of one of a device's stages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceAction {
    /// Index of the stage among the device's stages.
    pub stage: usize,
    /// The action.
    pub action: StageAction,
}

/// The state machine of one device.
#[derive(Debug)]
pub struct DeviceCore {
    stages: Vec<StageCore>,
    /// Whether the device's only stage submits computations before their inputs have arrived.
    ahead: bool,
    points: QueuePoints,
    progress: Progress,
    /// Timeline values of the computations in the compute queue. Unused on a device that computes ahead.
    computing: VecDeque<u64>,
    /// Micro-batches that the device's last stage has not computed yet. Unused on a device that computes ahead.
    unfinished: BTreeSet<MicroBatchId>,
    /// Buffer for the actions of one step of a stage.
    actions: Vec<StageAction>,
}

impl DeviceCore {
    /// Creates a device with idle stages. `shapes` lists them in pipeline order. A prefill stage is the last.
    ///
    /// # Errors
    /// [`Error::Spec`] if `shapes` is empty or a stage is invalid.
    pub fn new(shapes: &[StageShape], points: QueuePoints) -> Result<Self> {
        if shapes.is_empty() {
            return Err(Error::spec("a device without stages"));
        }
        // The computations of a prefill stage wait for a place for their keys and values.
        let ahead = shapes.len() == 1 && shapes[0].passes.is_empty();
        let stages = shapes.iter().map(|shape| StageCore::new(shape, ahead)).collect::<Result<_>>()?;
        let (progress, computing, unfinished, actions) = Default::default();
        Ok(Self { stages, ahead, points, progress, computing, unfinished, actions })
    }

    /// Returns whether the device computes before inputs have arrived. If not, the core needs the progress of
    /// all queues.
    pub fn computes_ahead(&self) -> bool {
        self.ahead
    }

    /// Returns the current counters of a stage.
    pub fn stats(&self, stage: usize) -> StageStats {
        self.stages[stage].stats()
    }

    /// Returns the queues for which the core needs progress events. It needs no events of other queues.
    pub fn awaited(&self) -> Vec<QueueKind> {
        let mut queues = Vec::new();
        if self.stages.iter().any(|stage| stage.wants_slot() || stage.wants_sum()) {
            queues.push(QueueKind::Download);
        }
        if self.stages.iter().any(|stage| stage.oldest().is_some()) {
            queues.extend([QueueKind::Upload, QueueKind::Compute]);
        } else if self.stages.iter().any(StageCore::wants_arrival) {
            queues.push(QueueKind::Upload);
        }
        queues
    }

    /// Returns whether a message from the next stage lets activations of a stage leave. Such a message is
    /// urgent only while this is true.
    pub fn wants_next(&self, stage: usize) -> bool {
        self.stages[stage].wants_next()
    }

    /// Returns whether no stage holds a micro-batch, and all slots are free and no route is in use.
    pub fn is_idle(&self) -> bool {
        self.stages.iter().all(StageCore::is_idle)
    }

    /// Handles an event and appends the resulting actions, to be executed in order.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an event that is not allowed in this state.
    pub fn step(
        &mut self,
        now: Nanoseconds,
        event: DeviceEvent,
        actions: &mut Vec<DeviceAction>,
    ) -> Result<()> {
        match event {
            DeviceEvent::Stage { stage, event } => {
                if let StageEvent::HandOff { micro_batch } = &event
                    && !self.ahead
                {
                    self.unfinished.insert(micro_batch.id);
                }
                self.at(now, stage, actions, |core, requests| core.step(event, requests))?;
            }
            DeviceEvent::Progress(progress) => {
                let Progress { computed, uploaded, downloaded } = self.progress;
                let goes_on = progress.computed >= computed && progress.uploaded >= uploaded;
                let goes_on = goes_on && progress.downloaded >= downloaded;
                assert!(
                    goes_on,
                    "the progress of a device goes back from {:?} to {progress:?}",
                    self.progress
                );
                self.progress = progress;
                while self.computing.pop_front_if(|value| *value <= progress.computed).is_some() {}
                for stage in 0..self.stages.len() {
                    self.at(now, stage, actions, |core, requests| core.progressed(progress, requests))?;
                }
            }
        }
        self.compute(now, actions)
    }

    /// Calls `step` on one stage and appends the stage's actions to `actions`.
    fn at(
        &mut self,
        now: Nanoseconds,
        stage: usize,
        actions: &mut Vec<DeviceAction>,
        step: impl FnOnce(&mut StageCore, &mut Requests<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some(core) = self.stages.get_mut(stage) else {
            return Err(Error::protocol("an event for a stage that does not exist"));
        };
        step(core, &mut Requests { now, points: &mut self.points, actions: &mut self.actions })?;
        actions.extend(self.actions.drain(..).map(|action| DeviceAction { stage, action }));
        Ok(())
    }

    /// Returns the only micro-batch that is or will be at a stage, and the stage, if its input is on the way. Its
    /// computation then starts without the delay until the host learns of the arrival, and no other one can be
    /// ready before.
    fn arriving(&self) -> Option<(MicroBatchId, usize)> {
        let is_alone = self.computing.is_empty() && self.unfinished.len() == 1;
        let of_stage = |stage: usize| Some((self.stages[stage].oldest()?.0, stage));
        is_alone.then(|| (0..self.stages.len()).find_map(of_stage)).flatten()
    }

    /// Submits the oldest micro-batches whose inputs have arrived, until the compute queue holds enough of
    /// them. Submits one whose input is on the way if there is nothing else to compute.
    fn compute(&mut self, now: Nanoseconds, actions: &mut Vec<DeviceAction>) -> Result<()> {
        loop {
            let uploaded = self.progress.uploaded;
            let arrived = |stage: usize| {
                let (micro_batch, received) = self.stages[stage].oldest()?;
                received.is_none_or(|point| point.value <= uploaded).then_some((micro_batch, stage))
            };
            let oldest = (0..self.stages.len()).filter_map(arrived).min();
            let Some((micro_batch, stage)) = oldest.or_else(|| self.arriving()) else { return Ok(()) };
            let is_oldest = self.unfinished.first().is_none_or(|first| micro_batch <= *first);
            if self.computing.len() >= if is_oldest { COMPUTING } else { 1 } {
                return Ok(());
            }
            // Micro-batches at a prefill stage pass through no other stage.
            if self.stages[stage].is_prefill() || self.stages.get(stage + 1).is_none_or(StageCore::is_prefill)
            {
                self.unfinished.remove(&micro_batch);
            }
            self.at(now, stage, actions, StageCore::compute_oldest)?;
            self.computing.push_back(self.points.compute.last().value);
        }
    }
}
