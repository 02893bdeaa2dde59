//! A bench for devices outside a pipeline. Stages are loaded as in a pipeline, with the same buffers and
//! programs. They run single micro-batches without a core, a mailbox or neighbours.
//!
//! This module does not depend on how the timings are used.

mod direction;
mod link;
mod output;
#[cfg(test)]
mod tests;
mod verify;

pub use link::SoloLink;
pub use verify::Mismatch;

use ragtag_graph::{CompiledStage, KvRing};
use ragtag_hal::{
    Adapter, BufferRange, Command, Device, HostRegion, Point, QueueKind, RegionId, Submission, Timeline,
    Timing, Work,
};
use ragtag_kernels::recurrent::slots_word;
use ragtag_scheduler::core::{Item, LogitRows, MicroBatch, MicroBatchId, QueuePoints, SequenceId};
use ragtag_scheduler::direct::{LoneStage, OwnedDevice};
use ragtag_scheduler::{Error, Picks, Result, WeightSource};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of micro-batches that are submitted together. The time between their ends is the time that a
/// micro-batch takes in a busy pipeline.
const BURST: u32 = 2;
/// 32-bit pattern with which KV caches are filled. It is a small normal number both as two f16 values and as one
/// f32 value. It is much smaller than the activations: otherwise attention would make all rows alike.
const FILLING: u32 = 0x1000_1000;
/// Bytes of different activations. More rows repeat them.
const ACTIVATION_BYTES: u64 = 1 << 20;
/// Start of the names of kernels for experts.
const EXPERTS: &str = "expert-";

/// A device whose stages can be timed outside a pipeline.
pub struct SoloDevice {
    label: String,
    points: QueuePoints,
    own: [Arc<Timeline>; 3],
    timings: Vec<Timing>,
    /// Host memory to which the best logits are downloaded.
    picks: Option<(RegionId, Arc<HostRegion>)>,
    device: OwnedDevice,
}

impl SoloDevice {
    /// Creates a solo device. `device` must not have any submissions.
    pub fn new(device: Box<dyn Device>) -> Self {
        let device = OwnedDevice::new(device);
        let own = QueueKind::ALL.map(|queue| device.timeline(queue));
        let points = QueuePoints::new(|queue| own[queue.index()].id());
        Self { label: device.adapter().label(), points, own, timings: Vec::new(), picks: None, device }
    }

    /// Returns the device's adapter.
    pub fn adapter(&self) -> &Adapter {
        self.device.adapter()
    }

