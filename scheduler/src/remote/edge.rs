//! An edge to a stage on another host. To the stage of this host, the proxy looks like the actor of that stage, with
//! a ring of its own. The sending proxy reads each piece from the ring once the device has written it. The receiving proxy
//! writes it to the same place of its ring, and then passes the message on.
//!
//! An edge may have several streams, each with a thread at both ends. While one thread encrypts and sends a large piece,
//! the next one takes the next piece. Small messages stay on the stream of the thread that has the turn, so a decode hop
//! wakes no other thread. The receiver puts the messages in order again.

use super::frame::{Head, invalid, read_frame_into};
use super::limits::misfit;
use super::{EdgeMessage, Peer, Stream};
use crate::actor::{Edge, to_next, to_previous};
use crate::core::{RunShape, StageEvent};
use crate::error::Error;
use crate::mailbox::{Envelope, Mailbox};
use crate::message::{DeviceMessage, DeviceUrgent};
use ragtag_hal::{Awaited, Point, Timeline};
use ragtag_transfer::{Piece, ToReceiver, ToSender};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Interval at which a proxy that waits for a device checks whether the run has ended.
const PERIOD: Duration = Duration::from_millis(100);
/// Size of the smallest piece beside which another stream sends, in bytes. Encrypting it takes as long as waking a thread.
const LARGE_BYTES: u64 = 128 << 10;

/// The proxy of a stage on another host at one of its edges.
pub(crate) struct EdgeProxy {
    pub(crate) peer: Arc<Peer>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) sender: EdgeSender,
    pub(crate) receiver: EdgeReceiver,
}

/// The part of a proxy that sends to the other host what the stage of this host has sent to the proxy.
pub(crate) struct EdgeSender {
    pub(crate) mailbox: Mailbox<DeviceMessage, DeviceUrgent>,
    /// Ring and timelines of the stage of this host.
    pub(crate) ring: Ring,
    pub(crate) timelines: Vec<Arc<Timeline>>,
    /// Notice that the proxy arms. The stage of this host puts messages into the quiet queue if it receives activations.
    pub(crate) notice: crate::mailbox::Notice,
    pub(crate) turn: Mutex<Turn>,
}

/// The right to take the next event. One stream has it at a time.
#[derive(Default)]
pub(crate) struct Turn {
    /// Number of the next event.
    next: u64,
    has_ended: bool,
}

/// The part of a proxy that passes what arrives from the other host to the stage of this host.
pub(crate) struct EdgeReceiver {
    /// The stage of this host, as its neighbour sees it.
    pub(crate) to: Option<Edge>,
    /// Whether the stage of this host sends activations.
    pub(crate) sends: bool,
    pub(crate) ring: Ring,
    /// Timeline that stands for the device of the other stage.
    pub(crate) mirror: Arc<Timeline>,
    pub(crate) run: RunShape,
    /// Maximum number of events that wait for an earlier one.
    pub(crate) most_waiting: usize,
    pub(crate) arrivals: Mutex<Arrivals>,
}

/// Events that have arrived.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// Number of the next event to deliver.
    next: u64,
    /// Events that have overtaken it, by number.
    waiting: BTreeMap<u64, StageEvent>,
    /// Value that the mirror has reached.
    passed: u64,
}

/// Memory of a ring between two hosts. It has a single staged route.
#[derive(Clone)]
pub(crate) struct Ring {
    pub(crate) memory: Arc<ragtag_hal::HostRegion>,
    pub(crate) chunk_bytes: u64,
    pub(crate) depth: u32,
}

impl Ring {
    fn range(&self, piece: &Piece) -> io::Result<Range<usize>> {
        if piece.place >= self.depth || piece.bytes > self.chunk_bytes {
            return Err(invalid(&format!("{piece:?} is outside the ring")));
        }
        let start = u64::from(piece.place) * self.chunk_bytes;
        Ok(start as usize..(start + piece.bytes) as usize)
    }
}

