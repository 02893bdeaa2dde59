//! The simulator's event loop: the virtual clock, the mailboxes and the cores.

mod passing;
mod reading;

use crate::capacity::Lanes;
use crate::core::{
    DeviceAction, DeviceCore, DeviceEvent, End, FinishReason, LogitRows, MicroBatch, MicroBatchId,
    Nanoseconds, Path, Progress, Prompt, QueuePoints, RunAction, RunCore, RunEvent, Sampled, SequenceId,
    StageAction, StageEvent, StageShape,
};
use crate::error::Error;
use crate::runtime::routes_of;
use crate::sim::device::{Job, SimDevice, Submitted, Summed, timeline};
use crate::sim::expected::{expected, most_between_entries};
use crate::sim::invariants::Invariants;
use crate::sim::memory::Memory;
use crate::sim::observe::Observations;
use crate::sim::spec::{Fault, SimRequest, SimSpec, SimStage, token_at};
use crate::sim::{Outcome, SimFailure, SimReport, SimSpan};
use ragtag_hal::QueueKind;
use ragtag_transfer::{Copy, OtherEnd, Route, ToReceiver, ToSender};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// A message in a mailbox. A progress message carries no value, because its handler reads the timeline.
#[derive(Clone, Debug)]
enum Message {
    /// A message for a stage, with the stage's index in the pipeline.
    Stage(usize, StageEvent),
    Run(RunEvent),
    Progress,
}

/// A bounded queue of a mailbox.
#[derive(Clone, Copy, Debug)]
enum MailboxQueue {
    Waking,
    Quiet,
}

impl MailboxQueue {
    fn of(self, lanes: &mut Lanes) -> &mut usize {
        match self {
            MailboxQueue::Waking => &mut lanes.waking,
            MailboxQueue::Quiet => &mut lanes.quiet,
        }
    }
}