    /// Loads a stage. Dropping the result frees its memory.
    ///
    /// # Errors
    /// Fails if the device runs out of memory or refuses the stage, or if the weights cannot be read.
    pub fn load(&mut self, compiled: CompiledStage, weights: &dyn WeightSource) -> Result<SoloStage<'_>> {
        let loaded = self.try_load(compiled, weights);
        let filled = loaded.and_then(|(memory, made_in)| {
            self.fill(&memory)?;
            let activations = self.activations(&memory)?;
            Ok((memory, made_in, activations))
        });
        match filled {
            Ok((memory, made_in, activations)) => {
                let has_experts = memory.compiled().variants.iter().any(|name| name.starts_with(EXPERTS));
                let mut stage = SoloStage { on: self, memory, made_in, activations, has_experts };
                let rows = stage.memory.compiled().max_rows();
                stage.write_rows(rows).map(|()| stage)
            }
            Err(error) => {
                self.device.clear();
                Err(error)
            }
        }
    }

    fn try_load(
        &mut self,
        compiled: CompiledStage,
        weights: &dyn WeightSource,
    ) -> Result<(LoneStage, Duration)> {
        let picks_bytes = compiled.max_picks_bytes();
        let start = Instant::now();
        let memory = LoneStage::new(&mut self.device, compiled, BURST).map_err(|cause| self.failed(cause))?;
        let made_in = start.elapsed();
        if picks_bytes > 0 {
            self.picks = Some(self.region(picks_bytes)?);
        }
        memory.load(&mut self.device, &mut self.points.upload, weights)?;
        Ok((memory, made_in))
    }

    /// Allocates host memory and registers it.
    fn region(&mut self, bytes: u64) -> Result<(RegionId, Arc<HostRegion>)> {
        let region = Arc::new(HostRegion::new(bytes as usize).map_err(|cause| self.failed(cause))?);
        let id = self.device.new_region(&region).map_err(|cause| self.failed(cause))?;
        Ok((id, region))
    }

    /// Fills the KV caches of a stage with small normal numbers.
    fn fill(&mut self, memory: &LoneStage) -> Result<()> {
        let fills = memory.kv().map(|to| Command::Fill { to, word: FILLING }).collect();
        let filled = self.submit(QueueKind::Compute, Work::Commands(fills), &[])?;
        self.wait(filled)
    }

    /// Returns host memory with different activations for the rows of a stage, and its size in bytes. More rows than fit
    /// repeat them.
    fn activations(&mut self, memory: &LoneStage) -> Result<(RegionId, u64)> {
        let compiled = memory.compiled();
        let rows_bytes = u64::from(compiled.max_rows()) * compiled.edge_row_bytes();
        let bytes = ACTIVATION_BYTES.min(rows_bytes).next_multiple_of(4).max(4);
        let (id, region) = self.region(bytes)?;
        let mut state = 1u32;
        let words = (0..bytes / 4).flat_map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // A number of either sign between 32 and 128 as f32, and two numbers between 2 and 4 as f16.
            ((state & 0x80ff_83ff) | 0x4200_4000).to_le_bytes()
        });
        let mut lease = region.write(0..bytes as usize).map_err(|cause| self.failed(cause))?;
        lease.iter_mut().zip(words).for_each(|(to, byte)| *to = byte);
        Ok((id, bytes))
    }

    /// Submits work and returns the point that it signals.
    fn submit(&mut self, queue: QueueKind, work: Work, waits: &[Point]) -> Result<Point> {
        self.enqueue(queue, work, waits, true)
    }

    /// Submits work, whose times the device reports if `is_timed` is set. Returns the point that it signals.
    fn enqueue(&mut self, queue: QueueKind, work: Work, waits: &[Point], is_timed: bool) -> Result<Point> {
        let signal = self.allot(queue);
        let submission = Submission { queue, work, waits: waits.to_vec(), signal, is_timed };
        self.device.submit(submission).map_err(|cause| self.failed(cause))?;
        Ok(signal)
    }

    /// Runs a command to its end.
    fn run(&mut self, queue: QueueKind, command: Command) -> Result<()> {
        let done = self.submit(queue, Work::Commands(vec![command]), &[])?;
        self.wait(done)
    }

    fn allot(&mut self, queue: QueueKind) -> Point {
        match queue {
            QueueKind::Compute => self.points.compute.allot(),
            QueueKind::Upload => self.points.upload.allot(),
            QueueKind::Download => self.points.download.allot(),
        }
    }

    fn wait(&self, point: Point) -> Result<()> {
        self.passes(point, None).map(drop)
    }

    /// Waits for a point for at most `limit`. Returns whether it has passed.
    fn passes(&self, point: Point, limit: Option<Duration>) -> Result<bool> {
        let passed = self.own[point.timeline.queue.index()].wait(point.value, limit);
        passed.map_err(|cause| self.failed(cause))
    }

    /// Returns the timing that the device reported for a submission, if any.
    fn timing(&mut self, point: Point) -> Option<Timing> {
        self.device.take_timings(&mut self.timings);
        self.timings.iter().find(|timing| timing.point == point).copied()
    }

    /// Returns the times of one copy to the device and of one copy from it, of `bytes` bytes each, in
    /// microseconds. A time runs from the submission until the host knows of the completion.
    ///
    /// # Errors
    /// Fails if the device runs out of memory or fails.
    pub fn host_copies_us(&mut self, bytes: u64) -> Result<[f64; 2]> {
        self.with_host_copies(bytes, |device, upload, download| {
            // The first copy in each direction is a warm-up.
            device.copies_us(QueueKind::Upload, upload, 1)?;
            device.copies_us(QueueKind::Download, download, 1)?;
            let up_us = device.copies_us(QueueKind::Upload, upload, 1)?;
            Ok([up_us, device.copies_us(QueueKind::Download, download, 1)?])
        })
    }

    /// Copies `bytes` bytes to the device repeatedly, as a stage that streams weights does. Each submission
    /// has as many copies as take about `submission_us` microseconds. Returns the time of a copy for each
    /// submission, in microseconds, until `left` has passed, but at most `most` times.
    ///
    /// # Errors
    /// Fails if the device runs out of memory or fails.
    pub fn bulk_upload_us(
        &mut self,
        bytes: u64,
        submission_us: f64,
        most: usize,
        left: Duration,
    ) -> Result<Vec<f64>> {
        let start = Instant::now();
        self.with_host_copies(bytes, |device, upload, _| {
            device.copies_us(QueueKind::Upload, upload, 1)?;
            let one_us = device.copies_us(QueueKind::Upload, upload, 1)?.max(1.0);
            let copies = (submission_us / one_us).clamp(1.0, 64.0) as usize;
            let mut times = Vec::new();
            while times.is_empty() || (times.len() < most && start.elapsed() < left) {
                times.push(device.copies_us(QueueKind::Upload, upload, copies)? / copies as f64);
            }
            Ok(times)
        })
    }

    /// Calls `copying` with commands that copy `bytes` bytes to the device and from it.
    fn with_host_copies<T>(
        &mut self,
        bytes: u64,
        copying: impl FnOnce(&mut Self, &Command, &Command) -> Result<T>,
    ) -> Result<T> {
        let range = |buffer| BufferRange { buffer, offset: 0, bytes };
        let made = self.device.new_buffer(bytes).map(range).map_err(|cause| self.failed(cause));
        let made = made.and_then(|range| Ok((range, self.region(bytes)?.0)));
        let copied = made.and_then(|(range, region)| {
            let upload = Command::Upload { region, offset: 0, to: range };
            let download = Command::Download { from: range, region, offset: 0 };
            copying(self, &upload, &download)
        });
        self.device.clear();
        copied
    }

    /// Returns the time of a submission with `count` copies, in microseconds.
    fn copies_us(&mut self, queue: QueueKind, command: &Command, count: usize) -> Result<f64> {
        let start = Instant::now();
        let done = self.submit(queue, Work::Commands(vec![command.clone(); count]), &[])?;
        self.wait(done)?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }

    fn failed(&self, cause: ragtag_hal::Error) -> Error {
        Error::Stage { stage: 0, device: self.label.clone(), cause: cause.root().clone() }
    }
}