impl EdgeProxy {
    /// Serves the edge until the run or the connection ends.
    pub(crate) fn serve(self) {
        let Self { peer, streams, sender, receiver } = self;
        std::thread::scope(|scope| {
            let split = streams.into_iter().map(|stream| (stream.reader, stream.writer));
            let (readers, writers): (Vec<_>, Vec<_>) = split.unzip();
            for mut reader in readers {
                let (peer, receiver) = (&peer, &receiver);
                scope.spawn(move || {
                    if let Err(cause) = receiver.serve(reader.as_mut()) {
                        peer.lose_later(&cause);
                    }
                });
            }
            for mut writer in writers {
                let (peer, sender) = (&peer, &sender);
                scope.spawn(move || match sender.serve(writer.as_mut(), peer) {
                    Ok(()) => peer.end(),
                    Err(cause) => peer.lose_later(&cause),
                });
            }
        });
    }
}

impl EdgeSender {
    /// Sends events until the run ends, together with the other streams of the edge.
    fn serve(&self, writer: &mut dyn Write, peer: &Peer) -> io::Result<()> {
        let mut head = Head::default();
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        while !turn.has_ended {
            let Some(event) = self.next() else {
                turn.has_ended = true;
                break;
            };
            if !self.is_ready(&event, peer) {
                continue;
            }
            let piece = match &event {
                StageEvent::FromPrevious(ToReceiver::Piece { piece, .. }) => Some(*piece),
                _ => None,
            };
            let message = EdgeMessage::Event { number: turn.next, event };
            turn.next += 1;
            if piece.is_some_and(|piece| piece.bytes >= LARGE_BYTES) {
                drop(turn);
                self.send(writer, &mut head, &message, piece)?;
                turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            } else {
                self.send(writer, &mut head, &message, piece)?;
            }
        }
        Ok(())
    }

    /// Waits for the point in an event. Returns `false` if the point never passes.
    fn is_ready(&self, event: &StageEvent, peer: &Peer) -> bool {
        match event {
            StageEvent::FromPrevious(ToReceiver::Piece { ready, .. }) => self.passes(*ready, peer),
            StageEvent::FromNext(ToSender::Place { after, .. }) => self.passes(*after, peer),
            _ => true,
        }
    }

    fn send(
        &self,
        writer: &mut dyn Write,
        head: &mut Head,
        message: &EdgeMessage,
        piece: Option<Piece>,
    ) -> io::Result<()> {
        let Some(piece) = piece else {
            head.fill(message, 0)?;
            return head.send(writer, &[]);
        };
        let bytes = self.ring.memory.read(self.ring.range(&piece)?).map_err(io::Error::other)?;
        head.fill(message, bytes.len())?;
        // When the other host has all bytes, it returns the place, and the device writes there again.
        head.send_released(writer, bytes, LARGE_BYTES as usize)
    }

    /// Waits for an event. Returns `None` if the run ends.
    fn next(&self) -> Option<StageEvent> {
        loop {
            let mut envelope = self.mailbox.poll();
            if envelope.is_none() {
                self.notice.arm();
                envelope = self.mailbox.poll();
            }
            let envelope = match envelope {
                Some(envelope) => envelope,
                None => match self.mailbox.receive(None) {
                    Awaited::Found(envelope) => envelope,
                    Awaited::Nothing => continue,
                    Awaited::Gone => return None,
                },
            };
            match envelope {
                Envelope::Normal(DeviceMessage::Event { event, .. }) => return Some(event),
                Envelope::Normal(_) => {}
                Envelope::Urgent(_) => return None,
            }
        }
    }

