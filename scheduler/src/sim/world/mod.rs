//! The simulator's event loop, which connects the virtual clock, the mailboxes, the devices and the cores.

mod clients;
mod hardware;
mod interpreter;
mod mailboxes;
mod passing;
mod queue;
mod replacement;
mod result;
mod topology;
mod verify;

use crate::capacity::Lanes;
use crate::core::{
    DeviceCore, DeviceEvent, MicroBatchId, Nanoseconds, Path, Progress, QueuePoints, RunCore, RunEvent,
    SequenceId, StageEvent,
};
use crate::error::Error;
use crate::sim::device::{SimDevice, timeline};
use crate::sim::expected::{most_between_entries, most_entries};
use crate::sim::invariants::Invariants;
use crate::sim::memory::Memory;
use crate::sim::observe::Observations;
use crate::sim::spec::{Fault, SimSpec};
use crate::sim::{SimFailure, SimReport};
use clients::Text;
use mailboxes::{Mailboxes, Message};
use queue::{Event, EventQueue};
use ragtag_hal::QueueKind;
use std::collections::BTreeMap;
use topology::Topology;

pub(super) struct World<'a> {
    spec: &'a SimSpec,
    queue: EventQueue,
    mailboxes: Mailboxes<'a>,
    topology: Topology<'a>,
    /// The devices, followed by the hosts that read weights from the model's file, one for each such stage.
    devices: Vec<SimDevice>,
    /// The core of each device.
    cores: Vec<DeviceCore>,
    memory: Memory,
    run: RunCore,
    /// Activation bytes of each micro-batch in flight.
    bytes: BTreeMap<MicroBatchId, u64>,
    /// Time at which each shared link becomes free.
    shared_free: Vec<Nanoseconds>,
    /// Index of the request that arrives when the next running request ends. Used with [`SimSpec::at_once`].
    next_request: usize,
    /// Number of micro-batches that have entered the pipeline.
    entered: u64,
    stopped: bool,
    /// Whether the pipeline has failed and is to be replaced.
    is_lost: bool,
    /// Invariant checks. Present only if [`SimSpec::checked`] is set.
    invariants: Option<Invariants<'a>>,
    texts: BTreeMap<SequenceId, Text>,
    /// Time of the next tick, if one is scheduled.
    tick_ns: Option<Nanoseconds>,
    report: SimReport,
}

impl<'a> World<'a> {
    /// Creates a pipeline, and schedules its requests and faults.
    pub(super) fn new(spec: &'a SimSpec) -> Result<Self, SimFailure> {
        let mut world = Self::idle(spec)?;
        world.schedule();
        world.schedule_faults();
        Ok(world)
    }

    /// Creates a pipeline to which nothing happens.
    fn idle(spec: &'a SimSpec) -> Result<Self, SimFailure> {
        let impossible = |error: Error| SimFailure::Violation { at_ns: 0, what: error.to_string() };
        let run = RunCore::new(spec.run.clone()).map_err(impossible)?;
        if spec.stages.is_empty() {
            return Err(impossible(Error::spec("the pipeline has no stages")));
        }
        let topology = Topology::new(spec);
        let core = |(device, hosted): (usize, &Vec<usize>)| {
            let shapes: Vec<_> = hosted.iter().map(|&stage| topology.shape(stage)).collect();
            DeviceCore::new(&shapes, QueuePoints::new(|queue| timeline(device, queue))).map_err(impossible)
        };
        let cores = topology.hosted.iter().enumerate().map(core).collect::<Result<Vec<_>, _>>()?;
        let lanes = (0..cores.len()).map(|device| topology.lanes(device));
        let observations = Observations::new(topology.hosts.len(), spec.shared_links.len());
        Ok(Self {
            spec,
            queue: EventQueue::new(spec.seed),
            mailboxes: Mailboxes::new(
                spec,
                topology.networked(),
                lanes.chain([Lanes::of_run(spec.run.credits)]),
            ),
            devices: topology.devices(),
            topology,
            cores,
            memory: Memory::new(spec),
            run,
            bytes: BTreeMap::new(),
            shared_free: vec![0; spec.shared_links.len()],
            next_request: spec.requests.len(),
            entered: 0,
            stopped: false,
            is_lost: false,
            invariants: spec.checked.then(|| Invariants::new(spec)),
            texts: BTreeMap::new(),
            tick_ns: None,
            report: SimReport { observations, ..SimReport::default() },
        })
    }

    /// Schedules the arrivals, pauses and cancellations of the specification.
    fn schedule(&mut self) {
        let run = self.cores.len();
        if let Some(at_once) = self.spec.at_once {
            self.next_request = self.next_request.min(at_once as usize);
        }
        for (index, request) in self.spec.requests.iter().enumerate().take(self.next_request) {
            self.queue.at(request.at_ns, Event::Request { index });
            let sequence = SequenceId(index as u64);
            for (at_ns, event) in [
                (request.pause_ns, RunEvent::Pause { sequence }),
                (request.resume_ns, RunEvent::Resume { sequence }),
                (request.cancel_ns, RunEvent::Cancel { sequence }),
            ] {
                let Some(at_ns) = at_ns else { continue };
                self.queue.at(at_ns, Event::Arrive { to: run, message: Message::Run(event) });
            }
        }
    }

