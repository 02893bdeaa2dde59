//! Test of buffers that two devices share.

use crate::*;
use ragtag_hal::AdapterKind;

/// Buffer of the owner whose memory the user imports.
const OWN: u32 = 10;
/// The imported buffer of the user.
const IMPORTED: u32 = 11;
/// A second import of the same memory.
const AGAIN: u32 = 13;
/// Size of the shared buffer in bytes. It is not a whole number of words or pages.
const BYTES: u64 = WORDS as u64 * 4 + 5;
/// Pieces of buffers: the offset in the source, the offset in the destination, and the number of bytes.
const PIECES: [[u64; 3]; 5] = [[0, 3, 1], [5, 4093, 7], [4095, 1, 4098], [1, 8190, 8191], [0, 5, 16379]];

/// Writes `word(index)` to a buffer and waits until the words are there.
#[track_caller]
fn put(bench: &mut Bench, buffer: u32, word: impl Fn(u32) -> u32) {
    bench.fill_region(word);
    let put = bench.commands(QueueKind::Upload, vec![upload(buffer)], &[]);
    bench.wait(put);
}

/// Copies `from` to `to` on a queue and waits for the end of the copy.
#[track_caller]
fn copy(bench: &mut Bench, queue: QueueKind, from: u32, to: u32) {
    let copied = bench.commands(queue, vec![Command::Copy { from: all(from), to: all(to) }], &[]);
    bench.wait(copied);
}

/// Returns word `at` of pseudo-random contents.
fn random(seed: u32) -> impl Fn(u32) -> u32 {
    move |at| (at ^ seed.rotate_left(16)).wrapping_mul(0x9e37_79b1).rotate_left(at % 31) ^ seed
}

