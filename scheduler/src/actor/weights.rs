//! Loads weights from their source to the device through a small pinned staging buffer. Several threads fill
//! one half of the buffer while the device uploads the other half.

use crate::actor::memory::{STAGING, StageBuffers};
use crate::error::{Error, Result};
use crate::trace::{Label, Recorder};
use ragtag_graph::WeightChunk;
use ragtag_hal::{BufferRange, Command, Device, HostRegion, QueueKind, Submission, Timeline, Work};
use ragtag_transfer::Points;
use rayon::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum size of a chunk that is requested from a weight source, in bytes.
const CHUNK_BYTES: u64 = 8 << 20;
/// Number of chunks in each half of the staging buffer. Each chunk is filled by its own thread.
const HALF: usize = 4;
/// Maximum host memory that a stage uses to stage weights, in bytes. It is exceeded only if the weight source
/// needs larger chunks. The memory is freed before the stage runs.
pub const WEIGHT_STAGING_BYTES: u64 = CHUNK_BYTES * HALF as u64 * 2;
/// Interval at which loading checks whether it was aborted.
const ABORT_INTERVAL: Duration = Duration::from_millis(50);

/// Source of a stage's weights.
pub trait WeightSource: Send + Sync {
    /// Divides the weight buffer at index `weight` into consecutive chunks that cover it. No chunk exceeds
    /// `max_bytes` bytes, unless the layout requires larger ones.
    fn chunks(&self, weight: usize, max_bytes: u64) -> Vec<WeightChunk>;

    /// Writes `chunk` in the resident layout to `out`. Several threads call this function concurrently. `out`
    /// has the length of the chunk and arbitrary contents.
    ///
    /// # Errors
    /// Fails if the bytes cannot be read or are invalid. Loading then ends with this error.
    fn fill(
        &self,
        weight: usize,
        chunk: &WeightChunk,
        out: &mut [u8],
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

/// Parameters of weight loading.
pub(crate) struct Loading<'a> {
    pub(crate) stage: u32,
    pub(crate) device_label: &'a str,
    pub(crate) uploads: &'a Timeline,
    /// Set to true when another stage has failed.
    pub(crate) abort: &'a AtomicBool,
    /// Function that is called at each submission with the number of submitted bytes.
    pub(crate) progress: &'a (dyn Fn(u64) + Sync),
}

impl Loading<'_> {
    /// Uploads all weights of a stage and waits for the uploads.
    ///
    /// # Errors
    /// [`Error::Weight`] if the source fails, [`Error::Stage`] if the device fails, or [`Error::Stopped`] if
    /// loading is aborted.
    pub(crate) fn run(
        &self,
        device: &mut dyn Device,
        memory: &StageBuffers,
        source: &dyn WeightSource,
        points: &mut Points,
        recorder: &mut Recorder,
    ) -> Result<()> {
        let chunks = self.plan(memory, source)?;
        let Some(chunk_bytes) = chunks.iter().map(|(_, chunk)| chunk.bytes).max() else { return Ok(()) };
        let failed = |cause| self.failed(cause);
        let (region, in_half) = staging(device, chunk_bytes).map_err(failed)?;
        // For each half, the upload timeline's value after which the half may be filled again.
        let mut busy = [0; 2];
        for (turn, batch) in chunks.chunks(in_half).enumerate() {
            let half = turn % 2;
            self.wait(busy[half])?;
            let start = (half * in_half) as u64 * chunk_bytes;
            self.fill(memory, source, &region, start, chunk_bytes, batch)?;
            let signal = points.allot();
            busy[half] = signal.value;
            let commands = (0..).zip(batch).map(|(place, &(weight, chunk))| {
                let WeightChunk { offset, bytes } = chunk;
                let to = BufferRange { buffer: memory.weight(weight), offset, bytes };
                Command::Upload { region: STAGING, offset: start + place * chunk_bytes, to }
            });
            let work = Work::Commands(commands.collect());
            recorder.submitted(signal, Label::WEIGHTS);
            device
                .submit(Submission { queue: QueueKind::Upload, work, waits: Vec::new(), signal })
                .map_err(failed)?;
            (self.progress)(batch.iter().map(|(_, chunk)| chunk.bytes).sum());
        }
        self.wait(points.last().value)?;
        device.unregister_region(STAGING).map_err(failed)
    }

    /// Returns all chunks in the order of the weights. Validates them, because they determine the destination
    /// addresses of uploads.
    fn plan(&self, memory: &StageBuffers, source: &dyn WeightSource) -> Result<Vec<(usize, WeightChunk)>> {
        let mut all = Vec::new();
        for &index in memory.unloaded() {
            let weight = &memory.compiled().weights[index];
            let mut covered = 0;
            for chunk in source.chunks(index, CHUNK_BYTES) {
                let left = weight.bytes() - covered;
                if chunk.offset != covered || chunk.bytes == 0 || chunk.bytes > left {
                    return Err(self.weight(
                        memory,
                        index,
                        format!("{chunk:?} is not expected at byte {covered}"),
                    ));
                }
                covered += chunk.bytes;
                all.push((index, chunk));
            }
            if covered != weight.bytes() {
                let cause = format!("chunks cover {covered} of {} bytes", weight.bytes());
                return Err(self.weight(memory, index, cause));
            }
        }
        Ok(all)
    }

    fn fill(
        &self,
        memory: &StageBuffers,
        source: &dyn WeightSource,
        region: &HostRegion,
        start: u64,
        chunk_bytes: u64,
        batch: &[(usize, WeightChunk)],
    ) -> Result<()> {
        batch.par_iter().enumerate().try_for_each(|(place, (weight, chunk))| {
            let from = (start + place as u64 * chunk_bytes) as usize;
            let lease = region.write(from..from + chunk.bytes as usize);
            let mut lease = lease.map_err(|cause| self.failed(cause))?;
            source.fill(*weight, chunk, &mut lease).map_err(|e| self.weight(memory, *weight, e.to_string()))
        })
    }

    /// Waits until the upload timeline reaches `value`.
    fn wait(&self, value: u64) -> Result<()> {
        loop {
            if self.abort.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            if self.uploads.wait(value, Some(ABORT_INTERVAL)).map_err(|cause| self.failed(cause))? {
                return Ok(());
            }
        }
    }

    fn failed(&self, cause: ragtag_hal::Error) -> Error {
        let cause = cause.root().clone();
        Error::Stage { stage: self.stage, device: self.device_label.into(), cause }
    }

    fn weight(&self, memory: &StageBuffers, index: usize, cause: String) -> Error {
        let weight = memory.compiled().weights[index].name.clone();
        Error::Weight { stage: self.stage, device: self.device_label.into(), weight, cause }
    }
}

/// Allocates the staging buffer, and returns it with the number of chunks per half. If the device runs out of
/// memory, retries with fewer chunks.
fn staging(device: &mut dyn Device, chunk_bytes: u64) -> ragtag_hal::Result<(Arc<HostRegion>, usize)> {
    let mut in_half = HALF;
    loop {
        let region = Arc::new(HostRegion::new(chunk_bytes as usize * in_half * 2)?);
        match device.register_region(STAGING, Arc::clone(&region)) {
            Err(error) if error.is_out_of_memory() && in_half > 1 => in_half /= 2,
            registered => return registered.map(|()| (region, in_half)),
        }
    }
}
