//! Detection of wgpu's adapters and their properties.

use crate::gpu::ready;
use crate::vulkan;
use ragtag_hal::cache::{Key, key};
use ragtag_hal::{
    Adapter, AdapterKind, Caps, Feature, HeapKind, HostMemory, KernelLanguage, Memory, MemorySource,
    PhysicalIdentity, QueueLayout, Unavailable,
};
use std::collections::BTreeSet;
use std::sync::OnceLock;
use wgpu::{AdapterInfo, Backend, Backends, DeviceType, Instance, InstanceDescriptor, InstanceFlags};

/// APIs in order of preference. If several of them report the same device, Ragtag uses the first.
const APIS: [Backend; 3] = [Backend::Vulkan, Backend::Metal, Backend::Dx12];

pub(crate) type Found = ragtag_hal::Found<Native>;

/// Properties that are needed to open an adapter.
#[derive(Clone)]
pub(crate) struct Native {
    pub(crate) wgpu: wgpu::Adapter,
    /// Key that identifies device, driver and API in the cache.
    pub(crate) fingerprint: Key,
}

/// Returns the APIs that `WGPU_BACKEND` allows. If the variable is not set, all APIs are allowed.
fn apis() -> Vec<Backend> {
    let wanted = Backends::from_env().unwrap_or(Backends::all());
    let compiled = Instance::enabled_backend_features();
    let ours = |api: &Backend| wanted.contains((*api).into()) && compiled.contains((*api).into());
    APIS.into_iter().filter(ours).collect()
}

/// Creates a wgpu instance for the allowed APIs.
pub(crate) fn instance() -> Instance {
    let instance = Instance::new(InstanceDescriptor {
        backends: apis().iter().fold(Backends::empty(), |set, api| set | (*api).into()),
        // Only `WGPU_DEBUG` and `WGPU_VALIDATION` enable debug layers.
        flags: InstanceFlags::empty().with_env(),
        ..InstanceDescriptor::new_without_display_handle()
    });
    // This instance keeps the drivers loaded, because some drivers cannot be reloaded many times.
    static KEPT: OnceLock<Instance> = OnceLock::new();
    KEPT.get_or_init(|| instance.clone());
    instance
}

/// Returns the adapters of an instance.
///
/// # Errors
/// Returns [`Unavailable`] if no API of the instance has a usable adapter.
pub(crate) fn probe(backend: &str, instance: &Instance) -> Result<Vec<Found>, Unavailable> {
    let tried = || apis().iter().map(|api| api.to_str().to_string()).collect();
    let all = ready(instance.enumerate_adapters(Backends::all())).unwrap_or_default();
    let all = once_each(all.into_iter().map(|adapter| (adapter.get_info(), adapter)).collect());
    if all.is_empty() {
        return Err(Unavailable { tried: tried(), cause: "no graphics API has a device for wgpu".into() });
    }
    let lacks: Vec<String> = all.iter().filter_map(|(info, adapter)| lack(info, adapter)).collect();
    let usable = all.into_iter().filter(|(info, adapter)| lack(info, adapter).is_none());
    let found: Vec<Found> =
        (0..).zip(usable).map(|(index, (info, adapter))| describe(backend, index, &info, adapter)).collect();
    lacks.iter().for_each(|lack| tracing::debug!("{lack}"));
    if found.is_empty() {
        return Err(Unavailable { tried: tried(), cause: lacks.join("; ") });
    }
    Ok(found)
}

/// Returns a message that names a missing requirement of the adapter. Returns `None` if the adapter is
/// usable.
fn lack(info: &AdapterInfo, adapter: &wgpu::Adapter) -> Option<String> {
    let missing = wgpu::Features::IMMEDIATES.difference(adapter.features());
    let name = format!("{} ({})", info.name, info.backend);
    if !missing.is_empty() {
        return Some(format!("{name} has no immediates, which kernels need for their constants"));
    }
    let compute = wgpu::DownlevelFlags::COMPUTE_SHADERS;
    let has = adapter.get_downlevel_capabilities().flags.contains(compute);
    (!has).then(|| format!("{name} has no compute shaders"))
}

