//! Runs the sender and the receiver of an edge against a model of the hardware. The model has two in-order
//! queues, slots at both ends and a ring, and a random scheduler delivers its messages. The test really
//! copies bytes, so an error produces wrong data. Examples are a piece that is copied too early or twice, and
//! a slot that is overwritten before it was read.

#![allow(missing_docs)]

use proptest::prelude::*;
use ragtag_hal::{DeviceId, Point, QueueKind, TimelineId};
use ragtag_transfer::*;
use std::collections::{BTreeSet, VecDeque};

/// Maximum size of a transfer in bytes.
const MAX_BYTES: u64 = 200;

/// A transfer that was announced to the receiver.
#[derive(Clone, Copy)]
struct Held {
    transfer: usize,
    slot: u32,
    /// Value of the queue's timeline after which the slot is free, or holds the whole transfer.
    at: u64,
}

/// A checksum that one end has requested.
struct WantedSum {
    transfer: TransferId,
    slot: u32,
    bytes: u64,
    after: Point,
}

struct Model {
    sender: Sender,
    receiver: Receiver,
    points: [Points; 2],
    /// Values of the download timeline of device 0 and the upload timeline of device 1.
    passed: [u64; 2],
    copies: [VecDeque<Copy>; 2],
    /// Bytes of the transfers.
    contents: Vec<Vec<u8>>,
    /// Slots of the source and of the destination.
    slots: [Vec<Vec<u8>>; 2],
    free: VecDeque<u32>,
    ring: Vec<u8>,
    forward: VecDeque<ReceiverEvent>,
    back: VecDeque<ToSender>,
    next_send: usize,
    /// Transfers that are done at the source but may still be read there.
    leaving: VecDeque<Held>,
    /// Transfers that are done at the destination but may not have arrived.
    arriving: VecDeque<Held>,
    received: Vec<usize>,
    is_verified: bool,
    sums: [VecDeque<WantedSum>; 2],
    /// Numbers of the copies that write a wrong byte, counted from 0.
    wrong_copies: BTreeSet<usize>,
    copied: usize,
    /// Numbers of the copies over the peer route that the source device refuses, counted from 0.
    refused_copies: BTreeSet<usize>,
    peer_copies: usize,
    /// Refused copies that the sender does not know of.
    refusals: VecDeque<SenderEvent>,
    /// Routes of failed attempts, and the routes that the transfers took instead.
    resent: Vec<(Route, Route)>,
    /// Error that ended the run.
    failure: Option<Error>,
}

fn timeline(device: u16, queue: QueueKind) -> TimelineId {
    TimelineId { device: DeviceId(device), queue }
}

fn queues() -> [Points; 2] {
    [Points::new(timeline(0, QueueKind::Download)), Points::new(timeline(1, QueueKind::Upload))]
}

fn staged(chunk_bytes: u64, depth: u32) -> Route {
    Route::HostStaged { chunk_bytes, depth }
}

impl Model {
    fn new(routes: &Routes, slots: [u32; 2], sizes: &[u64]) -> Self {
        let bytes = |i: usize, n: u64| (0..n).map(|b| (b * 31 + i as u64 * 7 + 1) as u8).collect();
        Self {
            sender: Sender::new(routes, slots[1]).unwrap(),
            receiver: Receiver::new(routes, slots[1]).unwrap(),
            points: queues(),
            passed: [0; 2],
            copies: Default::default(),
            contents: sizes.iter().enumerate().map(|(i, &n)| bytes(i, n)).collect(),
            slots: slots.map(|slots| vec![vec![0; MAX_BYTES as usize]; slots as usize]),
            free: (0..slots[0]).collect(),
            ring: vec![0; routes.staging_bytes() as usize],
            forward: VecDeque::new(),
            back: VecDeque::new(),
            next_send: 0,
            leaving: VecDeque::new(),
            arriving: VecDeque::new(),
            received: Vec::new(),
            is_verified: false,
            sums: Default::default(),
            wrong_copies: BTreeSet::new(),
            copied: 0,
            refused_copies: BTreeSet::new(),
            peer_copies: 0,
            refusals: VecDeque::new(),
            resent: Vec::new(),
            failure: None,
        }
    }

