//! Tests of buffers that several devices share.

use crate::support::*;
use ragtag_hal::{
    Adapter, BufferId, Command, Device, DmaBuf, Error, HostPages, Limits, MemoryHandle, QueueKind,
    SharedMemory,
};
use std::sync::Arc;

/// Returns whether two adapters belong to the same physical device, and export and import its buffers.
fn can_share(from: &Adapter, to: &Adapter) -> bool {
    let fd = MemoryHandle::OpaqueFd;
    let (exports, imports) = (&from.caps.sharing.exports, &to.caps.sharing.imports);
    from.identity.uuid == to.identity.uuid && exports.contains(&fd) && imports.contains(&fd)
}

#[test]
fn devices_of_one_driver_share_buffers() {
    let backend = backend();
    let adapters = adapters(&backend);
    let pairs = adapters.iter().flat_map(|from| adapters.iter().map(move |to| (from, to)));
    let pairs: Vec<_> = pairs.filter(|(from, to)| can_share(from, to)).collect();
    if pairs.is_empty() && !adapters.is_empty() {
        test_support::skip!("opaque file descriptors", "no Vulkan device exports and imports them");
    }
    for (from, to) in pairs {
        println!("{} to {}", from.label(), to.label());
        let mut owner = Bench::new(open(&backend, from, 0, &Limits::default()));
        let mut user = Bench::new(open(&backend, to, 1, &Limits::default()));
        shares(&mut owner, &mut user);
    }
    no_objections(&backend);
}

#[test]
fn imported_pages_are_buffers() {
    each(&subject(), |mut bench| {
        let adapter = bench.device.adapter();
        let pages = Arc::new(HostPages::new(WORDS as u64 * 4 + 3).unwrap());
        let memory = SharedMemory { bytes: pages.bytes(), handle: pages };
        if !adapter.caps.sharing.imports.contains(&MemoryHandle::HostPages) {
            let refused = bench.device.import_buffer(BufferId(9), &memory);
            assert!(matches!(&refused, Err(Error::Unsupported { .. })), "{refused:?}");
            return;
        }
        bench.device.import_buffer(BufferId(9), &memory).unwrap();
        bench.device.import_buffer(BufferId(10), &memory).unwrap();
        for round in 1..4u32 {
            bench.fill_region(|at| at ^ round);
            let fill = Command::Fill { to: buffer_range(9, 0, 16), word: 5 };
            let first = vec![upload(9), fill, scale(all(10), all(0), 3)];
            let first = bench.commands(QueueKind::Compute, first, &[]);
            let second = vec![scale(all(0), all(9), 7), Command::Copy { from: all(9), to: all(1) }];
            let second = bench.commands(QueueKind::Compute, second, &[first]);
            bench.wait(second);
            let word = |at: u32| 7 * (3 * if at < 16 { 5 } else { at ^ round } + 1) + 1;
            same(&bench.words(1), &expected(word), bench.label());
            same(&bench.words(10), &expected(word), bench.label());
        }
    });
}

/// Returns a file as memory that another API has exported as a dma-buf.
fn dma_buf_of(path: &str) -> SharedMemory {
    let fd = std::fs::File::open(path).unwrap().into();
    SharedMemory { bytes: 4, handle: Arc::new(DmaBuf { fd, allocation_bytes: 1 << 20, own: Arc::new(()) }) }
}

#[test]
fn foreign_memory_and_plain_buffers_are_refused() {
    let backend = backend();
    let adapters = adapters(&backend);
    for from in &adapters {
        let mut owner = Bench::new(open(&backend, from, 0, &Limits::default()));
        let refused = owner.device.export_buffer(BufferId(0));
        assert!(matches!(&refused, Err(Error::Unsupported { .. })), "{refused:?}");
        let foreign = SharedMemory { bytes: 4, handle: Arc::new(()) };
        let refused = owner.device.import_buffer(BufferId(9), &foreign);
        assert!(matches!(&refused, Err(Error::Unsupported { .. })), "{refused:?}");
        let no_dma_buf = dma_buf_of("/dev/null");
        let refused = owner.device.import_buffer(BufferId(9), &no_dma_buf).unwrap_err();
        println!("{}: {refused}", from.label());
        let imports = from.caps.sharing.imports.contains(&MemoryHandle::DmaBuf);
        assert!(imports || refused.to_string().contains("importing dma-bufs"), "{refused}");
        if from.caps.sharing.exports.is_empty() {
            let refused = owner.device.create_shared_buffer(BufferId(9), 4);
            assert!(matches!(&refused, Err(Error::Unsupported { .. })), "{refused:?}");
            continue;
        }
        owner.device.create_shared_buffer(BufferId(9), 4).unwrap();
        let memory = owner.device.export_buffer(BufferId(9)).unwrap();
        for to in adapters.iter().filter(|to| to.identity.uuid != from.identity.uuid) {
            let mut user = Bench::new(open(&backend, to, 1, &Limits::default()));
            let refused = user.device.import_buffer(BufferId(9), &memory).unwrap_err();
            assert!(refused.to_string().contains("another physical device"), "{refused}");
        }
    }
    no_objections(&backend);
}
