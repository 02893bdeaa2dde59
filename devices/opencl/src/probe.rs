//! Detection of OpenCL platforms and devices: their adapters, and the properties that are needed to open
//! them.

use crate::api::{CommandBuffers, SpirVLoader, UnifiedMemory};
use crate::transfer::MemoryCaps;
use cl3::ext::{
    CL_DEVICE_CROSS_DEVICE_SHARED_MEM_CAPABILITIES_INTEL, CL_DEVICE_DEVICE_MEM_CAPABILITIES_INTEL,
    CL_DEVICE_GLOBAL_FREE_MEMORY_AMD, CL_DEVICE_HOST_MEM_CAPABILITIES_INTEL, CL_DEVICE_PCI_BUS_ID_NV,
    CL_DEVICE_PCI_BUS_INFO_KHR, CL_DEVICE_PCI_SLOT_ID_NV, CL_DEVICE_SHARED_SYSTEM_MEM_CAPABILITIES_INTEL,
    CL_DEVICE_SINGLE_DEVICE_SHARED_MEM_CAPABILITIES_INTEL, CL_DEVICE_SUB_GROUP_SIZES_INTEL,
    CL_DEVICE_TOPOLOGY_AMD, CL_DEVICE_UUID_KHR, cl_platform_id,
};
use opencl3::device::{
    CL_DEVICE_INTEGER_DOT_PRODUCT_CAPABILITIES_KHR, CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU,
    CL_DEVICE_TYPE_CUSTOM, CL_DEVICE_TYPE_GPU, Device,
};
use opencl3::error_codes::{CL_DEVICE_NOT_FOUND, CL_PLATFORM_NOT_FOUND_KHR, ClError};
use opencl3::platform::{Platform, platform::get_platform_ids};
use ragtag_hal::cache::{Key, key};
use ragtag_hal::{
    Adapter, AdapterKind, Caps, Clocks, Feature, Features, HeapKind, HostMemory, KernelLanguage, Memory,
    MemoryHandle, MemorySource, PciAddress, PhysicalIdentity, QueueLayout, Unavailable, UnifiedAllocation,
};
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// Name of the library in messages.
const LIBRARY: &str = if cfg!(target_os = "windows") {
    "OpenCL.dll"
} else if cfg!(target_os = "macos") {
    "OpenCL.framework"
} else {
    "libOpenCL.so.1"
};
/// First final version of `cl_khr_command_buffer` (1.0), in OpenCL's version encoding.
const FINAL_COMMAND_BUFFERS: u32 = 1 << 22;
/// Capability bit of `cl_khr_integer_dot_product` for dot products of four packed bytes.
const PACKED_DOT: u64 = 1;
/// Sub-group size that Ragtag's kernels require.
const SUB_GROUP_SIZE: usize = 16;
/// Device property of NVIDIA's driver: the domain of the device's PCI address.
const CL_DEVICE_PCI_DOMAIN_ID_NV: u32 = 0x400a;
/// Capability bit of `cl_intel_unified_shared_memory`: kernels can read and write the allocation.
const UNIFIED_ACCESS: u64 = 1;
/// Device properties of `cl_intel_unified_shared_memory`, in the order of [`UnifiedAllocation::of_usm`].
const USM_CAPABILITIES: [u32; 5] = [
    CL_DEVICE_HOST_MEM_CAPABILITIES_INTEL,
    CL_DEVICE_DEVICE_MEM_CAPABILITIES_INTEL,
    CL_DEVICE_SINGLE_DEVICE_SHARED_MEM_CAPABILITIES_INTEL,
    CL_DEVICE_CROSS_DEVICE_SHARED_MEM_CAPABILITIES_INTEL,
    CL_DEVICE_SHARED_SYSTEM_MEM_CAPABILITIES_INTEL,
];

/// Lock that serialises probes. PoCL 3.1 initialises its devices in the first probe and crashes on concurrent
/// queries.
static PROBING: Mutex<()> = Mutex::new(());

/// A platform handle as an integer. The handle is valid on every thread until the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlatformId(usize);