    /// Creates a model in which the receiver verifies all transfers.
    fn verified(routes: &Routes, slots: [u32; 2], sizes: &[u64]) -> Self {
        let model = Self::new(routes, slots, sizes);
        let (sender, receiver) = (model.sender.verified(), model.receiver.verified());
        Self { sender, receiver, is_verified: true, ..model }
    }

    fn has_passed(&self, point: Point) -> bool {
        match (point.timeline.device.0, point.timeline.queue) {
            (0, QueueKind::Compute) => true,
            (0, QueueKind::Download) => self.passed[0] >= point.value,
            (1, QueueKind::Upload) => self.passed[1] >= point.value,
            other => panic!("unexpected point of {other:?}"),
        }
    }

    fn sender_event(&mut self, event: SenderEvent) {
        let mut actions = Vec::new();
        match self.sender.step(event, &mut self.points[0], &mut actions) {
            Err(error @ (Error::Corrupted { .. } | Error::Refused { .. })) => self.failure = Some(error),
            stepped => stepped.unwrap(),
        }
        let mut refused = Vec::new();
        for action in actions {
            let is_refused = |id: &TransferId| refused.iter().any(|copy: &Copy| copy.transfer == *id);
            match action {
                Action::Message(ToReceiver::Written { transfer, .. }) | Action::Done { transfer, .. }
                    if is_refused(&transfer) => {}
                Action::Copy(copy) if self.refuses(&copy) => {
                    self.copies[0].push_back(Copy { other: OtherEnd::None, bytes: 0, ..copy.clone() });
                    refused.push(copy);
                }
                Action::Sum { transfer, slot, bytes, after } => {
                    self.sums[0].push_back(WantedSum { transfer, slot, bytes, after });
                }
                Action::Resent { wrong, over, .. } => self.resent.push((wrong, over)),
                Action::Copy(copy) => self.copies[0].push_back(copy),
                Action::Message(message) => self.forward.push_back(ReceiverEvent::Message(message)),
                Action::Done { transfer, slot, at } => {
                    let transfer = transfer.0 as usize;
                    self.leaving.push_back(Held { transfer, slot, at: at.value });
                }
            }
        }
        for Copy { transfer, slot, other, bytes, waits, .. } in refused {
            let OtherEnd::Slot(to) = other else { panic!("{other:?} is not over the peer route") };
            self.refusals.push_back(SenderEvent::Refused { transfer, slot, to, bytes, after: waits[0] });
        }
    }

    /// Counts a copy over the peer route. Returns whether the source device refuses it.
    fn refuses(&mut self, copy: &Copy) -> bool {
        let is_peer = matches!(copy.other, OtherEnd::Slot(_));
        self.peer_copies += usize::from(is_peer);
        is_peer && self.refused_copies.contains(&(self.peer_copies - 1))
    }

    fn receiver_event(&mut self, event: ReceiverEvent) {
        let mut actions = Vec::new();
        self.receiver.step(event, &mut self.points[1], &mut actions).unwrap();
        for action in actions {
            match action {
                Action::Sum { transfer, slot, bytes, after } => {
                    self.sums[1].push_back(WantedSum { transfer, slot, bytes, after });
                }
                Action::Resent { .. } => panic!("the receiver sends nothing"),
                Action::Copy(copy) => self.copies[1].push_back(copy),
                Action::Message(message) => self.back.push_back(message),
                Action::Done { transfer, slot, at } => {
                    let transfer = transfer.0 as usize;
                    self.arriving.push_back(Held { transfer, slot, at: at.value });
                }
            }
        }
    }

