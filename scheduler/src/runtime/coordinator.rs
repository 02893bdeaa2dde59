//! The coordinator's thread. It drives the coordinator's core, reads logits, samples tokens and calls reply
//! sinks.

use crate::core::{
    LogitRows, MicroBatch, MicroBatchId, Path, RunAction, RunCore, RunEvent, Sampled, SequenceId, StageEvent,
};
use crate::error::{Error, Result};
use crate::mailbox::{self, Mailbox, Notice, found, over};
use crate::message::{DeviceAddress, DeviceMessage, DeviceUrgent, RunMessage, RunUrgent};
use crate::results::ResultPlaces;
use crate::runtime::PipelineStats;
use crate::runtime::request::{Client, Picker, Reply, RequestMessage, RowLogits, Waiting};
use crate::runtime::spec::Layout;
use crate::sampling::Picks;
use crate::transfers::Transfers;
use crate::watch::Watch;
use crossbeam_channel::{Receiver, select_biased};
use ragtag_hal::{Anticipation, Awaited, DeviceId, HostRegion, Lease, Timeline, Timing, Turn};
use ragtag_kernels::picks::RECORD_WORDS;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Host memory for logits.
pub(super) struct Logits {
    pub(super) region: Arc<HostRegion>,
    places: ResultPlaces,
}

impl Logits {
    pub(super) fn new(layout: &Layout) -> Result<Self> {
        let (places, credits) = (layout.results, u64::from(layout.run.credits));
        let bytes = usize::try_from(places.part_bytes().saturating_mul(credits)).unwrap_or(usize::MAX);
        let region =
            HostRegion::new(bytes).map_err(|e| Error::spec(format!("host memory for logits: {e}")))?;
        Ok(Self { region: Arc::new(region), places })
    }

    /// Reads a range of bytes. The download must have completed, so that no device writes to them.
    fn read(&self, range: Range<u64>) -> Result<Lease<'_>> {
        let rows = self.region.read(range.start as usize..range.end as usize);
        rows.map_err(|e| Error::protocol(format!("logits are not available yet: {e}")))
    }
}

/// Number of whole rows from which the threads of rayon's pool share the sampling. Fewer rows take less time than
/// waking the threads.
const SHARED_ROWS: usize = 8;
/// Number of draws from the best logits that take about as long as one from a whole row.
const PICKS_PER_ROW: usize = 16;
/// Bytes of logits from which these threads share the copying.
const SHARED_BYTES: usize = 1 << 20;

/// A token to sample.
struct Draw {
    sequence: SequenceId,
    /// Number of its row in the list of logit rows.
    row: u32,
    picker: Arc<Mutex<Picker>>,
}

/// Numbers that the coordinator adds to the statistics after each event.
#[derive(Default)]
struct Progress {
    micro_batches: u64,
    prompt_tokens: u64,
    new_tokens: u64,
}

/// Ends of a path of micro-batches.
pub(super) struct PathEnds {
    /// Index of the first stage's device, and of the stage among the stages of this device.
    pub(super) first: (usize, usize),
    /// The last stage's download timeline.
    pub(super) last: Arc<Timeline>,
    pub(super) notice: Notice,
    /// Latest value of this timeline that the thread has reported to the core.
    pub(super) progress: u64,
    /// Record of the transfers of the token return.
    pub(super) token_return: Transfers,
}

/// Work that an event has caused. The lists are empty between two events.
#[derive(Default)]
pub(super) struct Pending {
    /// Events that the core has not handled yet.
    events: VecDeque<RunEvent>,
    actions: Vec<RunAction>,
    /// Micro-batches whose logits have been read.
    collected: Vec<MicroBatchId>,
    /// Replies, which wait until the coordinator has executed the actions for which devices wait.
    news: Vec<(SequenceId, Reply)>,
    progress: Progress,
}

