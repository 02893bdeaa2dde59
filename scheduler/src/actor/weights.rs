//! Loading: weights go from their source through a small piece of pinned host memory to the device, one half of it being
//! filled by several threads while the other half uploads.

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

/// Largest chunk that a source is asked for.
const CHUNK_BYTES: u64 = 8 << 20;
/// Chunks in each half of the staging memory; as many threads fill them.
const HALF: usize = 4;
/// Most host memory that a stage takes while it loads, unless its source needs larger chunks; given back before it runs.
pub const WEIGHT_STAGING_BYTES: u64 = CHUNK_BYTES * HALF as u64 * 2;
/// How soon loading notices that it is not wanted any more.
const PATIENCE: Duration = Duration::from_millis(50);

/// Where the content of a stage's weight buffers comes from.
pub trait WeightSource: Send + Sync {
    /// Cuts weight buffer `weight` into consecutive chunks that cover it, of at most `max_bytes` bytes if its layout allows.
    fn chunks(&self, weight: usize, max_bytes: u64) -> Vec<WeightChunk>;

    /// Writes one of these chunks, in the resident layout. Several threads call this at once. `out` has the chunk's
    /// length and holds anything.
    ///
    /// # Errors
    /// If the bytes cannot be read or are not what they should be; loading then ends with this error.
    fn fill(
        &self,
        weight: usize,
        chunk: &WeightChunk,
        out: &mut [u8],
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

/// What loading needs of its actor.
pub(crate) struct Loading<'a> {
    pub(crate) stage: u32,
    pub(crate) device_label: &'a str,
    pub(crate) uploads: &'a Timeline,
    /// Set when another stage has failed.
    pub(crate) abort: &'a AtomicBool,
    /// Told of bytes as they are submitted.
    pub(crate) progress: &'a (dyn Fn(u64) + Sync),
}

impl Loading<'_> {
    /// Uploads all weights of a stage and waits for them.
    ///
    /// # Errors
    /// [`Error::Weight`] if the source fails, [`Error::Stage`] if the device does, [`Error::Stopped`] if told to stop.
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
        // For each half, the value that the timeline has when it may be filled again.
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

    /// All chunks in the order of the stage's weights, checked: what a source says decides where bytes go.
    fn plan(&self, memory: &StageBuffers, source: &dyn WeightSource) -> Result<Vec<(usize, WeightChunk)>> {
        let mut all = Vec::new();
        for (index, weight) in memory.compiled().weights.iter().enumerate() {
            let mut covered = 0;
            for chunk in source.chunks(index, CHUNK_BYTES) {
                let left = weight.bytes() - covered;
                if chunk.offset != covered || chunk.bytes == 0 || chunk.bytes > left {
                    return Err(self.weight(
                        memory,
                        index,
                        format!("{chunk:?} where byte {covered} comes next"),
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

    /// Waits until the uploads have come to `value`.
    fn wait(&self, value: u64) -> Result<()> {
        loop {
            if self.abort.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            if self.uploads.wait(value, Some(PATIENCE)).map_err(|cause| self.failed(cause))? {
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

/// The staging memory on a device, and how many chunks a half of it has: fewer where memory is short.
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