impl PlatformId {
    pub(crate) fn raw(self) -> cl_platform_id {
        self.0 as cl_platform_id
    }
}

/// Source of the free memory size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreeMemory {
    /// The operating system reports the size, because the device uses host memory.
    Host,
    /// AMD's OpenCL extension reports the size.
    Amd,
    /// No source reports the size.
    Unknown,
}

pub(crate) type Found = ragtag_hal::Found<Native>;

/// Properties that are needed to open a device.
#[derive(Clone, Debug)]
pub(crate) struct Native {
    pub(crate) platform: PlatformId,
    pub(crate) device: Device,
    /// Compiler options for OpenCL C.
    pub(crate) options: String,
    /// Key that identifies platform, device and driver. A compiled program is valid only for devices with the
    /// same fingerprint.
    pub(crate) fingerprint: Key,
    /// Whether the platform supports OpenCL 2.0 or later.
    pub(crate) modern: bool,
    pub(crate) command_buffers: Option<CommandBuffers>,
    pub(crate) spir_v: Option<SpirVLoader>,
    pub(crate) memory: MemoryCaps,
    pub(crate) unified: Option<UnifiedMemory>,
    pub(crate) free: FreeMemory,
}

/// Returns the devices of all platforms without duplicates, in the order in which the OpenCL library lists
/// them.
///
/// # Errors
/// Returns [`Unavailable`] if there is no library or no driver.
pub(crate) fn probe(backend: &str) -> Result<Vec<Found>, Unavailable> {
    let _alone = PROBING.lock().unwrap_or_else(PoisonError::into_inner);
    let unavailable = |cause: String| Unavailable { tried: vec![LIBRARY.into()], cause };
    cl3::load_library().as_ref().map_err(|error| unavailable(error.to_string()))?;
    let platforms = match get_platform_ids() {
        Ok(platforms) if !platforms.is_empty() => platforms,
        Ok(_) | Err(CL_PLATFORM_NOT_FOUND_KHR) => {
            return Err(unavailable("the library finds no OpenCL driver".into()));
        }
        Err(code) => return Err(unavailable(format!("clGetPlatformIDs: {}", ClError(code)))),
    };
    let mut found: Vec<Found> = Vec::new();
    // A driver that is installed twice lists its platforms and devices twice.
    for (id, device) in distinct(platforms.into_iter().flat_map(devices)) {
        match describe(backend, found.len() as u32, id, device) {
            Ok(one) => found.push(one),
            Err(why) => tracing::debug!(%why, "skipping an OpenCL device"),
        }
    }
    for at in 0..found.len() {
        found[at].adapter.caps.sharing.peers = peers(&found, at);
    }
    Ok(found)
}

/// Returns the indices of the adapters whose memory a device can access: if the device uses host memory, the
/// other such devices of its platform.
fn peers(found: &[Found], at: usize) -> BTreeSet<u32> {
    let is_peer = |other: &&Found| other.platform == found[at].platform && other.memory.host_memory;
    let others = found.iter().filter(|other| other.adapter.index != found[at].adapter.index);
    let peers = others.filter(is_peer).map(|other| other.adapter.index);
    if found[at].memory.host_memory { peers.collect() } else { BTreeSet::new() }
}

/// Returns the devices of `platform`. Each device is paired with the platform.
fn devices(platform: cl_platform_id) -> Vec<(cl_platform_id, Device)> {
    match Platform::new(platform).get_devices(CL_DEVICE_TYPE_ALL) {
        Ok(ids) => ids.into_iter().map(|id| (platform, Device::new(id))).collect(),
        Err(ClError(CL_DEVICE_NOT_FOUND)) => Vec::new(),
        Err(error) => {
            tracing::debug!(%error, "an OpenCL platform has no devices");
            Vec::new()
        }
    }
}

/// Removes duplicate device handles.
fn distinct<P>(all: impl Iterator<Item = (P, Device)>) -> Vec<(P, Device)> {
    let mut seen: BTreeSet<*mut c_void> = BTreeSet::new();
    all.filter(|(_, device)| seen.insert(device.id())).collect()
}