/// State of the coordinator's thread.
pub(super) struct Coordinator {
    pub(super) core: RunCore,
    pub(super) inbox: Mailbox<RunMessage, RunUrgent>,
    pub(super) requests: Receiver<RequestMessage>,
    /// Waiting requests. It is shared with the threads that submit.
    pub(super) waiting: Arc<Waiting>,
    /// Number of requests and tokens in `waiting` that are no longer in the channel.
    pub(super) received: (u64, u64),
    /// Set to true when the coordinator no longer accepts requests.
    pub(super) ended: Arc<AtomicBool>,
    /// Addresses of the devices' mailboxes.
    pub(super) actors: Vec<DeviceAddress>,
    /// Ends of each path, indexed by [`Path`]. Without a prefill stage, there is one path.
    pub(super) ends: Vec<PathEnds>,
    /// Device id and device label of each stage.
    pub(super) devices: Vec<(DeviceId, String)>,
    pub(super) logits: Logits,
    pub(super) clients: FxHashMap<SequenceId, Client>,
    pub(super) stats: Arc<Mutex<PipelineStats>>,
    pub(super) pending: Pending,
    pub(super) anticipation: Anticipation,
    /// Watches the work of all devices.
    pub(super) watch: Watch,
    /// Time of the latest check for stalled work.
    pub(super) checked_ns: u64,
    /// Time at which the thread last handled an event.
    pub(super) now_ns: u64,
}

/// A message for the coordinator.
enum Incoming {
    Urgent(RunUrgent),
    Stage(RunMessage),
    Request(RequestMessage),
    /// A deadline has passed.
    Deadline,
}

/// Rejects the requests that are still in the channel after the run has ended.
pub(super) fn refuse(requests: &Receiver<RequestMessage>, waiting: &Waiting) {
    while let Ok(message) = requests.try_recv() {
        if let RequestMessage::Submit { prompt, client, .. } = message {
            waiting.leave(prompt.tokens.len() as u64);
            client.end(Reply::Failed(Error::Stopped));
        }
    }
}

/// Returns copies of rows of logits.
fn copies(rows: &[f32], vocabulary: usize) -> Vec<Vec<f32>> {
    match size_of_val(rows) < SHARED_BYTES {
        true => rows.chunks_exact(vocabulary).map(<[f32]>::to_vec).collect(),
        false => rows.par_chunks_exact(vocabulary).map(<[f32]>::to_vec).collect(),
    }
}

impl Coordinator {
    /// Runs until the pipeline stops. If this thread panics, which is a bug, the run ends and every remaining
    /// sequence receives an error. Returns the watch, because the devices may still have work.
    pub(super) fn serve(mut self) -> Watch {
        if catch_unwind(AssertUnwindSafe(|| self.work())).is_err() {
            let error = Error::protocol("the coordinator panicked");
            self.clients.drain().for_each(|(_, client)| client.end(Reply::Failed(error.clone())));
            self.stop_devices();
        }
        // A sender that sees `ended` rejects the remaining requests itself. Setting `ended` first ensures
        // that this thread or the sender sees each request.
        self.ended.store(true, Ordering::SeqCst);
        refuse(&self.requests, &self.waiting);
        self.watch
    }

    fn work(&mut self) {
        loop {
            let next = self.overdue().or_else(|| self.due()).or_else(|| self.poll());
            let next = next.or_else(|| self.before_sleep()).or_else(|| self.sleep());
            let Some(incoming) = next else { return };
            match incoming {
                Incoming::Urgent(RunUrgent::Stop) => return self.handle(RunEvent::Stop),
                Incoming::Urgent(RunUrgent::Failed(error)) => {
                    let error = self.attribute(error);
                    self.handle(RunEvent::Failed { error });
                }
                Incoming::Stage(RunMessage::Return(returned)) => self.handle(RunEvent::Return(returned)),
                Incoming::Stage(RunMessage::Downloaded) => self.catch_up(),
                Incoming::Request(RequestMessage::Cancel { sequence }) => {
                    self.handle(RunEvent::Cancel { sequence })
                }
                Incoming::Request(RequestMessage::Resume { sequence }) => {
                    self.handle(RunEvent::Resume { sequence })
                }
                Incoming::Request(RequestMessage::Submit { sequence, prompt, client }) => {
                    self.received.0 += 1;
                    self.received.1 += prompt.tokens.len() as u64;
                    self.clients.insert(sequence, client);
                    self.handle(RunEvent::Submit { sequence, prompt });
                }
                Incoming::Deadline => self.handle(RunEvent::Tick),
            }
        }
    }

    /// Arms the progress notice and then checks for messages again. The last stage puts the `Return` message
    /// of a micro-batch into the quiet queue before the point of the micro-batch passes. So if this check
    /// finds that the point has passed, it also finds the return. Otherwise the notice wakes this thread
    /// later.
    fn before_sleep(&mut self) -> Option<Incoming> {
        self.ends.iter().for_each(|ends| ends.notice.arm());
        self.catch_up();
        self.publish();
        self.poll()
    }