/// Removes adapters whose device is also available through a preferred API. On Windows, Vulkan and Direct3D
/// may both report a device. Devices with the same name and PCI ID are matched by their order within each
/// API.
fn once_each<T>(mut all: Vec<(AdapterInfo, T)>) -> Vec<(AdapterInfo, T)> {
    let rank = |info: &AdapterInfo| APIS.iter().position(|api| *api == info.backend).unwrap_or(APIS.len());
    all.sort_by_key(|(info, _)| rank(info));
    let infos: Vec<AdapterInfo> = all.iter().map(|(info, _)| info.clone()).collect();
    let alike = |a: &AdapterInfo, b: &AdapterInfo| {
        (a.vendor, a.device) == (b.vendor, b.device) && a.name.eq_ignore_ascii_case(&b.name)
    };
    let through = |among: &[AdapterInfo], own: &AdapterInfo, api: Backend| {
        among.iter().filter(|other| alike(other, own) && other.backend == api).count()
    };
    let is_new = |at: usize| {
        let own = &infos[at];
        let before = through(&infos[..at], own, own.backend);
        !APIS[..rank(own)].iter().any(|api| through(&infos, own, *api) > before)
    };
    let new: Vec<bool> = (0..infos.len()).map(is_new).collect();
    all.into_iter().zip(new).filter(|(_, new)| *new).map(|(one, _)| one).collect()
}

fn describe(backend: &str, index: u32, info: &AdapterInfo, adapter: wgpu::Adapter) -> Found {
    let facts = vulkan::facts(&adapter);
    let driver = [info.driver.as_str(), info.driver_info.as_str()].map(str::trim);
    let words: Vec<&str> = driver.into_iter().filter(|word| !word.is_empty()).collect();
    let kind = kind(info.device_type);
    let described = Adapter {
        backend: backend.into(),
        index,
        name: info.name.clone(),
        driver: [info.backend.to_str(), &words.join(" ")].join(", ").trim_end_matches(", ").into(),
        kind,
        identity: PhysicalIdentity { pci: info.device_pci_bus_id.parse().ok(), uuid: facts.uuid },
        condition: None,
        memory: heap(kind, facts.memory).into_iter().collect(),
        caps: caps(&adapter, facts.integer_dot),
    };
    let fingerprint = key([
        "wgpu 30".as_bytes(),
        described.driver.name.as_bytes(),
        described.name.as_bytes(),
        &info.vendor.to_le_bytes(),
        &info.device.to_le_bytes(),
    ]);
    Found { adapter: described, native: Native { wgpu: adapter, fingerprint } }
}

fn kind(device_type: DeviceType) -> AdapterKind {
    match device_type {
        DeviceType::DiscreteGpu | DeviceType::VirtualGpu => AdapterKind::Discrete,
        DeviceType::IntegratedGpu | DeviceType::Other => AdapterKind::Integrated,
        DeviceType::Cpu => AdapterKind::Software,
    }
}

/// Returns the total and free memory for buffers. For a discrete GPU, only the driver's figures count. If
/// there are none, for example with Direct3D, the result is `None`, and the figures must come from another
/// API or from the user. Other devices share host memory, so the host's free bytes limit the driver's
/// figures.
pub(crate) fn heap(kind: AdapterKind, reported: Option<Memory>) -> Option<Memory> {
    if kind == AdapterKind::Discrete {
        return reported;
    }
    let host = HostMemory::now();
    let total_bytes = reported.map_or(host.total_bytes, |reported| reported.total_bytes);
    let reported_free = reported.and_then(|reported| reported.free_bytes).unwrap_or(u64::MAX);
    let free_bytes = Some(host.free_bytes.min(reported_free).min(total_bytes));
    let source = reported.map_or(MemorySource::System, |reported| reported.source);
    Some(Memory { heap: HeapKind::Host, total_bytes, free_bytes, source })
}

