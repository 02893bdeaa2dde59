//! Engines execute submitted commands, each on its own thread. All queues with the same ordinal and index share
//! an engine, as on a real device. An engine that waits for an event therefore blocks later work of all these
//! queues.
//!
//! Level Zero orders the commands of a list only by events and barriers. Between two barriers, an engine
//! therefore runs the last command first, unless its events forbid it, so that a missing barrier shows.

use crate::calls::lock;
use crate::cl::{Argument, Cl, Queue as ClQueue, cl};
use crate::device::Device;
use crate::event::Event;
use crate::faults::{Call, copy_delay, misuse};
use crate::memory::{check_argument, check_range};
use crate::module::KernelCode;
use crate::queue::{Queue, wait_until};
use crate::types::code::UNKNOWN;
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// Effect of a command.
pub enum Action {
    /// Only waits and signals.
    Nothing,
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    Fill {
        to: usize,
        pattern: Vec<u8>,
        bytes: usize,
    },
    Launch {
        kernel: Arc<KernelCode>,
        arguments: Vec<Argument>,
        groups: [u32; 3],
        group: [u32; 3],
    },
    Reset(Arc<Event>),
    /// Writes the device's clock to an address.
    Timestamp(usize),
}

/// Command of a list.
pub struct Command {
    pub action: Action,
    pub waits: Vec<Arc<Event>>,
    pub signal: Option<Arc<Event>>,
}

impl Command {
    /// Returns whether all earlier commands end before this one, and all later ones start after it.
    fn is_barrier(&self) -> bool {
        matches!(self.action, Action::Nothing | Action::Reset(_))
    }

    fn is_ready(&self) -> bool {
        self.waits.iter().all(|event| event.is_signalled())
    }

    /// Returns all events that the command uses.
    pub fn events(&self) -> impl Iterator<Item = &Arc<Event>> {
        let reset = if let Action::Reset(event) = &self.action { Some(event) } else { None };
        self.waits.iter().chain(&self.signal).chain(reset)
    }
}

/// Commands that a queue received in one call.
pub struct Submission {
    /// Whether the commands come from an immediate list.
    pub is_immediate: bool,
    pub commands: Arc<Vec<Command>>,
    pub fence: Option<Arc<Event>>,
    pub queue: Arc<Queue>,
}

impl Submission {
    /// Returns whether the commands and the list's next command may run in any order.
    fn is_loose(&self) -> bool {
        self.is_immediate && !self.commands.iter().any(Command::is_barrier)
    }
}

/// Thread that executes commands.
pub struct Engine(Mutex<Sender<Submission>>);

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Engine")
    }
}

impl Engine {
    /// Starts an engine of a device.
    pub fn start(device: Arc<Device>) -> crate::types::Result<Self> {
        let cl = cl()?;
        let queue = ClQueue::new(cl).ok_or(UNKNOWN)?;
        let (sender, receiver) = channel();
        let run = Run { cl, queue, device, dirty: false, signal: None };
        let builder = std::thread::Builder::new().name("level-zero engine".into());
        builder.spawn(move || run.all(receiver)).map_err(|_| UNKNOWN)?;
        Ok(Self(Mutex::new(sender)))
    }

    pub fn submit(&self, submission: Submission) {
        for event in submission.commands.iter().flat_map(Command::events) {
            event.retain();
        }
        // The thread ends with the process.
        let _ = lock(&self.0).send(submission);
    }
}

/// State of an engine's thread.
struct Run {
    cl: &'static Cl,
    queue: ClQueue,
    device: Arc<Device>,
    /// Whether commands may be running in OpenCL's queue.
    dirty: bool,
    /// Signal of the last command. The host may destroy everything that the command used once it sees the
    /// signal, so the engine first releases these objects.
    signal: Option<Signal>,
}

/// Event of a command that has ended, with the start and the end of the command unless the device was lost.
struct Signal(Arc<Event>, Option<[u64; 2]>);

impl Run {
    fn all(mut self, receiver: Receiver<Submission>) {
        let mut next = receiver.recv().ok();
        while let Some(first) = next.take() {
            let mut batch = vec![first];
            // Commands that an immediate list appended without a barrier form one batch.
            let is_alone = self.device.record().may_lose();
            while batch.last().is_some_and(Submission::is_loose) && next.is_none() && !is_alone {
                match receiver.try_recv() {
                    Ok(more) if more.is_loose() && Arc::ptr_eq(&more.queue, &batch[0].queue) => {
                        batch.push(more)
                    }
                    Ok(more) => next = Some(more),
                    Err(_) => break,
                }
            }
            // A loss shows in the device's state.
            let _ = self.device.passes(Call::Wait);
            self.run(&batch);
            batch.into_iter().for_each(|submission| self.ended(submission));
            self.give_signal();
            next = next.or_else(|| receiver.recv().ok());
        }
    }

