//! Detection of Level Zero devices: their adapters, and the properties that are needed to open them.

use crate::api::types::{DeviceProperties, MemoryAccessProperties, QueueGroupProperties, value};
use crate::api::{Device, Driver, api, until_zero};
use crate::clock::Timer;
use ragtag_hal::cache::{Key, key};
use ragtag_hal::{
    Adapter, AdapterKind, Caps, Clocks, DriverInfo, Feature, Features, HeapKind, HostMemory, KernelLanguage,
    Memory, MemoryHandle, MemorySharing, MemorySource, PhysicalIdentity, QueueLayout, Result, Unavailable,
    UnifiedAllocation,
};
use std::collections::BTreeSet;
use std::ffi::CStr;

/// Required alignment of a binding's offset, in bytes. Intel's GPUs read and write cache lines of 64 bytes.
const BINDING_ALIGNMENT_BYTES: u64 = 64;
/// Sub-group size that Ragtag's kernels need.
const SUB_GROUP_SIZE: u32 = 16;
/// Sub-group size of the matrix instructions of Xe-HPG.
const MATRIX_SUB_GROUP_SIZE: u32 = 8;
/// Extension with which an allocation may exceed the device's limit.
const RELAXED_LIMITS: &str = "ZE_experimental_relaxed_allocation_limits";
/// Extension that reports dot product instructions. Intel's older drivers report them only through it.
const DOT_PRODUCTS: &str = "ZE_intel_experimental_device_module_dp_properties";
/// Option that makes kernels use 64-bit addresses, so that buffers may exceed 4 GiB.
const LARGE_BUFFERS: &CStr = c"-ze-opt-greater-than-4GB-buffer-required";
/// Environment variable that says whether a card with several tiles is one device or several devices.
const HIERARCHY: &str = "ZE_FLAT_DEVICE_HIERARCHY";
/// Environment variables with which users select devices.
const SELECTION: [&str; 2] = ["ZE_AFFINITY_MASK", HIERARCHY];

pub(crate) type Found = ragtag_hal::Found<Native>;

/// An engine of a device: a queue group, and an index in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Engine {
    pub(crate) ordinal: u32,
    pub(crate) index: u32,
}

/// Properties that are needed to open a device.
#[derive(Clone)]
pub(crate) struct Native {
    pub(crate) driver: Driver,
    pub(crate) device: Device,
    /// Engines for compute, uploads and downloads.
    pub(crate) engines: [Engine; 3],
    pub(crate) timer: Timer,
    /// Options of the compiler.
    pub(crate) build_flags: &'static CStr,
    /// Key that identifies device and driver. A native binary is valid only for devices with the same
    /// fingerprint.
    pub(crate) fingerprint: Key,
    /// Whether allocations may exceed the device's limit.
    pub(crate) relaxed: bool,
    /// Whether the device uses host memory.
    pub(crate) host_memory: bool,
    /// Whether host and device can share memory.
    pub(crate) shares: bool,
    /// Whether buffers can be exported as dma-bufs.
    pub(crate) exports_dma_buf: bool,
    /// Whether buffers can be imported from dma-bufs.
    pub(crate) imports_dma_buf: bool,
}

/// Returns the devices of all drivers that can run Ragtag's kernels.
///
/// # Errors
/// Returns [`Unavailable`] if there is no loader, no driver, or no device.
pub(crate) fn probe(backend: &str) -> std::result::Result<Vec<Found>, Unavailable> {
    let set = SELECTION.iter().filter_map(|name| Some(format!("{name}={}", std::env::var(name).ok()?)));
    let hidden = Some(set.collect::<Vec<_>>().join(", ")).filter(|set| !set.is_empty());
    let with_hidden = |unavailable: Unavailable| match &hidden {
        Some(hidden) => Unavailable { cause: format!("{} ({hidden})", unavailable.cause), ..unavailable },
        None => unavailable,
    };
    let api = api().map_err(with_hidden)?;
    let unavailable = |cause: String| with_hidden(Unavailable { tried: vec![api.library.into()], cause });
    let drivers = api.drivers().map_err(|error| unavailable(error.to_string()))?;
    let (mut found, mut left_out): (Vec<Found>, Vec<String>) = (Vec::new(), Vec::new());
    for driver in drivers {
        let devices = driver.devices().map_err(|error| left_out.push(error.to_string())).unwrap_or_default();
        for device in devices.into_iter().flat_map(|device| divided(device, are_tiles_devices())) {
            match describe(backend, found.len() as u32, driver, device, hidden.as_deref()) {
                Ok(one) => found.push(one),
                Err(why) => {
                    tracing::debug!(%why, "skipping a Level Zero device");
                    left_out.push(why);
                }
            }
        }
    }
    if found.is_empty() {
        let cause = if left_out.is_empty() { "no driver has a device".into() } else { left_out.join("; ") };
        return Err(unavailable(cause));
    }
    for at in 0..found.len() {
        found[at].adapter.caps.sharing.peers = peers(&found, at);
    }
    Ok(found)
}

