//! Tests of buffers that several devices share.

use crate::support::*;
use ragtag_hal::{Adapter, BufferId, Device, Error, Limits, MemoryHandle, SharedMemory};
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
