//! Runs the sender and the receiver of a host-staged transfer against a model of the hardware. The model has
//! two in-order queues and a ring of bytes, and a random scheduler delivers its messages. The test really
//! copies bytes, so an error produces wrong data. Examples are a chunk that is copied too early or twice, and
//! a chunk that is read from an overwritten slot.

#![allow(missing_docs)]

use proptest::prelude::*;
use ragtag_hal::{DeviceId, Point, QueueKind, TimelineId};
use ragtag_transfer::*;
use std::collections::VecDeque;

struct Copy {
    transfer: usize,
    chunk: Chunk,
    waits: Vec<Point>,
    signal: Point,
}

struct Model {
    sender: Sender,
    receiver: Receiver,
    download_points: Points,
    upload_points: Points,
    chunk_bytes: u64,
    depth: u32,
    sources: Vec<Vec<u8>>,
    destinations: Vec<Vec<u8>>,
    /// Number of uploads of each byte of each transfer.
    counts: Vec<Vec<u32>>,
    ring: Vec<u8>,
    downloads: VecDeque<Copy>,
    uploads: VecDeque<Copy>,
    forward: VecDeque<ReceiverEvent>,
    back: VecDeque<ChunkFree>,
    downloaded: u64,
    uploaded: u64,
    next_send: usize,
    opened: usize,
    sent: Vec<usize>,
    received: Vec<usize>,
    most_held: u32,
}

fn timeline(device: u16, queue: QueueKind) -> TimelineId {
    TimelineId { device: DeviceId(device), queue }
}

fn download_points() -> Points {
    Points::new(timeline(0, QueueKind::Download))
}

fn upload_points() -> Points {
    Points::new(timeline(1, QueueKind::Upload))
}

impl Model {
    fn new(route: Route, sizes: &[u64]) -> Self {
        let Route::HostStaged { chunk_bytes, depth } = route else { panic!("a staged route") };
        let bytes = |i: usize, n: u64| (0..n).map(|b| (b * 31 + i as u64 * 7 + 1) as u8).collect();
        Self {
            sender: Sender::new(route).unwrap(),
            receiver: Receiver::new(route).unwrap(),
            download_points: download_points(),
            upload_points: upload_points(),
            chunk_bytes,
            depth,
            sources: sizes.iter().enumerate().map(|(i, &n)| bytes(i, n)).collect(),
            destinations: sizes.iter().map(|&n| vec![0; n as usize]).collect(),
            counts: sizes.iter().map(|&n| vec![0; n as usize]).collect(),
            ring: vec![0; (chunk_bytes * u64::from(depth)) as usize],
            downloads: VecDeque::new(),
            uploads: VecDeque::new(),
            forward: VecDeque::new(),
            back: VecDeque::new(),
            downloaded: 0,
            uploaded: 0,
            next_send: 0,
            opened: 0,
            sent: Vec::new(),
            received: Vec::new(),
            most_held: 0,
        }
    }

    fn passed(&self, point: Point) -> bool {
        match (point.timeline.device.0, point.timeline.queue) {
            (0, QueueKind::Download) => self.downloaded >= point.value,
            (1, QueueKind::Upload) => self.uploaded >= point.value,
            (0, QueueKind::Compute) => true,
            other => panic!("unexpected point of {other:?}"),
        }
    }

    fn sender_event(&mut self, event: SenderEvent) {
        let mut actions = Vec::new();
        self.sender.step(event, &mut self.download_points, &mut actions).unwrap();
        for action in actions {
            match action {
                SenderAction::Download { transfer, chunk, waits, signal } => {
                    self.downloads.push_back(Copy { transfer: transfer.0 as usize, chunk, waits, signal });
                }
                SenderAction::Ready(ready) => self.forward.push_back(ReceiverEvent::Ready(ready)),
                SenderAction::Sent { transfer, .. } => self.sent.push(transfer.0 as usize),
            }
        }
        self.most_held = self.most_held.max(self.depth - self.sender.credits());
    }

    fn receiver_event(&mut self, event: ReceiverEvent) {
        let mut actions = Vec::new();
        self.receiver.step(event, &mut self.upload_points, &mut actions).unwrap();
        for action in actions {
            match action {
                ReceiverAction::Upload { transfer, chunk, waits, signal } => {
                    self.uploads.push_back(Copy { transfer: transfer.0 as usize, chunk, waits, signal });
                }
                ReceiverAction::Free(free) => self.back.push_back(free),
                ReceiverAction::Received { transfer, .. } => self.received.push(transfer.0 as usize),
            }
        }
    }

