//! The threaded runtime: a pipeline of loaded stages that accepts requests.
//!
//! Each device has one thread ([`crate::actor`]), and the coordinator has another. Each thread sleeps on its
//! own mailbox. This module starts, connects and ends the threads. It does not depend on the decisions of the
//! cores or on the work of the devices.

mod coordinator;
mod passages;
mod request;
mod shared_weights;
mod spec;

pub(crate) use request::Client;
pub use request::{Job, Reply, ReplySink, Request};
pub use spec::{LoadProgress, PipelineOptions, PipelineSpec, STALL_TIMEOUT, StageSpec};

use crate::actor::{Actor, ActorSpec, ActorStage, Edge, Sharing, StageReport};
use crate::capacity::Lanes;
use crate::copies::{Copies, FileReads, Watch, WatchedDevice};
use crate::core::{Prompt, RunCore, RunCounts, SequenceId, Want};
use crate::error::{Error, Result};
use crate::mailbox::{LINGER, Notice, mailbox};
use crate::message::{
    DeviceAddress, DeviceMessage, DeviceUrgent, RequestMessage, RunAddress, RunMessage, RunUrgent,
};
use crate::trace::{Ends, Trace, TraceSink};
use crate::transfers::{EdgeReport, Transfers};
use coordinator::{Coordinator, Logits, PathEnds, refuse};
use crossbeam_channel::{Receiver, Sender, bounded};
use passages::{Passages, Reach};
use ragtag_hal::{Anticipation, DeviceId, HostRegion, QueueKind, Timeline, TimelineId};
use ragtag_transfer::Routes;
use serde::{Deserialize, Serialize};
use shared_weights::shared_pages;
use spec::Layout;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Capacity of the request channel to the coordinator, in messages. If the channel is full, submitting a
/// request blocks briefly.
const REQUESTS: usize = 1024;

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
}

/// A pipeline of loaded, running stages. Dropping it stops the stages and cancels unfinished sequences.
pub struct Pipeline {
    requests: Sender<RequestMessage>,
    /// Receiving end of the request channel. After the coordinator has ended, the pipeline uses it to reject
    /// late requests.
    leftovers: Receiver<RequestMessage>,
    ended: Arc<AtomicBool>,
    run: RunAddress,
    coordinator: Option<JoinHandle<()>>,
    actors: Vec<JoinHandle<()>>,
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
    /// [`Error::Spec`] if stages and options do not match. Otherwise, the error of the first stage that
    /// fails. If an error is returned, all threads have ended.
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
        let connected = connect(pipeline, options, &layout, &run, &logits, &sink)?;
        let Connected { actors: specs, addresses, reports, devices, ends, crossings, watch } = connected;

        let loader = Loader { abort: Arc::default(), total: layout.weight_bytes, done: Arc::default() };
        let actors = loader.start(specs, &addresses, Arc::new(progress))?;

