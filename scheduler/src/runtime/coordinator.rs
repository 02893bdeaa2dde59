//! The coordinator's thread. It drives the coordinator's core, reads logits, samples tokens and calls reply
//! sinks.

use crate::core::{
    LogitRows, MicroBatch, MicroBatchId, Path, RunAction, RunCore, RunEvent, Sampled, SequenceId,
};
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::mailbox::{self, found, over};
use crate::message::{RunMessage, RunUrgent};
use crate::runtime::attached::Attached;
use crate::runtime::recovery::Interruption;
use crate::runtime::request::{Client, Control, Picker, Reply, RequestMessage, RowLogits, Waiting};
use crate::runtime::stages::Stages;
use crate::runtime::{Interruptions, PipelineStats};
use crate::sampling::Picks;
use crossbeam_channel::{Receiver, Sender, never, select_biased};
use ragtag_hal::{Anticipation, Awaited, Timing, Turn};
use ragtag_kernels::picks::RECORD_WORDS;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    /// Receiver of the record of the run.
    pub(super) events: Option<Box<dyn EventSink>>,
    /// The loaded stages. `None` while they are lost.
    pub(super) attached: Option<Attached>,
    /// The other side of the loaded stages.
    pub(super) stages: Arc<Mutex<Stages>>,
    /// Receiver of failures of devices, which replaces the stages.
    pub(super) recovery: Option<Sender<Interruption>>,
    /// Error that has interrupted the run, until other stages are there.
    pub(super) lost: Option<Error>,
    /// Time of the latest interruption, until a token follows.
    pub(super) interrupted_ns: Option<u64>,
    pub(super) controls: Receiver<Control>,
    pub(super) requests: Receiver<RequestMessage>,
    /// Waiting requests. It is shared with the threads that submit.
    pub(super) waiting: Arc<Waiting>,
    /// Number of requests and tokens in `waiting` that are no longer in the channel.
    pub(super) received: (u64, u64),
    /// Set to true when the coordinator no longer accepts requests.
    pub(super) ended: Arc<AtomicBool>,
    pub(super) clients: FxHashMap<SequenceId, Client>,
    pub(super) stats: Arc<Mutex<PipelineStats>>,
    pub(super) pending: Pending,
    pub(super) anticipation: Anticipation,
    /// Time of the latest check for stalled work.
    pub(super) checked_ns: u64,
    /// Time at which the thread last handled an event.
    pub(super) now_ns: u64,
}