fn describe(backend: &str, index: u32, id: cl_platform_id, device: Device) -> Result<Found, String> {
    let said = |what: &'static str| move |error: ClError| format!("{what}: {error}");
    let platform = Platform::new(id);
    let name = device.name().map_err(said("name"))?.trim().to_string();
    let class = device.dev_type().map_err(said("type"))?;
    usable(&device, class).map_err(|why| format!("{name}: {why}"))?;
    let platform_name = platform.name().map_err(said("platform"))?;
    let platform_version = platform.version().map_err(said("platform version"))?;
    let version = device.version().map_err(said("version"))?;
    let driver = device.driver_version().map_err(said("driver"))?;
    let extensions = Extensions(device.extensions().map_err(said("extensions"))?);
    let nvidia = extensions.any("cl_nv_");

    let processor = class & CL_DEVICE_TYPE_CPU != 0;
    let unified = device.host_unified_memory().unwrap_or(false);
    let kind = match class {
        _ if processor => AdapterKind::Software,
        class if class & CL_DEVICE_TYPE_GPU != 0 && unified => AdapterKind::Integrated,
        _ => AdapterKind::Discrete,
    };
    let host_memory = processor || kind == AdapterKind::Integrated;
    let spir_v = spir_v(&device, &extensions, id, version_of(&platform_version, "OpenCL "));
    let features = features(&device, &extensions, nvidia);
    let options = options(c_version(&device), &features);
    let mut caps = caps(&device, features, spir_v.is_some()).map_err(said("limits"))?;
    // Devices with their own memory would share a buffer by copies of the driver.
    let objects = host_memory.then_some(MemoryHandle::DriverObject);
    caps.sharing.exports = objects.into_iter().collect();
    caps.sharing.imports = objects.into_iter().chain([MemoryHandle::HostPages]).collect();
    let [svm, usm] = [svm(&device), usm(&device)];
    let unified_memory = UnifiedMemory::of(id).filter(|_| usm.contains(&UnifiedAllocation::UsmHost));
    let memory = MemoryCaps {
        host_memory,
        fine_grained_buffers: svm.contains(&UnifiedAllocation::SvmFineBuffer),
        unified_host: unified_memory.is_some(),
    };
    caps.sharing.unified = svm.into_iter().chain(usm).collect();
    let free = match () {
        () if host_memory => FreeMemory::Host,
        () if extensions.has("cl_amd_device_attribute_query") => FreeMemory::Amd,
        () => FreeMemory::Unknown,
    };
    let heap = heap(&device, free).ok_or("unknown memory size")?;
    let command_buffers = extensions.has("cl_khr_command_buffer") && final_command_buffers(&device);
    let adapter = Adapter {
        backend: backend.into(),
        index,
        driver: format!("{platform_name}, {}, driver {driver}", first_words(&version)).into(),
        kind,
        identity: PhysicalIdentity { pci: pci(&device, nvidia), uuid: uuid(&device, &extensions) },
        condition: None,
        memory: vec![heap],
        caps,
        name: name.clone(),
    };
    let parts = [&platform_name, &platform_version, &name, &version, &driver];
    let native = Native {
        platform: PlatformId(id as usize),
        device,
        options,
        fingerprint: key(parts.map(|part| part.as_bytes())),
        modern: version_of(&platform_version, "OpenCL ") >= (2, 0),
        command_buffers: command_buffers.then(|| CommandBuffers::of(id)).flatten(),
        spir_v,
        memory,
        unified: unified_memory,
        free,
    };
    Ok(Found { adapter, native })
}

/// Returns the kinds of shared virtual memory that a device supports.
fn svm(device: &Device) -> Vec<UnifiedAllocation> {
    UnifiedAllocation::of_svm(device.svm_mem_capability()).collect()
}

/// Returns the kinds of unified shared memory that a device can access through Intel's extension.
fn usm(device: &Device) -> Vec<UnifiedAllocation> {
    let accessible = USM_CAPABILITIES
        .map(|property| number(device, property).is_some_and(|caps| caps & UNIFIED_ACCESS != 0));
    UnifiedAllocation::of_usm(accessible).collect()
}