    /// Executes the commands of a batch and waits for them.
    fn run(&mut self, batch: &[Submission]) {
        let mut commands: Vec<&Command> = batch.iter().flat_map(|one| &*one.commands).collect();
        commands.reverse();
        while let Some(last) = commands.pop() {
            let mut free = vec![last];
            while !last.is_barrier() && commands.last().is_some_and(|next| !next.is_barrier()) {
                free.extend(commands.pop());
            }
            self.run_unordered(free);
        }
        let _ = self.finish();
    }

    /// Executes commands that no barrier separates. Starts with the last one whose events allow it.
    fn run_unordered(&mut self, mut commands: Vec<&Command>) {
        while !commands.is_empty() {
            self.give_signal();
            let mut ready = commands.iter().rposition(|command| command.is_ready());
            if ready.is_none() && !self.device.is_lost() && self.finish().is_some() {
                let any = || commands.iter().any(|command| command.is_ready());
                wait_until(u64::MAX, || any() || self.device.is_lost());
                ready = commands.iter().rposition(|command| command.is_ready());
            }
            let command = commands.remove(ready.unwrap_or(0));
            let stamps = if self.device.is_lost() { None } else { self.command(command) };
            let stamps = stamps.filter(|_| !self.device.is_lost());
            self.signal = command.signal.clone().map(|event| Signal(event, stamps));
            command.events().for_each(|event| event.release());
        }
    }

    fn give_signal(&mut self) {
        match self.signal.take() {
            Some(Signal(event, Some(stamps))) => event.signal(stamps),
            Some(Signal(event, None)) => event.lose(),
            None => {}
        }
    }

    fn ended(&self, Submission { commands, fence, queue, .. }: Submission) {
        drop(commands);
        queue.ended();
        if let Some(fence) = fence {
            if self.device.is_lost() { fence.lose() } else { fence.signal([0, 0]) }
        }
    }

    /// Executes a command whose events are signalled. Returns its start and end, which are only exact for
    /// commands with a signal. Returns `None` if the device was lost.
    fn command(&mut self, command: &Command) -> Option<[u64; 2]> {
        if command.signal.is_none() {
            self.act(&command.action)?;
            return Some([0, 0]);
        }
        self.finish()?;
        let start = self.device.ticks();
        self.act(&command.action)?;
        self.finish()?;
        Some([start, self.device.ticks()])
    }

    fn act(&mut self, action: &Action) -> Option<()> {
        let (cl, number) = (self.cl, self.device.number);
        let done = match action {
            Action::Nothing => return Some(()),
            Action::Reset(event) => {
                self.finish()?;
                event.reset();
                return Some(());
            }
            Action::Timestamp(to) => {
                self.finish()?;
                self.allowed(check_range(*to, 8, number))?;
                // SAFETY: the address is in a live allocation or in host memory of the caller.
                unsafe { (*to as *mut u64).write_unaligned(self.device.ticks()) };
                return Some(());
            }
            Action::Copy { to, from, bytes } => {
                copy_delay().into_iter().for_each(std::thread::sleep);
                self.allowed(check_range(*to, *bytes, number))?;
                self.allowed(check_range(*from, *bytes, number))?;
                // SAFETY: the ranges are in live allocations or in host memory of the caller.
                unsafe { self.queue.copy(cl, *to, *from, *bytes) }
            }
            Action::Fill { to, pattern, bytes } => {
                self.allowed(check_range(*to, *bytes, number))?;
                // SAFETY: the range is in a live allocation or in host memory of the caller.
                unsafe { self.queue.fill(cl, *to, pattern, *bytes) }
            }
            Action::Launch { kernel, arguments, groups, group } => {
                for argument in arguments {
                    if let Argument::Address(address) = argument {
                        self.allowed(check_argument(*address, number))?;
                    }
                }
                let kernel = lock(&kernel.kernel);
                // SAFETY: the lock excludes other threads, and the addresses are in live allocations.
                unsafe { self.queue.launch(cl, &kernel, arguments, *groups, *group) }
            }
        };
        self.dirty = true;
        self.ok(done)
    }

    /// Waits for all commands in OpenCL's queue.
    fn finish(&mut self) -> Option<()> {
        if std::mem::take(&mut self.dirty) {
            let done = self.queue.finish(self.cl);
            return self.ok(done);
        }
        Some(())
    }

    /// Loses the device if OpenCL reports an error.
    fn ok(&self, result: Result<(), i32>) -> Option<()> {
        if let Err(code) = result {
            misuse(UNKNOWN, &format!("OpenCL reported the error {code} for a command"));
            self.device.lose();
        }
        result.ok()
    }

    /// Loses the device if memory is no longer valid when a command runs.
    fn allowed(&self, result: Result<(), u32>) -> Option<()> {
        if result.is_err() {
            self.device.lose();
        }
        result.ok()
    }
}