/// Returns true if the user wants each tile of a card as a device of its own. Newer drivers then list tiles
/// instead of cards. Older drivers ignore the variable.
fn are_tiles_devices() -> bool {
    std::env::var(HIERARCHY).is_ok_and(|value| ["FLAT", "COMBINED"].contains(&value.as_str()))
}

/// Returns the tiles of a card if each of them is to be a device, or else the card itself. The driver divides
/// the work of a card among its tiles.
fn divided(card: Device, are_tiles_devices: bool) -> Vec<Device> {
    let tiles = if are_tiles_devices { card.tiles().unwrap_or_default() } else { Vec::new() };
    if tiles.is_empty() { vec![card] } else { tiles }
}

/// Describes the tiles of a device, unless it is a card with one tile.
fn tiles(device: Device, properties: &DeviceProperties) -> String {
    if properties.flags & value::SUBDEVICE != 0 {
        return format!(", tile {}", properties.subdevice_id);
    }
    match device.tiles().map_or(0, |tiles| tiles.len()) {
        0 | 1 => String::new(),
        count => format!(", {count} tiles"),
    }
}

/// Returns the indices of the adapters whose memory a device can access: other devices of its driver, as far as
/// the driver permits.
fn peers(found: &[Found], at: usize) -> BTreeSet<u32> {
    let own = &found[at];
    let others = found.iter().filter(|other| other.adapter.index != own.adapter.index);
    let reached = others.filter(|other| other.driver == own.driver && own.device.reaches(other.device));
    reached.map(|other| other.adapter.index).collect()
}

/// Queries the properties of a device.
///
/// # Errors
/// Returns a message that explains why the device cannot be used.
fn describe(
    backend: &str,
    index: u32,
    driver: Driver,
    device: Device,
    hidden: Option<&str>,
) -> std::result::Result<Found, String> {
    let properties = device.properties().map_err(|error| format!("device {index}: {error}"))?;
    let name = until_zero(&properties.name);
    let kind = match properties.class {
        value::GPU if properties.flags & value::INTEGRATED != 0 => AdapterKind::Integrated,
        value::GPU => AdapterKind::Discrete,
        value::CPU => AdapterKind::Software,
        class => return Err(format!("{name}: it is no GPU (type {class})")),
    };
    let said = |error: ragtag_hal::Error| format!("{name}: {error}");
    let engines = engines(&device.queue_groups().map_err(said)?)
        .ok_or_else(|| format!("{name}: it has no queue for kernels"))?;
    let version = driver.properties().map_err(said)?.version;
    let (major, minor) = driver.api_version().map_err(said)?;
    let extensions = driver.extensions();
    let has = |name: &str| extensions.iter().any(|extension| extension == name);
    let (relaxed, asks_dot) = (has(RELAXED_LIMITS), has(DOT_PRODUCTS));
    let host_memory = properties.flags & value::INTEGRATED != 0;
    let heap = heap(device, host_memory).ok_or_else(|| format!("{name}: unknown memory size"))?;
    let mut caps = caps(device, &properties, &heap, relaxed, asks_dot).map_err(said)?;
    let [imports_dma_buf, exports_dma_buf] = dma_bufs(device);
    caps.sharing.imports.extend(imports_dma_buf.then_some(MemoryHandle::DmaBuf));
    caps.sharing.exports.extend(exports_dma_buf.then_some(MemoryHandle::DmaBuf));
    let access = device.memory_access().map_err(said)?;
    caps.sharing.unified = unified(&access).collect();
    let adapter = Adapter {
        backend: backend.into(),
        index,
        driver: DriverInfo {
            name: format!("Level Zero {major}.{minor}, driver {version}{}", tiles(device, &properties)),
            hidden_by: hidden.map(str::to_string),
            ..DriverInfo::default()
        },
        kind,
        identity: PhysicalIdentity { pci: device.pci(), uuid: known(properties.uuid) },
        memory: vec![heap],
        caps,
        condition: device.condition(),
        name: name.clone(),
    };
    let ids = [version, major, minor, properties.vendor_id, properties.device_id].map(u32::to_le_bytes);
    let native = Native {
        driver,
        device,
        engines,
        timer: Timer { hz: properties.timer_hz, bits: properties.kernel_timestamp_bits },
        build_flags: if relaxed { LARGE_BUFFERS } else { c"" },
        fingerprint: key([name.as_bytes(), &ids.concat()]),
        relaxed,
        host_memory,
        shares: access.shared_single_device & value::READ_WRITE != 0,
        exports_dma_buf,
        imports_dma_buf,
    };
    Ok(Found { adapter, native })
}