impl Message {
    /// Returns the bounded queue that the threaded runtime uses for this message. Returns `None` for requests
    /// and failures, because their queues are unbounded.
    fn queue(&self) -> Option<MailboxQueue> {
        match self {
            Message::Stage(_, StageEvent::FromNext(_)) | Message::Run(RunEvent::Return(_)) => {
                Some(MailboxQueue::Quiet)
            }
            // The actor creates these events itself.
            Message::Stage(
                _,
                StageEvent::Summed { .. } | StageEvent::SummedPassed { .. } | StageEvent::Refused { .. },
            ) => None,
            Message::Stage(..) | Message::Progress => Some(MailboxQueue::Waking),
            Message::Run(_) => None,
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Request { index: usize },
    Arrive { to: usize, message: Message },
    Handle { actor: usize },
    Done { device: usize, hardware: usize, start_ns: Nanoseconds },
    Fail { stage: usize, cause: ragtag_hal::Error },
}

/// An actor's simulated mailbox.
#[derive(Debug, Default)]
struct Mailbox {
    messages: VecDeque<Message>,
    handling: bool,
    /// Number of messages that were sent but not handled. Requests and failures do not count, because they
    /// use their own queues.
    outstanding: Lanes,
    capacity: Lanes,
    progress_pending: bool,
}

pub(super) struct World<'a> {
    spec: &'a SimSpec,
    rng: SmallRng,
    now: Nanoseconds,
    /// Scheduled events. An entry holds the event's time, a number that orders simultaneous events, and its
    /// index in `events`.
    heap: BinaryHeap<Reverse<(Nanoseconds, u64, usize)>>,
    events: Vec<Option<Event>>,
    /// Unused indices in `events`.
    vacant: Vec<usize>,
    next: u64,
    /// The devices, followed by the hosts that read weights from the model's file, one for each such stage.
    devices: Vec<SimDevice>,
    /// Index in `devices` of the host that reads the weights of each stage.
    readers: Vec<Option<usize>>,
    /// The core of each device.
    cores: Vec<DeviceCore>,
    /// Indices of the stages on each device.
    hosted: Vec<Vec<usize>>,
    /// Index of the device that runs each stage. The prefill stage is the last.
    hosts: Vec<usize>,
    /// Label of the device of each stage.
    labels: Vec<String>,
    /// For each device, the device itself and all devices that wait for its points.
    around: Vec<Vec<usize>>,
    memory: Memory,
    run: RunCore,
    /// Mailboxes of the devices, followed by the coordinator's mailbox.
    mailboxes: Vec<Mailbox>,
    /// Arrival time of the latest message from one actor to another. It keeps messages between two actors in
    /// order.
    last_arrival: BTreeMap<(usize, usize), Nanoseconds>,
    /// Activation bytes of each micro-batch in flight.
    bytes: BTreeMap<MicroBatchId, u64>,
    /// Time at which each shared link becomes free.
    shared_free: Vec<Nanoseconds>,
    /// Index of the request that arrives when the next running request ends. Used with [`SimSpec::at_once`].
    next_request: usize,
    messages: u64,
    /// Number of micro-batches that have entered the pipeline.
    entered: u64,
    stopped: bool,
    /// Invariant checks. Present only if [`SimSpec::checked`] is set.
    invariants: Option<Invariants<'a>>,
    tokens: BTreeMap<SequenceId, Vec<u32>>,
    report: SimReport,
}

impl<'a> World<'a> {
    pub(super) fn new(spec: &'a SimSpec) -> Result<Self, SimFailure> {
        let impossible = |error: Error| SimFailure::Violation { at_ns: 0, what: error.to_string() };
        let run = RunCore::new(spec.run.clone()).map_err(impossible)?;
        let Some(last) = spec.stages.len().checked_sub(1) else {
            return Err(impossible(Error::Spec { what: "the pipeline has no stages".into() }));
        };
        let hosts = hosts(spec);
        let stages: Vec<_> = spec.all().collect();
        let devices = hosts.iter().max().map_or(0, |last| last + 1);
        let of = |device: usize| (0..hosts.len()).filter(|&stage| hosts[stage] == device).collect::<Vec<_>>();
        let hosted: Vec<_> = (0..devices).map(of).collect();
        let routes: Vec<_> = spec.stages[..last].iter().map(|stage| stage.routes.clone()).collect();
        let slots = stages.iter().map(|stage| stage.slots).max().unwrap_or(0);
        let readers = reading::readers(&stages, devices);
        let passes = spec.prefill.as_ref().map_or(&[][..], |prefill| &prefill.passes);
        let (mut cores, mut mailboxes) = (Vec::new(), Vec::new());
        for (device, hosted) in hosted.iter().enumerate() {
            let shape = |&stage: &usize| StageShape {
                slots: stages[stage].slots,
                row_bytes: spec.row_bytes,
                incoming: stage.checked_sub(1).filter(|_| stage <= last).map(|before| routes[before].clone()),
                outgoing: routes.get(stage).cloned(),
                next_slots: spec.stages.get(stage + 1).map_or(0, |next| next.slots),
                verified: spec.verified,
                parts: stages[stage].parts.iter().map(|part| part.arena).collect(),
                from_file: readers[stage].map(|reader| reading::file_parts(reader, stages[stage])),
                passes: passes.iter().filter(|_| stage > last).map(|pass| pass.parts.clone()).collect(),
            };
            let shapes: Vec<_> = hosted.iter().map(shape).collect();
            let points = QueuePoints::new(|queue| timeline(device, queue));
            cores.push(DeviceCore::new(&shapes, points).map_err(impossible)?);
            let has_prefill = hosted.iter().any(|stage| *stage > last);
            let ends = passes.iter().filter(|pass| has_prefill || hosts[pass.stage] == device).count();
            let routes = routes_of(&routes, &hosts[..=last], device);
            let lanes = Lanes::of_device(spec.run.credits, slots, spec.verified, routes);
            let mut lanes = lanes.with_passages(ends, has_prefill);
            // A simulated stage sees its device's progress at once, so it needs only one of the two notices:
            // the one for the ring.
            lanes.waking -= QueueKind::ALL.len() - 1 + hosted.iter().filter(|stage| **stage <= last).count();
            mailboxes.push(Mailbox { capacity: lanes, ..Mailbox::default() });
        }
        mailboxes.push(Mailbox { capacity: Lanes::of_run(spec.run.credits), ..Mailbox::default() });
        let report = SimReport {
            outcomes: BTreeMap::new(),
            spans: Vec::new(),
            dropped_spans: 0,
            makespan_ns: 0,
            resent: 0,
            observations: Observations::new(hosts.len(), spec.shared_links.len()),
            run_events: Vec::new(),
            run_actions: Vec::new(),
        };
        let mut world = Self {
            spec,
            rng: SmallRng::seed_from_u64(spec.seed ^ 0x7361_6c74),
            now: 0,
            heap: BinaryHeap::new(),
            events: Vec::new(),
            vacant: Vec::new(),
            next: 0,
            memory: Memory::new(spec),
            devices: reading::devices(&hosted, &readers, spec),
            around: reading::around(&hosted, &hosts, &readers, spec.prefill.is_some()),
            readers,
            labels: stages.iter().map(|stage| stage.device.clone()).collect(),
            cores,
            hosted,
            hosts,
            run,
            mailboxes,
            last_arrival: BTreeMap::new(),
            bytes: BTreeMap::new(),
            shared_free: vec![0; spec.shared_links.len()],
            next_request: spec.requests.len(),
            messages: 0,
            entered: 0,
            stopped: false,
            invariants: spec.checked.then(|| Invariants::new(spec)),
            tokens: BTreeMap::new(),
            report,
        };
        world.schedule();
        Ok(world)
    }