    /// Returns an event if the deadline of a sequence has passed.
    fn due(&self) -> Option<Incoming> {
        let deadline_ns = self.core.next_deadline_ns()?;
        (deadline_ns <= Timing::now_ns()).then_some(Incoming::Deadline)
    }

    fn poll(&self) -> Option<Incoming> {
        match self.inbox.poll() {
            Some(mailbox::Envelope::Urgent(urgent)) => Some(Incoming::Urgent(urgent)),
            Some(mailbox::Envelope::Normal(message)) => Some(Incoming::Stage(message)),
            None => self.requests.try_recv().ok().map(Incoming::Request),
        }
    }

    fn sleep(&mut self) -> Option<Incoming> {
        let mut anticipation = std::mem::take(&mut self.anticipation);
        let incoming = anticipation.wait(|turn| match turn {
            Turn::Look => self.poll().map_or(Awaited::Nothing, Awaited::Found),
            Turn::Rest(limit) => match self.receive(self.until_check(limit)) {
                Awaited::Nothing => {
                    self.due().or_else(|| self.stalled()).map_or(Awaited::Nothing, Awaited::Found)
                }
                other => other,
            },
        });
        self.anticipation = anticipation;
        incoming
    }

    /// Returns the time until the next check for stalled work or the next deadline, but at most `limit`.
    /// Without micro-batches in flight, there is no check.
    fn until_check(&self, limit: Option<Duration>) -> Option<Duration> {
        let deadline = self.core.next_deadline_ns();
        let deadline = deadline.map(|at| Duration::from_nanos(at.saturating_sub(Timing::now_ns())));
        limit.into_iter().chain(self.tick()).chain(deadline).min()
    }

    /// Returns the time between two checks for stalled work. `None` without micro-batches in flight.
    fn tick(&self) -> Option<Duration> {
        self.watch.tick().filter(|_| self.core.is_busy())
    }

    /// Checks for stalled work if the thread has been busy since the latest check was due.
    fn overdue(&mut self) -> Option<Incoming> {
        let since = Duration::from_nanos(self.now_ns.saturating_sub(self.checked_ns));
        self.tick().filter(|tick| since >= *tick).and_then(|_| self.stalled())
    }

    /// Returns a failure if work has stalled.
    fn stalled(&mut self) -> Option<Incoming> {
        self.checked_ns = Timing::now_ns();
        let error = self.watch.stalled(Instant::now())?;
        Some(Incoming::Urgent(RunUrgent::Failed(error)))
    }

    fn receive(&self, limit: Option<Duration>) -> Awaited<Incoming> {
        let (stages, urgent) = self.inbox.waking_queues();
        select_biased! {
            recv(urgent) -> message => found(message.map(Incoming::Urgent)),
            recv(stages) -> message => found(message.map(Incoming::Stage)),
            recv(self.requests) -> message => found(message.map(Incoming::Request)),
            recv(over(limit)) -> _ => Awaited::Nothing,
        }
    }

    /// Reports the value of the download timeline of each path's last stage to the core if it has changed.
    fn catch_up(&mut self) {
        for path in Path::ALL {
            let Some(ends) = self.ends.get_mut(path as usize) else { return };
            let value = ends.last.value();
            if value > ends.progress {
                ends.progress = value;
                self.handle(RunEvent::Progress { path, value });
            }
        }
    }

    /// Passes `event` to the core and executes the resulting actions. Repeats this for events that the
    /// actions or the replies produce.
    fn handle(&mut self, event: RunEvent) {
        let (mut next, mut actions) = (Some(event), std::mem::take(&mut self.pending.actions));
        while let Some(event) = next {
            let mut outcome = self.core.step(Timing::now_ns(), event, &mut actions);
            for action in actions.drain(..) {
                // After a failure too, so that tokens that were sampled reach their clients.
                outcome = outcome.and(self.act(action));
            }
            self.pending.events.extend(outcome.err().map(|error| RunEvent::Failed { error }));
            next = self.pending.events.pop_front().or_else(|| {
                // Replies come last, because devices wait for the other actions.
                self.count();
                self.tell();
                self.pending.events.pop_front()
            });
        }
        self.pending.actions = actions;
    }

