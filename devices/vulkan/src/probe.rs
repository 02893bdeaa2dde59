//! Detection of physical devices: their adapters, and the properties that are needed to open them.

use crate::api::{Facts, Family, Instance};
use crate::config::MatrixUnits;
use crate::memory::{MemoryTypes, heap};
use crate::translate::SpirVTarget;
use ash::vk::{self, PhysicalDeviceType, QueueFlags};
use ragtag_hal::{
    Adapter, AdapterKind, Caps, Feature, Features, KernelLanguage, MemoryHandle, MemorySharing, PciAddress,
    PhysicalIdentity, QueueLayout,
};
use std::sync::Arc;

/// Queue capabilities that this backend does not use. A family with one of them is a special-purpose family.
const ODD: QueueFlags = QueueFlags::from_raw(
    QueueFlags::VIDEO_DECODE_KHR.as_raw()
        | QueueFlags::VIDEO_ENCODE_KHR.as_raw()
        | QueueFlags::OPTICAL_FLOW_NV.as_raw(),
);
/// Assumed number of compute units if a device does not report it. The first value is for discrete GPUs, the
/// second for other devices.
const UNITS: [u32; 2] = [48, 16];

/// Family of a queue, and the queue's index in the family.
pub(crate) type QueuePlace = (u32, u32);

pub(crate) type Found = ragtag_hal::Found<Native>;

/// Properties that are needed to open a device.
#[derive(Clone)]
pub(crate) struct Native {
    pub(crate) facts: Arc<Facts>,
    /// Queues in the order of [`QueueKind::ALL`](ragtag_hal::QueueKind::ALL).
    pub(crate) queues: [QueuePlace; 3],
    pub(crate) types: MemoryTypes,
    pub(crate) target: SpirVTarget,
}

/// Settings common to all adapters of a backend.
pub(crate) struct Common {
    pub(crate) backend: &'static str,
    /// Whether buffers may be placed in host-visible memory.
    pub(crate) direct: bool,
    pub(crate) matrices: MatrixUnits,
}

/// Returns the physical devices that can run kernels, and the reasons why the others cannot. GPUs come first
/// and software devices last.
///
/// # Errors
/// Returns a message with the loader's result code if the loader cannot list the devices.
pub(crate) fn devices(instance: &Instance, common: &Common) -> Result<(Vec<Found>, Vec<String>), String> {
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    for facts in instance.physical_devices()? {
        let name = facts.name.clone();
        match describe(instance, facts, common) {
            Ok(one) => found.push(one),
            Err(lacks) => left_out.push(format!("{name} has no {lacks}")),
        }
    }
    found.sort_by_key(|found: &Found| match found.adapter.kind {
        AdapterKind::Discrete => 0,
        AdapterKind::Integrated => 1,
        AdapterKind::Cpu | AdapterKind::Software => 2,
    });
    for (index, found) in (0..).zip(&mut found) {
        found.adapter.index = index;
    }
    Ok((found, left_out))
}

/// A physical device for which kernels can be compiled, even if it cannot run them.
pub(crate) struct Compiles {
    pub(crate) facts: Facts,
    pub(crate) caps: Caps,
    pub(crate) queues: [QueuePlace; 3],
    pub(crate) target: SpirVTarget,
}

/// Returns the physical devices for which kernels can be compiled, in the loader's order.
///
/// # Errors
/// Returns a message with the loader's result code if the loader cannot list the devices.
pub(crate) fn compiled_for(instance: &Instance) -> Result<Vec<Compiles>, String> {
    let devices = instance.physical_devices()?.into_iter();
    Ok(devices.filter_map(|facts| compiles(facts, MatrixUnits::Software).ok()).collect())
}

fn compiles(facts: Facts, units: MatrixUnits) -> Result<Compiles, &'static str> {
    let vulkan = (vk::api_version_major(facts.api_version), vk::api_version_minor(facts.api_version));
    if vulkan < (1, 2) {
        return Err("Vulkan 1.2");
    }
    if !facts.timeline_semaphores {
        return Err("timeline semaphores");
    }
    let queues = places(&facts.families).ok_or("compute queue")?;
    let features = features(&facts, units);
    let caps = caps(&facts, features.clone(), &queues);
    Ok(Compiles { facts, caps, queues, target: SpirVTarget { vulkan, features } })
}

fn kind(facts: &Facts) -> AdapterKind {
    match facts.kind {
        PhysicalDeviceType::DISCRETE_GPU | PhysicalDeviceType::VIRTUAL_GPU => AdapterKind::Discrete,
        PhysicalDeviceType::CPU => AdapterKind::Software,
        _ => AdapterKind::Integrated,
    }
}

fn describe(instance: &Instance, facts: Facts, common: &Common) -> Result<Found, &'static str> {
    let Compiles { facts, caps, queues, target } = compiles(facts, common.matrices)?;
    let kind = kind(&facts);
    let types = MemoryTypes::of(&facts.memory, common.direct);
    if types.device.is_empty() || types.host.is_empty() {
        return Err("memory of the required types");
    }
    let adapter = Adapter {
        backend: common.backend.into(),
        index: 0,
        name: facts.name.clone(),
        driver: format!("{}, Vulkan {}.{}", facts.driver, target.vulkan.0, target.vulkan.1).into(),
        kind,
        identity: PhysicalIdentity { pci: facts.pci.and_then(pci), uuid: Some(facts.uuid) },
        condition: None,
        memory: vec![heap(kind, facts.heap(instance, types.heap))],
        caps,
    };
    Ok(Found { adapter, native: Native { facts: Arc::new(facts), queues, types, target } })
}

