//! The coordinator's thread. It drives the coordinator's core, reads logits, samples tokens and calls reply
//! sinks.

use crate::core::{
    LogitRows, MicroBatch, MicroBatchId, Path, RunAction, RunCore, RunEvent, Sample, Sampled, SequenceId,
    StageEvent,
};
use crate::error::{Error, Result};
use crate::mailbox::{self, Mailbox, Notice, found, over};
use crate::message::{DeviceAddress, DeviceMessage, DeviceUrgent, RunMessage, RunUrgent};
use crate::runtime::PipelineStats;
use crate::runtime::request::{Client, Reply, RequestMessage};
use crate::runtime::spec::Layout;
use crate::transfers::Transfers;
use crate::watch::Watch;
use crossbeam_channel::{Receiver, select_biased};
use ragtag_hal::{Anticipation, Awaited, DeviceId, HostRegion, Lease, Timeline, Timing, Turn};
use rayon::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Host memory for logits, with one part per credit. Each row holds f32 values.
pub(super) struct Logits {
    pub(super) region: Arc<HostRegion>,
    part_bytes: u64,
    row_bytes: u64,
}

impl Logits {
    pub(super) fn new(layout: &Layout) -> Result<Self> {
        let (part_bytes, row_bytes) = (layout.logits_part_bytes, layout.logit_row_bytes);
        let bytes =
            usize::try_from(part_bytes.saturating_mul(u64::from(layout.run.credits))).unwrap_or(usize::MAX);
        let region =
            HostRegion::new(bytes).map_err(|e| Error::spec(format!("host memory for logits: {e}")))?;
        Ok(Self { region: Arc::new(region), part_bytes, row_bytes })
    }

    /// Returns row `row` of the logits of the micro-batch that holds `credit`.
    fn row(&self, credit: u32, row: u32) -> Result<Lease<'_>> {
        let start = (u64::from(credit) * self.part_bytes + u64::from(row) * self.row_bytes) as usize;
        // The download has completed, so no device writes to these bytes.
        let lease = self.region.read(start..start + self.row_bytes as usize);
        lease.map_err(|e| Error::protocol(format!("logits are not available yet: {e}")))
    }
}

/// Returns the f32 values of a row.
fn floats<'a>(row: &'a Lease<'_>) -> Result<&'a [f32]> {
    row.floats().ok_or_else(|| Error::protocol("a row of logits is not aligned to floats"))
}

/// Number of sequences from which the threads of rayon's pool share the sampling. Fewer sequences take less
/// time than waking the threads.
const SHARED_ROWS: usize = 8;

/// State of a sequence for its next token, taken from its client while threads sample.
struct Draw {
    sequence: SequenceId,
    /// Row of the sequence's logits.
    row: u32,
    sampler: Box<dyn Sample>,
    history: Vec<u32>,
}

impl Draw {
    /// Returns `None` if the client has no sampler.
    fn of(sequence: SequenceId, client: &mut Client, row: u32) -> Option<Self> {
        let sampler = client.sampler.take()?;
        Some(Self { sequence, row, sampler, history: std::mem::take(&mut client.history) })
    }
}

/// Replies that the coordinator defers until it has executed the actions for which devices wait.
#[derive(Default)]
struct News {
    /// Sequences that have new tokens.
    of: Vec<SequenceId>,
    /// Clients whose sequences have ended, each with its last reply.
    last: Vec<(Client, Reply)>,
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

/// State of the coordinator's thread.
pub(super) struct Coordinator {
    pub(super) core: RunCore,
    pub(super) inbox: Mailbox<RunMessage, RunUrgent>,
    pub(super) requests: Receiver<RequestMessage>,
    /// Set to true when the coordinator no longer accepts requests.
    pub(super) ended: Arc<AtomicBool>,
    /// Addresses of the devices' mailboxes.
    pub(super) actors: Vec<DeviceAddress>,
    /// Ends of each path, indexed by [`Path`]. Without a prefill stage, there is one path.
    pub(super) ends: Vec<PathEnds>,
    /// Device id and device label of each stage.
    pub(super) devices: Vec<(DeviceId, String)>,
    pub(super) logits: Logits,
    pub(super) clients: HashMap<SequenceId, Client>,
    pub(super) stats: Arc<Mutex<PipelineStats>>,
    /// Micro-batches whose logits have been read but whose results the core has not handled yet.
    pub(super) collected: Vec<MicroBatchId>,
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
}

/// Rejects the requests that are still in the channel after the run has ended.
pub(super) fn refuse(requests: &Receiver<RequestMessage>) {
    while let Ok(message) = requests.try_recv() {
        if let RequestMessage::Submit { mut client, .. } = message {
            (client.reply)(Reply::Failed(Error::Stopped));
        }
    }
}

impl Coordinator {
    /// Runs until the pipeline stops. If a sampler or a reply sink panics, the run ends and every remaining
    /// sequence receives the error. Returns the watch, because the devices may still have work.
    pub(super) fn serve(mut self) -> Watch {
        if catch_unwind(AssertUnwindSafe(|| self.work())).is_err() {
            let error = Error::protocol("a sampler or a reply sink panicked");
            for (_, mut client) in self.clients.drain() {
                // This sink may have panicked. The other sinks must still receive the error.
                let _ = catch_unwind(AssertUnwindSafe(|| (client.reply)(Reply::Failed(error.clone()))));
            }
            self.stop_devices();
        }
        // A sender that sees `ended` rejects the remaining requests itself. Setting `ended` first ensures
        // that this thread or the sender sees each request.
        self.ended.store(true, Ordering::SeqCst);
        refuse(&self.requests);
        self.watch
    }