    /// Performs one action of the kind `which`. Returns whether such an action was possible.
    fn act(&mut self, which: u8) -> bool {
        match which {
            0 if self.next_send < self.sources.len() => {
                let i = self.next_send;
                self.next_send += 1;
                let (transfer, bytes) = (TransferId(i as u64), self.sources[i].len() as u64);
                self.forward.push_back(ReceiverEvent::Expect { transfer, bytes });
                let after = timeline(0, QueueKind::Compute).at(i as u64 + 1);
                self.sender_event(SenderEvent::Send { transfer, bytes, after });
            }
            1 if self.receiver.expected() > self.opened - self.received.len() => {
                self.opened += 1;
                self.receiver_event(ReceiverEvent::Open);
            }
            2 if !self.forward.is_empty() => {
                let event = self.forward.pop_front().unwrap();
                self.receiver_event(event);
            }
            3 if !self.back.is_empty() => {
                let free = self.back.pop_front().unwrap();
                self.sender_event(SenderEvent::Free(free));
            }
            4 if self.downloads.front().is_some_and(|c| c.waits.iter().all(|&w| self.passed(w))) => {
                let Copy { transfer, chunk, signal, .. } = self.downloads.pop_front().unwrap();
                let at = (u64::from(chunk.slot) * self.chunk_bytes) as usize;
                let from = &self.sources[transfer][chunk.offset as usize..][..chunk.bytes as usize];
                self.ring[at..][..chunk.bytes as usize].copy_from_slice(from);
                self.downloaded = signal.value;
            }
            5 if self.uploads.front().is_some_and(|c| c.waits.iter().all(|&w| self.passed(w))) => {
                let Copy { transfer, chunk, signal, .. } = self.uploads.pop_front().unwrap();
                let at = (u64::from(chunk.slot) * self.chunk_bytes) as usize;
                for i in 0..chunk.bytes as usize {
                    self.destinations[transfer][chunk.offset as usize + i] = self.ring[at + i];
                    self.counts[transfer][chunk.offset as usize + i] += 1;
                }
                self.uploaded = signal.value;
            }
            _ => return false,
        }
        true
    }

    fn run(&mut self, choices: &[u8]) {
        let mut choices = choices.iter().cycle();
        loop {
            let first = *choices.next().unwrap();
            let acted = (0..6).any(|i| self.act((first + i) % 6));
            if !acted {
                break;
            }
        }
    }
}

proptest! {
    #[test]
    fn every_byte_arrives_once_and_in_order(
        sizes in prop::collection::vec(1u64..200, 1..12),
        chunk_bytes in 1u64..70,
        depth in 1u32..6,
        choices in prop::collection::vec(0u8..6, 1..200),
    ) {
        let mut model = Model::new(Route::HostStaged { chunk_bytes, depth }, &sizes);
        model.run(&choices);
        let all: Vec<usize> = (0..sizes.len()).collect();
        prop_assert_eq!(&model.sent, &all, "it ends, in order");
        prop_assert_eq!(&model.received, &all);
        prop_assert_eq!(&model.destinations, &model.sources);
        prop_assert!(model.counts.iter().flatten().all(|&n| n == 1));
        prop_assert!(model.most_held <= depth);
        prop_assert_eq!(model.sender.credits(), depth, "all credits are back");
        prop_assert!(model.sender.is_idle());
    }
}

#[test]
fn downloads_overlap_uploads() {
    let mut model = Model::new(Route::HostStaged { chunk_bytes: 10, depth: 2 }, &[40]);
    assert!(model.act(0) && model.act(2) && model.act(1) && model.act(2) && model.act(2));
    // Both slots are being filled by downloads. The first upload was submitted before either download
    // finished.
    assert_eq!((model.downloads.len(), model.uploads.len()), (2, 2));
    assert!(model.act(4) && model.act(5) && model.act(3));
    // Chunk 2 reuses the slot of chunk 0 before chunk 1 has reached the destination.
    assert_eq!(model.downloads.len(), 2);
    assert_eq!(model.downloads[1].chunk, Chunk { slot: 0, offset: 20, bytes: 10 });
    assert!(model.downloads[1].waits.contains(&timeline(1, QueueKind::Upload).at(1)));
}

#[test]
fn sender_waits_without_slots_and_is_idle_when_all_are_returned() {
    let route = Route::HostStaged { chunk_bytes: 10, depth: 1 };
    let (mut sender, mut points) = (Sender::new(route).unwrap(), download_points());
    let (after, mut actions) = (timeline(0, QueueKind::Compute).at(1), Vec::new());
    let free = SenderEvent::Free(ChunkFree { slot: 0, after });
    assert_eq!((sender.is_waiting(), sender.is_idle()), (false, true));
    sender
        .step(SenderEvent::Send { transfer: TransferId(1), bytes: 20, after }, &mut points, &mut actions)
        .unwrap();
    assert_eq!((sender.is_waiting(), sender.is_idle()), (true, false));
    // The second chunk takes the slot immediately.
    sender.step(free, &mut points, &mut actions).unwrap();
    assert_eq!((sender.is_waiting(), sender.is_idle()), (false, false));
    sender.step(free, &mut points, &mut actions).unwrap();
    assert_eq!((sender.is_waiting(), sender.is_idle()), (false, true));
}

