//! An implementation of `ragtag-hal`'s three queues on top of the device's single hardware queue. It accepts
//! scripts and returns events.
//!
//! The encoder thread receives the scripts of all queues in one order, and the device executes them in that
//! order. A script therefore always runs after the scripts of other queues that it waits for. The completion
//! thread of a queue waits for the device and copies downloads to their regions. This module does not depend
//! on buffers or kernels.

use crate::belt::Chunk;
use crate::driver::{HostSpan, Script, Wgpu};
use crate::gpu::Gpu;
use crate::script::write;
use crate::stamps::{Reading, Stamps};
use crossbeam_channel::{Receiver, Sender, unbounded};
use ragtag_hal::queues::{DriverQueue, Ends, Fences};
use ragtag_hal::{Error, QueueKind, Result};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use wgpu::SubmissionIndex;

/// A script for the encoder thread.
pub(crate) struct Job {
    pub(crate) kind: QueueKind,
    pub(crate) script: Arc<Script>,
    /// Outcomes of the scripts that this script waits for. They are known before the encoder reaches this
    /// script.
    pub(crate) after: Vec<Arc<Fate>>,
    pub(crate) fate: Arc<Fate>,
    pub(crate) progress: Sender<Progress>,
}

/// Outcome of submitting a script: the error if the script was not submitted, otherwise empty.
pub(crate) type Fate = OnceLock<Error>;

/// Progress of a script, as the encoder thread reports it.
pub(crate) enum Progress {
    /// A piece of the script was submitted.
    Submitted(Piece),
    /// The script has no further pieces.
    End(Result<()>),
}

/// A submitted part of a script.
pub(crate) struct Piece {
    /// Latest submission of the encoder. The piece has ended when this submission has ended. The field is
    /// `None` if the encoder has not submitted anything yet.
    pub(crate) index: Option<SubmissionIndex>,
    pub(crate) readbacks: Vec<Readback>,
    pub(crate) stamps: Option<Reading>,
}

/// A download in progress.
pub(crate) struct Readback {
    pub(crate) chunk: Chunk,
    /// Receives true if the chunk was mapped.
    pub(crate) mapped: Receiver<bool>,
    pub(crate) to: HostSpan,
    pub(crate) bytes: u64,
    /// Sender that is dropped once the bytes are in the region. The encoder may wait for this.
    pub(crate) _arrival: Sender<()>,
}

impl Readback {
    fn deliver(self) -> Result<()> {
        let lost = || Error::Lost { cause: "cannot map downloaded data".into() };
        if !self.mapped.recv().unwrap_or(false) {
            return Err(lost());
        }
        let read = self.chunk.read(self.bytes, |bytes| write(&self.to, bytes));
        read.map_err(|failure| failure.of("a download"))?;
        self.chunk.put_back();
        Ok(())
    }
}

/// Completion event of a script. The completion thread waits for it.
pub(crate) struct Event {
    progress: Receiver<Progress>,
    fate: Arc<Fate>,
    /// Start and end in ticks of the device's clock.
    ticks: Mutex<Option<(u64, u64)>>,
}

/// One of the three queues of a device.
pub(crate) struct Queue {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) stamps: Option<Arc<Stamps>>,
    pub(crate) kind: QueueKind,
    pub(crate) jobs: Sender<Job>,
}

impl Queue {
    /// Waits for a piece and copies its downloads to their regions.
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

    fn enqueue(&self, script: &Arc<Script>, fences: &Fences<'_, Self>) -> Result<Ends<Event>> {
        let (sender, progress) = unbounded();
        let fate = Arc::<Fate>::default();
        let job = Job {
            kind: self.kind,
            script: Arc::clone(script),
            after: fences.after.iter().map(|event| Arc::clone(&event.fate)).collect(),
            fate: Arc::clone(&fate),
            progress: sender,
        };
        let ended = |_| Error::Lost { cause: "the encoder thread has ended".into() };
        self.jobs.send(job).map_err(ended)?;
        Ok(Ends { first: None, last: Arc::new(Event { progress, fate, ticks: Mutex::default() }) })
    }

    /// Returns `None`: polling would not be enough, because [`Queue::wait`] must also copy the downloads.
    fn passed(&self, _: &Event) -> Option<bool> {
        None
    }

    /// Waits for all pieces of a script, even after an error, because the device may use the script's
    /// resources until then.
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
                    let cause = "the encoder thread has ended".into();
                    return result.and(Err(Error::Lost { cause }));
                }
            }
        }
    }

    fn times_ns(&self, ends: &Ends<Event>) -> Option<(u64, u64)> {
        let ticks = *ends.last.ticks.lock().unwrap_or_else(PoisonError::into_inner);
        Some(self.stamps.as_ref()?.host_ns(ticks?))
    }

    /// Does nothing, because every script has an event, for which the completion thread waits.
    fn finish(&self) -> Result<()> {
        Ok(())
    }
}