    /// Schedules the arrivals, cancellations and timed faults of the specification.
    fn schedule(&mut self) {
        let run = self.cores.len();
        if let Some(at_once) = self.spec.at_once {
            self.next_request = self.next_request.min(at_once as usize);
        }
        for (index, request) in self.spec.requests.iter().enumerate().take(self.next_request) {
            self.at(request.at_ns, Event::Request { index });
            if let Some(cancel_ns) = request.cancel_ns {
                let message = Message::Run(RunEvent::Cancel { sequence: SequenceId(index as u64) });
                self.at(cancel_ns, Event::Arrive { to: run, message });
            }
        }
        for fault in &self.spec.faults {
            match *fault {
                Fault::DeviceLost { stage, at_ns } => {
                    self.at(at_ns, Event::Fail { stage: stage as usize, cause: lost() });
                }
                Fault::OutOfMemory { stage } => {
                    let cause = ragtag_hal::Error::OutOfMemory { wanted: 1 << 30, free: Some(1 << 20) };
                    self.at(0, Event::Fail { stage: stage as usize, cause });
                }
                Fault::Slow { stage, queue, by_ns } => {
                    self.devices[self.hosts[stage as usize]].slow_ns[queue.index()] = by_ns;
                }
                Fault::Unsteady { stage, up_to_ns } => {
                    self.devices[self.hosts[stage as usize]].unsteady_ns = up_to_ns;
                }
                Fault::WaitsIgnored { stage } => {
                    self.devices[self.hosts[stage as usize]].ignores_waits = true;
                }
                Fault::Stopped { at_ns } => {
                    self.at(at_ns, Event::Arrive { to: run, message: Message::Run(RunEvent::Stop) });
                }
                Fault::SubmissionRefused { .. }
                | Fault::NoticesRepeated { .. }
                | Fault::LostAtCommand { .. }
                | Fault::MessageLost { .. }
                | Fault::WrongBytes { .. }
                | Fault::CopyRefused { .. }
                | Fault::MessageTwice { .. } => {}
            }
        }
    }

    pub(super) fn run(mut self) -> Result<SimReport, SimFailure> {
        let (most, mut entered, mut since_entry) = (most_between_entries(self.spec), self.entered, 0u64);
        while let Some(Reverse((at, _, place))) = self.heap.pop() {
            self.now = at;
            since_entry = if entered == self.entered { since_entry + 1 } else { 0 };
            entered = self.entered;
            if since_entry > most {
                let what = format!("{most} events without a micro-batch that enters");
                return Err(SimFailure::Violation { at_ns: at, what });
            }
            let Some(event) = self.events[place].take() else { continue };
            self.vacant.push(place);
            self.handle_event(event).map_err(|what| SimFailure::Violation { at_ns: self.now, what })?;
        }
        self.report.makespan_ns = self.now;
        self.report.observations.close(self.now);
        self.finish()
    }

    fn at(&mut self, at: Nanoseconds, event: Event) {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some(event);
        self.heap.push(Reverse((at, self.next, place)));
        self.next += 1;
    }