#[test]
fn nothing_moves_within_one_device() {
    let mut sender = Sender::new(Route::SameDevice).unwrap();
    let mut receiver = Receiver::new(Route::SameDevice).unwrap();
    let (mut downloads, mut uploads) = (download_points(), upload_points());
    let (transfer, after) = (TransferId(3), timeline(0, QueueKind::Compute).at(9));
    let mut sent = Vec::new();
    sender.step(SenderEvent::Send { transfer, bytes: 100, after }, &mut downloads, &mut sent).unwrap();
    assert_eq!(sent, [SenderAction::Sent { transfer, at: after }]);
    let mut received = Vec::new();
    receiver.step(ReceiverEvent::Expect { transfer, bytes: 100 }, &mut uploads, &mut received).unwrap();
    receiver.step(ReceiverEvent::Open, &mut uploads, &mut received).unwrap();
    assert_eq!(received, [ReceiverAction::Received { transfer, at: None }]);
}

#[test]
fn rejects_reserved_routes_and_empty_rings() {
    assert_eq!(Sender::new(Route::Peer).unwrap_err(), Error::Unavailable(Route::Peer));
    assert_eq!(Receiver::new(Route::Import).unwrap_err(), Error::Unavailable(Route::Import));
    for (chunk_bytes, depth) in [(0, 4), (4, 0)] {
        let route = Route::HostStaged { chunk_bytes, depth };
        assert_eq!(Sender::new(route).unwrap_err(), Error::EmptyRing { chunk_bytes, depth });
        assert_eq!(Receiver::new(route).unwrap_err(), Error::EmptyRing { chunk_bytes, depth });
    }
}

#[test]
fn reports_protocol_violations() {
    let route = Route::HostStaged { chunk_bytes: 10, depth: 2 };
    let ready = timeline(0, QueueKind::Download).at(1);
    let new_sender = || Sender::new(route).unwrap();
    let new_receiver = || Receiver::new(route).unwrap();
    let send_to = |sender: &mut Sender, event| sender.step(event, &mut download_points(), &mut Vec::new());
    let give = |receiver: &mut Receiver, event| receiver.step(event, &mut upload_points(), &mut Vec::new());
    let protocol =
        |result: Result<(), Error>| assert!(matches!(result, Err(Error::Protocol { .. })), "{result:?}");

    let mut sender = new_sender();
    protocol(send_to(&mut sender, SenderEvent::Free(ChunkFree { slot: 0, after: ready })));
    // 2 is the first slot number that is not in the ring.
    protocol(send_to(&mut sender, SenderEvent::Free(ChunkFree { slot: 2, after: ready })));
    let send = |id, bytes| SenderEvent::Send { transfer: TransferId(id), bytes, after: ready };
    assert_eq!(send_to(&mut sender, send(1, 0)), Err(Error::Empty(TransferId(1))));
    send_to(&mut sender, send(1, 5)).unwrap();
    protocol(send_to(&mut sender, send(1, 5)));

    let expect = ReceiverEvent::Expect { transfer: TransferId(1), bytes: 15 };
    let chunk = |offset, bytes, slot| {
        ReceiverEvent::Ready(ChunkReady {
            transfer: TransferId(1),
            chunk: Chunk { slot, offset, bytes },
            ready,
        })
    };
    protocol(give(&mut new_receiver(), ReceiverEvent::Open));
    let wrong = [chunk(5, 10, 0), chunk(0, 11, 0), chunk(0, 0, 0), chunk(0, 10, 2)];
    for wrong in wrong {
        let mut receiver = new_receiver();
        give(&mut receiver, expect).unwrap();
        give(&mut receiver, ReceiverEvent::Open).unwrap();
        protocol(give(&mut receiver, wrong));
    }
    // The last chunk must not exceed the transfer.
    let mut receiver = new_receiver();
    for event in [expect, ReceiverEvent::Open, chunk(0, 10, 0)] {
        give(&mut receiver, event).unwrap();
    }
    protocol(give(&mut receiver, chunk(10, 6, 1)));
    let mut receiver = new_receiver();
    for _ in 0..2 {
        give(&mut receiver, chunk(0, 10, 0)).unwrap();
    }
    protocol(give(&mut receiver, chunk(0, 10, 0)));
}

#[test]
fn errors_name_the_transfer() {
    assert_eq!(Error::Empty(TransferId(3)).to_string(), "transfer 3 has no bytes");
}
