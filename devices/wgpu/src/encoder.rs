//! The thread that encodes and submits scripts in the order in which they were enqueued.
//!
//! A script becomes one submission, unless it transfers more bytes than the belts can hold. A script fails
//! without being submitted in two cases: an earlier script of its queue has failed, or a script of another
//! queue that it waits for has failed.
//!
//! # Host data
//! The encoder reads uploaded bytes when it encodes the upload. At that time, the work that the script waits
//! for may still be running on the device. The bytes in the host region are nevertheless valid, unless an
//! unfinished download is going to write them. The encoder waits for such downloads.
//!
//! This module does not depend on points or IDs.

use crate::belt::{Belt, CHUNK_BYTES, Chunk, Direction};
use crate::driver::{HostSpan, Span, Step};
use crate::gpu::{Failure, Gpu};
use crate::queue::{Job, Piece, Progress, Readback};
use crate::script::{Footprint, Launch, padded_bytes, read};
use crate::stamps::{Begun, Ended, Stamps};
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use ragtag_hal::{Error, Result};
use std::sync::Arc;
use wgpu::{CommandEncoder, CommandEncoderDescriptor, ComputePass, ComputePassDescriptor, SubmissionIndex};

/// A host range that an unfinished download is going to write. The sender of `done` is dropped after the
/// write.
struct Arrival {
    to: Footprint,
    done: Receiver<()>,
}

/// State of the encoder thread.
pub(crate) struct Encoder {
    gpu: Arc<Gpu>,
    stamps: Option<Arc<Stamps>>,
    up: Arc<Belt>,
    down: Arc<Belt>,
    /// Latest submission.
    last: Option<SubmissionIndex>,
    /// First failure of each queue.
    failures: [Option<Error>; 3],
    arrivals: Vec<Arrival>,
}

impl Encoder {
    pub(crate) fn new(gpu: Arc<Gpu>, stamps: Option<Arc<Stamps>>) -> Self {
        let (up, down) = (Belt::new(&gpu, Direction::Up), Belt::new(&gpu, Direction::Down));
        Self { gpu, stamps, up, down, last: None, failures: Default::default(), arrivals: Vec::new() }
    }

    /// Runs the thread.
    pub(crate) fn serve(mut self, jobs: &Receiver<Job>) {
        for job in jobs {
            let result = self.check(&job).and_then(|()| self.encode(&job));
            if let Err(error) = &result {
                self.failures[job.kind.index()].get_or_insert_with(|| error.clone());
                let _ = job.fate.set(error.clone());
            }
            // Release the script's buffers before reporting its end.
            let Job { script, progress, .. } = job;
            drop(script);
            // Sending fails only if the completion thread has ended.
            let _ = progress.send(Progress::End(result));
        }
    }

    /// Fails if the device is lost, or if an earlier script on which this script depends has failed.
    fn check(&self, job: &Job) -> Result<()> {
        let own = self.failures[job.kind.index()].as_ref();
        match own.or_else(|| job.after.iter().find_map(|fate| fate.get())) {
            Some(error) => Err(error.clone()),
            None => self.gpu.check().map_err(|failure| failure.of("a submission")),
        }
    }

    fn encode(&mut self, job: &Job) -> Result<()> {
        self.arrivals.retain(|arrival| arrival.done.try_recv() != Err(TryRecvError::Disconnected));
        let gpu = Arc::clone(&self.gpu);
        let result = gpu.guarded(|| self.steps(job));
        result.and_then(|result| result).map_err(|failure| failure.of("a submission"))
    }

    fn steps(&mut self, job: &Job) -> std::result::Result<(), Failure> {
        let mut draft = self.draft();
        for step in job.script.steps() {
            match step {
                Step::Launch(launch) => draft.launch(&launch.code),
                Step::Copy { from, to } => {
                    draft.copy(place(from), place(to), padded_bytes(from));
                }
                // This fill writes zeros. All other fills are kernel launches.
                Step::Fill { to, .. } => draft.clear(to),
                Step::Upload { from, to, used } => {
                    let bytes = from.used_bytes(*used);
                    let (from, to) = (from.part(0, bytes), to.part(0, bytes));
                    for offset in (0..to.bytes()).step_by(CHUNK_BYTES as usize) {
                        let parts = (from.part(offset, CHUNK_BYTES), to.part(offset, CHUNK_BYTES));
                        self.upload(job, &mut draft, &parts.0, &parts.1)?;
                    }
                }
                Step::Download { from, to } => {
                    for offset in (0..from.bytes()).step_by(CHUNK_BYTES as usize) {
                        let parts = (from.part(offset, CHUNK_BYTES), to.part(offset, CHUNK_BYTES));
                        self.download(job, &mut draft, &parts.0, parts.1)?;
                    }
                }
            }
        }
        self.submit(job, draft)
    }

    fn draft(&self) -> Draft {
        Draft {
            gpu: Arc::clone(&self.gpu),
            stamps: self.stamps.clone(),
            encoder: None,
            begun: None,
            pass: None,
            up: Vec::new(),
            down: Vec::new(),
        }
    }

