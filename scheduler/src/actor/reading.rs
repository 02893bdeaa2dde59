//! Streamed weights during a run: their reads from the model's file into pinned host memory, on a thread of each
//! stage, and their copies to the arenas. A copy waits for the timeline of the reads, so neither the actor nor
//! the device's threads wait for the file.

use crate::actor::Actor;
use crate::actor::weights::{ABORT_INTERVAL, WeightSource};
use crate::copies::{Copied, Copies, FileReads, Pending};
use crate::core::{FileParts, StreamAction};
use crate::error::{Error, Result};
use crate::message::{RunAddress, RunUrgent};
use crate::trace::{Label, TraceSink};
use crossbeam_channel::{Receiver, Sender, unbounded};
use ragtag_graph::WeightChunk;
use ragtag_hal::queues::Thread;
use ragtag_hal::{HostRegion, Point, QueueKind, Submission, Timeline, Timing, Work};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time that a stage waits for the end of its thread. A drive or a network share that does not answer
/// must not keep a run from ending.
const LONGEST_END: Duration = Duration::from_secs(2);

/// Reads of a part's weights. Together they fill a place.
pub(super) struct PartReads {
    pub(super) segments: Range<usize>,
    pub(super) reads: Vec<WeightRead>,
}

/// One chunk of a part's weights.
pub(super) struct WeightRead {
    /// Index of the weight at the stage.
    pub(super) weight: usize,
    /// Name of the weight.
    pub(super) name: String,
    pub(super) chunk: WeightChunk,
    /// First byte of the chunk in a place.
    pub(super) start: u64,
}

/// Request to read a part's weights into a place.
pub(super) struct ReadJob {
    pub(super) part: usize,
    pub(super) place: usize,
    /// Point of the upload queue after which the place is free. `None` if it was never used.
    pub(super) after: Option<Point>,
    /// Point that passes when the place holds the weights.
    pub(super) signal: Point,
}

/// The inputs of a stage's reads.
pub(super) struct Reading {
    pub(super) stage: u32,
    /// Label of the stage's device.
    pub(super) label: String,
    /// Timeline and list of the reads.
    pub(super) to: FileReads,
    /// Timeline of the copies from the places.
    pub(super) uploads: Arc<Timeline>,
    pub(super) source: Box<dyn WeightSource>,
    /// Memory of all places.
    pub(super) region: Arc<HostRegion>,
    pub(super) place_bytes: u64,
    pub(super) parts: BTreeMap<usize, PartReads>,
    pub(super) sink: TraceSink,
    pub(super) run: RunAddress,
}

/// The thread that reads a stage's weights. It ends when this value is dropped.
pub(super) struct Reader {
    stage: u32,
    jobs: Option<Sender<ReadJob>>,
    parts: Vec<usize>,
    timeline: Arc<Timeline>,
    copies: Copies,
    stopped: Arc<AtomicBool>,
    thread: Thread,
}