    fn act(&mut self, action: RunAction) -> Result<()> {
        match action {
            RunAction::Enter { path, micro_batch } => {
                let (device, stage) = self.ends[path as usize].first;
                let event = StageEvent::HandOff { micro_batch };
                return self.actors[device].send(DeviceMessage::Event { stage, event });
            }
            RunAction::Collect { micro_batch } => {
                let sampled = self.collect(&micro_batch)?;
                self.pending.collected.push(micro_batch.id);
                let collected = RunEvent::Collected { micro_batch: micro_batch.id, sampled };
                self.pending.events.push_back(collected);
            }
            RunAction::Emit { sequence, token } => {
                self.pending.progress.new_tokens += 1;
                let picker = self.clients.get(&sequence).and_then(|client| client.picker.as_deref());
                let log_probabilities = picker.and_then(Picker::report);
                self.pending.news.push((sequence, Reply::Token { id: token, log_probabilities }));
            }
            RunAction::Finish { sequence, finished } => {
                self.pending.news.push((sequence, Reply::Finished(finished)));
            }
            RunAction::Fail { sequence, error } => self.pending.news.push((sequence, Reply::Failed(error))),
            RunAction::Stop => self.stop_devices(),
        }
        Ok(())
    }

    /// Reads the logits of a micro-batch. Samples tokens from them, or delivers them to the client. Skips
    /// items whose results no longer count.
    fn collect(&mut self, batch: &MicroBatch) -> Result<Vec<Sampled>> {
        let (whole, all, places) = (batch.whole_rows(), batch.logit_rows(), self.logits.places);
        let [rows, records] = [places.whole(batch.credit, whole), places.picks(batch.credit, whole..all)];
        let (rows, records) = (self.logits.read(rows)?, self.logits.read(records)?);
        let not_aligned = || Error::protocol("the logits are not aligned to floats");
        let logits = rows.floats().ok_or_else(not_aligned)?;
        let records = records.floats().ok_or_else(not_aligned)?.as_chunks::<RECORD_WORDS>().0;
        let vocabulary = places.row_bytes as usize / size_of::<f32>();
        let rows_of =
            |rows: &Range<u32>| &logits[rows.start as usize * vocabulary..rows.end as usize * vocabulary];
        let mut draws = Vec::new();
        for (item, rows) in batch.with_logit_rows() {
            let Some(client) = self.clients.get(&item.sequence).filter(|_| self.core.is_current(item)) else {
                continue;
            };
            let prompt_tokens = client.prompt_tokens.saturating_sub(item.first_position);
            self.pending.progress.prompt_tokens += u64::from(prompt_tokens.min(item.tokens.len() as u32));
            if item.logits == LogitRows::All {
                let replies = copies(rows_of(&rows), vocabulary).into_iter().zip(item.first_position..);
                let replies = replies.map(|(row, position)| (item.sequence, Reply::Logits { position, row }));
                self.pending.news.extend(replies);
            } else if let Some(picker) = client.picker.as_ref().filter(|_| !rows.is_empty()) {
                draws.push(Draw { sequence: item.sequence, row: rows.start, picker: Arc::clone(picker) });
            }
        }
        self.pending.progress.micro_batches += 1;
        let sample = |draw: &Draw| {
            let logits = match draw.row.checked_sub(whole) {
                None => RowLogits::Whole(rows_of(&(draw.row..draw.row + 1))),
                Some(row) => RowLogits::Best(Picks::new(&records[row as usize], vocabulary as u32)),
            };
            let (token, stops) = Picker::pick(&draw.picker, logits);
            Sampled { sequence: draw.sequence, token, stops }
        };
        let whole_draws = draws.iter().filter(|draw| draw.row < whole).count();
        let work = whole_draws + (draws.len() - whole_draws) / PICKS_PER_ROW;
        // The sequences of a large micro-batch wait for the last of them.
        Ok(match work < SHARED_ROWS {
            true => draws.iter().map(sample).collect(),
            false => draws.par_iter().map(sample).collect(),
        })
    }

    /// Adds the progress since the last call to the statistics, and updates the number of waiting requests.
    fn count(&mut self) {
        self.now_ns = Timing::now_ns();
        // The record of the other path ignores the micro-batch.
        let returns = |id| self.ends.iter().for_each(|ends| ends.token_return.arrived_whole(id, self.now_ns));
        self.pending.collected.drain(..).for_each(returns);
        let counts = self.core.counts();
        let waiting = (u64::from(counts.waiting), counts.waiting_tokens);
        self.waiting.replace(std::mem::replace(&mut self.received, waiting), waiting);
        let Progress { micro_batches, prompt_tokens, new_tokens } =
            std::mem::take(&mut self.pending.progress);
        if micro_batches + new_tokens > 0 {
            let mut stats = self.stats();
            stats.micro_batches += micro_batches;
            stats.prompt_tokens += prompt_tokens;
            stats.new_tokens += new_tokens;
        }
    }