/// Returns the bytes of the first [`WORDS`] words of a buffer.
#[track_caller]
fn bytes(bench: &mut Bench, buffer: u32) -> Vec<u8> {
    bench.words(buffer).into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// Copies a piece of `from` to `to` on a queue and waits for the end of the copy.
#[track_caller]
fn copy_piece(bench: &mut Bench, queue: QueueKind, [from, to]: [u32; 2], [start, end, bytes]: [u64; 3]) {
    let part = |buffer: u32, offset: u64| BufferRange { buffer: BufferId(buffer), offset, bytes };
    let copied =
        bench.commands(queue, vec![Command::Copy { from: part(from, start), to: part(to, end) }], &[]);
    bench.wait(copied);
}

/// Checks copies of odd sizes at odd offsets, in both directions.
#[track_caller]
fn shares_pieces(owner: &mut Bench, user: &mut Bench) {
    for (piece, seed) in PIECES.into_iter().zip(1..) {
        let [start, end, length] = piece.map(|number| number as usize);
        put(owner, OWN, random(seed));
        put(user, 2, random(!seed));
        let (mut wanted, sent) = (bytes(owner, OWN), bytes(user, 2));
        copy_piece(user, QueueKind::Download, [2, IMPORTED], piece);
        wanted[end..end + length].copy_from_slice(&sent[start..start + length]);
        assert!(bytes(owner, OWN) == wanted, "{} writes {piece:?}", user.label());

        put(user, 3, random(seed + 7));
        let mut read = bytes(user, 3);
        copy_piece(user, QueueKind::Upload, [AGAIN, 3], piece);
        read[end..end + length].copy_from_slice(&wanted[start..start + length]);
        assert!(bytes(user, 3) == read, "{} reads {piece:?}", user.label());
    }
}

/// Number of transfers with a wait on the device.
const ROUNDS: u32 = 100;

/// Makes `receiver` wait on the device for the points of a queue of `sender`. Returns false if the two devices
/// cannot share a semaphore that `owner` creates.
#[track_caller]
fn waits_for(owner: &mut Bench, user: &mut Bench, is_owner_sender: bool, queue: QueueKind) -> bool {
    let semaphore = owner.device.create_semaphore();
    let (sender, receiver) = if is_owner_sender { (owner, user) } else { (user, owner) };
    let timeline = sender.device.timeline(queue);
    let id = timeline.id();
    receiver.device.import_timeline(timeline).unwrap();
    let Ok(semaphore) = semaphore else { return false };
    sender.device.raise_semaphore(queue, &semaphore).is_ok()
        && receiver.device.await_semaphore(id, &semaphore).is_ok()
}

/// Checks transfers of a shared buffer that the receiver enqueues before the sender's work has ended, as on
/// the import route and on the peer route. Returns whether the user, and whether the owner, waits on the device.
/// Otherwise the host waits.
#[track_caller]
fn enqueues_early(owner: &mut Bench, user: &mut Bench) -> [bool; 2] {
    let copy = |from: u32, to: u32| vec![Command::Copy { from: all(from), to: all(to) }];
    let fill = |to: u32, word: u32| vec![Command::Fill { to: all(to), word }];
    let both = [(true, QueueKind::Compute), (false, QueueKind::Download)];
    let waits = both.map(|(sends, queue)| waits_for(owner, user, sends, queue));
    for round in 1..=ROUNDS {
        let filled = owner.commands(QueueKind::Compute, fill(OWN, round), &[]);
        let read = user.commands(QueueKind::Upload, copy(IMPORTED, 1), &[filled]);
        user.wait(read);
        same(&user.words(1), &expected(|_| round), format!("{} reads in round {round}", user.label()));

        let filled = user.commands(QueueKind::Compute, fill(2, !round), &[]);
        let written = user.commands(QueueKind::Download, copy(2, IMPORTED), &[filled]);
        let read = owner.commands(QueueKind::Upload, copy(OWN, 1), &[written]);
        owner.wait(read);
        same(&owner.words(1), &expected(|_| !round), format!("{} reads in round {round}", owner.label()));
    }
    waits
}

/// Checks that two devices see the memory that `owner` exports, on the queues that routes use and in kernels.
/// The memory must live until both devices have released it, whichever device is first.
/// Returns whether the user waits for the owner on the device, and whether the owner waits for the user so.
#[track_caller]
pub fn shares(owner: &mut Bench, user: &mut Bench) -> [bool; 2] {
    let mut waits = [false; 2];
    for owner_is_first in [true, false] {
        owner.device.create_shared_buffer(BufferId(OWN), BYTES).unwrap();
        // A stage exports its slots once for each neighbour. Both may be stages of one device.
        for id in [IMPORTED, AGAIN] {
            let memory = owner.device.export_buffer(BufferId(OWN)).unwrap();
            user.device.import_buffer(BufferId(id), &memory).unwrap();
        }
        shares_pieces(owner, user);
        if owner_is_first {
            waits = enqueues_early(owner, user);
        }
        user.device.destroy_buffer(BufferId(AGAIN)).unwrap();

        // The import route: the user reads.
        put(owner, OWN, |at| 3 * at);
        copy(user, QueueKind::Upload, IMPORTED, 1);
        same(&user.words(1), &expected(|at| 3 * at), format!("{} reads", user.label()));
        // The peer route: the user writes, and a kernel of the owner reads.
        put(user, 2, |at| 5 * at);
        copy(user, QueueKind::Download, 2, IMPORTED);
        // The bench has no kernel for CPU devices.
        let (command, factor, more) = match owner.device.adapter().kind {
            AdapterKind::Cpu => (Command::Copy { from: all(OWN), to: all(1) }, 5, 0),
            _ => (scale(all(OWN), all(1), 2), 10, 1),
        };
        let computed = owner.commands(QueueKind::Compute, vec![command], &[]);
        owner.wait(computed);
        same(&owner.words(1), &expected(|at| factor * at + more), format!("{} computes", owner.label()));

        let (first, last, id) = match owner_is_first {
            true => (&mut *owner, &mut *user, [OWN, IMPORTED]),
            false => (&mut *user, &mut *owner, [IMPORTED, OWN]),
        };
        first.device.destroy_buffer(BufferId(id[0])).unwrap();
        // A new buffer of the same size gets other memory.
        first.device.create_buffer(BufferId(12), WORDS as u64 * 4).unwrap();
        put(first, 12, |at| 7 * at);
        copy(last, QueueKind::Upload, id[1], 3);
        same(&last.words(3), &expected(|at| 5 * at), format!("{} is last", last.label()));
        first.device.destroy_buffer(BufferId(12)).unwrap();
        last.device.destroy_buffer(BufferId(id[1])).unwrap();
    }
    waits
}