/// A micro-batch for a solo stage. All its sequences have the same number of rows and the same first
/// position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoloBatch {
    /// Number of sequences in the micro-batch.
    pub sequences: u32,
    /// Number of rows of each sequence.
    pub rows_each: u32,
    /// Position of each sequence's first row.
    pub first_position: u32,
    /// Whether the last row of each sequence needs logits.
    pub logits: bool,
}

impl SoloBatch {
    /// Returns a micro-batch with one decode step for each of `sequences` sequences. Each row attends to
    /// `positions` positions, including its own.
    pub fn decode(sequences: u32, positions: u32) -> Self {
        Self { sequences, rows_each: 1, first_position: positions.saturating_sub(1), logits: true }
    }

    /// Returns a prefill chunk of `rows` rows that starts at `first_position`. It needs no logits.
    pub fn chunk(rows: u32, first_position: u32) -> Self {
        Self { sequences: 1, rows_each: rows, first_position, logits: false }
    }

    /// Returns the average number of positions to which a row attends.
    pub fn positions(&self) -> f64 {
        f64::from(self.first_position) + (f64::from(self.rows_each) + 1.0) / 2.0
    }

    fn micro_batch(&self, table_blocks: u32, ring: Option<KvRing>) -> MicroBatch {
        let ring_of = |s: u32| match ring {
            Some(ring) if ring.is_states() => [slots_word(s, s)].into(),
            Some(KvRing { blocks, .. }) => (s * blocks..(s + 1) * blocks).collect(),
            None => [].into(),
        };
        let item = |s: u32| Item {
            sequence: SequenceId(u64::from(s)),
            epoch: 0,
            first_position: self.first_position,
            prompt_tokens: 0,
            // The token values do not matter, but they should differ.
            tokens: (0..self.rows_each).map(|row| (row * 7 + s) % 13).collect(),
            blocks: (s * table_blocks..(s + 1) * table_blocks).collect(),
            ring: ring_of(s),
            logits: if self.logits { LogitRows::Picks } else { LogitRows::None },
            noise: None,
        };
        MicroBatch { id: MicroBatchId(0), credit: 0, items: (0..self.sequences).map(item).collect() }
    }
}

/// A stage that is loaded on a solo device.
pub struct SoloStage<'a> {
    on: &'a mut SoloDevice,
    memory: LoneStage,
    made_in: Duration,
    /// Host memory with different activations, and its size in bytes.
    activations: (RegionId, u64),
    has_experts: bool,
}

impl Drop for SoloStage<'_> {
    fn drop(&mut self) {
        self.on.device.clear();
    }
}