/// Returns the features that Ragtag can use and the adapter supports. Cooperative matrices are excluded. They
/// require the Vulkan memory model, in which barriers must explicitly make workgroup memory visible. The
/// barriers in the SPIR-V that wgpu 30 generates do not make it visible.
pub(crate) fn wanted_features(adapter: &wgpu::Adapter) -> wgpu::Features {
    use wgpu::Features;
    let wanted = Features::IMMEDIATES
        | Features::SHADER_F16
        | Features::SUBGROUP
        | Features::PIPELINE_CACHE
        | Features::TIMESTAMP_QUERY
        | Features::TIMESTAMP_QUERY_INSIDE_ENCODERS;
    adapter.features() & wanted
}

fn caps(adapter: &wgpu::Adapter, integer_dot: bool) -> Caps {
    let (has, limits) = (wanted_features(adapter), adapter.limits());
    let features = [
        (Feature::Fp16, has.contains(wgpu::Features::SHADER_F16)),
        (Feature::SubGroups, has.contains(wgpu::Features::SUBGROUP)),
        (Feature::IntegerDot, integer_dot),
    ];
    let words = |bytes: u64| bytes - bytes % wgpu::COPY_BUFFER_ALIGNMENT;
    Caps {
        languages: BTreeSet::from([KernelLanguage::Wgsl]),
        features: features.into_iter().filter(|(_, has)| *has).map(|(feature, _)| feature).collect(),
        queues: QueueLayout::Single,
        // A recorded program keeps its bind groups and split grids, but its commands are encoded again for
        // each run.
        records_programs: true,
        max_allocation_bytes: words(limits.max_buffer_size),
        max_binding_bytes: words(limits.max_storage_buffer_binding_size),
        binding_alignment_bytes: u64::from(limits.min_storage_buffer_offset_alignment),
        copy_alignment_bytes: wgpu::COPY_BUFFER_ALIGNMENT,
        // wgpu does not report the number of compute units.
        parallel_units: 1,
        max_work_group_items: limits.max_compute_invocations_per_workgroup,
        local_memory_bytes: u64::from(limits.max_compute_workgroup_storage_size),
        clocks: Default::default(),
        gemm: None,
        sharing: Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, device: u32, backend: Backend) -> AdapterInfo {
        AdapterInfo { name: name.into(), device, ..AdapterInfo::new(DeviceType::DiscreteGpu, backend) }
    }

    #[test]
    fn a_device_visible_through_several_apis_appears_once() {
        let (vulkan, dx12) = (Backend::Vulkan, Backend::Dx12);
        let all = [
            info("Basic Render Driver", 9, dx12),
            info("Arc A770", 1, dx12),
            info("ARC A770", 1, vulkan),
            info("Arc A770", 1, dx12),
            info("llvmpipe", 0, vulkan),
            info("llvmpipe", 0, vulkan),
        ];
        let kept = once_each(all.into_iter().map(|info| (info, ())).collect());
        let kept: Vec<_> = kept.iter().map(|(info, ())| (info.name.as_str(), info.backend)).collect();
        let wanted = [
            ("ARC A770", vulkan),
            ("llvmpipe", vulkan),
            ("llvmpipe", vulkan),
            ("Basic Render Driver", dx12),
            // Direct3D reports two devices, and Vulkan reports only one of them.
            ("Arc A770", dx12),
        ];
        assert_eq!(kept, wanted);
    }

    #[test]
    fn a_card_has_only_the_memory_that_its_driver_reports() {
        let reported = |free_bytes| Memory {
            heap: HeapKind::Device,
            total_bytes: 1 << 20,
            free_bytes,
            source: MemorySource::Api,
        };
        assert_eq!(heap(AdapterKind::Discrete, None), None);
        assert_eq!(heap(AdapterKind::Discrete, Some(reported(None))), Some(reported(None)));
        let shared = heap(AdapterKind::Integrated, Some(reported(None))).unwrap();
        assert_eq!((shared.total_bytes, shared.free_bytes.is_some()), (1 << 20, true));
        let host = heap(AdapterKind::Integrated, None).unwrap();
        assert_eq!((host.heap, host.source), (HeapKind::Host, MemorySource::System));
        assert!(host.total_bytes > 0 && host.free_bytes <= Some(host.total_bytes));
    }
}
