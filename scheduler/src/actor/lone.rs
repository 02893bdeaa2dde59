//! A stage without a pipeline. It has the same buffers and programs as in a pipeline, but no core, no mailbox and
//! no neighbours. The caller submits the programs.

use super::memory::StageBuffers;
use super::owned::OwnedDevice;
use super::shared::SharedBuffers;
use super::stage_error;
use super::weights::{Loading, WeightSource};
use crate::core::MicroBatch;
use crate::error::Result;
use crate::trace::{Ends, Recorder, TraceSink};
use ragtag_graph::CompiledStage;
use ragtag_hal::{BufferRange, Device, ProgramId, QueueKind};
use ragtag_transfer::Points;
use std::sync::atomic::AtomicBool;

/// A stage on a device without a pipeline.
#[derive(Debug)]
pub struct LoneStage {
    memory: StageBuffers,
}

impl LoneStage {
    /// Compiles a stage's kernels and allocates its buffers, which are uninitialised. The stage has `slots`
    /// slots.
    ///
    /// # Errors
    /// Fails if the device runs out of memory or refuses the kernels.
    pub fn new(device: &mut OwnedDevice, compiled: CompiledStage, slots: u32) -> ragtag_hal::Result<Self> {
        let mut shared = SharedBuffers::new(device, &[&compiled])?;
        let (streamed, imported) = Default::default();
        let memory = StageBuffers::new(device, &mut shared, compiled, streamed, slots, false, imported)?;
        Ok(Self { memory })
    }

    /// Uploads the weights and waits for the uploads. `points` allots the points of the upload queue.
    ///
    /// # Errors
    /// Fails if the weights cannot be read or the device fails.
    pub fn load(
        &self,
        device: &mut OwnedDevice,
        points: &mut Points,
        weights: &dyn WeightSource,
    ) -> Result<()> {
        let (label, uploads) = (device.adapter().label(), device.timeline(QueueKind::Upload));
        let segments = self.compiled().segments.clone();
        let mut recorder = Recorder::new(0, segments, TraceSink::new(0), Ends::default());
        let (abort, progress) = (AtomicBool::new(false), |_| ());
        let (device_label, uploads) = (label.as_str(), uploads.as_ref());
        let loading = Loading { stage: 0, device_label, uploads, abort: &abort, progress: &progress };
        loading.run(device, &self.memory, weights, points, &mut recorder)
    }

    /// Returns the compiled stage.
    pub fn compiled(&self) -> &CompiledStage {
        self.memory.compiled()
    }

    /// Writes the parameters of a micro-batch in `slot`, and returns the program to submit. The earlier
    /// programs of the slot must have completed.
    ///
    /// # Errors
    /// Fails if the micro-batch does not fit the stage, or if the device fails.
    pub fn program(&mut self, device: &mut OwnedDevice, slot: u32, batch: &MicroBatch) -> Result<ProgramId> {
        let label = device.adapter().label();
        self.memory.prepare(device, (slot, 0), batch, |cause| stage_error(0, &label, cause))
    }

    /// Returns the first `bytes` bytes of a slot's activation rows, in the wire type.
    pub fn rows(&self, slot: u32, bytes: u64) -> BufferRange {
        self.memory.edge_rows(slot, 0, bytes)
    }

    /// Returns the first `rows` rows of a slot's logits. Returns `None` if `rows` is 0 or the stage computes
    /// no logits.
    pub fn logits(&self, slot: u32, rows: u32) -> Option<BufferRange> {
        self.memory.logits(slot, rows)
    }

    /// Returns the best logits of the first `rows` logit rows of a slot. Returns `None` if `rows` is 0 or the stage
    /// does not find them.
    pub fn picks(&self, slot: u32, rows: u32) -> Option<BufferRange> {
        self.memory.picks(slot, 0..rows)
    }

    /// Returns the buffers of the KV cache.
    pub fn kv(&self) -> impl Iterator<Item = BufferRange> {
        let kv = self.memory.kv().iter().zip(&self.compiled().kv_bytes);
        kv.map(|(&buffer, &bytes)| BufferRange { buffer, offset: 0, bytes })
    }
}