/// Returns the kinds of unified shared memory that a device can access.
fn unified(access: &MemoryAccessProperties) -> impl Iterator<Item = UnifiedAllocation> + use<> {
    let kinds = [
        access.host,
        access.device,
        access.shared_single_device,
        access.shared_cross_device,
        access.shared_system,
    ];
    UnifiedAllocation::of_usm(kinds.map(|flags| flags & value::READ_WRITE != 0))
}

/// Returns whether buffers can be imported from dma-bufs, and exported as dma-bufs.
fn dma_bufs(device: Device) -> [bool; 2] {
    let external = device.external_memory().unwrap_or_default();
    [external.imports, external.exports].map(|kinds| cfg!(unix) && kinds & value::DMA_BUF != 0)
}

/// Returns a UUID, unless it is zero.
fn known(uuid: [u8; 16]) -> Option<[u8; 16]> {
    (uuid != [0; 16]).then_some(uuid)
}

/// Returns the engines for compute, uploads and downloads. Copies use a group that only copies, if there is
/// one, and downloads a second engine of such a group.
fn engines(groups: &[QueueGroupProperties]) -> Option<[Engine; 3]> {
    let all = (0..).zip(groups).filter(|(_, group)| group.queues > 0);
    let (compute, copies): (Vec<_>, Vec<_>) = all.partition(|(_, group)| group.flags & value::COMPUTE != 0);
    let &(ordinal, group) = compute.first()?;
    let compute = |index: u32| Engine { ordinal, index: index.min(group.queues - 1) };
    let copies = copies.into_iter().filter(|(_, group)| group.flags & value::COPY != 0);
    let mut copies =
        copies.flat_map(|(ordinal, group)| (0..group.queues).map(move |index| Engine { ordinal, index }));
    let upload = copies.next().unwrap_or_else(|| compute(1));
    let download = copies.next().unwrap_or(if upload.ordinal == ordinal { compute(2) } else { upload });
    Some([compute(0), upload, download])
}

/// Returns the total and free memory for the device's buffers.
pub(crate) fn heap(device: Device, host_memory: bool) -> Option<Memory> {
    let memories = device.memories().ok()?;
    let total_bytes = memories.iter().fold(0u64, |sum, memory| sum.saturating_add(memory.total_bytes));
    if host_memory {
        let HostMemory { total_bytes: host_bytes, free_bytes } = HostMemory::now();
        let total_bytes = if total_bytes == 0 { host_bytes } else { total_bytes.min(host_bytes) };
        return Some(Memory {
            heap: HeapKind::Host,
            total_bytes,
            free_bytes: Some(free_bytes.min(total_bytes)),
            source: MemorySource::System,
        });
    }
    (total_bytes > 0).then(|| Memory {
        heap: HeapKind::Device,
        total_bytes,
        free_bytes: device.free_bytes().ok().map(|free| free.min(total_bytes)),
        source: MemorySource::Api,
    })
}

