//! Detection of CUDA devices and their properties.

use crate::api::{Functions, check, version};
use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute, CUuuid};
use ragtag_hal::{
    Adapter, AdapterKind, Caps, Clocks, DriverInfo, Feature, Features, HeapKind, KernelLanguage, Memory,
    MemoryHandle, MemorySharing, MemorySource, PciAddress, PhysicalIdentity, QueueLayout, Result,
};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char};

/// Lowest supported compute capability: the first that has four-way int8 dot products.
const LOWEST_CAPABILITY: (i32, i32) = (6, 1);
/// Required alignment of a binding's offset, in bytes. Kernels load 16 bytes at a time.
const BINDING_ALIGNMENT_BYTES: u64 = 16;
/// Size of the buffer for a device's name.
const NAME_BYTES: usize = 256;

pub(crate) type Found = ragtag_hal::Found<Native>;

/// Driver handle of a device, and the properties that are needed to open it.
#[derive(Clone, Debug)]
pub(crate) struct Native {
    pub(crate) device: CUdevice,
    /// Major and minor number of the compute capability.
    pub(crate) capability: (i32, i32),
    /// Whether Ragtag allocates memory from stream-ordered pools.
    pub(crate) pools: bool,
}

/// Settings common to all adapters of a backend.
pub(crate) struct Common<'a> {
    pub(crate) backend: &'static str,
    /// Function that returns true if NVRTC supports a compute capability.
    pub(crate) compiles: &'a dyn Fn((i32, i32)) -> bool,
}

/// Returns the devices that Ragtag can use, in the driver's order. Skips a device that cannot be queried.
///
/// # Errors
/// Returns the driver's error if the driver cannot count the devices.
pub(crate) fn devices(functions: &Functions, common: &Common<'_>) -> Result<Vec<Found>> {
    let mut count = 0;
    // SAFETY: the call writes one number.
    unsafe { check!(functions, cuDeviceGetCount(&mut count)) }?;
    let found = (0..count).filter_map(|ordinal| match device(functions, ordinal, common) {
        Ok(found) if found.capability < LOWEST_CAPABILITY => {
            let (name, capability) = (&found.adapter.name, found.capability);
            tracing::warn!(name, ?capability, "skipping a device: compute capability 6.1 or newer is needed");
            None
        }
        Ok(found) => Some(found),
        Err(error) => {
            tracing::warn!(ordinal, %error, "skipping a CUDA device that cannot be queried");
            None
        }
    });
    let mut found: Vec<Found> = found.collect();
    for at in 0..found.len() {
        found[at].adapter.caps.sharing.peers = peers(functions, &found, at);
    }
    Ok(found)
}

/// Returns the indices of the adapters whose memory a device can access, according to the driver.
fn peers(functions: &Functions, found: &[Found], at: usize) -> BTreeSet<u32> {
    let device = found[at].device;
    let reaches = |other: &&Found| {
        let mut can = 0;
        // SAFETY: the call writes one number.
        let asked = unsafe { check!(functions, cuDeviceCanAccessPeer(&mut can, device, other.device)) };
        asked.is_ok() && can != 0
    };
    let others = found.iter().filter(|other| other.device != device);
    others.filter(reaches).map(|other| other.adapter.index).collect()
}

