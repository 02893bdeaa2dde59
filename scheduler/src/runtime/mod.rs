//! The threaded runtime: a pipeline of loaded stages that accepts requests.
//!
//! Each device has one thread ([`crate::actor`]), and the coordinator has another. Each thread sleeps on its
//! own mailbox. `wiring` connects the threads, and `loader` starts them. This module does not depend on the
//! decisions of the cores or on the work of the devices.

mod coordinator;
mod loader;
mod passages;
mod request;
mod shared_weights;
mod spec;
mod threads;
mod wiring;

pub use request::{Busy, Flow, Job, Reply, ReplySink, Request, StopRule};
pub use spec::{LoadProgress, PipelineOptions, PipelineSpec, STALL_TIMEOUT};

use crate::actor::StageReport;
use crate::capacity::Lanes;
use crate::core::{Limits, Prompt, RunCore, RunCounts, SequenceId, Want};
use crate::error::Result;
use crate::mailbox::{LINGER, mailbox};
use crate::message::{DeviceAddress, DeviceUrgent, RunAddress, RunMessage, RunUrgent};
use crate::trace::{Trace, TraceSink};
use crate::transfers::{EdgeReport, Transfers};
use crate::watch::Watch;
use coordinator::{Coordinator, Logits, Pending, refuse};
use crossbeam_channel::{Receiver, Sender, unbounded};
use ragtag_hal::{Anticipation, Timing};
use ragtag_transfer::Routes;
use request::{Client, Picker, RequestMessage, Waiting};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use spec::Layout;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use threads::{DeviceThread, spawn};
use wiring::{Wired, connect};

/// Counts, times and load of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipelineStats {
    /// Current load of the coordinator.
    pub counts: RunCounts,
    /// Number of completed micro-batches.
    pub micro_batches: u64,
    /// Number of processed prompt tokens.
    pub prompt_tokens: u64,
    /// Number of emitted tokens.
    pub new_tokens: u64,
    /// Report of each stage. It may lag by a few micro-batches.
    pub stages: Vec<StageReport>,
    /// Transfers between stages. There is one entry per edge.
    pub edges: Vec<EdgeReport>,
    /// Routes in use on each edge: those in the plan that the devices could set up, without those that were
    /// replaced because wrong bytes arrived over them.
    pub routes: Vec<Routes>,
    /// Transfers of the token return. A transfer starts when logits leave the last stage. It ends when the
    /// coordinator has sampled the tokens and sent the next micro-batches.
    pub token_return: EdgeReport,
}

/// Final report of a pipeline, after its shutdown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineReport {
    /// Final counts and times of the pipeline.
    pub stats: PipelineStats,
    /// The recorded trace. It is empty if no trace was requested.
    pub trace: Trace,
    /// Labels of the devices that were left behind, because they did not finish their work.
    pub left: Vec<String>,
}

/// A pipeline of loaded, running stages. Dropping it stops the stages and cancels unfinished sequences.
pub struct Pipeline {
    requests: Sender<RequestMessage>,
    waiting: Arc<Waiting>,
    limits: Limits,
    /// Receiving end of the request channel. After the coordinator has ended, the pipeline uses it to reject
    /// late requests.
    leftovers: Receiver<RequestMessage>,
    ended: Arc<AtomicBool>,
    run: RunAddress,
    coordinator: Option<JoinHandle<Watch>>,
    /// Addresses of the devices' mailboxes.
    addresses: Vec<DeviceAddress>,
    actors: Vec<DeviceThread>,
    next_sequence: AtomicU64,
    stats: Arc<Mutex<PipelineStats>>,
    reports: Vec<Arc<Mutex<StageReport>>>,
    /// Transfer records of the edges, followed by that of the token return.
    crossings: Vec<Transfers>,
    /// Sink of the trace. It is kept here so that the trace stays available after the actors have ended.
    sink: TraceSink,
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline").field("stages", &self.reports.len()).finish_non_exhaustive()
    }
}

impl Pipeline {
    /// Loads all stages in parallel and returns when all are ready. The devices' threads call `progress`.
    ///
    /// # Errors
    /// [`Error::Spec`](crate::Error::Spec) if stages and options do not match. Otherwise, the error of the first
    /// stage that fails. If an error is returned, all threads have ended.
    pub fn start(
        pipeline: PipelineSpec,
        options: &PipelineOptions,
        progress: impl Fn(LoadProgress) + Send + Sync + 'static,
    ) -> Result<Self> {
        let layout = Layout::new(&pipeline, options)?;
        let core = RunCore::new(layout.run.clone())?;
        let (run, run_inbox) = mailbox::<RunMessage, RunUrgent>(Lanes::of_run(options.credits));
        let sink = TraceSink::new(options.trace_spans);
        let logits = Logits::new(&layout)?;
        let wired = connect(pipeline, options, &layout, &run, &logits, &sink)?;
        let Wired { actors: specs, addresses, reports, devices, ends, crossings, watch } = wired;

        let actors = loader::start(specs, &addresses, layout.weight_bytes, Arc::new(progress))?;

        let (requests, request_inbox) = unbounded();
        let waiting = Arc::<Waiting>::default();
        let ended = Arc::<AtomicBool>::default();
        let stats = Arc::new(Mutex::new(PipelineStats::default()));
        for ends in &ends {
            let moved = run.clone();
            ends.notice.listen(&ends.last, move || drop(moved.send(RunMessage::Downloaded)), |_| {});
        }
        let coordinator = Coordinator {
            core,
            inbox: run_inbox,
            requests: request_inbox.clone(),
            waiting: Arc::clone(&waiting),
            received: (0, 0),
            ended: Arc::clone(&ended),
            actors: addresses.clone(),
            ends,
            devices,
            logits,
            clients: FxHashMap::default(),
            stats: Arc::clone(&stats),
            pending: Pending::default(),
            anticipation: Anticipation::lingering(LINGER),
            watch,
            checked_ns: 0,
            now_ns: 0,
        };
        let mut pipeline = Self {
            requests,
            waiting,
            limits: options.limits,
            leftovers: request_inbox,
            ended,
            run,
            coordinator: None,
            addresses,
            actors,
            next_sequence: AtomicU64::new(0),
            stats,
            reports,
            crossings,
            sink,
        };
        // If this fails, dropping the pipeline stops the devices.
        pipeline.coordinator = Some(spawn(move || coordinator.serve())?);
        Ok(pipeline)
    }

