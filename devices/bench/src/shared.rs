//! Test of buffers that two devices share.

use crate::*;

/// Buffer of the owner whose memory the user imports.
const OWN: u32 = 10;
/// The imported buffer of the user.
const IMPORTED: u32 = 11;

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

/// Checks that two devices see the memory that `owner` exports, on the queues that routes use and in kernels.
/// The memory must live until both devices have released it, whichever device is first.
#[track_caller]
pub fn shares(owner: &mut Bench, user: &mut Bench) {
    for owner_is_first in [true, false] {
        owner.device.create_shared_buffer(BufferId(OWN), WORDS as u64 * 4).unwrap();
        let memory = owner.device.export_buffer(BufferId(OWN)).unwrap();
        user.device.import_buffer(BufferId(IMPORTED), &memory).unwrap();
        drop(memory);

        // The import route: the user reads.
        put(owner, OWN, |at| 3 * at);
        copy(user, QueueKind::Upload, IMPORTED, 1);
        same(&user.words(1), &expected(|at| 3 * at), format!("{} reads", user.label()));
        // The peer route: the user writes, and a kernel of the owner reads.
        put(user, 2, |at| 5 * at);
        copy(user, QueueKind::Download, 2, IMPORTED);
        let computed = owner.commands(QueueKind::Compute, vec![scale(all(OWN), all(1), 2)], &[]);
        owner.wait(computed);
        same(&owner.words(1), &expected(|at| 10 * at + 1), format!("{} computes", owner.label()));

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
}