/// Checks that the device can run Ragtag's kernels.
fn usable(device: &Device, class: u64) -> Result<(), &'static str> {
    match () {
        () if class & CL_DEVICE_TYPE_CUSTOM != 0 => Err("it runs no kernels"),
        () if !device.available().unwrap_or(false) => Err("it is not available"),
        () if !device.compiler_available().unwrap_or(false) => Err("its driver has no compiler"),
        () if !device.endian_little().unwrap_or(false) => Err("it is big-endian"),
        () if c_version(device) < (1, 2) => Err("its OpenCL C is older than 1.2"),
        () => Ok(()),
    }
}

/// Extension names of a device, separated by spaces.
struct Extensions(String);

impl Extensions {
    fn has(&self, name: &str) -> bool {
        self.0.split_ascii_whitespace().any(|word| word == name)
    }

    fn any(&self, prefix: &str) -> bool {
        self.0.split_ascii_whitespace().any(|word| word.starts_with(prefix))
    }
}

/// Parses the version that follows `prefix` in an OpenCL version string such as `OpenCL 3.0 and more`.
fn version_of(text: &str, prefix: &str) -> (u32, u32) {
    let words = text.strip_prefix(prefix).and_then(|rest| rest.split_ascii_whitespace().next());
    let numbers = words.and_then(|word| word.split_once('.'));
    let parse = |(major, minor): (&str, &str)| Some((major.parse().ok()?, minor.parse().ok()?));
    numbers.and_then(parse).unwrap_or((0, 0))
}