    /// Submits a request without blocking. All its results arrive at its reply sink. If the pipeline rejects
    /// the request, the error arrives there as well.
    pub fn submit(&self, request: Request) -> SequenceId {
        match self.admit(&request) {
            Ok(()) => self.enter(request),
            Err(busy) => {
                let mut reply = request.reply;
                reply(Reply::Failed(busy.into()));
                self.new_id()
            }
        }
    }

    /// Submits a request as [`submit`](Self::submit) does, unless too many requests are waiting.
    ///
    /// # Errors
    /// [`Busy`] if the request exceeds [`PipelineOptions::limits`]. Its reply sink is not called.
    pub fn try_submit(&self, request: Request) -> std::result::Result<SequenceId, Busy> {
        self.admit(&request).map(|()| self.enter(request))
    }

    fn admit(&self, request: &Request) -> std::result::Result<(), Busy> {
        self.waiting.enter(request.prompt.len() as u64, self.limits)
    }

    fn new_id(&self) -> SequenceId {
        SequenceId(self.next_sequence.fetch_add(1, Ordering::Relaxed))
    }

    /// Sends a request that has been counted in `waiting`.
    fn enter(&self, request: Request) -> SequenceId {
        let sequence = self.new_id();
        let Request { prompt: tokens, job, priority, deadline, shares_prefix, reply } = request;
        let mut whole_rows = true;
        let (want, picker) = match job {
            Job::Logits => (Want::Logits, None),
            Job::Generate { max_new_tokens, end_tokens, sampler, stop } => {
                whole_rows = sampler.wants_rows();
                let want = Want::Generate { max_new_tokens, end_tokens: end_tokens.into() };
                (want, Some(Arc::new(Mutex::new(Picker::new(sampler, stop, &tokens)))))
            }
        };
        let client = Client { prompt_tokens: tokens.len() as u32, picker, sink: Some(reply) };
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = deadline.map(|time| Timing::now_ns().saturating_add(nanoseconds(time)));
        let prompt = Prompt { tokens, want, shares_prefix, priority, deadline_ns, whole_rows };
        self.send(RequestMessage::Submit { sequence, prompt, client });
        sequence
    }

    /// Cancels a sequence. The coordinator frees its cache blocks at once, drops its results in flight, and
    /// notifies its reply sink. Does nothing if the sequence has already ended. Never blocks.
    pub fn cancel(&self, sequence: SequenceId) {
        // If the coordinator has ended, the sequence has ended too.
        self.send(RequestMessage::Cancel { sequence });
    }

    /// Continues a sequence after its reply sink has returned [`Flow::Pause`]. Does nothing if the sequence is
    /// not paused. Never blocks.
    pub fn resume(&self, sequence: SequenceId) {
        self.send(RequestMessage::Resume { sequence });
    }

    fn send(&self, message: RequestMessage) {
        // This cannot fail, because the pipeline owns the receiver.
        let _ = self.requests.send(message);
        if self.ended.load(Ordering::SeqCst) {
            refuse(&self.leftovers, &self.waiting);
        }
    }

    /// Returns the current counts, times and load of the pipeline.
    pub fn stats(&self) -> PipelineStats {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let report = |r: &Arc<Mutex<StageReport>>| r.lock().unwrap_or_else(PoisonError::into_inner).clone();
        stats.stages = self.reports.iter().map(report).collect();
        stats.edges = self.crossings.iter().map(Transfers::report).collect();
        stats.routes = self.crossings.iter().filter_map(Transfers::routes).collect();
        stats.token_return = stats.edges.pop().unwrap_or_default();
        stats
    }

    /// Returns the trace recorded so far. The last few submissions of each stage may be missing.
    pub fn trace(&self) -> Trace {
        self.sink.snapshot()
    }

    /// Stops the pipeline and ends all of its threads. Unfinished sequences are cancelled.
    ///
    /// Waits for work in flight, but leaves a device behind that makes no progress for 0.8 s and for twice the predicted
    /// time of its computations in flight ([`StageSpec::longest`](crate::StageSpec::longest)). Its thread keeps the memory
    /// that the device may use.
    pub fn shutdown(mut self) -> PipelineReport {
        let left = self.stop();
        PipelineReport { stats: self.stats(), trace: self.trace(), left }
    }

    /// Stops the threads. Returns the labels of the devices that were left behind.
    fn stop(&mut self) -> Vec<String> {
        self.run.send_urgent(RunUrgent::Stop);
        let watch = self.coordinator.take().and_then(|thread| thread.join().ok());
        // The coordinator has stopped the devices, unless it could not start.
        self.addresses.iter().for_each(|address| address.send_urgent(DeviceUrgent::Stop));
        threads::end(std::mem::take(&mut self.actors), watch)
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.stop();
    }
}
