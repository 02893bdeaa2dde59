//! An edge to a stage on another host. To the stage of this host, the proxy looks like the actor of that stage, with
//! a ring of its own. The sending proxy reads each piece from the ring once the device has written it. The receiving proxy
//! writes it to the same place of its ring, and then passes the message on.

use super::frame::{Frame, invalid, read_frame_into};
use super::limits::misfit;
use super::{EdgeMessage, Peer, Stream};
use crate::actor::{Edge, to_next, to_previous};
use crate::core::{RunShape, StageEvent};
use crate::error::Error;
use crate::mailbox::{Envelope, Mailbox};
use crate::message::{DeviceMessage, DeviceUrgent};
use ragtag_hal::{Awaited, Point, Timeline};
use ragtag_transfer::{Piece, ToReceiver, ToSender};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Interval at which a proxy that waits for a device checks whether the run has ended.
const PERIOD: Duration = Duration::from_millis(100);

/// The proxy of a stage on another host at one of its edges.
pub(crate) struct EdgeProxy {
    pub(crate) peer: Arc<Peer>,
    pub(crate) stream: Stream,
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
    /// Value that the timeline reaches next.
    pub(crate) next: u64,
    pub(crate) run: RunShape,
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
        let Self { peer, stream: Stream { mut reader, mut writer, .. }, sender, mut receiver } = self;
        std::thread::scope(|scope| {
            let from_peer = scope.spawn(|| {
                if let Err(cause) = receiver.serve(reader.as_mut()) {
                    peer.lose_later(&cause);
                }
            });
            match sender.serve(writer.as_mut(), &peer) {
                Ok(()) => peer.end(),
                Err(cause) => peer.lose_later(&cause),
            }
            let _ = from_peer.join();
        });
    }
}

impl EdgeSender {
    /// Sends events until the run ends.
    fn serve(&self, writer: &mut dyn Write, peer: &Peer) -> io::Result<()> {
        let mut frame = Frame::default();
        while let Some(event) = self.next() {
            if self.fill(&mut frame, event, peer)? {
                frame.send(writer)?;
            }
        }
        Ok(())
    }

    /// Waits for the point in an event, and fills the frame of the event. Returns `false` if the point never passes.
    fn fill(&self, frame: &mut Frame, event: StageEvent, peer: &Peer) -> io::Result<bool> {
        let (point, piece) = match &event {
            StageEvent::FromPrevious(ToReceiver::Piece { ready, piece, .. }) => (Some(*ready), Some(*piece)),
            StageEvent::FromNext(ToSender::Place { after, .. }) => (Some(*after), None),
            _ => (None, None),
        };
        if point.is_some_and(|point| !self.passes(point, peer)) {
            return Ok(false);
        }
        let message = EdgeMessage::Event(event);
        let Some(piece) = piece else { return frame.fill(&message, &[]).map(|()| true) };
        // The lease ends before the other host can return the place.
        let bytes = self.ring.memory.read(self.ring.range(&piece)?).map_err(io::Error::other)?;
        frame.fill(&message, &bytes).map(|()| true)
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
    fn serve(&mut self, reader: &mut dyn Read) -> io::Result<()> {
        let mut payload = Vec::new();
        loop {
            let message = read_frame_into(reader, self.ring.chunk_bytes as usize, &mut payload)?;
            if let EdgeMessage::Event(event) = message {
                self.deliver(event, &payload)?;
            }
        }
    }

    /// Passes an event to the stage of this host.
    pub(super) fn deliver(&mut self, event: StageEvent, payload: &[u8]) -> io::Result<()> {
        let delivered = match event {
            StageEvent::HandOff { micro_batch } if !self.sends => {
                if let Some(why) = misfit(&micro_batch, &self.run) {
                    return Err(invalid(&format!("{} is invalid: {why}", micro_batch.id)));
                }
                to_next(&self.to, StageEvent::HandOff { micro_batch })
            }
            StageEvent::FromPrevious(ToReceiver::Piece { transfer, piece, .. }) if !self.sends => {
                let range = self.ring.range(&piece)?;
                if payload.len() != range.len() {
                    return Err(invalid(&format!("{piece:?} with {} bytes", payload.len())));
                }
                self.ring.memory.write(range).map_err(io::Error::other)?.copy_from_slice(payload);
                let ready = self.pass();
                to_next(&self.to, StageEvent::FromPrevious(ToReceiver::Piece { transfer, piece, ready }))
            }
            StageEvent::FromPrevious(ToReceiver::Sum { transfer, sum }) if !self.sends => {
                to_next(&self.to, StageEvent::FromPrevious(ToReceiver::Sum { transfer, sum }))
            }
            StageEvent::FromNext(ToSender::Place { place, .. }) if self.sends => {
                let after = self.pass();
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
    fn pass(&mut self) -> Point {
        self.next += 1;
        self.mirror.enqueue(self.next);
        self.mirror.advance(self.next);
        Point { timeline: self.mirror.id(), value: self.next }
    }
}