    fn upload(
        &mut self,
        job: &Job,
        draft: &mut Draft,
        from: &HostSpan,
        to: &Span,
    ) -> std::result::Result<(), Failure> {
        while let Some(at) = self.arrivals.iter().position(|arrival| arrival.to.meets(from)) {
            let arrival = self.arrivals.swap_remove(at);
            let full = std::mem::replace(draft, self.draft());
            self.submit(job, full)?;
            // Nothing is ever sent on this channel. The call returns when the sender is dropped.
            let _ = arrival.done.recv();
            self.gpu.check()?;
        }
        let chunk = self.chunk(job, draft, Direction::Up, padded_bytes(to))?;
        read(from, |bytes| chunk.write(bytes))?;
        draft.copy((chunk.buffer(), 0), place(to), padded_bytes(to));
        draft.up.push(chunk);
        Ok(())
    }

    fn download(
        &mut self,
        job: &Job,
        draft: &mut Draft,
        from: &Span,
        to: HostSpan,
    ) -> std::result::Result<(), Failure> {
        let chunk = self.chunk(job, draft, Direction::Down, padded_bytes(from))?;
        draft.copy(place(from), (chunk.buffer(), 0), padded_bytes(from));
        let (arrival, done) = bounded(0);
        self.arrivals.push(Arrival { to: Footprint::of(&to), done });
        draft.down.push(Descent { chunk, to, bytes: from.bytes(), arrival });
        Ok(())
    }

    /// Returns a chunk from a belt. If all chunks are in use, first submits the draft, because the draft
    /// itself may hold chunks.
    fn chunk(
        &mut self,
        job: &Job,
        draft: &mut Draft,
        direction: Direction,
        bytes: u64,
    ) -> std::result::Result<Chunk, Failure> {
        let belt = match direction {
            Direction::Up => Arc::clone(&self.up),
            Direction::Down => Arc::clone(&self.down),
        };
        loop {
            if let Some(chunk) = belt.take(bytes)? {
                return Ok(chunk);
            }
            let full = std::mem::replace(draft, self.draft());
            self.submit(job, full)?;
            belt.wait()?;
        }
    }

    /// Submits a draft and reports the submission to the queue.
    fn submit(&mut self, job: &Job, draft: Draft) -> std::result::Result<(), Failure> {
        let Draft { encoder, begun, pass, up, down, .. } = draft;
        drop(pass);
        let mut stamps = None;
        if let Some(mut encoder) = encoder {
            stamps = begun.map(|begun| begun.end(&mut encoder));
            self.last = Some(self.gpu.submit(encoder)?);
        }
        up.into_iter().for_each(Chunk::put_back_later);
        let readbacks = down.into_iter().map(Descent::start).collect();
        let stamps = stamps.map(Ended::start);
        // Sending fails only if the completion thread has ended.
        let _ = job.progress.send(Progress::Submitted(Piece { index: self.last.clone(), readbacks, stamps }));
        Ok(())
    }
}

/// Returns the buffer of a span and the offset of the span's first byte.
fn place(span: &Span) -> (&wgpu::Buffer, u64) {
    (&span.buffer().0, span.offset())
}

/// A download within a submission.
struct Descent {
    chunk: Chunk,
    to: HostSpan,
    bytes: u64,
    arrival: Sender<()>,
}

impl Descent {
    /// Starts to map the chunk. The mapping completes when the submission has ended.
    fn start(self) -> Readback {
        let (tell, mapped) = bounded(1);
        // The receiver may have been dropped.
        self.chunk.map(move |is| {
            let _ = tell.send(is);
        });
        Readback { chunk: self.chunk, mapped, to: self.to, bytes: self.bytes, _arrival: self.arrival }
    }
}

/// Encoded commands that have not been submitted yet.
struct Draft {
    gpu: Arc<Gpu>,
    stamps: Option<Arc<Stamps>>,
    encoder: Option<CommandEncoder>,
    begun: Option<Begun>,
    /// Open compute pass, which contains the latest consecutive launches.
    pass: Option<ComputePass<'static>>,
    up: Vec<Chunk>,
    down: Vec<Descent>,
}

impl Draft {
    /// Returns the command encoder, which is created on first use.
    fn encoder(&mut self) -> &mut CommandEncoder {
        let Self { gpu, stamps, begun, encoder, .. } = self;
        encoder.get_or_insert_with(|| {
            let mut encoder = gpu.device.create_command_encoder(&CommandEncoderDescriptor::default());
            *begun = stamps.as_ref().and_then(|stamps| stamps.begin(&mut encoder));
            encoder
        })
    }

    fn launch(&mut self, launch: &Launch) {
        if self.pass.is_none() {
            let pass = self.encoder().begin_compute_pass(&ComputePassDescriptor::default());
            self.pass = Some(pass.forget_lifetime());
        }
        if let Some(pass) = &mut self.pass {
            pass.set_pipeline(&launch.pipeline);
            pass.set_bind_group(0, &launch.bind_group, &[]);
            for part in &launch.parts {
                let [x, y, z] = part.groups;
                pass.set_immediates(0, &part.immediates);
                pass.dispatch_workgroups(x, y, z);
            }
        }
    }

    fn copy(&mut self, from: (&wgpu::Buffer, u64), to: (&wgpu::Buffer, u64), bytes: u64) {
        self.pass = None;
        self.encoder().copy_buffer_to_buffer(from.0, from.1, to.0, to.1, bytes);
    }

    fn clear(&mut self, to: &Span) {
        self.pass = None;
        self.encoder().clear_buffer(&to.buffer().0, to.offset(), Some(padded_bytes(to)));
    }
}