/// A message for the coordinator.
enum Incoming {
    Control(Control),
    Urgent(RunUrgent),
    /// Work of the device with this label has stalled.
    Stalled(Error, String),
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
    /// sequence receives an error.
    pub(super) fn serve(mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.work())).is_err() {
            let error = Error::protocol("the coordinator panicked");
            self.clients.drain().for_each(|(_, client)| client.end(Reply::Failed(error.clone())));
        }
        self.detach(None);
        // A sender that sees `ended` rejects the remaining requests itself. Setting `ended` first ensures
        // that this thread or the sender sees each request.
        self.ended.store(true, Ordering::SeqCst);
        refuse(&self.requests, &self.waiting);
    }

    fn work(&mut self) {
        loop {
            let next = self.overdue().or_else(|| self.due()).or_else(|| self.poll());
            let next = next.or_else(|| self.before_sleep()).or_else(|| self.sleep());
            let Some(incoming) = next else { return };
            match incoming {
                Incoming::Control(Control::Stop) => return self.handle(RunEvent::Stop),
                Incoming::Control(Control::Attach(attached)) => self.attach(*attached),
                Incoming::Control(Control::Interrupt) => self.interrupt(),
                Incoming::Control(Control::GiveUp) => self.give_up(),
                Incoming::Urgent(RunUrgent::Failed(error)) => {
                    let attached = self.attached.as_ref();
                    let attributed = attached.map(|attached| attached.attribute(error));
                    attributed.into_iter().for_each(|(error, device)| self.failed(error, device));
                }
                Incoming::Stalled(error, device) => self.failed(error, Some(device)),
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
                    self.record_sampler(sequence, &client);
                    self.clients.insert(sequence, client);
                    self.handle(RunEvent::Submit { sequence, prompt });
                }
                Incoming::Deadline => self.handle(RunEvent::Tick),
            }
        }
    }

    /// Goes on with loaded stages in place of the lost ones.
    fn attach(&mut self, attached: Attached) {
        let shape = Box::new(attached.run.clone());
        (self.attached, self.lost) = (Some(attached), None);
        let since_ns = self.since_interruption_ns();
        let mut stats = self.stats();
        let count = stats.interruptions.count + 1;
        stats.interruptions = Interruptions { count, restarted_ns: since_ns, token_ns: None };
        drop(stats);
        self.handle(RunEvent::Restarted { shape });
    }

    fn since_interruption_ns(&self) -> u64 {
        self.interrupted_ns.map_or(0, |at| Timing::now_ns().saturating_sub(at))
    }

    /// Stops the stages, and forgets them. What they still send does not arrive. Work that waits for `lost`, the device
    /// that has failed, does not run any more.
    fn detach(&mut self, lost: Option<&str>) {
        if let Some(attached) = self.attached.take() {
            attached.stop_devices();
            lost.into_iter().for_each(|device| attached.watch.abandon(device));
            Stages::lock(&self.stages).watch = Some(attached.watch);
        }
    }

    /// Interrupts the run after the failure of a device, if its stages can be replaced. Otherwise ends the run.
    fn failed(&mut self, error: Error, device: Option<String>) {
        let recovery = self.recovery.clone().filter(|_| !self.core.has_ended());
        let (Some(recovery), Some(_)) = (recovery, &device) else {
            return self.handle(RunEvent::Failed { error });
        };
        self.pause(&recovery, error, device);
    }

    /// Interrupts the run on request. If it is interrupted already, the recovery only gets a notice.
    fn interrupt(&mut self) {
        match self.recovery.clone() {
            Some(recovery) if !self.core.has_ended() => self.pause(&recovery, Error::Stopped, None),
            // A run that has ended takes no other stages, so its recovery ends.
            _ => self.recovery = None,
        }
    }

    /// Stops the stages, and lets the recovery replace them.
    fn pause(&mut self, recovery: &Sender<Interruption>, error: Error, device: Option<String>) {
        let has_stopped = self.attached.is_some();
        if has_stopped {
            tracing::debug!(device, %error, "the run is interrupted");
            self.detach(device.as_deref());
            (self.lost, self.interrupted_ns) = (Some(error.clone()), Some(Timing::now_ns()));
            self.handle(RunEvent::Interrupted);
        }
        if recovery.send(Interruption { error, device, has_stopped }).is_err() {
            self.give_up();
        }
    }

    /// Ends an interrupted run. Later failures end the run too.
    fn give_up(&mut self) {
        self.recovery = None;
        if let Some(error) = self.lost.take() {
            self.handle(RunEvent::Failed { error });
        }
    }

    /// Arms the progress notice and then checks for messages again. The last stage puts the `Return` message
    /// of a micro-batch into the quiet queue before the point of the micro-batch passes. So if this check
    /// finds that the point has passed, it also finds the return. Otherwise the notice wakes this thread
    /// later.
    fn before_sleep(&mut self) -> Option<Incoming> {
        self.attached.iter().flat_map(|attached| &attached.ends).for_each(|ends| ends.notice.arm());
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
        if let Ok(control) = self.controls.try_recv() {
            return Some(Incoming::Control(control));
        }
        match self.attached.as_ref().and_then(Attached::poll) {
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
        self.attached.as_ref()?.watch.tick().filter(|_| self.core.is_busy())
    }

    /// Checks for stalled work if the thread has been busy since the latest check was due.
    fn overdue(&mut self) -> Option<Incoming> {
        let since = Duration::from_nanos(self.now_ns.saturating_sub(self.checked_ns));
        self.tick().filter(|tick| since >= *tick).and_then(|_| self.stalled())
    }

    /// Returns a failure if work has stalled.
    fn stalled(&mut self) -> Option<Incoming> {
        self.checked_ns = Timing::now_ns();
        let (error, device) = self.attached.as_mut()?.watch.stalled(Instant::now())?;
        Some(Incoming::Stalled(error, device))
    }

    fn receive(&self, limit: Option<Duration>) -> Awaited<Incoming> {
        let (no_stages, no_urgent) = (never(), never());
        let queues = self.attached.as_ref().map(|attached| attached.inbox.waking_queues());
        let (stages, urgent) = queues.unwrap_or((&no_stages, &no_urgent));
        select_biased! {
            recv(self.controls) -> message => found(message.map(Incoming::Control)),
            recv(urgent) -> message => found(message.map(Incoming::Urgent)),
            recv(stages) -> message => found(message.map(Incoming::Stage)),
            recv(self.requests) -> message => found(message.map(Incoming::Request)),
            recv(over(limit)) -> _ => Awaited::Nothing,
        }
    }

    /// Reports the value of the download timeline of each path's last stage to the core if it has changed.
    fn catch_up(&mut self) {
        for path in Path::ALL {
            let attached = self.attached.as_mut();
            let Some(ends) = attached.and_then(|attached| attached.ends.get_mut(path as usize)) else {
                return;
            };
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
            let mut outcome = self.step(event, &mut actions);
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

    /// Steps the core, and records the step.
    fn step(&mut self, event: RunEvent, actions: &mut Vec<RunAction>) -> Result<()> {
        let now = Timing::now_ns();
        let Some(events) = &mut self.events else { return self.core.step(now, event, actions) };
        events.event(now, &event);
        let outcome = self.core.step(now, event, actions);
        events.actions(actions, outcome.as_ref().err());
        outcome
    }

    fn record_sampler(&mut self, sequence: SequenceId, client: &Client) {
        if let (Some(events), Some(picker)) = (&mut self.events, &client.picker)
            && let Some(settings) = Picker::settings(picker)
        {
            events.samples(sequence, settings);
        }
    }

    fn act(&mut self, action: RunAction) -> Result<()> {
        match action {
            RunAction::Enter { path, micro_batch } => {
                return self.attached.as_ref().map_or(Ok(()), |attached| attached.enter(path, micro_batch));
            }
            RunAction::Collect { micro_batch } => {
                let sampled = self.collect(&micro_batch)?;
                self.pending.collected.push(micro_batch.id);
                let collected = RunEvent::Collected { micro_batch: micro_batch.id, sampled };
                self.pending.events.push_back(collected);
            }
            RunAction::Emit { sequence, token } => {
                self.pending.progress.new_tokens += 1;
                self.note_token();
                let picker = self.clients.get(&sequence).and_then(|client| client.picker.as_deref());
                let log_probabilities = picker.and_then(Picker::report);
                self.pending.news.push((sequence, Reply::Token { id: token, log_probabilities }));
            }
            RunAction::Finish { sequence, finished } => {
                self.pending.news.push((sequence, Reply::Finished(finished)));
            }
            RunAction::Fail { sequence, error } => self.pending.news.push((sequence, Reply::Failed(error))),
            RunAction::Stop => self.attached.iter().for_each(Attached::stop_devices),
        }
        Ok(())
    }

    /// Records the time of the first token after an interruption.
    fn note_token(&mut self) {
        if self.interrupted_ns.is_some() && self.attached.is_some() {
            let since_ns = self.since_interruption_ns();
            self.interrupted_ns = None;
            self.stats().interruptions.token_ns = Some(since_ns);
        }
    }

    /// Reads the logits of a micro-batch. Samples tokens from them, or delivers them to the client. Skips
    /// items whose results no longer count.
    fn collect(&mut self, batch: &MicroBatch) -> Result<Vec<Sampled>> {
        let attached = self.attached.as_ref();
        let logits = attached.map(|attached| &attached.logits);
        let logits = logits.ok_or_else(|| Error::protocol("the logits of lost stages are read"))?;
        let (whole, all, places) = (batch.whole_rows(), batch.logit_rows(), logits.places);
        let [rows, records] = [places.whole(batch.credit, whole), places.picks(batch.credit, whole..all)];
        let (rows, records) = (logits.read(rows)?, logits.read(records)?);
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
        let ends = self.attached.as_ref().map_or(&[][..], |attached| &attached.ends);
        for id in self.pending.collected.drain(..) {
            ends.iter().for_each(|ends| ends.token_return.arrived_whole(id, self.now_ns));
        }
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
    use crate::core::{MicroBatchId, Prompt, ResultRows, Return, Want};
    use crate::message::RunAddress;
    use crate::runtime::Flow;
    use crate::runtime::attached::tests::attached;
    use ragtag_hal::Timeline;

    /// Returns a coordinator of a pipeline whose stages are on these devices, the address of its mailbox, and
    /// the download timeline of the last stage.
    fn coordinator(devices: &[u16]) -> (Coordinator, RunAddress, Arc<Timeline>) {
        let (attached, address, last) = attached(devices);
        let coordinator = Coordinator {
            core: RunCore::new(attached.run.clone()).unwrap(),
            events: None,
            attached: Some(attached),
            stages: Arc::default(),
            recovery: None,
            lost: None,
            interrupted_ns: None,
            controls: never(),
            requests: never(),
            waiting: Arc::default(),
            received: (0, 0),
            ended: Arc::default(),
            clients: FxHashMap::default(),
            stats: Arc::default(),
            pending: Pending::default(),
            anticipation: Anticipation::default(),
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
        let returned =
            Return { micro_batch: MicroBatchId(0), ready: last.id().at(1), rows: ResultRows::default() };
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
            let returned = Return {
                micro_batch: MicroBatchId(id),
                ready: last.id().at(id + 1),
                rows: ResultRows::default(),
            };
            coordinator.handle(RunEvent::Return(returned));
        }
        // A device still writes the logits of the second micro-batch.
        let region = Arc::clone(&coordinator.attached.as_ref().unwrap().logits.region);
        let written = coordinator.attached.as_ref().unwrap().logits.places.whole(1, 1);
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
}