fn first_words(version: &str) -> String {
    version.split_ascii_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// Returns the highest version of OpenCL C that the device supports.
fn c_version(device: &Device) -> (u32, u32) {
    let listed = device.opencl_c_all_versions().unwrap_or_default();
    let listed = listed.iter().map(|one| (one.version >> 22, one.version >> 12 & 0x3ff)).max();
    let said = version_of(&device.opencl_c_version().unwrap_or_default(), "OpenCL C ");
    listed.map_or(said, |listed| listed.max(said))
}

/// Returns the options for the OpenCL compiler. No option trades accuracy for speed. Because of `-w`, PoCL's
/// compiler does not print the number of warnings to standard error.
fn options((major, minor): (u32, u32), features: &Features) -> String {
    let standard = match (major, minor) {
        (3.., _) => "CL3.0",
        (2, _) => "CL2.0",
        _ => "CL1.2",
    };
    let define = |feature: &Feature| match feature {
        Feature::Fp16 => " -DRT_FP16",
        Feature::SubGroups => " -DRT_SUBGROUPS",
        Feature::IntegerDot => " -DRT_INTEGER_DOT",
        _ => "",
    };
    let defines: String = features.iter().map(define).collect();
    format!("-cl-std={standard} -w{defines}")
}

fn features(device: &Device, extensions: &Extensions, nvidia: bool) -> Features {
    let optional = device.opencl_c_features().unwrap_or_default();
    let optional = |name: &str| optional.iter().any(|one| name_of(&one.name) == name.as_bytes());
    let has_sub_groups = extensions.has("cl_khr_subgroups")
        || extensions.has("cl_intel_subgroups")
        || optional("__opencl_c_subgroups");
    let sub_groups = has_sub_groups
        && extensions.has("cl_intel_required_subgroup_size")
        && sub_group_sizes(device).contains(&SUB_GROUP_SIZE);
    let dot = extensions.has("cl_khr_integer_dot_product")
        && number(device, CL_DEVICE_INTEGER_DOT_PRODUCT_CAPABILITIES_KHR)
            .is_some_and(|caps| caps & PACKED_DOT != 0);
    [
        (extensions.has("cl_khr_fp16"), Feature::Fp16),
        (sub_groups, Feature::SubGroups),
        // NVIDIA's driver does not report the extension, but its compiler accepts the instruction.
        (dot || nvidia, Feature::IntegerDot),
    ]
    .into_iter()
    .filter_map(|(has, feature)| has.then_some(feature))
    .collect()
}

/// Returns the sub-group sizes that kernels may require.
fn sub_group_sizes(device: &Device) -> Vec<usize> {
    let bytes = device.get_data(CL_DEVICE_SUB_GROUP_SIZES_INTEL).unwrap_or_default();
    bytes.as_chunks().0.iter().map(|size| usize::from_ne_bytes(*size)).collect()
}

/// Truncates a name at its first zero byte.
fn name_of(name: &[u8]) -> &[u8] {
    name.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn final_command_buffers(device: &Device) -> bool {
    let versions = device.extensions_with_version().unwrap_or_default();
    let is = |one: &&cl3::ext::cl_name_version| name_of(&one.name) == b"cl_khr_command_buffer";
    versions.iter().find(is).is_some_and(|one| one.version >= FINAL_COMMAND_BUFFERS)
}

fn spir_v(
    device: &Device,
    extensions: &Extensions,
    platform: cl_platform_id,
    platform_version: (u32, u32),
) -> Option<SpirVLoader> {
    let takes = device.il_version().unwrap_or_default().contains("SPIR-V");
    match takes {
        true if platform_version >= (2, 1) => Some(SpirVLoader::Core),
        true if extensions.has("cl_khr_il_program") => SpirVLoader::extension(platform),
        _ => None,
    }
}

/// Returns the number of f32 lanes per compute unit in a vendor's GPUs, or 0 for an unknown vendor.
fn lanes_per_unit(vendor: &str) -> u32 {
    let vendor = vendor.to_lowercase();
    match () {
        () if vendor.contains("nvidia") => 128,
        () if vendor.contains("advanced micro devices") || vendor.contains("amd") => 64,
        () if vendor.contains("intel") => 8,
        () => 0,
    }
}

fn caps(device: &Device, features: Features, spir_v: bool) -> Result<Caps, ClError> {
    let spir_v = spir_v.then_some(KernelLanguage::SpirV);
    let clocks = Clocks {
        compute_khz: device.max_clock_frequency().unwrap_or(0).saturating_mul(1000),
        lanes_per_unit: lanes_per_unit(&device.vendor().unwrap_or_default()),
        ..Clocks::default()
    };
    let max_allocation_bytes = device.max_mem_alloc_size()?;
    Ok(Caps {
        languages: spir_v.into_iter().chain([KernelLanguage::OpenClC]).collect(),
        features,
        queues: QueueLayout::Separate,
        records_programs: true,
        max_allocation_bytes,
        max_binding_bytes: max_allocation_bytes,
        // OpenCL reports this value in bits.
        binding_alignment_bytes: u64::from(device.mem_base_addr_align()? / 8).max(1),
        copy_alignment_bytes: 1,
        parallel_units: device.max_compute_units()?.max(1),
        max_work_group_items: u32::try_from(device.max_work_group_size()?).unwrap_or(u32::MAX),
        local_memory_bytes: device.local_mem_size()?,
        clocks,
        gemm: None,
        sharing: Default::default(),
    })
}

/// Returns the total and free memory for the device's buffers.
pub(crate) fn heap(device: &Device, free: FreeMemory) -> Option<Memory> {
    let total_bytes = device.global_mem_size().ok().filter(|&bytes| bytes > 0)?;
    let free_bytes = match free {
        FreeMemory::Host => Some(HostMemory::now().free_bytes.min(total_bytes)),
        FreeMemory::Amd => amd_free_bytes(device).map(|free| free.min(total_bytes)),
        FreeMemory::Unknown => None,
    };
    Some(Memory {
        heap: if free == FreeMemory::Host { HeapKind::Host } else { HeapKind::Device },
        total_bytes,
        free_bytes,
        source: if free == FreeMemory::Host { MemorySource::System } else { MemorySource::Api },
    })
}

/// Returns the free memory that AMD's extension reports. The extension reports sizes in KiB. The first size
/// is the total of all free blocks.
fn amd_free_bytes(device: &Device) -> Option<u64> {
    let figures = device.get_data(CL_DEVICE_GLOBAL_FREE_MEMORY_AMD).ok()?;
    let kib = u64::from_ne_bytes(*figures.first_chunk()?);
    kib.checked_mul(1024)
}

/// Queries an integer property of four or eight bytes.
fn number(device: &Device, what: u32) -> Option<u64> {
    let bytes = device.get_data(what).ok()?;
    match bytes.len() {
        4 => Some(u64::from(u32::from_ne_bytes(bytes.try_into().ok()?))),
        8 => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}

fn pci(device: &Device, nvidia: bool) -> Option<PciAddress> {
    let words = |bytes: Vec<u8>| -> Vec<u32> {
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect()
    };
    if let Some([domain, bus, device, function]) =
        device.get_data(CL_DEVICE_PCI_BUS_INFO_KHR).ok().map(words).as_deref()
    {
        let byte = |word: u32| u8::try_from(word).ok();
        return Some(PciAddress {
            domain: *domain,
            bus: byte(*bus)?,
            device: byte(*device)?,
            function: byte(*function)?,
        });
    }
    if nvidia {
        let bus = u8::try_from(number(device, CL_DEVICE_PCI_BUS_ID_NV)?).ok()?;
        // The byte contains the device number and the function number, as in a PCI address.
        let slot = u8::try_from(number(device, CL_DEVICE_PCI_SLOT_ID_NV)?).ok()?;
        let domain = number(device, CL_DEVICE_PCI_DOMAIN_ID_NV).unwrap_or(0);
        return Some(PciAddress { domain: domain as u32, bus, device: slot >> 3, function: slot & 7 });
    }
    // AMD's value starts with a word of value 1, followed by bytes. The last three bytes are bus, device and
    // function.
    let topology = device.get_data(CL_DEVICE_TOPOLOGY_AMD).ok()?;
    match topology.as_slice() {
        [1, 0, 0, 0, .., bus, device, function] if topology.len() == 24 => {
            Some(PciAddress { domain: 0, bus: *bus, device: *device, function: *function })
        }
        _ => None,
    }
}

fn uuid(device: &Device, extensions: &Extensions) -> Option<[u8; 16]> {
    let uuid = extensions.has("cl_khr_device_uuid").then(|| device.get_data(CL_DEVICE_UUID_KHR).ok())??;
    uuid.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_device_counts_once() {
        let device = |id: usize| Device::new(id as *mut c_void);
        let shown = [(1, device(8)), (1, device(16)), (2, device(8)), (3, device(24)), (3, device(24))];
        let distinct: Vec<_> = distinct(shown.into_iter())
            .into_iter()
            .map(|(platform, device)| (platform, device.id() as usize))
            .collect();
        assert_eq!(distinct, [(1, 8), (1, 16), (3, 24)]);
    }

    #[test]
    fn versions_are_parsed() {
        assert_eq!(version_of("OpenCL 3.0 PoCL 3.1+debian", "OpenCL "), (3, 0));
        assert_eq!(version_of("OpenCL C 1.2", "OpenCL C "), (1, 2));
        assert_eq!(version_of("OpenCL three", "OpenCL "), (0, 0));
        assert_eq!(version_of("", "OpenCL "), (0, 0));
    }

    #[test]
    fn options_contain_the_standard_and_the_features() {
        let all = Features::from([Feature::Fp16, Feature::SubGroups, Feature::IntegerDot]);
        assert_eq!(options((3, 1), &all), "-cl-std=CL3.0 -w -DRT_FP16 -DRT_SUBGROUPS -DRT_INTEGER_DOT");
        assert_eq!(options((2, 0), &Features::new()), "-cl-std=CL2.0 -w");
        assert_eq!(options((1, 2), &Features::from([Feature::Fp16])), "-cl-std=CL1.2 -w -DRT_FP16");
    }

    #[test]
    fn extensions_are_whole_words() {
        let extensions = Extensions("cl_khr_fp16_more cl_nv_device".into());
        assert!(!extensions.has("cl_khr_fp16") && extensions.has("cl_nv_device") && extensions.any("cl_nv_"));
    }
}
