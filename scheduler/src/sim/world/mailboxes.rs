//! The mailboxes of the actors. Messages between the same two actors keep their order.

use crate::capacity::Lanes;
use crate::core::{Nanoseconds, RunEvent, StageEvent};
use crate::sim::spec::{Fault, SimSpec};
use crate::sim::world::queue::{Event, EventQueue};
use std::collections::{BTreeMap, VecDeque};

/// A message in a mailbox. A progress message carries no value, because its handler reads the timeline.
#[derive(Clone, Debug)]
pub(super) enum Message {
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
    /// Returns whether a client has sent this message.
    pub(super) fn is_request(&self) -> bool {
        !matches!(
            self,
            Message::Stage(..)
                | Message::Progress
                | Message::Run(RunEvent::Return(_) | RunEvent::Progress { .. } | RunEvent::Failed { .. })
        )
    }

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

/// Maximum number of times that the network loses one message.
const MOST_LOSSES: u32 = 8;

/// Mailboxes of the devices, followed by the coordinator's mailbox.
pub(super) struct Mailboxes<'a> {
    spec: &'a SimSpec,
    /// Host of each actor.
    hosts: Vec<u32>,
    all: Vec<Mailbox>,
    /// Arrival time of the latest message from one actor to another.
    last_arrival: BTreeMap<(usize, usize), Nanoseconds>,
    /// Arrival time of the latest message to an actor about keys and values. A micro-batch that needs them is sent
    /// after it, through the same queue.
    last_passed: BTreeMap<usize, Nanoseconds>,
    /// Number of sent messages.
    sent: u64,
}

impl<'a> Mailboxes<'a> {
    /// `hosts` has the host of each device. The coordinator is on host 0.
    pub(super) fn new(
        spec: &'a SimSpec,
        mut hosts: Vec<u32>,
        capacities: impl IntoIterator<Item = Lanes>,
    ) -> Self {
        hosts.push(0);
        let mailbox = |capacity| Mailbox { capacity, ..Mailbox::default() };
        let all = capacities.into_iter().map(mailbox).collect();
        Self { spec, hosts, all, last_arrival: BTreeMap::new(), last_passed: BTreeMap::new(), sent: 0 }
    }

    /// Puts a message into a mailbox, and wakes its owner.
    pub(super) fn arrive(&mut self, queue: &mut EventQueue, to: usize, message: Message) {
        self.all[to].messages.push_back(message);
        self.wake(queue, to);
    }

    /// Removes all messages of clients from the mailbox of the coordinator, which is the last one.
    pub(super) fn take_requests(&mut self) -> impl Iterator<Item = Message> + use<> {
        let messages = self.all.last_mut().map(|run| std::mem::take(&mut run.messages));
        messages.into_iter().flatten().filter(Message::is_request)
    }

    /// Removes the next message of an actor. The actor handles it, and then calls [`Mailboxes::wake`].
    pub(super) fn take(&mut self, actor: usize) -> Option<Message> {
        let mailbox = &mut self.all[actor];
        mailbox.handling = false;
        let message = mailbox.messages.pop_front()?;
        if let Some(queue) = message.queue() {
            let outstanding = queue.of(&mut mailbox.outstanding);
            assert!(*outstanding > 0, "{message:?} was not sent to mailbox {actor}");
            *outstanding -= 1;
        }
        Some(message)
    }

    /// Schedules the handling of an actor's next message, if there is one.
    pub(super) fn wake(&mut self, queue: &mut EventQueue, actor: usize) {
        let mailbox = &mut self.all[actor];
        if !mailbox.handling && !mailbox.messages.is_empty() {
            mailbox.handling = true;
            let at = queue.now + queue.draw(self.spec.handling_ns);
            queue.at(at, Event::Handle { actor });
        }
    }

    /// Returns the time that a message takes between two hosts.
    fn network_ns(
        &self,
        queue: &mut EventQueue,
        (from, to): (usize, usize),
        message: &Message,
    ) -> Nanoseconds {
        let (network, from, to) = (&self.spec.network, self.hosts[from], self.hosts[to]);
        if from == to {
            return 0;
        }
        let has_latency = !matches!(message, Message::Stage(_, StageEvent::FromPrevious(_)));
        let mut time_ns = if has_latency { network.latency_ns(from, to) } else { 0 };
        let mut again_ns = network.again_ns;
        for _ in 0..if network.lost_per_million > 0 { MOST_LOSSES } else { 0 } {
            if queue.draw(999_999) >= u64::from(network.lost_per_million) {
                break;
            }
            time_ns = time_ns.saturating_add(again_ns);
            again_ns = again_ns.saturating_mul(2);
        }
        time_ns
    }

    /// Sends a message from one actor to another.
    pub(super) fn send(
        &mut self,
        queue: &mut EventQueue,
        (from, to): (usize, usize),
        message: Message,
    ) -> Result<(), String> {
        let nth = self.sent;
        self.sent += 1;
        let lost = self.spec.faults.contains(&Fault::MessageLost { nth });
        let copies =
            if lost { 0 } else { 1 + usize::from(self.spec.faults.contains(&Fault::MessageTwice { nth })) };
        for _ in 0..copies {
            let at = queue.now.saturating_add(queue.draw(self.spec.message_ns));
            let at = at.saturating_add(self.network_ns(queue, (from, to), &message));
            let last = self.last_arrival.entry((from, to)).or_default();
            let mut at = at.max(*last);
            let passed = self.last_passed.entry(to).or_default();
            match message {
                Message::Stage(_, StageEvent::HandOff { .. }) => at = at.max(*passed),
                Message::Stage(_, StageEvent::Passed(_)) => *passed = at.max(*passed),
                _ => {}
            }
            *last = at;
            self.deliver(queue, to, at, message.clone())?;
        }
        Ok(())
    }

    /// Schedules the arrival of a message. Fails if its queue is full.
    fn deliver(
        &mut self,
        queue: &mut EventQueue,
        to: usize,
        at: Nanoseconds,
        message: Message,
    ) -> Result<(), String> {
        let Mailbox { outstanding, capacity, .. } = &mut self.all[to];
        if let Some(lane) = message.queue() {
            *lane.of(outstanding) += 1;
            let (held, capacity) = (*lane.of(outstanding), *lane.of(capacity));
            if held > capacity {
                return Err(format!(
                    "the {lane:?} queue of mailbox {to} holds more than {capacity} messages"
                ));
            }
        }
        queue.at(at, Event::Arrive { to, message });
        Ok(())
    }

    /// Notifies an actor of progress, unless a notice is pending.
    pub(super) fn notify(&mut self, queue: &mut EventQueue, to: usize) -> Result<(), String> {
        if std::mem::replace(&mut self.all[to].progress_pending, true) {
            return Ok(());
        }
        let at = queue.now + queue.draw(self.spec.message_ns);
        self.deliver(queue, to, at, Message::Progress)
    }

    /// Records that an actor handles its notice of progress. Sends it again if `repeated` is set.
    pub(super) fn noticed(
        &mut self,
        queue: &mut EventQueue,
        actor: usize,
        repeated: bool,
    ) -> Result<(), String> {
        self.all[actor].progress_pending = repeated;
        if repeated { self.deliver(queue, actor, queue.now + 1, Message::Progress) } else { Ok(()) }
    }
}