    /// Schedules the timed faults of the specification.
    fn schedule_faults(&mut self) {
        let (run, now) = (self.cores.len(), self.queue.now);
        for fault in &self.spec.faults {
            match *fault {
                Fault::DeviceLost { stage, at_ns } => {
                    let at_ns = at_ns.max(now);
                    self.queue.at(at_ns, Event::Fail { stage: stage as usize, cause: lost() });
                }
                Fault::OutOfMemory { stage } => {
                    let cause = ragtag_hal::Error::OutOfMemory { wanted: 1 << 30, free: Some(1 << 20) };
                    self.queue.at(now, Event::Fail { stage: stage as usize, cause });
                }
                Fault::Slow { stage, queue, by_ns } => {
                    self.devices[self.topology.hosts[stage as usize]].slow_ns[queue.index()] = by_ns;
                }
                Fault::Unsteady { stage, up_to_ns } => {
                    self.devices[self.topology.hosts[stage as usize]].unsteady_ns = up_to_ns;
                }
                Fault::WaitsIgnored { stage } => {
                    self.devices[self.topology.hosts[stage as usize]].ignores_waits = true;
                }
                Fault::Stopped { at_ns } => {
                    self.queue.at(at_ns, Event::Arrive { to: run, message: Message::Run(RunEvent::Stop) });
                }
                Fault::SubmissionRefused { .. }
                | Fault::NoticesRepeated { .. }
                | Fault::LostAtCommand { .. }
                | Fault::HungAtCommand { .. }
                | Fault::MessageLost { .. }
                | Fault::WrongBytes { .. }
                | Fault::CopyRefused { .. }
                | Fault::MessageTwice { .. } => {}
            }
        }
    }

    pub(super) fn run(mut self) -> Result<SimReport, SimFailure> {
        let most_entries = most_entries(self.spec);
        let mut most = most_between_entries(self.spec);
        let (mut entered, mut since_entry) = (self.entered, 0u64);
        while let Some(event) = self.queue.pop() {
            since_entry = if entered == self.entered { since_entry + 1 } else { 0 };
            entered = self.entered;
            if since_entry > most {
                let what = format!("{most} events without a micro-batch that enters");
                return Err(SimFailure::Violation { at_ns: self.queue.now, what });
            }
            if self.entered > most_entries {
                let what = format!("more than {most_entries} micro-batches");
                return Err(SimFailure::Violation { at_ns: self.queue.now, what });
            }
            self.handle_event(event).map_err(|what| SimFailure::Violation { at_ns: self.queue.now, what })?;
            if std::mem::take(&mut self.is_lost) {
                self = self.replaced()?;
                (most, since_entry) = (most_between_entries(self.spec), 0);
            }
        }
        self.report.makespan_ns = self.queue.now;
        self.report.observations.close(self.queue.now);
        self.finish()
    }

    fn handle_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Request { index } => self.request(index),
            Event::Arrive { to, message } => self.mailboxes.arrive(&mut self.queue, to, message),
            Event::Handle { actor } => {
                if let Some(message) = self.mailboxes.take(actor) {
                    self.handle(actor, message)?;
                }
                self.mailboxes.wake(&mut self.queue, actor);
            }
            Event::Done { device, hardware, start_ns } => self.done(device, hardware, start_ns)?,
            Event::Fail { stage, cause } => self.fail(stage, cause),
            Event::Restart => {
                let shape = Box::new(self.spec.run.clone());
                self.run_event(RunEvent::Restarted { shape })?;
            }
            Event::Tick => {
                self.tick_ns = None;
                self.run_event(RunEvent::Tick)?;
            }
        }
        Ok(())
    }

    /// Schedules the arrival of a message that uses no bounded queue.
    fn arrives(&mut self, to: usize, message: Message) {
        let at = self.queue.now + self.queue.draw(self.spec.message_ns);
        self.queue.at(at, Event::Arrive { to, message });
    }

    fn handle(&mut self, actor: usize, message: Message) -> Result<(), String> {
        match message {
            Message::Progress => self.progress(actor),
            Message::Stage(stage, event) => {
                if let StageEvent::FromNext(message) = event {
                    self.memory.verified(stage, message)?;
                }
                let at = self.topology.hosted[actor].iter().position(|&other| other == stage);
                let stage = at.ok_or_else(|| format!("stage {stage} is not on device {actor}"))?;
                self.device_event(actor, DeviceEvent::Stage { stage, event })
            }
            Message::Run(RunEvent::Failed { .. }) if self.spec.then.is_some() && !self.stopped => {
                self.is_lost = true;
                self.run_event(RunEvent::Interrupted)
            }
            Message::Run(event) => self.run_event(event),
        }
    }

    /// Reports the progress of a device to its core, or the progress of the last device to the coordinator.
    fn progress(&mut self, actor: usize) -> Result<(), String> {
        let hosts = &self.topology.hosts;
        let repeated = self.spec.faults.iter().any(|fault| match fault {
            Fault::NoticesRepeated { stage } => hosts[*stage as usize] == actor,
            _ => false,
        });
        self.mailboxes.noticed(&mut self.queue, actor, repeated)?;
        if actor == self.cores.len() {
            let chain = self.spec.stages.len();
            for (path, stage) in [(Path::Stages, chain - 1), (Path::Prefill, chain)] {
                let Some(&host) = self.topology.hosts.get(stage) else { break };
                let value = self.devices[host].value(QueueKind::Download);
                self.run_event(RunEvent::Progress { path, value })?;
            }
            return Ok(());
        }
        let [computed, uploaded, downloaded] = [QueueKind::Compute, QueueKind::Upload, QueueKind::Download]
            .map(|queue| self.devices[actor].value(queue));
        self.device_event(actor, DeviceEvent::Progress(Progress { computed, uploaded, downloaded }))
    }
}

fn hung() -> ragtag_hal::Error {
    ragtag_hal::Error::Lost { cause: "made up: it hangs".into() }
}

fn lost() -> ragtag_hal::Error {
    ragtag_hal::Error::Lost { cause: "made up".into() }
}