fn pci([domain, bus, device, function]: [u32; 4]) -> Option<PciAddress> {
    Some(PciAddress {
        domain,
        bus: bus.try_into().ok()?,
        device: device.try_into().ok()?,
        function: function.try_into().ok()?,
    })
}

fn features(facts: &Facts, units: MatrixUnits) -> Features {
    // Unaccelerated dot products bring no benefit, so devices without acceleration do not use these kernel
    // variants. Software devices use them anyway, for tests.
    let dot = facts.integer_dot && (facts.integer_dot_accelerated || kind(facts) == AdapterKind::Software);
    let matrices = match units {
        MatrixUnits::Off => false,
        MatrixUnits::Hardware => kind(facts) != AdapterKind::Software,
        MatrixUnits::Software => true,
    };
    let all = [
        (Feature::Fp16, facts.half_floats),
        (Feature::SubGroups, facts.sub_groups),
        (Feature::IntegerDot, dot),
        (Feature::CooperativeMatrix, matrices && facts.cooperative_matrices && facts.half_floats),
    ];
    all.into_iter().filter_map(|(feature, has)| has.then_some(feature)).collect()
}

fn caps(facts: &Facts, features: Features, queues: &[QueuePlace; 3]) -> Caps {
    let limits = &facts.limits;
    let single = queues[1] == queues[0] && queues[2] == queues[0];
    let units = match kind(facts) {
        AdapterKind::Software | AdapterKind::Cpu => {
            std::thread::available_parallelism().map_or(1, |threads| threads.get() as u32)
        }
        AdapterKind::Discrete => facts.compute_units.unwrap_or(UNITS[0]),
        AdapterKind::Integrated => facts.compute_units.unwrap_or(UNITS[1]),
    };
    let imports = [
        facts.imports_fd.then_some(MemoryHandle::OpaqueFd),
        facts.imports_dma_buf.then_some(MemoryHandle::DmaBuf),
        facts.imports_pages().then_some(MemoryHandle::HostPages),
    ];
    Caps {
        languages: [KernelLanguage::Wgsl].into(),
        features,
        queues: if single { QueueLayout::Single } else { QueueLayout::Separate },
        records_programs: true,
        max_allocation_bytes: facts.max_allocation_bytes,
        max_binding_bytes: u64::from(limits.max_storage_buffer_range).min(facts.max_allocation_bytes),
        binding_alignment_bytes: limits.min_storage_buffer_offset_alignment,
        copy_alignment_bytes: 1,
        parallel_units: units,
        max_work_group_items: limits.max_compute_work_group_invocations,
        local_memory_bytes: u64::from(limits.max_compute_shared_memory_size),
        clocks: Default::default(),
        gemm: None,
        sharing: MemorySharing {
            exports: facts.exports_fd.then_some(MemoryHandle::OpaqueFd).into_iter().collect(),
            imports: imports.into_iter().flatten().collect(),
            ..MemorySharing::default()
        },
    }
}

/// Selects the three queues. The compute queue prefers a family without graphics. The copy queues prefer a
/// dedicated transfer family, which has its own copy engines. If there is no such family, they use additional
/// queues of the compute family. If a family has too few queues, several of Ragtag's queues share a Vulkan
/// queue.
fn places(families: &[Family]) -> Option<[QueuePlace; 3]> {
    let does = |family: &&Family, flags| family.flags.contains(flags) && family.queues > 0;
    let computes = || families.iter().filter(|family| does(family, QueueFlags::COMPUTE));
    let draws = |family: &&Family| family.flags.contains(QueueFlags::GRAPHICS);
    let compute = computes().find(|family| !draws(family)).or(computes().next())?;
    let copies = |family: &&Family| {
        let more = QueueFlags::GRAPHICS | QueueFlags::COMPUTE | ODD;
        does(family, QueueFlags::TRANSFER) && !family.flags.intersects(more)
    };
    let place = |family: &Family, queue: u32| (family.index, queue.min(family.queues - 1));
    Some(match families.iter().find(copies) {
        Some(family) => [place(compute, 0), place(family, 0), place(family, 1)],
        None => [place(compute, 0), place(compute, 1), place(compute, 2)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(index: u32, flags: QueueFlags, queues: u32) -> Family {
        Family { index, flags, queues, timestamp_bits: 64 }
    }

    const DRAW: QueueFlags = QueueFlags::GRAPHICS;
    const COMPUTE: QueueFlags = QueueFlags::COMPUTE;
    const COPY: QueueFlags = QueueFlags::TRANSFER;

    #[test]
    fn copies_use_dedicated_engines_if_available() {
        let nvidia = [
            family(0, DRAW | COMPUTE | COPY, 16),
            family(1, COPY, 2),
            family(2, COMPUTE | COPY, 8),
            family(3, COPY | QueueFlags::VIDEO_DECODE_KHR, 1),
        ];
        assert_eq!(places(&nvidia), Some([(2, 0), (1, 0), (1, 1)]));
        let without_copies = [nvidia[0], nvidia[2], nvidia[3]];
        assert_eq!(places(&without_copies), Some([(2, 0), (2, 1), (2, 2)]));
        let one_engine = [nvidia[0], family(1, COPY, 1)];
        assert_eq!(places(&one_engine), Some([(0, 0), (1, 0), (1, 0)]));
    }

    #[test]
    fn a_single_queue_serves_everything() {
        assert_eq!(places(&[family(0, DRAW | COMPUTE | COPY, 1)]), Some([(0, 0); 3]));
        assert_eq!(places(&[family(0, DRAW | COMPUTE, 2)]), Some([(0, 0), (0, 1), (0, 1)]));
        assert_eq!(places(&[family(0, DRAW | COPY, 1)]), None);
    }
}
