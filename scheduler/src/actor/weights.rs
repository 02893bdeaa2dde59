//! Loads weights from their source to the device through a small pinned staging buffer. All threads of
//! rayon's pool fill places of the buffer while the device uploads other places. A place is filled again as
//! soon as its upload has ended.

use crate::actor::memory::StageBuffers;
use crate::actor::owned::OwnedDevice;
use crate::actor::reading::{PartReads, WeightRead};
use crate::actor::streaming::StreamedPart;
use crate::error::{Error, Result};
use crate::trace::{Label, Recorder};
use crossbeam_channel::{Receiver, bounded};
use ragtag_graph::WeightChunk;
use ragtag_hal::{BufferRange, Command, Device, HostRegion, QueueKind, RegionId, Submission, Timeline, Work};
use ragtag_transfer::Points;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use std::collections::{BTreeMap, VecDeque};
use std::iter::once;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum size of a chunk that is requested from a weight source, in bytes. Chunks are small enough to
/// occupy all threads, and large enough for copies at the bandwidth of the bus.
pub const WEIGHT_CHUNK_BYTES: u64 = 2 << 20;
/// Maximum number of places in the staging buffer. Each place holds one chunk.
const MAX_PLACES: usize = 32;
/// Places per thread of rayon's pool: one that the thread fills, and others that the device uploads meanwhile.
const PLACES_PER_THREAD: usize = 4;
/// Interval at which loading, and a thread that reads weights, check whether they were aborted.
pub(super) const ABORT_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the maximum host memory that a stage uses to stage weights, in bytes. It is exceeded only if the
/// weight source needs larger chunks. The memory is freed before the stage runs.
pub fn weight_staging_bytes() -> u64 {
    let places = rayon::current_num_threads().saturating_mul(PLACES_PER_THREAD).min(MAX_PLACES);
    WEIGHT_CHUNK_BYTES * places as u64
}

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
    /// Uploads all resident weights of a stage and waits for the uploads. First fills the host memory of the
    /// streamed weights.
    ///
    /// # Errors
    /// [`Error::Weight`] if the source fails, [`Error::Stage`] if the device fails, or [`Error::Stopped`] if
    /// loading is aborted.
    pub(crate) fn run(
        &self,
        device: &mut OwnedDevice,
        memory: &StageBuffers,
        source: &dyn WeightSource,
        points: &mut Points,
        recorder: &mut Recorder,
    ) -> Result<()> {
        self.fill_streamed(memory, source)?;
        memory.register_streamed(device).map_err(|cause| self.failed(cause))?;
        let chunks = self.plan(memory, source, memory.unloaded().iter().copied())?;
        let Some(chunk_bytes) = chunks.iter().map(|(_, chunk)| chunk.bytes).max() else { return Ok(()) };
        let failed = |cause| self.failed(cause);
        let start = Instant::now();
        let staging = staging(device, chunk_bytes, chunks.len() as u64).map_err(failed)?;
        let Staging { id, region, places } = staging;
        let (mut chunks, mut free) = (chunks.into_iter(), (0..places).collect::<Vec<_>>());
        // Places that are uploading, each with the timeline value at which its upload ends.
        let mut uploading = VecDeque::new();
        let mut filling = 0;
        let (sender, filled) = bounded(places as usize);
        rayon::in_place_scope(|scope| -> Result<()> {
            loop {
                let is_free = |(_, value): &mut (u64, u64)| *value <= self.uploads.value();
                while let Some((place, _)) = uploading.pop_front_if(is_free) {
                    free.push(place);
                }
                while let Some(place) = free.pop() {
                    let Some((weight, chunk)) = chunks.next() else { break };
                    let (sender, region) = (sender.clone(), &region);
                    scope.spawn(move |_| {
                        let from = place * chunk_bytes;
                        let fill = || self.fill(memory, source, region, from, (weight, &chunk));
                        // Without a message about a panic, the loop would wait forever.
                        let outcome = catch_unwind(AssertUnwindSafe(fill));
                        // Ignore a missing receiver: loading has failed.
                        let _ = sender.send(Filled { place, weight, chunk, outcome });
                    });
                    filling += 1;
                }
                if filling == 0 {
                    let Some((_, value)) = uploading.front() else { return Ok(()) };
                    self.wait(*value)?;
                    continue;
                }
                let first = self.receive(&filled)?;
                let signal = points.allot();
                let (mut commands, mut bytes) = (Vec::new(), 0);
                for Filled { place, weight, chunk, outcome } in once(first).chain(filled.try_iter()) {
                    outcome.unwrap_or_else(|panic| resume_unwind(panic))?;
                    let (offset, buffer) = (chunk.offset, memory.weight(weight));
                    let to = BufferRange { buffer, offset, bytes: chunk.bytes };
                    commands.push(Command::Upload { region: id, offset: place * chunk_bytes, to });
                    uploading.push_back((place, signal.value));
                    filling -= 1;
                    bytes += chunk.bytes;
                }
                let work = Work::Commands(commands);
                recorder.submitted(signal, Label::weights());
                device
                    .submit(Submission::timed(QueueKind::Upload, work, Vec::new(), signal))
                    .map_err(failed)?;
                (self.progress)(bytes);
            }
        })?;
        tracing::debug!(device = self.device_label, elapsed = ?start.elapsed(), "loaded the weights of a stage");
        device.unregister_region(id).map_err(failed)
    }

    /// Fills the host memory of the streamed weights, on all threads of rayon's pool.
    fn fill_streamed(&self, memory: &StageBuffers, source: &dyn WeightSource) -> Result<()> {
        let mut chunks = Vec::new();
        for (weight, region, start) in memory.streamed() {
            let of_weight = self.plan(memory, source, once(weight))?;
            chunks.extend(of_weight.into_iter().map(|(_, chunk)| (weight, chunk, region, start)));
        }
        chunks.into_par_iter().try_for_each(|(weight, chunk, region, start)| {
            if self.abort.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            self.fill(memory, source, region, start + chunk.offset, (weight, &chunk))?;
            (self.progress)(chunk.bytes);
            Ok(())
        })
    }

    /// Returns the reads of each part whose weights stay in the model's file.
    ///
    /// # Errors
    /// [`Error::Weight`] if the source divides a weight into invalid chunks.
    pub(crate) fn reads(
        &self,
        memory: &StageBuffers,
        source: &dyn WeightSource,
    ) -> Result<BTreeMap<usize, PartReads>> {
        let of_part = |(index, part): (usize, &StreamedPart)| -> Result<(usize, PartReads)> {
            let mut reads = Vec::new();
            for (weight, start) in part.weights.iter().filter_map(|&(weight, start)| Some((weight, start?))) {
                let chunks = self.plan(memory, source, once(weight))?;
                let read = |(_, chunk): (usize, WeightChunk)| {
                    let name = memory.compiled().weights[weight].name.clone();
                    WeightRead { weight, name, chunk, start: start + chunk.offset }
                };
                reads.extend(chunks.into_iter().map(read));
            }
            Ok((index, PartReads { segments: part.segments.clone(), reads }))
        };
        memory.streaming().file_parts().map(of_part).collect()
    }

    /// Returns the chunks of `weights` in the given order. Validates them, because they determine the
    /// destination addresses of copies.
    fn plan(
        &self,
        memory: &StageBuffers,
        source: &dyn WeightSource,
        weights: impl Iterator<Item = usize>,
    ) -> Result<Vec<(usize, WeightChunk)>> {
        let mut all = Vec::new();
        for index in weights {
            let weight = &memory.compiled().weights[index];
            let mut covered = 0;
            for chunk in source.chunks(index, WEIGHT_CHUNK_BYTES) {
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
        (weight, chunk): (usize, &WeightChunk),
    ) -> Result<()> {
        let range = start as usize..(start + chunk.bytes) as usize;
        let mut lease = region.write(range).map_err(|cause| self.failed(cause))?;
        source.fill(weight, chunk, &mut lease).map_err(|e| self.weight(memory, weight, e.to_string()))
    }

    /// Waits for the next chunk that a thread has filled.
    fn receive(&self, filled: &Receiver<Filled>) -> Result<Filled> {
        loop {
            if self.abort.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            if let Ok(filled) = filled.recv_timeout(ABORT_INTERVAL) {
                return Ok(filled);
            }
        }
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

/// A chunk that a thread has filled.
struct Filled {
    place: u64,
    weight: usize,
    chunk: WeightChunk,
    /// Result of filling, or the payload of a panic.
    outcome: std::thread::Result<Result<()>>,
}

/// Host memory in which weights are staged.
struct Staging {
    id: RegionId,
    region: Arc<HostRegion>,
    /// Number of places, each for a chunk.
    places: u64,
}

/// Allocates the staging buffer for `chunks` chunks of at most `chunk_bytes` bytes. If the device runs out of
/// memory, retries with fewer places.
fn staging(device: &mut OwnedDevice, chunk_bytes: u64, chunks: u64) -> ragtag_hal::Result<Staging> {
    let mut places = (weight_staging_bytes() / chunk_bytes).clamp(2, MAX_PLACES as u64).min(chunks);
    loop {
        let region = Arc::new(HostRegion::new((chunk_bytes * places) as usize)?);
        match device.new_region(&region) {
            Err(error) if error.is_out_of_memory() && places > 1 => places /= 2,
            registered => return registered.map(|id| Staging { id, region, places }),
        }
    }
}