    fn handle_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Request { index } => {
                self.request(index);
                Ok(())
            }
            Event::Arrive { to, message } => {
                self.arrive(to, message);
                Ok(())
            }
            Event::Handle { actor } => {
                self.mailboxes[actor].handling = false;
                if let Some(message) = self.mailboxes[actor].messages.pop_front() {
                    self.handle(actor, message)?;
                }
                self.wake(actor);
                Ok(())
            }
            Event::Done { device, hardware, start_ns } => self.done(device, hardware, start_ns),
            Event::Fail { stage, cause } => {
                self.fail(stage, cause);
                Ok(())
            }
        }
    }

    fn arrive(&mut self, to: usize, message: Message) {
        self.mailboxes[to].messages.push_back(message);
        self.wake(to);
    }

    /// Submits request `index` when it arrives.
    fn request(&mut self, index: usize) {
        let (request, sequence) = (&self.spec.requests[index], SequenceId(index as u64));
        let token = |position| token_at(sequence.0, position, self.spec.run.vocabulary);
        let tokens = (0..request.prompt_tokens).map(token).collect();
        let prompt = Prompt { tokens, want: request.want.clone() };
        self.report.observations.arrived(self.now, sequence);
        self.arrive(self.cores.len(), Message::Run(RunEvent::Submit { sequence, prompt }));
    }

    /// Marks the device of a stage as failed and notifies the coordinator.
    fn fail(&mut self, stage: usize, cause: ragtag_hal::Error) {
        let failure = &mut self.devices[self.hosts[stage]].failure;
        if failure.is_some() {
            return;
        }
        *failure = Some(cause.clone());
        let error = Error::Stage { stage: stage as u32, device: self.labels[stage].clone(), cause };
        let (to, at) = (self.cores.len(), self.now + self.delay());
        self.at(at, Event::Arrive { to, message: Message::Run(RunEvent::Failed { error }) });
    }

    /// Ends the run because a stage has no route to the next stage.
    fn end_edge(&mut self, stage: usize, error: impl FnOnce(String, String) -> Error) {
        let [from, to] = [stage, stage + 1].map(|stage| self.labels[stage].clone());
        self.end_run(stage, error(from, to));
    }

    /// Ends the run with an error of a stage.
    fn end_run(&mut self, stage: usize, error: Error) {
        self.devices[self.hosts[stage]].failure = Some(ragtag_hal::Error::invalid("no route"));
        let (to, at) = (self.cores.len(), self.now + self.delay());
        self.at(at, Event::Arrive { to, message: Message::Run(RunEvent::Failed { error }) });
    }

    fn wake(&mut self, actor: usize) {
        let mailbox = &mut self.mailboxes[actor];
        if !mailbox.handling && !mailbox.messages.is_empty() {
            mailbox.handling = true;
            let at = self.now + self.rng.random_range(0..=self.spec.handling_ns);
            self.at(at, Event::Handle { actor });
        }
    }

    fn delay(&mut self) -> Nanoseconds {
        self.rng.random_range(0..=self.spec.message_ns)
    }

    /// Sends a message from one actor to another. Messages between the same two actors arrive in order.
    fn send(&mut self, from: usize, to: usize, message: Message) -> Result<(), String> {
        let nth = self.messages;
        self.messages += 1;
        let lost = self.spec.faults.contains(&Fault::MessageLost { nth });
        let copies =
            if lost { 0 } else { 1 + usize::from(self.spec.faults.contains(&Fault::MessageTwice { nth })) };
        for _ in 0..copies {
            let at = self.now.saturating_add(self.delay());
            let last = self.last_arrival.entry((from, to)).or_default();
            let at = at.max(*last);
            *last = at;
            self.deliver(to, at, message.clone())?;
        }
        Ok(())
    }

    fn deliver(&mut self, to: usize, at: Nanoseconds, message: Message) -> Result<(), String> {
        let Mailbox { outstanding, capacity, .. } = &mut self.mailboxes[to];
        if let Some(queue) = message.queue() {
            *queue.of(outstanding) += 1;
            let (held, capacity) = (*queue.of(outstanding), *queue.of(capacity));
            if held > capacity {
                return Err(format!(
                    "the {queue:?} queue of mailbox {to} holds more than {capacity} messages"
                ));
            }
        }
        self.at(at, Event::Arrive { to, message });
        Ok(())
    }

    fn handle(&mut self, actor: usize, message: Message) -> Result<(), String> {
        if let Some(queue) = message.queue() {
            *queue.of(&mut self.mailboxes[actor].outstanding) -= 1;
        }
        match message {
            Message::Progress => self.progress(actor),
            Message::Stage(stage, event) => {
                let at = self.hosted[actor].iter().position(|&other| other == stage);
                if let StageEvent::FromNext(message) = event {
                    self.memory.verified(stage, message)?;
                }
                let stage = at.ok_or_else(|| format!("stage {stage} is not on device {actor}"))?;
                self.device_event(actor, DeviceEvent::Stage { stage, event })
            }
            Message::Run(event) => self.run_event(event),
        }
    }

    /// Reports the progress of a device to its core, or the progress of the last device to the coordinator.
    fn progress(&mut self, actor: usize) -> Result<(), String> {
        let repeated = self.spec.faults.iter().any(|fault| match fault {
            Fault::NoticesRepeated { stage } => self.hosts[*stage as usize] == actor,
            _ => false,
        });
        self.mailboxes[actor].progress_pending = repeated;
        if repeated {
            self.deliver(actor, self.now + 1, Message::Progress)?;
        }
        if actor == self.cores.len() {
            let chain = self.spec.stages.len();
            for (path, stage) in [(Path::Stages, chain - 1), (Path::Prefill, chain)] {
                let Some(&host) = self.hosts.get(stage) else { break };
                let value = self.devices[host].value(QueueKind::Download);
                self.run_event(RunEvent::Progress { path, value })?;
            }
            return Ok(());
        }
        let [computed, uploaded, downloaded] = [QueueKind::Compute, QueueKind::Upload, QueueKind::Download]
            .map(|queue| self.devices[actor].value(queue));
        self.device_event(actor, DeviceEvent::Progress(Progress { computed, uploaded, downloaded }))
    }

    fn device_event(&mut self, device: usize, event: DeviceEvent) -> Result<(), String> {
        if self.stopped || self.devices[device].failure.is_some() {
            return Ok(());
        }
        let mut actions = Vec::new();
        let stepped = self.cores[device].step(self.now, event, &mut actions);
        stepped.map_err(|e| format!("device {device}: {e}"))?;
        let run = self.cores.len();
        let mut refused: Vec<(usize, Copy)> = Vec::new();
        for DeviceAction { stage: own, action } in actions {
            if self.devices[device].failure.is_some() {
                break;
            }
            let stage = self.hosted[device][own];
            match action {
                StageAction::Copy { end, copy } if self.memory.refuses(stage, end, &copy) => {
                    let (waits, signal) = (copy.waits.clone(), copy.signal);
                    let job = Job::Refused(MicroBatchId(copy.transfer.0));
                    self.submit(Submitted { stage, queue: end.queue(), job, waits, signal });
                    refused.push((own, copy));
                }
                StageAction::ToNext(ToReceiver::Written { transfer, .. })
                    if refused.iter().any(|(other, copy)| (*other, copy.transfer) == (own, transfer)) => {}
                StageAction::Copy { end, copy } => {
                    let total = self.bytes.get(&MicroBatchId(copy.transfer.0)).copied().unwrap_or(0);
                    let last = copy.other == OtherEnd::None || copy.offset + copy.bytes == total;
                    let (waits, signal) = (copy.waits.clone(), copy.signal);
                    let job = Job::Copy { end, copy, last };
                    self.submit(Submitted { stage, queue: end.queue(), job, waits, signal });
                }
                read @ StageAction::Read { .. } => self.read(stage, read)?,
                StageAction::Stream { part, place, waits, signal } => {
                    let job = Job::Stream { part, place };
                    self.submit(Submitted { stage, queue: QueueKind::Upload, job, waits, signal });
                }
                StageAction::Compute { slot, micro_batch, part, ends, waits, signal } => {
                    if (stage == 0 || stage == self.spec.stages.len()) && part == 0 {
                        self.report.observations.stages[stage].waiting.add(self.now);
                    }
                    let job = Job::Compute { slot, micro_batch, part, ends };
                    self.submit(Submitted { stage, queue: QueueKind::Compute, job, waits, signal });
                }
                StageAction::Logits { slot, micro_batch, waits, signal } => {
                    let job = Job::Logits { slot, micro_batch };
                    self.submit(Submitted { stage, queue: QueueKind::Download, job, waits, signal });
                }
                StageAction::HandOff { micro_batch } => {
                    self.send_to_stage(device, stage + 1, StageEvent::HandOff { micro_batch })?;
                }
                StageAction::ToNext(message) => {
                    self.send_to_stage(device, stage + 1, StageEvent::FromPrevious(message))?;
                }
                StageAction::Sum { end, transfer, slot, bytes, waits, computed, signal } => {
                    let summed = Summed { end, transfer, slot, bytes };
                    let queue = QueueKind::Compute;
                    let job = Job::Checksum(summed);
                    self.submit(Submitted { stage, queue, job, waits, signal: computed });
                    if self.devices[device].failure.is_none() {
                        let (queue, job, waits) = (QueueKind::Download, Job::Sum(summed), vec![computed]);
                        self.submit(Submitted { stage, queue, job, waits, signal });
                    }
                }
                passing @ (StageAction::Pass { .. }
                | StageAction::Passed { .. }
                | StageAction::Keep { .. }
                | StageAction::ToPrefill(_)
                | StageAction::SumPassed { .. }
                | StageAction::SendSum { .. }
                | StageAction::WrongKeysAndValues) => self.pass(device, stage, passing)?,
                StageAction::Resent { .. } => self.report.resent += 1,
                StageAction::Corrupted { route } => {
                    self.end_edge(stage, |from, to| Error::Corrupted { from, to, route });
                }
                StageAction::Unreplaced => {
                    let (route, cause) = (Route::Peer, ragtag_hal::Error::invalid("made up"));
                    self.end_edge(stage, |from, to| Error::Transfer { from, to, route, cause });
                }
                StageAction::ToPrevious(message) => {
                    if let ToSender::Again { slot, .. } = message {
                        self.memory.discard(stage, slot)?;
                    }
                    self.send_to_stage(device, stage - 1, StageEvent::FromNext(message))?;
                }
                StageAction::Return(returned) => {
                    self.send(device, run, Message::Run(RunEvent::Return(returned)))?;
                }
            }
        }
        for (stage, copy) in refused {
            self.device_event(device, DeviceEvent::Stage { stage, event: StageEvent::Refused { copy } })?;
        }
        self.start_around(device)
    }

    fn send_to_stage(&mut self, from: usize, stage: usize, event: StageEvent) -> Result<(), String> {
        self.send(from, self.hosts[stage], Message::Stage(stage, event))
    }

    fn submit(&mut self, submitted: Submitted) {
        let stage = submitted.stage;
        let device = &mut self.devices[self.hosts[stage]];
        device.submitted += 1;
        let nth = device.submitted;
        if self.spec.faults.contains(&Fault::SubmissionRefused { stage: stage as u32, nth }) {
            self.fail(stage, ragtag_hal::Error::Api { call: "submit".into(), code: -1 });
        } else {
            device.submit(submitted);
        }
    }

    /// Starts all submissions that can start after a change on device `changed`. These submissions are on
    /// `changed`, or on devices that wait for its points.
    fn start_around(&mut self, changed: usize) -> Result<(), String> {
        for at in 0..self.around[changed].len() {
            let device = self.around[changed][at];
            for hardware in 0..QueueKind::ALL.len() {
                let devices = &self.devices;
                let passed = |p: ragtag_hal::Point| {
                    devices[p.timeline.device.0 as usize].value(p.timeline.queue) >= p.value
                };
                let Some(next) = devices[device].next(hardware, passed) else { continue };
                let stage = next.stage;
                let duration = devices[device].duration(next);
                let late = devices[device].hand_over(hardware, next, self.now);
                let nth = devices[device].started + 1;
                if self.spec.faults.contains(&Fault::LostAtCommand { stage: stage as u32, nth }) {
                    self.fail(stage, lost());
                    break;
                }
                self.devices[device].started = nth;
                let more = duration * self.rng.random_range(0..=self.spec.jitter_percent) / 100;
                let while_ns = self.devices[device].unsteady_ns;
                let more = more + if while_ns > 0 { self.rng.random_range(0..=while_ns) } else { 0 };
                let submitted = self.devices[device].start(hardware)?;
                self.memory.start(submitted)?;
                self.started(device, hardware, late, duration.saturating_add(more));
            }
        }
        Ok(())
    }

    /// Records the start of a submission on a hardware queue and schedules its end. `late` delays the start.
    /// A copy waits until the shared links that it uses have finished earlier copies.
    fn started(&mut self, device: usize, hardware: usize, late: Nanoseconds, duration: Nanoseconds) {
        let Some(submitted) = self.devices[device].running(hardware) else { return };
        let stage = submitted.stage;
        let (queue, start_ns) = (submitted.queue, self.now.saturating_add(late));
        let mut end_ns = start_ns.saturating_add(duration);
        if matches!(submitted.job, Job::Read { .. }) {
            return self.at(end_ns, Event::Done { device, hardware, start_ns });
        }
        let observations = &mut self.report.observations;
        observations.stages[stage].queues[queue.index()].start(start_ns);
        if let Job::Copy { end, copy, .. } = &submitted.job {
            let at = edge_of(*end, stage);
            let edge = &mut observations.edges[at];
            edge.work.start(start_ns);
            if crosses(*end, copy) {
                edge.crossings += u64::from(copy.offset == 0);
                edge.bytes += copy.bytes;
                for (link, shared) in self.spec.shared_links.iter().enumerate() {
                    if shared.edges.contains(&at) {
                        let busy_ns = (copy.bytes as f64 * shared.byte_ns).round() as Nanoseconds;
                        let free_ns = self.shared_free[link].max(start_ns).saturating_add(busy_ns);
                        self.shared_free[link] = free_ns;
                        let all_ns = &mut observations.shared_busy_ns[link];
                        *all_ns = all_ns.saturating_add(busy_ns);
                        end_ns = end_ns.max(free_ns);
                    }
                }
            }
        }
        self.at(end_ns, Event::Done { device, hardware, start_ns });
    }

    /// Records the end of a submission that started at `start_ns`.
    fn ended(&mut self, submitted: &Submitted, start_ns: Nanoseconds) {
        let (now, stage, job) = (self.now, submitted.stage, &submitted.job);
        let observations = &mut self.report.observations;
        let work = &mut observations.stages[stage];
        work.queues[submitted.queue.index()].end(now);
        match job {
            Job::Copy { end, copy, .. } => {
                if *end == End::Incoming && copy.offset == 0 {
                    work.waiting.add(now);
                }
                observations.edges[edge_of(*end, stage)].work.end(now);
            }
            Job::Compute { micro_batch, ends, .. } => {
                let computed = if micro_batch.decodes_only() { &mut work.decode } else { &mut work.prefill };
                computed.busy_ns += now - start_ns;
                if *ends {
                    work.waiting.take(now);
                    computed.micro_batches += 1;
                    computed.rows += u64::from(micro_batch.rows());
                }
            }
            _ => {}
        }
        if self.report.spans.len() == self.spec.max_spans {
            self.report.dropped_spans += 1;
            return;
        }
        self.report.spans.push(SimSpan {
            stage: stage as u32,
            queue: submitted.queue,
            kind: job.kind(),
            micro_batch: job.micro_batch(),
            rows: job.rows(),
            start_ns,
            end_ns: now,
        });
    }

    fn done(&mut self, device: usize, hardware: usize, start_ns: Nanoseconds) -> Result<(), String> {
        if self.devices[device].failure.is_some() {
            return Ok(());
        }
        let Some(stage) = self.devices[device].running(hardware).map(|submitted| submitted.stage) else {
            return Err("the end of work that never began".into());
        };
        let submitted = self.devices[device].end(hardware, self.now)?;
        self.memory.end(&submitted)?;
        if matches!(submitted.job, Job::Read { .. }) {
            return self.start_around(device);
        }
        self.ended(&submitted, start_ns);
        if let (Job::Logits { micro_batch, .. }, Some(invariants)) = (&submitted.job, &mut self.invariants) {
            invariants.copied(micro_batch)?;
        }
        if let Job::Sum(summed) = &submitted.job {
            let sum = self.memory.take_sum(stage, summed)?;
            let event = StageEvent::Summed { end: summed.end, transfer: summed.transfer, sum };
            let at = self.now + self.delay();
            self.at(at, Event::Arrive { to: device, message: Message::Stage(stage, event) });
        }
        if let Job::SumPassed(to, passing) = &submitted.job {
            let sum = self.memory.take_passed_sum(stage, passing)?;
            let event = StageEvent::SummedPassed { to: *to, place: passing.place, sum };
            let at = self.now + self.delay();
            self.at(at, Event::Arrive { to: device, message: Message::Stage(stage, event) });
        }
        let downloaded = submitted.queue == QueueKind::Download;
        // Other devices do not wait for their other queues.
        let others = !self.cores[device].computes_ahead() || self.spec.verified;
        let own = (downloaded || others).then_some(device);
        let ends_path = stage + 1 >= self.spec.stages.len();
        let run = (downloaded && ends_path).then_some(self.cores.len());
        for to in own.into_iter().chain(run) {
            if !std::mem::replace(&mut self.mailboxes[to].progress_pending, true) {
                let at = self.now + self.delay();
                self.deliver(to, at, Message::Progress)?;
            }
        }
        self.start_around(device)
    }

    fn run_event(&mut self, event: RunEvent) -> Result<(), String> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            if let Some(invariants) = &mut self.invariants {
                if let RunEvent::Collected { micro_batch, .. } = event {
                    invariants.collected(micro_batch);
                }
                self.report.run_events.push((self.now, event.clone()));
            }
            let mut actions = Vec::new();
            self.run.step(self.now, event, &mut actions).map_err(|e| format!("coordinator: {e}"))?;
            if self.spec.checked {
                self.report.run_actions.extend(actions.iter().cloned());
            }
            self.report.observations.waiting.set(self.now, self.run.counts().waiting);
            for action in actions {
                if let Some(invariants) = &mut self.invariants {
                    invariants.act(&action)?;
                }
                match action {
                    RunAction::Enter { path, micro_batch } => {
                        self.entered += 1;
                        let run = self.cores.len();
                        self.bytes
                            .insert(micro_batch.id, u64::from(micro_batch.rows()) * self.spec.row_bytes);
                        let first = if path == Path::Prefill { self.spec.stages.len() } else { 0 };
                        self.send_to_stage(run, first, StageEvent::HandOff { micro_batch })?;
                    }
                    RunAction::Collect { micro_batch } => {
                        self.bytes.remove(&micro_batch.id);
                        let sampled = self.sample(&micro_batch);
                        events.push_back(RunEvent::Collected { micro_batch: micro_batch.id, sampled });
                    }
                    RunAction::Emit { sequence, token } => {
                        if self.report.outcomes.contains_key(&sequence) {
                            return Err(format!("a token for {sequence}, which has ended"));
                        }
                        self.report.observations.token(self.now, sequence);
                        self.tokens.entry(sequence).or_default().push(token);
                    }
                    RunAction::Finish { sequence, finished } => {
                        let tokens = self.tokens.remove(&sequence).unwrap_or_default();
                        if finished.new_tokens as usize != tokens.len() {
                            return Err(format!("{sequence} miscounts its tokens"));
                        }
                        self.end(sequence, Outcome::Finished { reason: finished.reason, tokens })?;
                    }
                    RunAction::Fail { sequence, error } => self.end(sequence, Outcome::Failed { error })?,
                    RunAction::Stop => self.stopped = true,
                }
            }
        }
        Ok(())
    }

    fn sample(&self, batch: &MicroBatch) -> Vec<Sampled> {
        let wanted = batch.items.iter().filter(|i| i.logits == LogitRows::Last);
        let alive = wanted.filter(|i| !self.report.outcomes.contains_key(&i.sequence));
        let sampled = alive.map(|i| Sampled {
            sequence: i.sequence,
            token: Ok(token_at(i.sequence.0, i.end_position(), self.spec.run.vocabulary)),
        });
        sampled.collect()
    }

    fn end(&mut self, sequence: SequenceId, outcome: Outcome) -> Result<(), String> {
        self.report.observations.ended(self.now, sequence);
        if self.spec.at_once.is_some() && self.next_request < self.spec.requests.len() {
            self.at(self.now, Event::Request { index: self.next_request });
            self.next_request += 1;
        }
        match self.report.outcomes.insert(sequence, outcome) {
            None => Ok(()),
            Some(before) => Err(format!("{sequence} ends again after {before:?}")),
        }
    }

    /// Checks the final state and returns the report.
    fn finish(self) -> Result<SimReport, SimFailure> {
        let violation = |what: String| Err(SimFailure::Violation { at_ns: self.now, what });
        let all = (0..self.spec.requests.len() as u64).map(SequenceId);
        let unfinished: Vec<_> = all.filter(|s| !self.report.outcomes.contains_key(s)).collect();
        if !unfinished.is_empty() {
            return Err(SimFailure::Deadlock { at_ns: self.now, sequences: unfinished });
        }
        let counts = self.run.counts();
        let run = &self.spec.run;
        let ring_blocks = run.kv_ring.map_or(0, |ring| ring.total);
        let home = (counts.waiting, counts.active, counts.in_flight) == (0, 0, 0)
            && (counts.free_credits, counts.free_blocks) == (run.credits, run.kv_blocks)
            && counts.free_ring_blocks == ring_blocks;
        if !home {
            return violation(format!("the coordinator ends with {counts:?}"));
        }
        if !self.stopped
            && let Some(device) = self.cores.iter().position(|core| !core.is_idle())
        {
            return violation(format!("device {device} ends without all its credits"));
        }
        for (index, request) in self.spec.requests.iter().enumerate() {
            let outcome = &self.report.outcomes[&SequenceId(index as u64)];
            if let Err(what) = self.check(index as u64, request, outcome) {
                return violation(format!("sequence {index}, {request:?}: {what}: {outcome:?}"));
            }
        }
        Ok(self.report)
    }

    fn is_stopped_by_spec(&self) -> bool {
        self.spec.faults.iter().any(|fault| matches!(fault, Fault::Stopped { .. }))
    }

    fn check(&self, sequence: u64, request: &SimRequest, outcome: &Outcome) -> Result<(), &'static str> {
        let expected = expected(self.spec, sequence, request);
        match (outcome, expected) {
            (Outcome::Failed { error: Error::Refused(got) }, Err(wanted)) if *got == wanted => Ok(()),
            (Outcome::Failed { error: Error::Stage { stage, device, cause } }, _) => {
                let host = self.hosts.get(*stage as usize);
                let failed = host.is_some_and(|&host| self.devices[host].failure.as_ref() == Some(cause));
                let named = self.labels.get(*stage as usize) == Some(device);
                if failed && named { Ok(()) } else { Err("failed though that device did not, or not so") }
            }
            (Outcome::Failed { error: Error::WrongKeysAndValues { from, stage, to } }, _) => {
                let prefill = self.spec.stages.len();
                let is_wrong = |fault: &Fault| match fault {
                    Fault::WrongBytes { stage, .. } => *stage as usize == prefill,
                    _ => false,
                };
                let wrong = self.spec.verified && self.spec.faults.iter().any(is_wrong);
                let named =
                    [Some(from), Some(to)] == [prefill, *stage as usize].map(|at| self.labels.get(at));
                if wrong && named { Ok(()) } else { Err("failed without wrong keys and values, or not so") }
            }
            (Outcome::Failed { error: Error::Corrupted { .. } }, _) => {
                let wrong = |fault: &Fault| matches!(fault, Fault::WrongBytes { copies: 2.., .. });
                let wrong = self.spec.verified && self.spec.faults.iter().any(wrong);
                if wrong { Ok(()) } else { Err("failed without wrong bytes") }
            }
            (Outcome::Failed { error: Error::Transfer { route: Route::Peer, .. } }, _) => {
                let refused = |fault: &Fault| matches!(fault, Fault::CopyRefused { .. });
                let refused = !self.spec.verified && self.spec.faults.iter().any(refused);
                if refused { Ok(()) } else { Err("failed without a refused copy") }
            }
            (Outcome::Failed { error: Error::Stopped }, _) if self.is_stopped_by_spec() => Ok(()),
            (Outcome::Finished { reason: FinishReason::Cancelled, tokens }, Ok((_, all))) => {
                let asked = request.cancel_ns.is_some() || self.is_stopped_by_spec();
                if asked && all.starts_with(tokens) { Ok(()) } else { Err("cancelled wrongly") }
            }
            (Outcome::Finished { reason, tokens }, Ok((wanted, all))) => {
                if *reason == wanted && *tokens == all { Ok(()) } else { Err("not what was to come") }
            }
            _ => Err("ended in the wrong way"),
        }
    }
}

/// Returns the index of the edge at one end of a stage.
fn edge_of(end: End, stage: usize) -> usize {
    match end {
        End::Incoming => stage - 1,
        End::Outgoing => stage,
    }
}

/// Returns whether a copy brings activations to another device, or to a ring on the way there.
fn crosses(end: End, copy: &Copy) -> bool {
    match copy.other {
        OtherEnd::Ring { .. } => end == End::Outgoing,
        OtherEnd::Slot(_) => true,
        OtherEnd::None => false,
    }
}

/// Returns the index of the device of each stage. Stages with the same label share a device.
pub(super) fn hosts(spec: &SimSpec) -> Vec<usize> {
    let mut labels = Vec::new();
    let mut host = |stage: &SimStage| {
        let known = labels.iter().position(|label| *label == stage.device);
        known.unwrap_or_else(|| {
            labels.push(stage.device.clone());
            labels.len() - 1
        })
    };
    spec.all().map(&mut host).collect()
}

fn lost() -> ragtag_hal::Error {
    ragtag_hal::Error::Lost { cause: "made up".into() }
}