impl Reader {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Spec`] if the system cannot start another thread.
    pub(super) fn start(reading: Reading) -> Result<Self> {
        // The arenas and slots of the stage bound the number of jobs.
        let (jobs, inbox) = unbounded();
        let (stage, parts) = (reading.stage, reading.parts.keys().copied().collect());
        let FileReads { timeline, copies } = reading.to.clone();
        let stopped = Arc::<AtomicBool>::default();
        let (theirs, name) = (Arc::clone(&stopped), format!("{} reader", reading.label));
        let thread = Thread::spawn(name, move || reading.serve(&inbox, &theirs));
        let thread = thread.map_err(|e| Error::spec(e.to_string()))?;
        Ok(Self { stage, jobs: Some(jobs), parts, timeline, copies, stopped, thread })
    }

    /// Returns the parts whose weights the thread reads.
    pub(super) fn parts(&self) -> FileParts {
        FileParts { timeline: self.timeline.id(), parts: self.parts.clone() }
    }

    /// Requests a read. Does nothing if the thread has failed, because it has reported the error.
    pub(super) fn read(&self, job: ReadJob) {
        let (signal, waits) = (job.signal, job.after.into_iter().collect());
        let read = Pending { signal, waits, stage: self.stage, copied: Some(Copied::FromFile) };
        self.copies.add(read, self.timeline.value());
        self.copies.accept(signal);
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.jobs = None;
        // Release the copies that wait for reads.
        self.timeline.fail(ragtag_hal::Error::Closed { cause: "its stage has ended".into() });
        if !self.thread.ends_before(Instant::now() + LONGEST_END) {
            tracing::warn!(stage = self.stage, "leaving a read of the model's file behind");
        }
    }
}

impl Reading {
    /// Runs the thread. Reports a failure to the coordinator before it fails the timeline, so that the run ends
    /// with this error.
    fn serve(&self, jobs: &Receiver<ReadJob>, stopped: &AtomicBool) {
        let work = || jobs.iter().try_for_each(|job| self.read(&job, stopped));
        let panicked = || Err(Error::protocol(format!("the reader of {} panicked", self.label)));
        let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| panicked());
        let Err(error) = done.or_else(|error| if error == Error::Stopped { Ok(()) } else { Err(error) })
        else {
            return;
        };
        let cause = ragtag_hal::Error::Closed { cause: error.to_string() };
        self.run.send_urgent(RunUrgent::Failed(error));
        self.to.timeline.fail(cause);
    }

    /// Reads the weights of a part on all threads of rayon's pool.
    ///
    /// # Errors
    /// [`Error::Weight`] if the file cannot be read, or [`Error::Stopped`] if the stage has ended.
    fn read(&self, job: &ReadJob, stopped: &AtomicBool) -> Result<()> {
        while let Some(after) = job.after
            && !self.uploads.wait(after.value, Some(ABORT_INTERVAL)).map_err(|_| Error::Stopped)?
        {
            if stopped.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
        }
        let Some(PartReads { segments, reads }) = self.parts.get(&job.part) else {
            return Err(Error::protocol(format!("part {} is not in the model's file", job.part)));
        };
        let (start, start_ns) = (job.place as u64 * self.place_bytes, Timing::now_ns());
        reads.par_iter().try_for_each(|read| match stopped.load(Ordering::Relaxed) {
            true => Err(Error::Stopped),
            false => self.fill(read, start),
        })?;
        self.sink.read(self.stage, segments.clone(), [start_ns, Timing::now_ns()]);
        self.to.timeline.advance(job.signal.value);
        Ok(())
    }

    fn fill(&self, read: &WeightRead, start: u64) -> Result<()> {
        let WeightRead { weight, name, chunk, .. } = read;
        let from = (start + read.start) as usize;
        let failed = |cause: String| {
            let (device, weight) = (self.label.clone(), name.clone());
            Error::Weight { stage: self.stage, device, weight, cause }
        };
        let place = self.region.write(from..from + chunk.bytes as usize);
        let mut place = place.map_err(|cause| failed(cause.to_string()))?;
        self.source.fill(*weight, chunk, &mut place).map_err(|cause| failed(cause.to_string()))
    }
}

impl Actor {
    /// Executes an action about the streamed weights of the stage at index `at` of this device.
    pub(super) fn stream(&mut self, at: usize, action: StreamAction) -> Result<()> {
        let stage = &self.stages[at];
        match action {
            StreamAction::Read { part, place, after, signal } => {
                let none = || Error::protocol("a read from the model's file without a reader");
                stage.reader.as_ref().ok_or_else(none)?.read(ReadJob { part, place, after, signal });
                Ok(())
            }
            StreamAction::Copy { part, place, waits, signal } => {
                let work = Work::Commands(stage.memory.stream(part, place));
                let label = Label::weights().of_part(stage.memory.part_segments(part));
                let submission = Submission::timed(QueueKind::Upload, work, waits, signal);
                self.submit(at, submission, label, Some(Copied::Weights))
            }
        }
    }
}