    /// Sends the pending replies. A sink may pause or end its sequence.
    fn tell(&mut self) {
        let Pending { news, events, .. } = &mut self.pending;
        for (sequence, reply) in news.drain(..) {
            if matches!(reply, Reply::Finished(_) | Reply::Failed(_)) {
                if let Some(client) = self.clients.remove(&sequence) {
                    client.end(reply);
                }
            } else if let Some(client) = self.clients.get_mut(&sequence) {
                events.extend(client.tell(sequence, reply));
            }
        }
    }

    fn stop_devices(&self) {
        self.actors.iter().for_each(|actor| actor.send_urgent(DeviceUrgent::Stop));
    }

    /// Attributes an error to the device and the stage on which it began. Another stage may report the error
    /// first, because that stage waited for a point of the failed device. If a copy of activations has failed,
    /// names its edge. If the stage is unknown, names all stages of the device.
    fn attribute(&self, error: Error) -> Error {
        let (reporter, cause, is_known) = match &error {
            Error::Stage { stage, cause, .. } => (*stage, cause, true),
            Error::Device { stages, cause, .. } => (stages[0], cause, false),
            _ => return error,
        };
        let began = cause.culprit().filter(|id| self.devices.iter().any(|(other, _)| other == id));
        let id = began.unwrap_or(self.devices[reporter as usize].0);
        let cause = cause.root().clone();
        // All calls on a lost device return the loss, whichever stage makes them.
        let is_own = is_known && began.is_none() && !matches!(cause, ragtag_hal::Error::Lost { .. });
        if let Some(error) = self.watch.failed(id, &cause, is_own.then_some(reporter)) {
            return error;
        }
        let stages = (0..).zip(&self.devices).filter(|(_, (other, _))| *other == id);
        let stages = if is_own { vec![reporter] } else { stages.map(|(stage, _)| stage).collect() };
        let device = self.devices[stages[0] as usize].1.clone();
        Error::of_device(stages, device, cause)
    }

    fn publish(&self) {
        let counts = self.core.counts();
        self.stats().counts = counts;
    }

    fn stats(&self) -> MutexGuard<'_, PipelineStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Lanes;
    use crate::core::{Limits, MicroBatchId, Prompt, Return, RunShape, Want};
    use crate::mailbox::mailbox;
    use crate::message::RunAddress;
    use crate::runtime::Flow;
    use crossbeam_channel::never;
    use ragtag_graph::execution::{Chunks, KvUse};
    use ragtag_hal::{QueueKind, TimelineId};

    /// Returns a coordinator of a pipeline whose stages are on these devices, the address of its mailbox, and
    /// the download timeline of the last stage.
    fn coordinator(devices: &[u16]) -> (Coordinator, RunAddress, Arc<Timeline>) {
        let run = RunShape {
            stages: 1,
            decode_groups: 2,
            credits: 2,
            context: 16,
            vocabulary: 4,
            has_picks: false,
            chunks: Chunks::fixed(4),
            max_rows: 4,
            max_logit_rows: 1,
            max_sequences: 1,
            kv_blocks: 8,
            kv_use: KvUse::default(),
            limits: Limits::default(),
            kv_ring: None,
            prefill_from: None,
            recompute_at: None,
        };
        let results = ResultPlaces { row_bytes: 16, rows: 1, has_picks: false };
        let layout = Layout { run, weight_bytes: 0, results, passing_blocks: 1 };
        let (address, inbox) = mailbox(Lanes::of_run(2));
        let (actor, _) = mailbox(Lanes::of_device(2, 1, false, [(None, None)]));
        let last = Timeline::new(TimelineId { device: DeviceId(0), queue: QueueKind::Download });
        let labels: Vec<_> = devices.iter().map(|device| format!("made-up:{device}")).collect();
        let coordinator = Coordinator {
            core: RunCore::new(layout.run.clone()).unwrap(),
            inbox,
            requests: never(),
            waiting: Arc::default(),
            received: (0, 0),
            ended: Arc::default(),
            actors: vec![actor],
            ends: vec![PathEnds {
                first: (0, 0),
                last: Arc::clone(&last),
                notice: Notice::default(),
                progress: 0,
                token_return: Transfers::default(),
            }],
            devices: devices.iter().copied().map(DeviceId).zip(labels).collect(),
            logits: Logits::new(&layout).unwrap(),
            clients: FxHashMap::default(),
            stats: Arc::default(),
            pending: Pending::default(),
            anticipation: Anticipation::default(),
            watch: Watch::new(Vec::new(), [], Vec::new(), None),
            checked_ns: 0,
            now_ns: 0,
        };
        (coordinator, address, last)
    }