        let (requests, request_inbox) = bounded(REQUESTS);
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
            ended: Arc::clone(&ended),
            actors: addresses,
            ends,
            devices,
            logits,
            clients: HashMap::new(),
            stats: Arc::clone(&stats),
            collected: Vec::new(),
            anticipation: Anticipation::lingering(LINGER),
            watch,
        };
        let coordinator = spawn("ragtag coordinator".into(), move || coordinator.serve())?;
        Ok(Self {
            requests,
            leftovers: request_inbox,
            ended,
            run,
            coordinator: Some(coordinator),
            actors,
            next_sequence: AtomicU64::new(0),
            stats,
            reports,
            crossings,
            sink,
        })
    }

    /// Submits a request. All its results arrive at its reply sink. If the pipeline rejects the request, the
    /// error arrives there as well. If very many requests are pending, this call may block briefly, so a
    /// reply sink must not call it.
    pub fn submit(&self, request: Request) -> SequenceId {
        let sequence = SequenceId(self.next_sequence.fetch_add(1, Ordering::Relaxed));
        let (want, sampler) = match request.job {
            Job::Logits => (Want::Logits, None),
            Job::Generate { max_new_tokens, end_tokens, sampler } => {
                (Want::Generate { max_new_tokens, end_tokens: end_tokens.into() }, Some(sampler))
            }
        };
        let prompt_tokens = request.prompt.len() as u32;
        let (history, untold) = (request.prompt.clone(), Vec::new());
        let client = Client { prompt_tokens, history, sampler, untold, reply: request.reply };
        let prompt = Prompt { tokens: request.prompt.into(), want };
        self.send(RequestMessage::Submit { sequence, prompt, client });
        sequence
    }

    /// Cancels a sequence. The coordinator frees its cache blocks at once, drops its results in flight, and
    /// notifies its reply sink. Does nothing if the sequence has already ended.
    pub fn cancel(&self, sequence: SequenceId) {
        // If the coordinator has ended, the sequence has ended too.
        self.send(RequestMessage::Cancel { sequence });
    }

    fn send(&self, message: RequestMessage) {
        // This cannot fail, because the pipeline owns the receiver.
        let _ = self.requests.send(message);
        if self.ended.load(Ordering::SeqCst) {
            refuse(&self.leftovers);
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
    pub fn shutdown(mut self) -> PipelineReport {
        self.stop();
        PipelineReport { stats: self.stats(), trace: self.trace() }
    }

    fn stop(&mut self) {
        self.run.send_urgent(RunUrgent::Stop);
        for thread in self.coordinator.take().into_iter().chain(self.actors.drain(..)) {
            // A thread that panicked has reported the panic to the coordinator, which has failed all
            // sequences.
            let _ = thread.join();
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Actors that have not been started, with the data that the coordinator needs to communicate with them.
struct Connected {
    actors: Vec<ActorSpec>,
    /// Addresses of the devices' mailboxes.
    addresses: Vec<DeviceAddress>,
    reports: Vec<Arc<Mutex<StageReport>>>,
    /// Device id and device label of each stage.
    devices: Vec<(DeviceId, String)>,
    /// Ends of each path.
    ends: Vec<PathEnds>,
    /// Transfer records of the edges, followed by that of the token return.
    crossings: Vec<Transfers>,
    watch: Watch,
}

/// Queues of the previous stage's device whose points a stage waits for.
const FROM_PREVIOUS: [QueueKind; 2] = [QueueKind::Compute, QueueKind::Download];
/// Queues of the next stage's device whose points a stage waits for.
const FROM_NEXT: [QueueKind; 1] = [QueueKind::Upload];

/// Connects neighbouring stages by rings, mailboxes and timelines.
fn connect(
    pipeline: PipelineSpec,
    options: &PipelineOptions,
    layout: &Layout,
    run: &RunAddress,
    logits: &Logits,
    sink: &TraceSink,
) -> Result<Connected> {
    let passages = Passages::new(&pipeline, layout)?;
    let shared_weights = shared_pages(&pipeline);
    let rings = rings(options)?;
    let last = pipeline.stages.len() - 1;
    // Device of each stage. The prefill stage is the last.
    let hosts: Vec<usize> = pipeline.all().map(|stage| stage.device).collect();
    let reads: Vec<_> = pipeline.all().enumerate().map(|(index, spec)| file_reads(index, spec)).collect();
    let PipelineSpec { devices, stages, prefill } = pipeline;
    // Index of a stage among the stages of its device.
    let local = |stage: usize| hosts[..stage].iter().filter(|host| **host == hosts[stage]).count();
    let mailbox_of = |device: usize| {
        let routes = routes_of(&options.routes, &hosts[..=last], device);
        let lanes = Lanes::of_device(options.credits, options.slots, options.verify_transfers, routes);
        let lanes = lanes.with_passages(passages.on(device), passages.starts_on(device));
        mailbox::<DeviceMessage, DeviceUrgent>(lanes)
    };
    let mailboxes: Vec<_> = (0..devices.len()).map(mailbox_of).collect();
    let addresses: Vec<_> = mailboxes.iter().map(|(address, _)| address.clone()).collect();
    let timelines: Vec<[Arc<Timeline>; 3]> =
        devices.iter().map(|device| QueueKind::ALL.map(|queue| device.timeline_for_others(queue))).collect();
    let labels: Vec<_> = devices.iter().map(|device| device.adapter().label()).collect();
    let named: Vec<_> = hosts.iter().map(|&host| (devices[host].id(), labels[host].clone())).collect();
    let reports: Vec<Arc<Mutex<StageReport>>> = hosts.iter().map(|_| Arc::default()).collect();
    let notices: Vec<_> = rings.iter().map(|_| Notice::default()).collect();
    // What leaves each stage.
    let crossings: Vec<Transfers> = hosts.iter().map(|_| Transfers::default()).collect();
    let path_ends = |first: usize, last: usize| PathEnds {
        first: (hosts[first], local(first)),
        last: devices[hosts[last]].timeline(QueueKind::Download),
        notice: Notice::default(),
        progress: 0,
        token_return: crossings[last].clone(),
    };
    let mut ends = vec![path_ends(0, last)];
    ends.extend(prefill.iter().map(|_| path_ends(last + 1, last + 1)));
    let reach = Reach { labels: &labels, addresses: &addresses, timelines: &timelines };
    let sharing = options.routes.iter().map(Sharing::of);
    let (mut at_senders, mut at_receivers): (Vec<_>, Vec<_>) =
        sharing.map(|(sender, receiver)| (Some(sender), Some(receiver))).unzip();
    // Edge `edge`, as the neighbour of stage `neighbour` sees it.
    let edge = |edge: usize, neighbour: usize, queues: &[QueueKind], shared: &mut [Option<Sharing>]| Edge {
        notice: notices[edge].clone(),
        routes: options.routes[edge].clone(),
        ring: Arc::clone(&rings[edge]),
        ring_id: None,
        label: labels[hosts[neighbour]].clone(),
        address: addresses[hosts[neighbour]].clone(),
        stage: local(neighbour),
        timelines: queues
            .iter()
            .map(|queue| Arc::clone(&timelines[hosts[neighbour]][queue.index()]))
            .collect(),
        shared: shared[edge].take().unwrap_or_default(),
        imported: Vec::new(),
    };
    let watched = devices.iter().map(|device| WatchedDevice {
        copies: Copies::default(),
        own: QueueKind::ALL.map(|queue| device.timeline(queue)),
    });
    let mut watched: Vec<_> = watched.collect();
    let copies: Vec<_> = watched.iter().map(|device| device.copies.clone()).collect();
    let names = named.iter().map(|(_, label)| label.clone()).collect();
    watched.extend(reads.iter().flatten().map(FileReads::watched));
    let of_reads = reads.iter().flatten().map(|reads| &reads.timeline);
    let awaited = timelines.iter().flatten().chain(of_reads).cloned();
    let watch = Watch::new(watched, awaited, names, options.stall_timeout);
    let actors = devices.into_iter().zip(mailboxes).zip(copies);
    let actors = actors.map(|((device, (address, mailbox)), copies)| ActorSpec {
        label: device.adapter().label(),
        device,
        stages: Vec::new(),
        slots: options.slots,
        mailbox,
        address,
        run: run.clone(),
        sink: sink.clone(),
        copies,
        verified: options.verify_transfers,
    });
    let mut actors: Vec<_> = actors.collect();
    // An actor loads the prefill stage after the other stages, because it uses their memory.
    let specs = stages.into_iter().chain(prefill).zip(reads).zip(shared_weights);
    for (index, ((spec, reads), shared_weights)) in specs.enumerate() {
        let is_prefill = index > last;
        let before = index.checked_sub(1).filter(|_| !is_prefill);
        actors[spec.device].stages.push(ActorStage {
            stage: index as u32,
            spec,
            reads,
            shared_weights,
            previous: before.map(|before| edge(before, before, &FROM_PREVIOUS, &mut at_receivers)),
            next: (index < last).then(|| edge(index, index + 1, &FROM_NEXT, &mut at_senders)),
            logits: (index >= last).then(|| (Arc::clone(&logits.region), layout.logits_part_bytes)),
            ends: Ends {
                incoming: before.map(|before| crossings[before].clone()),
                outgoing: Some(crossings[index].clone()),
            },
            passages: passages.of_stage(index, is_prefill, &reach),
            is_prefill,
            report: Arc::clone(&reports[index]),
        });
    }
    let crossings = crossings[..=last].to_vec();
    Ok(Connected { actors, addresses, reports, devices: named, ends, crossings, watch })
}

/// Allocates the host memory of the rings of each edge.
fn rings(options: &PipelineOptions) -> Result<Vec<Arc<HostRegion>>> {
    let rings = options.routes.iter().enumerate().map(|(edge, routes)| {
        let cores = options.ring_cores.get(edge).map_or(&[][..], Vec::as_slice);
        // A region has at least one byte.
        let region = HostRegion::near(routes.staging_bytes().max(1) as usize, cores);
        region.map(Arc::new).map_err(|e| Error::Spec { what: format!("staging for {routes:?}: {e}") })
    });
    rings.collect()
}

/// Returns the timeline and the list of a stage's reads from the model's file, if there are any.
fn file_reads(index: usize, spec: &StageSpec) -> Option<FileReads> {
    let device = DeviceId(u16::MAX - u16::try_from(index).unwrap_or(u16::MAX));
    let timeline = Timeline::new(TimelineId { device, queue: QueueKind::Upload });
    (!spec.from_file.is_empty()).then(|| FileReads { timeline, copies: Copies::default() })
}

/// For each stage of a device, returns its incoming and its outgoing routes. `routes` lists the routes of
/// each edge, and `hosts` the device of each stage of the pipeline.
pub(crate) fn routes_of<'a>(
    routes: &'a [Routes],
    hosts: &'a [usize],
    device: usize,
) -> impl Iterator<Item = (Option<&'a Routes>, Option<&'a Routes>)> {
    let stages = hosts.iter().enumerate().filter(move |(_, host)| **host == device);
    stages.map(|(index, _)| (index.checked_sub(1).and_then(|i| routes.get(i)), routes.get(index)))
}

/// Starts the actors and waits until all of them have loaded their stages.
struct Loader {
    abort: Arc<AtomicBool>,
    total: u64,
    done: Arc<AtomicU64>,
}

impl Loader {
    fn start(
        &self,
        specs: Vec<ActorSpec>,
        addresses: &[DeviceAddress],
        progress: Arc<dyn Fn(LoadProgress) + Send + Sync>,
    ) -> Result<Vec<JoinHandle<()>>> {
        let (ready, loaded) = bounded(specs.len());
        let mut threads = Vec::new();
        let mut outcome = Ok(());
        for spec in specs {
            let (ready, abort, progress) = (ready.clone(), Arc::clone(&self.abort), Arc::clone(&progress));
            let (done, total) = (Arc::clone(&self.done), self.total);
            let name = format!("ragtag {}", spec.label);
            let body = move || {
                let report = |stage: u32, bytes: u64| {
                    let done_bytes = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
                    progress(LoadProgress { stage, done_bytes, total_bytes: total });
                };
                serve(spec, &abort, &report, &ready);
            };
            match spawn(name, body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    self.abort.store(true, Ordering::Relaxed);
                    outcome = outcome.and(Err(error));
                }
            }
        }
        // Each actor sends one result, whether or not loading succeeds.
        for result in loaded.iter().take(threads.len()) {
            if let Err(error) = result {
                self.abort.store(true, Ordering::Relaxed);
                // Keep the first failure. Aborted stages, and stages whose neighbour has failed, report
                // [`Error::Stopped`].
                if matches!(outcome, Ok(()) | Err(Error::Stopped)) {
                    outcome = Err(error);
                }
            }
        }
        if let Err(error) = outcome {
            addresses.iter().for_each(|address| address.send_urgent(DeviceUrgent::Stop));
            threads.into_iter().for_each(|thread| drop(thread.join()));
            return Err(error);
        }
        Ok(threads)
    }
}

/// Runs an actor's thread. A panic, for example in a weight source, ends the run like any other failure.
fn serve(
    spec: ActorSpec,
    abort: &AtomicBool,
    progress: &(dyn Fn(u32, u64) + Sync),
    ready: &Sender<Result<()>>,
) {
    let (label, run) = (spec.label.clone(), spec.run.clone());
    let timelines = QueueKind::ALL.map(|queue| spec.device.timeline(queue));
    let panicked = || Error::protocol(format!("the actor of {label} panicked"));
    let loaded = catch_unwind(AssertUnwindSafe(|| Actor::load(spec, abort, progress)));
    let actor = match loaded.unwrap_or_else(|_| Err(panicked())) {
        Ok(actor) => actor,
        Err(error) => {
            // Ignore a missing receiver.
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    if catch_unwind(AssertUnwindSafe(|| actor.serve())).is_err() {
        run.send_urgent(RunUrgent::Failed(panicked()));
        let released = ragtag_hal::Error::Lost { cause: "its actor panicked".into() };
        timelines.iter().for_each(|timeline| timeline.fail(released.clone()));
    }
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let spawned = std::thread::Builder::new().name(name).spawn(body);
    spawned.map_err(|e| Error::Spec { what: format!("cannot start a thread: {e}") })
}