fn caps(
    device: Device,
    properties: &DeviceProperties,
    heap: &Memory,
    relaxed: bool,
    asks_dot: bool,
) -> Result<Caps> {
    let (compute, (modules, dot)) = (device.compute_properties()?, device.module_properties(asks_dot)?);
    let sizes = &compute.sub_group_size[..(compute.sub_group_sizes as usize).min(8)];
    let features: Features = [
        (modules.flags & value::FP16 != 0, Feature::Fp16),
        (sizes.contains(&SUB_GROUP_SIZE), Feature::SubGroups),
        (modules.flags & value::DP4A != 0 || dot & value::INTEL_DP4A != 0, Feature::IntegerDot),
        // The matrix instructions of later GPUs need sub-groups of 16, for which Ragtag has no kernels.
        (dot & value::INTEL_DPAS != 0 && sizes.iter().min() == Some(&MATRIX_SUB_GROUP_SIZE), Feature::Xmx),
    ]
    .into_iter()
    .filter_map(|(has, feature)| has.then_some(feature))
    .collect();
    let memory = device.memories()?.first().copied().unwrap_or_default();
    let clocks = Clocks {
        compute_khz: properties.core_clock_mhz.saturating_mul(1000),
        lanes_per_unit: properties.eu_simd_width,
        memory_khz: memory.max_clock_mhz.saturating_mul(1000),
        memory_bus_bits: memory.max_bus_bits,
    };
    let units = [properties.slices, properties.subslices_per_slice, properties.eus_per_subslice];
    let max_allocation_bytes = match relaxed {
        true => heap.total_bytes,
        false => properties.max_allocation_bytes.min(heap.total_bytes),
    };
    Ok(Caps {
        languages: [KernelLanguage::SpirV].into(),
        features,
        queues: QueueLayout::Separate,
        records_programs: true,
        max_allocation_bytes,
        max_binding_bytes: max_allocation_bytes,
        binding_alignment_bytes: BINDING_ALIGNMENT_BYTES,
        copy_alignment_bytes: 1,
        parallel_units: units.into_iter().fold(1u32, |all, one| all.saturating_mul(one.max(1))),
        max_work_group_items: compute.max_group_items,
        local_memory_bytes: u64::from(compute.max_local_bytes),
        clocks,
        gemm: None,
        sharing: MemorySharing {
            exports: [MemoryHandle::DriverObject].into(),
            imports: [MemoryHandle::DriverObject, MemoryHandle::HostPages].into(),
            ..MemorySharing::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(flags: u32, queues: u32) -> QueueGroupProperties {
        QueueGroupProperties { flags, queues, ..QueueGroupProperties::default() }
    }

    fn places(groups: &[QueueGroupProperties]) -> Option<[(u32, u32); 3]> {
        engines(groups).map(|all| all.map(|Engine { ordinal, index }| (ordinal, index)))
    }

    #[test]
    fn copies_use_copy_engines() {
        let (both, copy) = (value::COMPUTE | value::COPY, value::COPY);
        assert_eq!(places(&[group(both, 1)]), Some([(0, 0), (0, 0), (0, 0)]));
        assert_eq!(places(&[group(both, 4)]), Some([(0, 0), (0, 1), (0, 2)]));
        assert_eq!(places(&[group(both, 1), group(copy, 1)]), Some([(0, 0), (1, 0), (1, 0)]));
        assert_eq!(places(&[group(copy, 2), group(both, 1)]), Some([(1, 0), (0, 0), (0, 1)]));
        assert_eq!(places(&[group(both, 1), group(copy, 1), group(copy, 3)]), Some([(0, 0), (1, 0), (2, 0)]));
        assert_eq!(places(&[group(copy, 1), group(both, 0)]), None, "no engine for kernels");
        assert_eq!(places(&[]), None);
    }

    #[test]
    fn a_zero_uuid_is_unknown() {
        assert_eq!(known([0; 16]), None);
        assert_eq!(known([1; 16]), Some([1; 16]));
    }
}