impl SoloStage<'_> {
    /// Returns the time that it took to compile the stage's kernels and to allocate its buffers.
    pub fn made_in(&self) -> Duration {
        self.made_in
    }

    /// Returns the time that a micro-batch takes in a busy pipeline, in microseconds. It runs from the end of
    /// the previous micro-batch to the end of this one.
    ///
    /// # Errors
    /// Fails if the micro-batch does not fit the stage, or if the device fails.
    pub fn burst_us(&mut self, batch: &SoloBatch) -> Result<f64> {
        let batch = self.micro_batch(batch);
        self.renew(&batch)?;
        let start = Instant::now();
        let points = (0..BURST).map(|slot| self.compute(slot, &batch)).collect::<Result<Vec<_>>>()?;
        let last = points[points.len() - 1];
        self.on.wait(last)?;
        let wall_us = start.elapsed().as_secs_f64() * 1e6;
        let ends = (self.on.timing(points[0]), self.on.timing(last));
        self.on.timings.clear();
        Ok(match ends {
            (Some(first), Some(last)) => {
                last.end_ns.saturating_sub(first.end_ns) as f64 / 1e3 / f64::from(BURST - 1)
            }
            _ => wall_us / f64::from(BURST),
        })
    }

    /// Returns the time that a micro-batch takes on an idle device, in microseconds.
    ///
    /// # Errors
    /// The errors of [`SoloStage::burst_us`].
    pub fn single_us(&mut self, batch: &SoloBatch) -> Result<f64> {
        let batch = self.micro_batch(batch);
        self.renew(&batch)?;
        let start = Instant::now();
        let computed = self.compute(0, &batch)?;
        self.on.wait(computed)?;
        let wall_us = start.elapsed().as_secs_f64() * 1e6;
        let timing = self.on.timing(computed);
        self.on.timings.clear();
        Ok(timing.map_or(wall_us, |t| t.end_ns.saturating_sub(t.start_ns) as f64 / 1e3))
    }

    /// Returns the time from the submission of a micro-batch until `choose` has read the best logits of each row,
    /// in microseconds, without the device's computation time. As in a pipeline, the CPU caches do not hold
    /// the new logits when `choose` reads them.
    ///
    /// # Errors
    /// The errors of [`SoloStage::burst_us`].
    pub fn hand_over_us(&mut self, batch: &SoloBatch, mut choose: impl FnMut(&Picks<'_>)) -> Result<f64> {
        let compute_us = self.burst_us(batch)?;
        let batch = self.micro_batch(batch);
        let start = Instant::now();
        let computed = self.compute(0, &batch)?;
        let from = self.memory.picks(0, batch.logit_rows());
        let picks = self.on.picks.clone();
        let download = from.zip(picks.as_ref());
        let download = download.map(|(from, &(region, _))| Command::Download { from, region, offset: 0 });
        let work = Work::Commands(download.into_iter().collect());
        let there = self.on.submit(QueueKind::Download, work, &[computed])?;
        self.on.wait(there)?;
        let vocabulary = self.memory.compiled().result.vocabulary().unwrap_or(0);
        if let Some((from, (_, region))) = from.zip(picks.as_ref()) {
            let lease = region.read(0..from.bytes as usize);
            let lease = lease.map_err(|e| protocol(format!("logits are not available yet: {e}")))?;
            let records = lease.floats().unwrap_or_default().as_chunks().0;
            records.iter().for_each(|record| choose(&Picks::new(record, vocabulary)));
        }
        let wall_us = start.elapsed().as_secs_f64() * 1e6;
        let timing = self.on.timing(computed);
        self.on.timings.clear();
        let timed_us = timing.map(|t| t.end_ns.saturating_sub(t.start_ns) as f64 / 1e3);
        Ok((wall_us - timed_us.unwrap_or(compute_us)).max(0.0))
    }

    fn micro_batch(&self, batch: &SoloBatch) -> MicroBatch {
        let CompiledStage { programs, kv_ring, .. } = self.memory.compiled();
        let table_blocks = programs.last().map_or(0, |program| program.params.table_blocks);
        batch.micro_batch(table_blocks, *kv_ring)
    }

    /// Writes the rows of a micro-batch anew if the stage has experts. A stage replaces its rows: after many runs, they
    /// would be very large, and they choose the experts.
    fn renew(&mut self, batch: &MicroBatch) -> Result<()> {
        if self.has_experts { self.write_rows(batch.rows()) } else { Ok(()) }
    }

    /// Writes different activations to the first `rows` rows of each slot.
    fn write_rows(&mut self, rows: u32) -> Result<()> {
        let (region, bytes) = self.activations;
        let rows_bytes = u64::from(rows) * self.memory.compiled().edge_row_bytes();
        let upload = |rows: BufferRange| {
            (0..rows.bytes).step_by(bytes as usize).map(move |start| {
                let to =
                    BufferRange { offset: rows.offset + start, bytes: bytes.min(rows.bytes - start), ..rows };
                Command::Upload { region, offset: 0, to }
            })
        };
        let uploads = (0..BURST).flat_map(|slot| upload(self.memory.rows(slot, rows_bytes))).collect();
        let done = self.on.submit(QueueKind::Upload, Work::Commands(uploads), &[])?;
        self.on.wait(done)
    }

    fn compute(&mut self, slot: u32, batch: &MicroBatch) -> Result<Point> {
        let Self { on, memory, .. } = self;
        let program = memory.program(&mut on.device, slot, batch)?;
        on.submit(QueueKind::Compute, Work::Program(program), &[])
    }
}

/// Returns the error for a defect.
fn protocol(what: String) -> Error {
    Error::Protocol { what }
}
