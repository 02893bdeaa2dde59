//! The device's one queue as three lanes use it: scripts in, events out.
//!
//! What is enqueued goes to the thread that encodes, in the order of all lanes together, which is the order in which the
//! device works: what waits for an event of another lane stands behind it. The lane's own thread waits until the device is
//! done, and moves what came down into its region. This module must not know buffers or kernels.

use crate::belt::Chunk;
use crate::driver::{HostSpan, Script, Wgpu};
use crate::gpu::Gpu;
use crate::script::write;
use crate::stamps::{Reading, Stamps};
use crossbeam_channel::{Receiver, Sender, unbounded};
use ragtag_hal::queues::{DriverQueue, Ends};
use ragtag_hal::{Error, QueueKind, Result};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use wgpu::SubmissionIndex;

/// A script on its way to the encoder.
pub(crate) struct Job {
    pub(crate) lane: QueueKind,
    pub(crate) script: Arc<Script>,
    /// What became of those that it waits for; the encoder knows before it comes to this one.
    pub(crate) after: Vec<Arc<Fate>>,
    pub(crate) fate: Arc<Fate>,
    pub(crate) progress: Sender<Progress>,
}

/// The error of a script that could not be submitted.
pub(crate) type Fate = OnceLock<Error>;

/// What the encoder tells of a script.
pub(crate) enum Progress {
    /// A piece of it was submitted.
    Submitted(Piece),
    /// That was the last piece, or there will be no other.
    End(Result<()>),
}

/// Part of a script that was submitted, or all of it.
pub(crate) struct Piece {
    /// The submission that it is done with; `None` if nothing was ever submitted.
    pub(crate) index: Option<SubmissionIndex>,
    pub(crate) readbacks: Vec<Readback>,
    pub(crate) stamps: Option<Reading>,
}

/// Bytes on their way down.
pub(crate) struct Readback {
    pub(crate) chunk: Chunk,
    /// Whether the chunk could be mapped, as soon as it is.
    pub(crate) mapped: Receiver<bool>,
    pub(crate) to: HostSpan,
    pub(crate) bytes: u64,
    /// Goes when the bytes have arrived, which the encoder may wait for.
    pub(crate) _arrival: Sender<()>,
}

impl Readback {
    fn deliver(self) -> Result<()> {
        let lost = || Error::Lost { cause: "what was downloaded could not be mapped".into() };
        if !self.mapped.recv().unwrap_or(false) {
            return Err(lost());
        }
        let read = self.chunk.read(self.bytes, |bytes| write(&self.to, bytes));
        read.map_err(|failure| failure.of("a download"))?;
        self.chunk.put_back();
        Ok(())
    }
}

/// The end of a script.
pub(crate) struct Event {
    progress: Receiver<Progress>,
    fate: Arc<Fate>,
    /// When it began and ended, in ticks of the device.
    ticks: Mutex<Option<(u64, u64)>>,
}

/// A lane's end of the device's queue.
pub(crate) struct Queue {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) stamps: Option<Arc<Stamps>>,
    pub(crate) lane: QueueKind,
    pub(crate) jobs: Sender<Job>,
}

impl Queue {
    /// Waits for a piece, and moves what came down with it.
    fn end(&self, piece: Piece, event: &Event) -> Result<()> {
        let Piece { index, readbacks, stamps } = piece;
        if let Some(index) = index {
            self.gpu.wait(&index).map_err(|failure| failure.of("a submission"))?;
        }
        readbacks.into_iter().try_for_each(Readback::deliver)?;
        if let Some((start, end)) = stamps.and_then(Reading::ticks) {
            let mut ticks = event.ticks.lock().unwrap_or_else(PoisonError::into_inner);
            *ticks = Some((ticks.map_or(start, |(first, _)| first), end));
        }
        Ok(())
    }
}

impl DriverQueue for Queue {
    type Driver = Wgpu;
    type Event = Event;

    fn enqueue(&self, script: &Arc<Script>, after: &[&Event]) -> Result<Ends<Event>> {
        let (sender, progress) = unbounded();
        let fate = Arc::<Fate>::default();
        let job = Job {
            lane: self.lane,
            script: Arc::clone(script),
            after: after.iter().map(|event| Arc::clone(&event.fate)).collect(),
            fate: Arc::clone(&fate),
            progress: sender,
        };
        let ended = |_| Error::Lost { cause: "the thread that encodes has ended".into() };
        self.jobs.send(job).map_err(ended)?;
        Ok(Ends { first: None, last: Arc::new(Event { progress, fate, ticks: Mutex::default() }) })
    }

    /// Waiting is what moves the bytes that came down.
    fn passed(&self, _: &Event) -> Option<bool> {
        None
    }

    /// Goes on to the last piece also after an error: what the device has it uses until then.
    fn wait(&self, event: &Event) -> Result<()> {
        let mut result = Ok(());
        loop {
            match event.progress.recv() {
                Ok(Progress::Submitted(piece)) => {
                    let ended = self.end(piece, event);
                    result = result.and(ended);
                }
                Ok(Progress::End(end)) => return result.and(end),
                Err(_) => {
                    let cause = "the thread that encodes has ended".into();
                    return result.and(Err(Error::Lost { cause }));
                }
            }
        }
    }

    fn times_ns(&self, ends: &Ends<Event>) -> Option<(u64, u64)> {
        let ticks = *ends.last.ticks.lock().unwrap_or_else(PoisonError::into_inner);
        Some(self.stamps.as_ref()?.host_ns(ticks?))
    }

    /// Nothing is under way that no event tells of.
    fn finish(&self) -> Result<()> {
        Ok(())
    }
}