fn device(functions: &Functions, ordinal: i32, common: &Common<'_>) -> Result<Found> {
    let mut device = 0;
    // SAFETY: the call writes one number.
    unsafe { check!(functions, cuDeviceGet(&mut device, ordinal)) }?;
    let attribute = |attribute: Attribute| {
        let mut value = 0;
        // SAFETY: the call writes one number.
        unsafe { check!(functions, cuDeviceGetAttribute(&mut value, attribute, device)) }.map(|()| value)
    };
    let number = |name| attribute(name).map(|value| u32::try_from(value).unwrap_or(0));
    let capability = (
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    let total_bytes = total_bytes(functions, device)?;
    let limits = Limits {
        total_bytes,
        units: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        work_group_items: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        local_memory_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?.into(),
    };
    // Newer drivers may not report clock rates.
    let reported = |name| number(name).unwrap_or(0);
    let clocks = Clocks {
        compute_khz: reported(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        lanes_per_unit: lanes_per_unit(capability),
        memory_khz: reported(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE),
        memory_bus_bits: reported(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH),
    };
    // Vulkan cannot import CUDA's memory, so CUDA exports memory only to its peers.
    let fd = cfg!(unix).then_some(MemoryHandle::OpaqueFd);
    let imports = fd.into_iter().chain([MemoryHandle::DriverObject, MemoryHandle::HostPages]).collect();
    let exports = [MemoryHandle::DriverObject].into();
    let sharing = MemorySharing { exports, imports, ..MemorySharing::default() };
    let memory = Memory { heap: HeapKind::Device, total_bytes, free_bytes: None, source: MemorySource::Api };
    let integrated = attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
    let pci = PciAddress {
        domain: number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
        bus: u8::try_from(number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?).unwrap_or(0),
        device: u8::try_from(number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?).unwrap_or(0),
        function: 0,
    };
    let adapter = Adapter {
        backend: common.backend.into(),
        index: u32::try_from(ordinal).unwrap_or(0),
        name: name(functions, device)?,
        driver: driver(functions.version()),
        kind: if integrated { AdapterKind::Integrated } else { AdapterKind::Discrete },
        identity: PhysicalIdentity { pci: Some(pci), uuid: Some(uuid(functions, device)?) },
        condition: None,
        memory: vec![memory],
        caps: Caps { sharing, clocks, ..limits.caps(capability, (common.compiles)(capability)) },
    };
    let pools = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0;
    Ok(Found { adapter, native: Native { device, capability, pools } })
}

fn name(functions: &Functions, device: CUdevice) -> Result<String> {
    let mut name = [0u8; NAME_BYTES];
    // SAFETY: the call writes at most this many bytes.
    unsafe { check!(functions, cuDeviceGetName(name.as_mut_ptr().cast(), NAME_BYTES as i32, device)) }?;
    let name = CStr::from_bytes_until_nul(&name).map(CStr::to_string_lossy);
    Ok(name.map_or_else(|_| "unnamed device".into(), |name| name.into_owned()))
}

fn uuid(functions: &Functions, device: CUdevice) -> Result<[u8; 16]> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the call writes sixteen bytes.
    unsafe { check!(functions, cuDeviceGetUuid_v2(&mut uuid, device)) }?;
    Ok(uuid.bytes.map(|byte: c_char| byte as u8))
}

fn total_bytes(functions: &Functions, device: CUdevice) -> Result<u64> {
    let mut bytes = 0;
    // SAFETY: the call writes one number.
    unsafe { check!(functions, cuDeviceTotalMem_v2(&mut bytes, device)) }?;
    Ok(bytes as u64)
}

/// Returns the driver's version and the value of `CUDA_VISIBLE_DEVICES`.
fn driver(number: i32) -> DriverInfo {
    let release = release().map_or_else(String::new, |release| format!(", driver {release}"));
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    DriverInfo {
        name: format!("CUDA {}{release}", version(number)),
        hidden_by: visible.map(|visible| format!("CUDA_VISIBLE_DEVICES={visible}")),
        ..DriverInfo::default()
    }
}

/// Returns the version of NVIDIA's driver, such as 580.159.04, if the operating system reports it. The API
/// reports only the CUDA version.
fn release() -> Option<String> {
    let release = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    let release = release.trim();
    let plain = !release.is_empty() && release.chars().all(|c| c.is_ascii_digit() || c == '.');
    plain.then(|| release.to_owned())
}

/// Limits of a device.
struct Limits {
    total_bytes: u64,
    units: u32,
    work_group_items: u32,
    local_memory_bytes: u64,
}

impl Limits {
    fn caps(&self, capability: (i32, i32), compiles: bool) -> Caps {
        let compiled = compiles.then_some(KernelLanguage::CudaC);
        Caps {
            languages: [KernelLanguage::Ptx].into_iter().chain(compiled).collect(),
            features: features(capability),
            queues: QueueLayout::Separate,
            records_programs: true,
            max_allocation_bytes: self.total_bytes,
            max_binding_bytes: self.total_bytes,
            binding_alignment_bytes: BINDING_ALIGNMENT_BYTES,
            copy_alignment_bytes: 1,
            parallel_units: self.units,
            max_work_group_items: self.work_group_items,
            local_memory_bytes: self.local_memory_bytes,
            clocks: Default::default(),
            gemm: None,
            sharing: Default::default(),
        }
    }
}

/// Returns the number of f32 lanes per multiprocessor.
fn lanes_per_unit(capability: (i32, i32)) -> u32 {
    match capability {
        (6, 0) | (7, _) | (8, 0) => 64,
        _ => 128,
    }
}

/// Returns the features of a compute capability.
fn features(capability: (i32, i32)) -> Features {
    let from =
        [((7, 0), Feature::Sm70), ((7, 5), Feature::Sm75), ((8, 0), Feature::Sm80), ((9, 0), Feature::Sm90)];
    let always = [Feature::Fp16, Feature::SubGroups, Feature::IntegerDot];
    let reached = from.into_iter().filter(|(lowest, _)| capability >= *lowest).map(|(_, feature)| feature);
    let only = (capability == (9, 0)).then_some(Feature::Sm90a);
    always.into_iter().chain(reached).chain(only).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_imply_features() {
        let has = |capability, feature| features(capability).contains(&feature);
        assert_eq!(features((6, 1)), [Feature::Fp16, Feature::SubGroups, Feature::IntegerDot].into());
        assert!(has((7, 0), Feature::Sm70) && !has((7, 0), Feature::Sm75));
        assert!(has((8, 6), Feature::Sm80) && !has((8, 6), Feature::Sm90));
        assert!(has((9, 0), Feature::Sm90) && has((9, 0), Feature::Sm90a));
        assert!(has((10, 0), Feature::Sm90) && !has((10, 0), Feature::Sm90a), "a feature of 9.0 only");
        assert!(has((12, 0), Feature::Sm70));
    }

    #[test]
    fn multiprocessors_have_lanes() {
        assert_eq!(
            [(6, 1), (7, 5), (8, 0), (8, 9), (9, 0), (12, 0)].map(lanes_per_unit),
            [128, 64, 64, 128, 128, 128]
        );
    }

    #[test]
    fn caps_name_cuda_if_it_can_be_compiled() {
        let limits =
            Limits { total_bytes: 1 << 30, units: 132, work_group_items: 1024, local_memory_bytes: 232_448 };
        let caps = limits.caps((9, 0), false);
        assert_eq!(caps.languages, [KernelLanguage::Ptx].into());
        assert!(limits.caps((9, 0), true).languages.contains(&KernelLanguage::CudaC));
        assert!(caps.records_programs);
    }
}
