//! Fake backends for tests.

use crate::table::{Backends, Probed, Row};
use ragtag_hal::{
    Adapter, AdapterKind, Backend, Caps, Device, DeviceId, HeapKind, Limits, Memory, MemorySource,
    PciAddress, PhysicalIdentity, QueueLayout, Result, Unavailable,
};
use std::sync::Arc;

/// Returns an adapter without PCI address and UUID. The adapter's name is its label.
pub(crate) fn adapter(backend: &str, index: u32, kind: AdapterKind, total_gib: u64) -> Adapter {
    let total_bytes = total_gib << 30;
    Adapter {
        backend: backend.into(),
        index,
        name: format!("{backend}:{index}"),
        driver: "fake 1".into(),
        kind,
        identity: PhysicalIdentity::default(),
        condition: None,
        memory: vec![Memory {
            heap: HeapKind::Device,
            total_bytes,
            free_bytes: None,
            source: MemorySource::Api,
        }],
        caps: Caps {
            queues: QueueLayout::Single,
            records_programs: false,
            max_allocation_bytes: total_bytes,
            max_binding_bytes: total_bytes,
            binding_alignment_bytes: 16,
            ..Caps::default()
        },
    }
}

/// Returns a PCI address with this bus.
pub(crate) fn pci(bus: u8) -> Option<PciAddress> {
    Some(PciAddress { domain: 0, bus, device: 0, function: 0 })
}

struct Fake {
    name: &'static str,
    probe: std::result::Result<Vec<Adapter>, Unavailable>,
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        self.name
    }

    fn probe(&self) -> std::result::Result<Vec<Adapter>, Unavailable> {
        self.probe.clone()
    }

    fn open(&self, _: &[(Adapter, DeviceId)], _: &Limits) -> Result<Vec<Box<dyn Device>>> {
        Ok(Vec::new())
    }
}

/// Returns the row of a backend whose probe reports `adapters`.
pub(crate) fn found(name: &'static str, adapters: Vec<Adapter>) -> Row {
    Row { name, backend: Some(Arc::new(Fake { name, probe: Ok(adapters) })), probed: Probed::Here }
}

/// Returns the row of a backend whose library is missing.
pub(crate) fn missing(name: &'static str) -> Row {
    let probe = Err(Unavailable { tried: vec![format!("lib{name}.so")], cause: "no such library".into() });
    Row { name, backend: Some(Arc::new(Fake { name, probe })), probed: Probed::Here }
}

/// Returns the row of a backend that is not compiled in.
pub(crate) fn absent(name: &'static str) -> Row {
    Row { name, backend: None, probed: Probed::Here }
}

/// Returns a machine with two GPUs, a software GPU and two CPU devices. One of the GPUs is visible through
/// two APIs.
pub(crate) fn machine() -> Backends {
    use AdapterKind::{Cpu, Discrete, Integrated, Software};
    let mut cuda = adapter("cuda", 0, Discrete, 24);
    let mut vulkan = [
        adapter("vulkan", 0, Integrated, 8),
        adapter("vulkan", 1, Discrete, 24),
        adapter("vulkan", 2, Software, 16),
    ];
    cuda.identity.pci = pci(1);
    vulkan[0].identity.pci = pci(0);
    vulkan[1].identity.pci = pci(1);
    let cpu = [0, 1].map(|index| adapter("cpu", index, Cpu, 4));
    Backends::of(vec![
        found("cuda", vec![cuda]),
        absent("hip"),
        found("vulkan", vulkan.to_vec()),
        missing("opencl"),
        found("cpu", cpu.to_vec()),
    ])
}