    /// Tests the race in which the last stage returns a micro-batch and signals its point just after the
    /// coordinator found its mailbox empty.
    #[test]
    fn a_return_before_sleep_wakes_the_coordinator() {
        let (mut coordinator, address, last) = coordinator(&[0]);
        let want = Want::Generate { max_new_tokens: 0, end_tokens: [].into() };
        let prompt = Prompt::new([1, 2].into(), want);
        coordinator.handle(RunEvent::Submit { sequence: SequenceId(0), prompt });
        assert!(coordinator.poll().is_none());
        let returned = Return { micro_batch: MicroBatchId(0), ready: last.id().at(1) };
        address.send_quietly(RunMessage::Return(returned)).unwrap();
        last.advance(1);
        let Some(Incoming::Stage(RunMessage::Return(returned))) = coordinator.before_sleep() else {
            panic!("the return was lost");
        };
        coordinator.handle(RunEvent::Return(returned));
        assert_eq!(coordinator.core.counts().active, 0);
    }

    /// Checks that a failure to read the logits of a micro-batch loses no token of another one.
    #[test]
    fn a_failure_loses_no_token_that_was_sampled() {
        let (mut coordinator, _, last) = coordinator(&[0]);
        let (send, replies) = std::sync::mpsc::channel();
        for sequence in [SequenceId(0), SequenceId(1)] {
            let send = send.clone();
            let sink = Box::new(move |reply| {
                send.send((sequence, reply)).unwrap();
                Flow::Go
            });
            let sampler = Box::new(crate::Sampler::new(crate::Sampling::greedy()).unwrap());
            let picker = Some(Arc::new(Mutex::new(Picker::new(sampler, None, &[1]))));
            let client = Client { prompt_tokens: 1, picker, sink: Some(sink) };
            coordinator.clients.insert(sequence, client);
            let want = Want::Generate { max_new_tokens: 9, end_tokens: [].into() };
            let prompt = Prompt::new([1].into(), want);
            coordinator.handle(RunEvent::Submit { sequence, prompt });
        }
        for id in 0..2 {
            let returned = Return { micro_batch: MicroBatchId(id), ready: last.id().at(id + 1) };
            coordinator.handle(RunEvent::Return(returned));
        }
        // A device still writes the logits of the second micro-batch.
        let region = Arc::clone(&coordinator.logits.region);
        let written = coordinator.logits.places.whole(1, 1);
        let written = region.write(written.start as usize..written.end as usize).unwrap();
        last.advance(2);
        coordinator.catch_up();
        drop(written);
        let replies: Vec<_> = replies.try_iter().collect();
        let [(SequenceId(0), Reply::Token { id: 0, .. }), (one, Reply::Failed(_)), (other, Reply::Failed(_))] =
            &replies[..]
        else {
            panic!("{replies:?}");
        };
        assert_ne!(one, other);
        assert_eq!(coordinator.stats().new_tokens, 1);
    }

    #[test]
    fn a_failure_names_the_device_on_which_it_began_and_all_stages_that_may_have_failed() {
        use ragtag_hal::Error as DeviceError;
        let (coordinator, ..) = coordinator(&[0, 1, 0]);
        let lost = DeviceError::Lost { cause: "unplugged".into() };
        let on = |stage, device: &str, cause| Error::Stage { stage, device: device.into(), cause };
        let both = coordinator.attribute(Error::of_device(vec![0, 2], "made-up:0".into(), lost.clone()));
        assert_eq!(both.to_string(), "stages 0, 2 on made-up:0: device lost: unplugged");
        // The stage that meets the loss need not be the one whose work was lost.
        assert_eq!(coordinator.attribute(on(2, "made-up:0", lost.clone())), both);
        let point = TimelineId { device: DeviceId(0), queue: QueueKind::Download }.at(3);
        let waited = DeviceError::Poisoned { point, cause: Box::new(lost.clone()) };
        assert_eq!(coordinator.attribute(on(1, "made-up:1", waited)), both);
        assert_eq!(coordinator.attribute(on(1, "made-up:1", lost.clone())), on(1, "made-up:1", lost));
        let refused = on(2, "made-up:0", DeviceError::Api { call: "launch".into(), code: 7 });
        assert_eq!(coordinator.attribute(refused.clone()), refused);
    }
}