    /// Waits until a point of the device of this host has passed. Returns `false` if it never will.
    fn passes(&self, point: Point, peer: &Peer) -> bool {
        let Some(timeline) = self.timelines.iter().find(|timeline| timeline.id() == point.timeline) else {
            return false;
        };
        loop {
            match timeline.wait(point.value, Some(PERIOD)) {
                Ok(true) => return true,
                Ok(false) if !peer.has_ended.load(Ordering::SeqCst) => {}
                // The actor of the device reports its failure.
                Ok(false) | Err(_) => return false,
            }
        }
    }
}

impl EdgeReceiver {
    fn serve(&self, reader: &mut dyn Read) -> io::Result<()> {
        let mut payload = Vec::new();
        loop {
            let message = read_frame_into(reader, self.ring.chunk_bytes as usize, &mut payload)?;
            if let EdgeMessage::Event { number, event } = message {
                self.arrive(number, event, &payload)?;
            }
        }
    }

    /// Passes an event to the stage of this host when all earlier ones have arrived. Its bytes reach the ring at once.
    pub(super) fn arrive(&self, number: u64, event: StageEvent, payload: &[u8]) -> io::Result<()> {
        self.store(&event, payload)?;
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        if number < arrivals.next || arrivals.waiting.len() > self.most_waiting {
            return Err(invalid(&format!("event {number} instead of {}", arrivals.next)));
        }
        if arrivals.waiting.insert(number, event).is_some() {
            return Err(invalid(&format!("two events with the number {number}")));
        }
        loop {
            let next = arrivals.next;
            let Some(event) = arrivals.waiting.remove(&next) else { return Ok(()) };
            arrivals.next += 1;
            self.deliver(event, &mut arrivals.passed)?;
        }
    }

    /// Checks an event, and writes the bytes of a piece to the ring.
    fn store(&self, event: &StageEvent, payload: &[u8]) -> io::Result<()> {
        match event {
            StageEvent::HandOff { micro_batch } => match misfit(micro_batch, &self.run) {
                Some(why) => Err(invalid(&format!("{} is invalid: {why}", micro_batch.id))),
                None => Ok(()),
            },
            StageEvent::FromPrevious(ToReceiver::Piece { piece, .. }) if !self.sends => {
                let range = self.ring.range(piece)?;
                if payload.len() != range.len() {
                    return Err(invalid(&format!("{piece:?} with {} bytes", payload.len())));
                }
                self.ring.memory.write(range).map_err(io::Error::other)?.copy_from_slice(payload);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Passes an event to the stage of this host. `passed` is the value that the mirror has reached.
    fn deliver(&self, event: StageEvent, passed: &mut u64) -> io::Result<()> {
        let delivered = match event {
            StageEvent::HandOff { micro_batch } if !self.sends => {
                to_next(&self.to, StageEvent::HandOff { micro_batch })
            }
            StageEvent::FromPrevious(ToReceiver::Piece { transfer, piece, .. }) if !self.sends => {
                let ready = self.pass(passed);
                to_next(&self.to, StageEvent::FromPrevious(ToReceiver::Piece { transfer, piece, ready }))
            }
            StageEvent::FromPrevious(ToReceiver::Sum { transfer, sum }) if !self.sends => {
                to_next(&self.to, StageEvent::FromPrevious(ToReceiver::Sum { transfer, sum }))
            }
            StageEvent::FromNext(ToSender::Place { place, .. }) if self.sends => {
                let after = self.pass(passed);
                to_previous(&self.to, ToSender::Place { place, after })
            }
            StageEvent::FromNext(verdict @ (ToSender::Confirmed(_) | ToSender::Again { .. }))
                if self.sends =>
            {
                to_previous(&self.to, verdict)
            }
            event => return Err(invalid(&format!("an event that no edge carries: {event:?}"))),
        };
        delivered.map_err(|error: Error| io::Error::other(error.to_string()))
    }

    /// Returns a new point of the mirror, which has passed.
    fn pass(&self, passed: &mut u64) -> Point {
        *passed += 1;
        self.mirror.enqueue(*passed);
        self.mirror.advance(*passed);
        Point { timeline: self.mirror.id(), value: *passed }
    }
}