    /// Executes the oldest copy of one end if its points have passed.
    fn copy(&mut self, end: usize) -> bool {
        let ready = self.copies[end].front().is_some_and(|c| c.waits.iter().all(|&w| self.has_passed(w)));
        if !ready {
            return false;
        }
        let Copy { slot, other, offset, bytes, signal, .. } = self.copies[end].pop_front().unwrap();
        let (offset, bytes, slot) = (offset as usize, bytes as usize, slot as usize);
        let [out, into] = &mut self.slots;
        match (other, end) {
            (OtherEnd::Ring { start }, 0) => {
                self.ring[start as usize..][..bytes].copy_from_slice(&out[slot][offset..][..bytes]);
            }
            (OtherEnd::Ring { start }, _) => {
                into[slot][offset..][..bytes].copy_from_slice(&self.ring[start as usize..][..bytes]);
            }
            (OtherEnd::Slot(to), 0) => into[to as usize][..bytes].copy_from_slice(&out[slot][..bytes]),
            (OtherEnd::Slot(from), _) => into[slot][..bytes].copy_from_slice(&out[from as usize][..bytes]),
            (OtherEnd::None, _) => assert_eq!(bytes, 0),
        }
        if bytes > 0 {
            if self.wrong_copies.contains(&self.copied) {
                let wrong = match (other, end) {
                    (OtherEnd::Ring { start }, 0) => &mut self.ring[start as usize],
                    (OtherEnd::Slot(to), 0) => &mut into[to as usize][offset],
                    _ => &mut into[slot][offset],
                };
                // Two wrong copies of a byte must not cancel each other.
                *wrong ^= if end == 0 { 0x40 } else { 0x20 };
            }
            self.copied += 1;
        }
        self.passed[end] = signal.value;
        true
    }

    /// Computes the oldest checksum that one end has requested if its bytes are in the slot.
    fn sum(&mut self, end: usize) -> bool {
        if !self.sums[end].front().is_some_and(|wanted| self.has_passed(wanted.after)) {
            return false;
        }
        let WantedSum { transfer, slot, bytes, .. } = self.sums[end].pop_front().unwrap();
        let held = &self.slots[end][slot as usize][..bytes as usize];
        let sum = held.iter().fold(bytes, |sum, byte| sum.wrapping_mul(257) ^ u64::from(*byte));
        match end {
            0 => self.sender_event(SenderEvent::Summed { transfer, sum }),
            _ => self.receiver_event(ReceiverEvent::Summed { transfer, sum }),
        }
        true
    }

    /// Performs one action of the kind `which`. Returns whether such an action was possible.
    fn act(&mut self, which: u8) -> bool {
        match which {
            0 if self.next_send < self.contents.len() && !self.free.is_empty() => {
                let (i, slot) = (self.next_send, self.free.pop_front().unwrap());
                self.next_send += 1;
                let (transfer, bytes) = (TransferId(i as u64), self.contents[i].len() as u64);
                self.slots[0][slot as usize][..bytes as usize].copy_from_slice(&self.contents[i]);
                self.forward.push_back(ReceiverEvent::Expect { transfer, bytes });
                let after = timeline(0, QueueKind::Compute).at(i as u64 + 1);
                self.sender_event(SenderEvent::Send { transfer, slot, bytes, after });
            }
            1 if self.leaving.front().is_some_and(|held| held.at <= self.passed[0]) => {
                let Held { slot, .. } = self.leaving.pop_front().unwrap();
                // A copy that reads the slot later than this must not succeed.
                self.slots[0][slot as usize].fill(0);
                self.free.push_back(slot);
            }
            2 if !self.forward.is_empty() => {
                let event = self.forward.pop_front().unwrap();
                self.receiver_event(event);
            }
            3 if !self.back.is_empty() => {
                let message = self.back.pop_front().unwrap();
                self.sender_event(SenderEvent::Message(message));
            }
            4 | 5 => return self.copy(usize::from(which - 4)),
            6 if self.arriving.front().is_some_and(|held| held.at <= self.passed[1]) => {
                let Held { transfer, slot, .. } = self.arriving.pop_front().unwrap();
                let wanted = &self.contents[transfer];
                if self.is_verified || self.wrong_copies.is_empty() {
                    assert_eq!(&self.slots[1][slot as usize][..wanted.len()], &wanted[..], "{transfer}");
                }
                self.slots[1][slot as usize].fill(0);
                self.received.push(transfer);
                self.receiver_event(ReceiverEvent::Free(slot));
            }
            7 | 8 => return self.sum(usize::from(which - 7)),
            9 if !self.refusals.is_empty() => {
                let event = self.refusals.pop_front().unwrap();
                self.sender_event(event);
            }
            _ => return false,
        }
        true
    }

