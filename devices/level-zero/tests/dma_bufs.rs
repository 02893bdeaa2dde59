//! Tests of buffers that another API imports as dma-bufs. On the test driver, files stand for dma-bufs, and the
//! devices of a second backend stand for those of another API.

#![cfg(unix)]
#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::{
    Adapter, BufferId, Command, Device, DmaBuf, Error, Limits, MemoryHandle, QueueKind, SharedMemory,
};
use std::fs::File;
use std::sync::Arc;
use support::*;
use test_drivers::level_zero_faults;

/// Buffer for imports that fail.
const REFUSED: BufferId = BufferId(9);

/// Opens a device of the second backend.
fn stranger(adapter: &Adapter) -> Bench {
    Bench::new(open(&support::backend(), adapter, 1, &Limits::default()))
}

/// Creates and exports a shared buffer of `bytes` bytes.
fn exported(owner: &mut Bench, bytes: u64) -> SharedMemory {
    owner.device.create_shared_buffer(BufferId(9), bytes).unwrap();
    owner.device.export_buffer(BufferId(9)).unwrap()
}

#[test]
fn devices_of_another_backend_import_dma_bufs() {
    let subject = subject_with(&[("RAGTAG_FAKE_DMA_BUFS", "1")]);
    let adapters = subject.adapters();
    for [from, to] in adapters.iter().flat_map(|from| adapters.iter().map(move |to| [from, to])) {
        println!("{} to {}", from.label(), to.label());
        let kind = MemoryHandle::DmaBuf;
        assert!(from.caps.sharing.exports.contains(&kind) && to.caps.sharing.imports.contains(&kind));
        assert_eq!(to.imports_from(from), from.index == to.index, "only a probe enables the import");
        let mut owner = Bench::new(open(&subject.backend, from, 0, &Limits::default()));
        let mut user = stranger(to);
        shares(&mut owner, &mut user);
        // Kernels use the memory, too. The sizes are those of the buffers of the bench.
        let memory = exported(&mut owner, WORDS as u64 * 4);
        assert!(memory.handle.downcast_ref::<DmaBuf>().is_some());
        user.device.import_buffer(BufferId(12), &memory).unwrap();
        owner.fill_region(|at| at ^ 5);
        let filled = owner.commands(QueueKind::Compute, vec![upload(0), scale(all(0), all(9), 3)], &[]);
        owner.wait(filled);
        let scaled = user.commands(QueueKind::Compute, vec![scale(all(12), all(1), 7)], &[]);
        user.wait(scaled);
        same(&user.words(1), &expected(|at| 7 * (3 * (at ^ 5) + 1) + 1), user.label());
        let back = user.commands(QueueKind::Compute, vec![Command::Fill { to: all(12), word: 6 }], &[]);
        user.wait(back);
        same(&owner.words(9), &expected(|_| 6), owner.label());
        // The memory outlives the device that has exported it.
        drop((owner, memory));
        same(&user.words(12), &expected(|_| 6), user.label());
    }
    assert_eq!(level_zero_faults().misuses(), 0);
}

#[test]
fn broken_dma_bufs_are_refused() {
    let subject = subject_with(&[("RAGTAG_FAKE_DMA_BUFS", "1")]);
    let adapters = subject.adapters();
    let Some(adapter) = adapters.first() else { return };
    let mut owner = Bench::new(open(&subject.backend, adapter, 0, &Limits::default()));
    let mut user = stranger(adapter);
    let memory = exported(&mut owner, 4096);
    let larger = SharedMemory { bytes: 1 << 20, ..memory };
    let refused = user.device.import_buffer(REFUSED, &larger).unwrap_err();
    assert!(refused.to_string().contains("1048576 bytes of a dma-buf of"), "{refused}");
    let foreign = |name: &str, allocation_bytes| {
        let fd = File::options().read(true).write(true).open(name).unwrap().into();
        let dma_buf = DmaBuf { fd, allocation_bytes, own: Arc::new(()) };
        SharedMemory { bytes: 4096, handle: Arc::new(dma_buf) }
    };
    let refused = user.device.import_buffer(REFUSED, &foreign("/dev/null", 4096)).unwrap_err();
    assert!(matches!(&refused, Error::Api { call, .. } if call.contains("zeMemAllocDevice")), "{refused}");
    user.works();
    // The driver has not taken the file descriptor, and the failed import did not close it twice.
    let memory = exported_again(&mut owner);
    user.device.import_buffer(REFUSED, &memory).unwrap();
    assert_eq!(level_zero_faults().misuses(), 0);
}

/// Exports the buffer of [`exported`] once more.
fn exported_again(owner: &mut Bench) -> SharedMemory {
    owner.device.export_buffer(BufferId(9)).unwrap()
}

#[test]
fn a_driver_may_refuse_dma_bufs() {
    let subject = subject_with(&[("RAGTAG_FAKE_DMA_BUFS", "refused")]);
    let adapters = subject.adapters();
    let [first, second] = &adapters[..] else { return };
    let mut owner = Bench::new(open(&subject.backend, first, 0, &Limits::default()));
    let memory = exported(&mut owner, 4096);
    for mut user in [stranger(first), stranger(second)] {
        let refused = user.device.import_buffer(REFUSED, &memory).unwrap_err();
        assert!(refused.to_string().contains("UNSUPPORTED_FEATURE"), "{refused}");
        user.works();
    }
    // The same backend needs no dma-buf.
    let mut own = Bench::new(open(&subject.backend, first, 2, &Limits::default()));
    own.device.import_buffer(REFUSED, &memory).unwrap();
}