    fn work(&mut self) {
        loop {
            let next = self.overdue().or_else(|| self.poll());
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
                Incoming::Request(RequestMessage::Submit { sequence, prompt, client }) => {
                    self.clients.insert(sequence, client);
                    self.handle(RunEvent::Submit { sequence, prompt });
                }
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
                Awaited::Nothing => self.stalled().map_or(Awaited::Nothing, Awaited::Found),
                other => other,
            },
        });
        self.anticipation = anticipation;
        incoming
    }

    /// Returns the time until the next check for stalled work, but at most `limit`. Without micro-batches
    /// in flight, there is no check.
    fn until_check(&self, limit: Option<Duration>) -> Option<Duration> {
        let tick = self.watch.tick().filter(|_| self.core.counts().in_flight > 0);
        limit.into_iter().chain(tick).min()
    }

    /// Checks for stalled work if the thread has been busy since the latest check was due.
    fn overdue(&mut self) -> Option<Incoming> {
        let since = Duration::from_nanos(self.now_ns.saturating_sub(self.checked_ns));
        self.until_check(None).filter(|tick| since >= *tick).and_then(|_| self.stalled())
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
    /// actions produce.
    fn handle(&mut self, event: RunEvent) {
        let mut events = VecDeque::from([event]);
        let mut actions = Vec::new();
        // Reply to clients last, because devices wait for the other actions.
        let mut news = News::default();
        while let Some(event) = events.pop_front() {
            let stepped = self.core.step(Timing::now_ns(), event, &mut actions);
            let mut outcome = stepped;
            for action in actions.drain(..) {
                if outcome.is_ok() {
                    outcome = self.act(action, &mut events, &mut news);
                }
            }
            if let Err(error) = outcome {
                events.clear();
                events.push_back(RunEvent::Failed { error });
            }
        }
        self.now_ns = Timing::now_ns();
        // The record of the other path ignores the micro-batch.
        let returns = |id| self.ends.iter().for_each(|ends| ends.token_return.arrived_whole(id, self.now_ns));
        self.collected.drain(..).for_each(returns);
        self.tell(news);
    }

    fn act(&mut self, action: RunAction, events: &mut VecDeque<RunEvent>, news: &mut News) -> Result<()> {
        match action {
            RunAction::Enter { path, micro_batch } => {
                let (device, stage) = self.ends[path as usize].first;
                let event = StageEvent::HandOff { micro_batch };
                return self.actors[device].send(DeviceMessage::Event { stage, event });
            }
            RunAction::Collect { micro_batch } => {
                let sampled = self.collect(&micro_batch)?;
                self.collected.push(micro_batch.id);
                events.push_back(RunEvent::Collected { micro_batch: micro_batch.id, sampled });
            }
            RunAction::Emit { sequence, token } => {
                self.stats().new_tokens += 1;
                if let Some(client) = self.clients.get_mut(&sequence) {
                    client.history.push(token);
                    client.untold.push(token);
                    news.of.push(sequence);
                }
            }
            RunAction::Finish { sequence, finished } => self.end(sequence, Reply::Finished(finished), news),
            RunAction::Fail { sequence, error } => self.end(sequence, Reply::Failed(error), news),
            RunAction::Stop => self.stop_devices(),
        }
        Ok(())
    }

    /// Reads the logits of a micro-batch. Samples tokens from them, or delivers them to the client. Skips
    /// sequences that have ended.
    fn collect(&mut self, batch: &MicroBatch) -> Result<Vec<Sampled>> {
        let mut draws = Vec::new();
        let (mut row, mut prompt_tokens) = (0, 0);
        for item in &batch.items {
            let first = row;
            row += item.logit_rows();
            let Some(client) = self.clients.get_mut(&item.sequence) else { continue };
            match item.logits {
                LogitRows::None => {}
                LogitRows::All => {
                    for (row, position) in (first..row).zip(item.first_position..) {
                        let row = floats(&self.logits.row(batch.credit, row)?)?.to_vec();
                        (client.reply)(Reply::Logits { position, row });
                    }
                }
                LogitRows::Last => draws.extend(Draw::of(item.sequence, client, first)),
            }
            let decode = item.first_position >= client.prompt_tokens;
            prompt_tokens += if decode { 0 } else { item.tokens.len() as u64 };
        }
        let mut stats = self.stats();
        stats.micro_batches += 1;
        stats.prompt_tokens += prompt_tokens;
        drop(stats);
        self.sample(batch.credit, draws)
    }

    /// Samples from the logits of the micro-batch that holds `credit`. The threads of rayon's pool share the
    /// rows of a large micro-batch, because its sequences wait for the last of them.
    fn sample(&mut self, credit: u32, mut draws: Vec<Draw>) -> Result<Vec<Sampled>> {
        let logits = &self.logits;
        let token = |draw: &mut Draw| {
            let row = logits.row(credit, draw.row)?;
            Ok(draw.sampler.sample(floats(&row)?, &draw.history))
        };
        let tokens: Result<Vec<_>> = match draws.len() < SHARED_ROWS {
            true => draws.iter_mut().map(token).collect(),
            false => draws.par_iter_mut().map(token).collect(),
        };
        let sampled =
            draws.iter().zip(tokens?).map(|(draw, token)| Sampled { sequence: draw.sequence, token });
        let sampled = sampled.collect();
        for draw in draws {
            if let Some(client) = self.clients.get_mut(&draw.sequence) {
                (client.sampler, client.history) = (Some(draw.sampler), draw.history);
            }
        }
        Ok(sampled)
    }

    fn end(&mut self, sequence: SequenceId, reply: Reply, news: &mut News) {
        news.last.extend(self.clients.remove(&sequence).map(|client| (client, reply)));
    }

    /// Sends the pending replies.
    fn tell(&mut self, news: News) {
        for sequence in news.of {
            self.clients.get_mut(&sequence).into_iter().for_each(Client::tell);
        }
        for (mut client, reply) in news.last {
            client.tell();
            (client.reply)(reply);
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
    use crate::core::{MicroBatchId, Prompt, Return, RunShape, Want};
    use crate::mailbox::mailbox;
    use crate::message::RunAddress;
    use crossbeam_channel::never;
    use ragtag_graph::execution::Chunks;
    use ragtag_hal::{QueueKind, TimelineId};

    /// Returns a coordinator of a pipeline whose stages are on these devices, the address of its mailbox, and
    /// the download timeline of the last stage.
    fn coordinator(devices: &[u16]) -> (Coordinator, RunAddress, Arc<Timeline>) {
        let run = RunShape {
            stages: 1,
            decode_groups: 1,
            credits: 1,
            context: 16,
            vocabulary: 4,
            chunks: Chunks::fixed(4),
            max_rows: 4,
            max_logit_rows: 1,
            max_sequences: 1,
            kv_blocks: 1,
            kv_ring: None,
            prefill_from: None,
            recompute_at: None,
        };
        let layout =
            Layout { run, weight_bytes: 0, logit_row_bytes: 16, logits_part_bytes: 16, passing_blocks: 1 };
        let (address, inbox) = mailbox(Lanes::of_run(1));
        let (actor, _) = mailbox(Lanes::of_device(1, 1, false, [(None, None)]));
        let last = Timeline::new(TimelineId { device: DeviceId(0), queue: QueueKind::Download });
        let labels: Vec<_> = devices.iter().map(|device| format!("made-up:{device}")).collect();
        let coordinator = Coordinator {
            core: RunCore::new(layout.run.clone()).unwrap(),
            inbox,
            requests: never(),
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
            clients: HashMap::new(),
            stats: Arc::default(),
            collected: Vec::new(),
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
        let prompt = Prompt { tokens: [1, 2].into(), want };
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