    fn run(&mut self, choices: &[u8]) {
        let mut choices = choices.iter().cycle();
        loop {
            let first = *choices.next().unwrap();
            if self.failure.is_some() || !(0..10).any(|i| self.act((first + i) % 10)) {
                break;
            }
        }
        // Messages that were sent before a failure still arrive.
        while let Some(event) = self.forward.pop_front() {
            self.receiver_event(event);
        }
    }
}

fn routes() -> impl Strategy<Value = Routes> {
    let route = || {
        prop_oneof![
            2 => (1u64..70, 1u32..6).prop_map(|(chunk_bytes, depth)| staged(chunk_bytes, depth)),
            1 => Just(Route::Peer),
            1 => Just(Route::Import),
        ]
    };
    let lists = (route(), prop::option::of((1u64..MAX_BYTES, route())));
    lists.prop_map(|(large, small)| {
        let mut routes = Routes::from(large);
        if let Some((most, route)) = small {
            routes.0.insert(0, SizedRoute { up_to_bytes: Some(most), route });
        }
        if routes.check().is_ok() { routes } else { large.into() }
    })
}

proptest! {
    #[test]
    fn every_transfer_arrives_once_whole_and_in_order(
        routes in routes(),
        slots in [1u32..5, 1u32..5],
        sizes in prop::collection::vec(1u64..MAX_BYTES, 1..12),
        choices in prop::collection::vec(0u8..9, 1..200),
        is_verified in any::<bool>(),
    ) {
        let mut model = match is_verified {
            true => Model::verified(&routes, slots, &sizes),
            false => Model::new(&routes, slots, &sizes),
        };
        model.run(&choices);
        prop_assert!(model.resent.is_empty() && model.failure.is_none());
        let all: Vec<usize> = (0..sizes.len()).collect();
        prop_assert_eq!(&model.received, &all, "it ends, in order");
        prop_assert_eq!(model.free.len(), slots[0] as usize, "all slots are free");
        prop_assert!(model.sender.is_idle() && !model.sender.is_waiting());
        prop_assert_eq!((model.receiver.expected(), model.receiver.free_slots()), (0, slots[1] as usize));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Copies write wrong bytes. With verification, the receiver gets the right bytes, or the run ends with
    /// an error. In both cases, it gets each transfer once and in order.
    #[test]
    fn wrong_bytes_never_reach_a_verified_slot(
        routes in routes(),
        slots in [1u32..5, 1u32..5],
        sizes in prop::collection::vec(1u64..MAX_BYTES, 1..12),
        choices in prop::collection::vec(0u8..9, 1..200),
        wrong_copies in prop::collection::btree_set(0usize..60, 1..6),
        is_verified in any::<bool>(),
    ) {
        let mut model = match is_verified {
            true => Model::verified(&routes, slots, &sizes),
            false => Model::new(&routes, slots, &sizes),
        };
        model.wrong_copies = wrong_copies;
        model.run(&choices);
        let all: Vec<usize> = (0..model.received.len()).collect();
        prop_assert_eq!(&model.received, &all, "in order, none twice");
        let wrong = model.wrong_copies.iter().filter(|copy| **copy < model.copied).count();
        match &model.failure {
            Some(Error::Corrupted { .. }) => prop_assert!(is_verified && wrong >= 2),
            Some(other) => panic!("{other}"),
            None => {
                prop_assert_eq!(model.received.len(), sizes.len());
                prop_assert_eq!(model.free.len(), slots[0] as usize, "all slots are free");
                prop_assert!(model.sender.is_idle() && !model.sender.is_waiting());
                let left = (model.receiver.expected(), model.receiver.free_slots());
                prop_assert_eq!(left, (0, slots[1] as usize));
                prop_assert_eq!(is_verified && wrong > 0, !model.resent.is_empty());
            }
        }
    }
}

/// Routes that begin with the peer route, for some sizes or for all. Some lists have no other route.
fn peer_first() -> impl Strategy<Value = Routes> {
    let other = prop_oneof![
        2 => (1u64..70, 1u32..6).prop_map(|(chunk_bytes, depth)| staged(chunk_bytes, depth)),
        1 => Just(Route::Import),
    ];
    (prop::option::of(1u64..MAX_BYTES), prop::option::weighted(0.8, other)).prop_map(
        |(up_to_bytes, other)| {
            let Some(route) = other else { return Route::Peer.into() };
            Routes(vec![
                SizedRoute { up_to_bytes, route: Route::Peer },
                SizedRoute { up_to_bytes: None, route },
            ])
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// The source device refuses copies over the peer route. The next route replaces it, and each transfer
    /// arrives once, whole and in order. If a later transfer has already left over the next route, the run
    /// ends with an error.
    #[test]
    fn the_next_route_replaces_a_route_whose_copy_is_refused(
        routes in peer_first(),
        slots in [1u32..5, 1u32..5],
        sizes in prop::collection::vec(1u64..MAX_BYTES, 1..12),
        choices in prop::collection::vec(0u8..9, 1..200),
        refused_copies in prop::collection::btree_set(0usize..10, 1..6),
    ) {
        let mut model = Model::new(&routes, slots, &sizes);
        model.refused_copies = refused_copies;
        model.run(&choices);
        let all: Vec<usize> = (0..model.received.len()).collect();
        prop_assert_eq!(&model.received, &all, "in order, none twice");
        let refused = model.refused_copies.iter().filter(|copy| **copy < model.peer_copies).count();
        if let Some(error) = &model.failure {
            prop_assert!(matches!(error, Error::Refused { route: Route::Peer, .. }), "{error}");
            // A later transfer takes the next route after the first refusal, before the second one is known.
            let can_pass = routes.0.len() == 1 || routes.0[0].up_to_bytes.is_some() || refused > 1;
            prop_assert!(can_pass, "only sizes that differ, or two refusals, let transfers pass each other");
            return Ok(());
        }
        prop_assert_eq!(model.received.len(), sizes.len());
        prop_assert_eq!(model.free.len(), slots[0] as usize, "all slots are free");
        prop_assert!(model.sender.is_idle() && !model.sender.is_waiting());
        let left = (model.receiver.expected(), model.receiver.free_slots());
        prop_assert_eq!(left, (0, slots[1] as usize));
        prop_assert_eq!(model.resent.len(), refused);
        let in_use = if refused > 0 { routes.0[1].route.into() } else { routes.clone() };
        prop_assert_eq!(model.sender.routes(), in_use);
    }
}

#[test]
fn a_refused_copy_without_another_route_is_an_error() {
    let mut model = Model::new(&Route::Peer.into(), [1, 1], &[20]);
    model.refused_copies = [0].into();
    model.run(&[0]);
    assert_eq!(model.failure, Some(Error::Refused { transfer: TransferId(0), route: Route::Peer }));
    // The event is for transfers that were sent over the peer route and are not verified.
    let after = timeline(0, QueueKind::Compute).at(1);
    let refused = SenderEvent::Refused { transfer: TransferId(0), slot: 0, to: 0, bytes: 20, after };
    for sender in [Sender::new(&Route::Peer.into(), 1), Sender::new(&staged(8, 1).into(), 1)] {
        let stepped = sender.unwrap().step(refused, &mut queues()[0], &mut Vec::new());
        assert!(matches!(stepped, Err(Error::Protocol { .. })), "{stepped:?}");
    }
}

/// Runs two transfers of 20 bytes over verified routes. The copies in `wrong` write wrong bytes.
fn with_wrong_copies(routes: &Routes, wrong: impl IntoIterator<Item = usize>) -> Model {
    let mut model = Model::verified(routes, [2, 1], &[20, 20]);
    model.wrong_copies = wrong.into_iter().collect();
    model.run(&[0, 1, 2, 3, 4, 5, 6, 7, 8]);
    model
}

#[test]
fn the_next_route_replaces_a_route_with_wrong_bytes() {
    let ring = staged(32, 2);
    for first in [Route::Peer, Route::Import] {
        let sized = |route| SizedRoute { up_to_bytes: None, route };
        let routes = Routes([first, ring].map(sized).into());
        assert_eq!(with_wrong_copies(&routes, []).sender.routes(), routes);
        let model = with_wrong_copies(&routes, [0]);
        assert_eq!((model.resent, model.received), (vec![(first, ring)], vec![0, 1]));
        // The second transfer takes the new route at once: one copy at each end.
        assert_eq!((model.copied, model.sender.routes()), (5, ring.into()));
    }
}

#[test]
fn the_only_route_is_used_once_more_before_the_error() {
    for (route, copies) in [(staged(32, 2), 2), (Route::Peer, 1), (Route::Import, 1)] {
        let once = with_wrong_copies(&route.into(), [0]);
        assert_eq!((once.resent, once.received), (vec![(route, route)], vec![0, 1]));
        assert_eq!(once.sender.routes(), route.into());
        let twice = with_wrong_copies(&route.into(), [0, copies]);
        let transfer = TransferId(0);
        assert_eq!(twice.failure, Some(Error::Corrupted { transfer, route }));
        assert!(twice.received.is_empty());
        // A later transfer has a second attempt of its own.
        let apart = with_wrong_copies(&route.into(), [0, 2 * copies]);
        assert_eq!((apart.failure, apart.received), (None, vec![0, 1]));
    }
}

#[test]
fn a_verified_slot_stays_in_use_until_it_is_confirmed() {
    let mut model = Model::verified(&staged(32, 2).into(), [2, 2], &[20, 20]);
    // Everything but the checksums.
    while (0..7).any(|which| model.act(which)) {}
    assert!(model.leaving.is_empty() && model.arriving.is_empty() && model.sender.is_waiting());
    assert_eq!((model.copied, model.receiver.expected()), (2, 2), "the second transfer waits");
    assert!(model.sum(0) && model.sum(1));
    assert!(!model.act(6), "the sender's checksum has not arrived");
    model.run(&[0]);
    assert_eq!(model.received, [0, 1]);
}

#[test]
fn copies_name_their_routes() {
    let sized = |up_to_bytes, route| SizedRoute { up_to_bytes, route };
    let rings = [staged(8, 3), staged(10, 2)];
    let all = [sized(Some(8), rings[0]), sized(Some(99), Route::Peer), sized(None, rings[1])];
    let routes = Routes(all.into());
    let copy = |other| {
        let (transfer, signal) = (TransferId(0), timeline(0, QueueKind::Download).at(1));
        Copy { transfer, slot: 0, other, offset: 0, bytes: 1, waits: Vec::new(), signal }
    };
    let ring = |start| routes.of_copy(&copy(OtherEnd::Ring { start }), true);
    let [first, second] = rings.map(Some);
    assert_eq!([0, 23, 24, 43, 44].map(ring), [first, first, second, second, None]);
    let of = |other, is_outgoing| routes.of_copy(&copy(other), is_outgoing);
    assert_eq!([of(OtherEnd::Slot(0), true), of(OtherEnd::None, false)], [Some(Route::Peer); 2]);
    assert_eq!([of(OtherEnd::Slot(0), false), of(OtherEnd::None, true)], [None; 2], "no import route");
}

#[test]
fn downloads_overlap_uploads() {
    let mut model = Model::new(&staged(10, 2).into(), [1, 1], &[40]);
    assert!(model.act(0) && model.act(2) && model.act(2) && model.act(2));
    // Both places are being filled by downloads. The first upload was submitted before either download
    // finished.
    assert_eq!((model.copies[0].len(), model.copies[1].len()), (2, 2));
    assert!(model.act(4) && model.act(5) && model.act(3));
    // The third piece reuses the place of the first one before the second one has reached the destination.
    assert_eq!(model.copies[0].len(), 2);
    let third = &model.copies[0][1];
    assert_eq!((third.other, third.offset), (OtherEnd::Ring { start: 0 }, 20));
    assert!(third.waits.contains(&timeline(1, QueueKind::Upload).at(1)));
}

#[test]
fn rings_of_one_edge_do_not_overlap() {
    let sized = |up_to_bytes, route| SizedRoute { up_to_bytes, route };
    let routes = Routes(vec![sized(Some(8), staged(8, 3)), sized(None, staged(10, 2))]);
    let (mut sender, mut points) = (Sender::new(&routes, 4).unwrap(), queues());
    let mut actions = Vec::new();
    for (id, bytes) in [(0, 8), (1, 20)] {
        let after = timeline(0, QueueKind::Compute).at(id + 1);
        let send = SenderEvent::Send { transfer: TransferId(id), slot: id as u32, bytes, after };
        sender.step(send, &mut points[0], &mut actions).unwrap();
    }
    let places = actions.iter().filter_map(|action| match action {
        Action::Copy(Copy { other: OtherEnd::Ring { start }, bytes, .. }) => Some((*start, *bytes)),
        _ => None,
    });
    assert_eq!(places.collect::<Vec<_>>(), [(0, 8), (24, 10), (34, 10)]);
}

#[test]
fn sender_waits_without_places_and_is_idle_when_all_are_returned() {
    let (mut sender, mut points) = (Sender::new(&staged(10, 1).into(), 1).unwrap(), queues());
    let (after, mut actions) = (timeline(0, QueueKind::Compute).at(1), Vec::new());
    let free = SenderEvent::Message(ToSender::Place { place: 0, after });
    assert_eq!((sender.is_waiting(), sender.is_idle()), (false, true));
    let send = SenderEvent::Send { transfer: TransferId(1), slot: 0, bytes: 20, after };
    sender.step(send, &mut points[0], &mut actions).unwrap();
    assert_eq!((sender.is_waiting(), sender.is_idle()), (true, false));
    // The second piece takes the place immediately.
    sender.step(free, &mut points[0], &mut actions).unwrap();
    assert_eq!((sender.is_waiting(), sender.is_idle()), (false, false));
    sender.step(free, &mut points[0], &mut actions).unwrap();
    assert_eq!((sender.is_waiting(), sender.is_idle()), (false, true));
}

#[test]
fn reports_protocol_violations() {
    let ready = timeline(0, QueueKind::Download).at(1);
    let sender = |route: Route| Sender::new(&route.into(), 1).unwrap();
    let receiver = |route: Route| Receiver::new(&route.into(), 1).unwrap();
    let send_to = |sender: &mut Sender, event| sender.step(event, &mut queues()[0], &mut Vec::new());
    let give = |receiver: &mut Receiver, event| receiver.step(event, &mut queues()[1], &mut Vec::new());
    let protocol =
        |result: Result<(), Error>| assert!(matches!(result, Err(Error::Protocol { .. })), "{result:?}");
    let place = |place| SenderEvent::Message(ToSender::Place { place, after: ready });

    let mut staging = sender(staged(10, 2));
    protocol(send_to(&mut staging, place(0)));
    // 2 is the first place that is not in the ring.
    protocol(send_to(&mut staging, place(2)));
    let send = |id, bytes| SenderEvent::Send { transfer: TransferId(id), slot: 0, bytes, after: ready };
    assert_eq!(send_to(&mut staging, send(1, 0)), Err(Error::Empty(TransferId(1))));
    send_to(&mut staging, send(1, 5)).unwrap();
    protocol(send_to(&mut staging, send(1, 5)));
    protocol(send_to(&mut staging, SenderEvent::Message(ToSender::Slot(0))));
    protocol(send_to(&mut sender(Route::Peer), SenderEvent::Message(ToSender::Slot(0))));
    let read = SenderEvent::Message(ToSender::Read { transfer: TransferId(0), after: ready });
    protocol(send_to(&mut sender(Route::Import), read));

    let expect = ReceiverEvent::Expect { transfer: TransferId(1), bytes: 15 };
    let piece = |offset, bytes, place| {
        let (transfer, piece) = (TransferId(1), Piece { place, offset, bytes });
        ReceiverEvent::Message(ToReceiver::Piece { transfer, piece, ready })
    };
    protocol(give(&mut receiver(staged(10, 2)), ReceiverEvent::Free(0)));
    for wrong in [piece(5, 10, 0), piece(0, 11, 0), piece(0, 0, 0), piece(0, 10, 2)] {
        let mut receiver = receiver(staged(10, 2));
        give(&mut receiver, expect).unwrap();
        protocol(give(&mut receiver, wrong));
    }
    // The last piece must not exceed the transfer.
    let mut staging = receiver(staged(10, 2));
    for event in [expect, piece(0, 10, 0)] {
        give(&mut staging, event).unwrap();
    }
    protocol(give(&mut staging, expect));
    protocol(give(&mut staging, piece(10, 6, 1)));
    let mut staging = receiver(staged(10, 2));
    for _ in 0..2 {
        give(&mut staging, piece(0, 10, 0)).unwrap();
    }
    protocol(give(&mut staging, piece(0, 10, 0)));

    // Messages and events that only verified transfers have.
    let (transfer, sum) = (TransferId(1), 7);
    protocol(send_to(&mut sender(Route::Peer), SenderEvent::Summed { transfer, sum }));
    for message in [ToSender::Confirmed(transfer), ToSender::Again { transfer, slot: 0 }] {
        protocol(send_to(&mut sender(Route::Peer), SenderEvent::Message(message)));
        protocol(send_to(&mut sender(Route::Peer).verified(), SenderEvent::Message(message)));
    }
    let message = ReceiverEvent::Message(ToReceiver::Sum { transfer, sum });
    for event in [ReceiverEvent::Summed { transfer, sum }, message] {
        protocol(give(&mut receiver(Route::Peer), event));
    }
    let mut verifying = receiver(Route::Peer).verified();
    protocol(give(&mut verifying, ReceiverEvent::Summed { transfer, sum }));
    give(&mut verifying, message).unwrap();
    protocol(give(&mut verifying, message));

    // Over the peer route, a later transfer may arrive first.
    for (route, id, slot) in [(Route::Peer, 0, 0), (Route::Peer, 1, 1), (Route::Import, 2, 0)] {
        let mut receiver = receiver(route);
        give(&mut receiver, expect).unwrap();
        let transfer = TransferId(id);
        let message = match route {
            Route::Peer => ToReceiver::Written { transfer, slot, ready },
            _ => ToReceiver::Readable { transfer, slot, ready },
        };
        protocol(give(&mut receiver, ReceiverEvent::Message(message)));
    }
}

#[test]
fn errors_name_the_transfer() {
    let transfer = TransferId(3);
    assert_eq!(Error::Empty(transfer).to_string(), "transfer 3 has no bytes");
    let corrupted = Error::Corrupted { transfer, route: Route::Peer };
    assert_eq!(corrupted.to_string(), "transfer 3 arrived twice with wrong bytes over the peer route");
}
