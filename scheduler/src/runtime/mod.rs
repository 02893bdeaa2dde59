//! The threaded runtime: a pipeline of loaded stages that accepts requests.
//!
//! Each device has one thread ([`crate::actor`]), and the coordinator has another. Each thread sleeps on its
//! own mailbox. `wiring` connects the threads, and `loader` starts them. This module does not depend on the
//! decisions of the cores or on the work of the devices.

mod attached;
mod coordinator;
mod hosted;
mod loader;
mod passages;
mod proxies;
mod recovery;
mod request;
mod shared_weights;
mod spec;
mod stages;
mod threads;
mod wiring;

pub(crate) use hosted::HostedStages;
pub use recovery::{Interruption, Recovery};
pub use request::{Busy, Flow, Job, Reply, ReplySink, Request, StopRule};
pub use spec::{LoadProgress, PipelineOptions, PipelineSpec, STALL_TIMEOUT};
pub use stages::Stopped;

use crate::actor::StageReport;
use crate::actor::kept::KeptWeights;
use crate::core::{Limits, Prompt, RunCore, RunCounts, SequenceId, Want};
use crate::error::Result;
use crate::mailbox::LINGER;
use crate::trace::Trace;
use crate::transfers::EdgeReport;
use coordinator::{Coordinator, Pending, refuse};
use crossbeam_channel::{Receiver, Sender, unbounded};
use ragtag_hal::{Anticipation, Timing};
use ragtag_transfer::Routes;
use request::{Client, Control, Picker, RequestMessage, Waiting};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use stages::{Stages, load};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use threads::spawn;

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
    /// Interruptions after which other stages replaced those of the pipeline.
    #[serde(default)]
    pub interruptions: Interruptions,
}

/// Interruptions of a pipeline after which other stages replaced its stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interruptions {
    /// Number of interruptions.
    pub count: u64,
    /// Time from the detection of the latest one until the other stages were loaded, in nanoseconds.
    pub restarted_ns: u64,
    /// Time from the detection of the latest one until the next token, in nanoseconds. `None` if none has followed.
    pub token_ns: Option<u64>,
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
    controls: Sender<Control>,
    coordinator: Option<JoinHandle<()>>,
    stages: Arc<Mutex<Stages>>,
    next_sequence: AtomicU64,
    stats: Arc<Mutex<PipelineStats>>,
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline")
            .field("stages", &Stages::lock(&self.stages).latest().count())
            .finish_non_exhaustive()
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
        Self::start_with(pipeline, options, progress, None).map(|(pipeline, _)| pipeline)
    }

    /// Starts a pipeline like [`start`](Self::start). The failure of a device does not end the run, but interrupts it until
    /// the [`Recovery`] replaces the stages. Requests wait until then.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn start_recoverable(
        pipeline: PipelineSpec,
        options: &PipelineOptions,
        progress: impl Fn(LoadProgress) + Send + Sync + 'static,
    ) -> Result<(Self, Recovery)> {
        let (sender, interruptions) = unbounded();
        let (pipeline, controls) = Self::start_with(pipeline, options, progress, Some(sender))?;
        let stages = Arc::clone(&pipeline.stages);
        Ok((pipeline, Recovery { interruptions, controls, stages }))
    }

    /// Starts a pipeline that reports failures of devices to `recovery`. Also returns the sender of the recovery's answers.
    fn start_with(
        mut pipeline: PipelineSpec,
        options: &PipelineOptions,
        progress: impl Fn(LoadProgress) + Send + Sync + 'static,
        recovery: Option<Sender<Interruption>>,
    ) -> Result<(Self, Sender<Control>)> {
        let mut events = pipeline.events.take();
        let kept = KeptWeights::default();
        let keeps = recovery.as_ref().map(|_| &kept);
        let (attached, loaded) = load(pipeline, options, (Arc::default(), keeps), progress)?;
        let (requests, request_inbox) = unbounded();
        let (controls, control_inbox) = unbounded();
        let mut pipeline = Self {
            requests,
            waiting: Arc::default(),
            limits: options.limits,
            leftovers: request_inbox.clone(),
            ended: Arc::default(),
            controls: controls.clone(),
            coordinator: None,
            stages: Arc::new(Mutex::new(Stages::new(loaded, kept))),
            next_sequence: AtomicU64::new(0),
            stats: Arc::default(),
        };
        let core = RunCore::new(attached.run.clone())?;
        events.iter_mut().for_each(|events| events.started(&attached.run));
        let coordinator = Coordinator {
            core,
            events,
            attached: Some(attached),
            stages: Arc::clone(&pipeline.stages),
            recovery,
            lost: None,
            interrupted_ns: None,
            controls: control_inbox,
            requests: request_inbox,
            waiting: Arc::clone(&pipeline.waiting),
            received: (0, 0),
            ended: Arc::clone(&pipeline.ended),
            clients: FxHashMap::default(),
            stats: Arc::clone(&pipeline.stats),
            pending: Pending::default(),
            anticipation: Anticipation::lingering(LINGER),
            checked_ns: 0,
            now_ns: 0,
        };
        // If this fails, dropping the pipeline stops the devices.
        pipeline.coordinator = Some(spawn(move || coordinator.serve())?);
        Ok((pipeline, controls))
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
        let (mut whole_rows, mut noise) = (true, None);
        let (want, picker) = match job {
            Job::Logits => (Want::Logits, None),
            Job::Generate { max_new_tokens, end_tokens, sampler, stop } => {
                (whole_rows, noise) = (sampler.wants_rows(), sampler.noise());
                let want = Want::Generate { max_new_tokens, end_tokens: end_tokens.into() };
                (want, Some(Arc::new(Mutex::new(Picker::new(sampler, stop, &tokens)))))
            }
        };
        let client = Client { prompt_tokens: tokens.len() as u32, picker, sink: Some(reply) };
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = deadline.map(|time| Timing::now_ns().saturating_add(nanoseconds(time)));
        let prompt = Prompt { tokens, want, shares_prefix, priority, deadline_ns, whole_rows, noise };
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

    /// Interrupts a recoverable pipeline, so that its [`Recovery`] can replace the stages. Requests wait until then, and none
    /// is lost. Never blocks.
    pub fn interrupt(&self) {
        let _ = self.controls.send(Control::Interrupt);
    }

    /// Returns the current counts, times and load of the pipeline. Those of stages and edges begin anew when a
    /// [`Recovery`] replaces the stages.
    pub fn stats(&self) -> PipelineStats {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Stages::lock(&self.stages).latest().report(&mut stats);
        stats
    }

    /// Returns the trace recorded so far. The last few submissions of each stage may be missing. It begins anew when a
    /// [`Recovery`] replaces the stages.
    pub fn trace(&self) -> Trace {
        Stages::lock(&self.stages).latest().sink.snapshot()
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
        let _ = self.controls.send(Control::Stop);
        let _ = self.coordinator.take().map(JoinHandle::join);
        Stages::close(&self.stages)
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.stop();
    }
}
