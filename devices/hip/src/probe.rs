//! Detection of HIP devices: their adapters, and the properties that are needed to open them.

use crate::api::symbols::attribute;
use crate::api::{Api, Compiler, api, blas, compiler};
use crate::architecture::Architecture;
use ragtag_hal::{
    Adapter, AdapterKind, Caps, Clocks, DriverInfo, Feature, GemmLibrary, HeapKind, KernelLanguage, Memory,
    MemoryHandle, MemorySharing, MemorySource, PhysicalIdentity, QueueLayout, Result, Unavailable,
};

/// Required alignment of a binding's offset, in bytes. The widest loads in kernels are 16 bytes.
const BINDING_ALIGNMENT_BYTES: u64 = 16;
/// First major version of HIP with which Ragtag uses stream-ordered pools.
const POOLS_SINCE: u32 = 6;
/// Size of rocBLAS's workspace. rocBLAS allocates 32 MiB by default on most devices.
pub(crate) const WORKSPACE_BYTES: u64 = 32 << 20;
/// Environment variables with which users hide devices from the driver.
const VISIBILITY: [&str; 4] =
    ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"];

pub(crate) type Found = ragtag_hal::Found<Native>;

/// Properties that are needed to open a device.
#[derive(Clone)]
pub(crate) struct Native {
    pub(crate) api: &'static Api,
    pub(crate) compiler: &'static Compiler,
    /// Ordinal of the device in HIP.
    pub(crate) ordinal: i32,
    /// Compilation target of the device.
    pub(crate) target: String,
    /// Whether Ragtag allocates memory from stream-ordered pools.
    pub(crate) pools: bool,
}

/// Returns the devices for which kernels can be compiled, in HIP's order. Looks for the product library only
/// if `looks_for_gemm` is true, because the search is slow.
///
/// # Errors
/// Returns [`Unavailable`] if there is no library, no compiler, no device, or no device with a supported
/// architecture.
pub(crate) fn probe(backend: &str, looks_for_gemm: bool) -> std::result::Result<Vec<Found>, Unavailable> {
    let hidden = environment(|name| std::env::var(name).ok());
    let with_hidden = |unavailable: Unavailable| match &hidden {
        Some(hidden) => Unavailable { cause: format!("{} ({hidden})", unavailable.cause), ..unavailable },
        None => unavailable,
    };
    let api = api().map_err(with_hidden)?;
    let compiler = compiler(api).map_err(|tried| Unavailable {
        tried,
        cause: format!("HIP {} is installed without its compiler hiprtc", api.version),
    })?;
    let (mut found, mut left_out): (Vec<Found>, _) = (Vec::new(), Vec::new());
    for ordinal in 0..api.devices {
        match describe(backend, found.len() as u32, api, compiler, ordinal, hidden.as_deref()) {
            Ok((mut one, architecture)) => {
                one.adapter.caps.gemm = looks_for_gemm.then(|| gemm(api, &architecture)).flatten();
                found.push(one);
            }
            Err(why) => {
                tracing::debug!(ordinal, %why, "skipping a HIP device");
                left_out.push(why);
            }
        }
    }
    if found.is_empty() {
        let cause = left_out.join("; ");
        return Err(with_hidden(Unavailable { tried: vec![api.library.clone()], cause }));
    }
    for at in 0..found.len() {
        found[at].adapter.caps.sharing = sharing(&found, at);
    }
    Ok(found)
}

/// Returns the kinds of memory sharing that a device supports, according to the driver.
fn sharing(found: &[Found], at: usize) -> MemorySharing {
    let Native { api, ordinal, .. } = found[at].native;
    let reached =
        found.iter().filter(|other| other.ordinal != ordinal && api.reaches(ordinal, other.ordinal));
    let dma_buf = cfg!(unix) && api.functions.hipImportExternalMemory.is_some();
    let dma_buf = dma_buf.then_some(MemoryHandle::DmaBuf);
    MemorySharing {
        peers: reached.map(|other| other.adapter.index).collect(),
        exports: [MemoryHandle::DriverObject].into(),
        imports: [MemoryHandle::DriverObject, MemoryHandle::HostPages].into_iter().chain(dma_buf).collect(),
        ..MemorySharing::default()
    }
}

/// Returns the product library if it has kernels for the architecture.
fn gemm(api: &'static Api, architecture: &Architecture) -> Option<GemmLibrary> {
    let blas = blas(api).filter(|blas| blas.serves(architecture.name()))?;
    Some(GemmLibrary {
        name: "rocBLAS".into(),
        version: blas.version.clone(),
        workspace_bytes: WORKSPACE_BYTES,
        preferred: false,
    })
}

/// Returns `NAME=VALUE` for each environment variable that hides devices. Returns `None` if none is set.
fn environment(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let set = VISIBILITY.iter().filter_map(|name| Some(format!("{name}={}", variable(name)?)));
    let set: Vec<_> = set.collect();
    (!set.is_empty()).then(|| set.join(" "))
}

/// Queries the properties of a device.
///
/// # Errors
/// Returns a message that explains why the device cannot be used.
fn describe(
    backend: &str,
    index: u32,
    api: &'static Api,
    compiler: &'static Compiler,
    ordinal: i32,
    hidden: Option<&str>,
) -> std::result::Result<(Found, Architecture), String> {
    let name = api.name(ordinal).map_err(|error| format!("device {ordinal}: {error}"))?;
    let said = api.architecture(ordinal).map_err(|error| format!("{name}: {error}"))?;
    let architecture = Architecture::of(&said).map_err(|why| format!("{name}: {why}"))?;
    let caps = caps(api, ordinal, &architecture).map_err(|error| format!("{name}: {error}"))?;
    let integrated = api.attribute(attribute::INTEGRATED, ordinal).unwrap_or(0) != 0;
    let pools = api.version.major >= POOLS_SINCE
        && api.attribute(attribute::MEMORY_POOLS_SUPPORTED, ordinal).unwrap_or(0) != 0;
    let adapter = Adapter {
        backend: backend.into(),
        index,
        name,
        driver: DriverInfo {
            name: format!("HIP {}, {}", api.version, architecture.name()),
            hidden_by: hidden.map(str::to_string),
            ..DriverInfo::default()
        },
        kind: if integrated { AdapterKind::Integrated } else { AdapterKind::Discrete },
        identity: PhysicalIdentity { pci: api.pci(ordinal), uuid: api.uuid(ordinal) },
        condition: None,
        memory: vec![heap(api, ordinal, integrated, caps.max_allocation_bytes)],
        caps,
    };
    let target = architecture.target.clone();
    Ok((Found { adapter, native: Native { api, compiler, ordinal, target, pools } }, architecture))
}

fn heap(api: &Api, ordinal: i32, integrated: bool, total_bytes: u64) -> Memory {
    let free_bytes = api.select(ordinal).and_then(|()| api.memory()).ok().map(|(free, _)| free);
    Memory {
        heap: if integrated { HeapKind::Host } else { HeapKind::Device },
        total_bytes,
        free_bytes: free_bytes.map(|free| free.min(total_bytes)),
        source: MemorySource::Api,
    }
}

fn caps(api: &Api, ordinal: i32, architecture: &Architecture) -> Result<Caps> {
    let number = |attribute| api.attribute(attribute, ordinal);
    let total_bytes = api.total_bytes(ordinal)?;
    let features = architecture.features(number(attribute::WARP_SIZE)?);
    // On devices with wavefronts of 32 work items, HIP counts two compute units as one. The memory clock is
    // omitted, because the number of transfers per cycle depends on the memory type, which HIP does not
    // report.
    let clocks = Clocks {
        compute_khz: number(attribute::CLOCK_RATE).unwrap_or(0),
        lanes_per_unit: if features.contains(&Feature::Wave64) { 64 } else { 128 },
        ..Clocks::default()
    };
    Ok(Caps {
        languages: [KernelLanguage::HipC].into(),
        features,
        queues: QueueLayout::Separate,
        records_programs: true,
        max_allocation_bytes: total_bytes,
        max_binding_bytes: total_bytes,
        binding_alignment_bytes: BINDING_ALIGNMENT_BYTES,
        copy_alignment_bytes: 1,
        parallel_units: number(attribute::MULTIPROCESSOR_COUNT)?.max(1),
        max_work_group_items: number(attribute::MAX_THREADS_PER_BLOCK)?,
        local_memory_bytes: u64::from(number(attribute::MAX_SHARED_MEMORY_PER_BLOCK)?),
        clocks,
        gemm: None,
        sharing: Default::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_hide_devices_are_reported() {
        assert_eq!(environment(|_| None), None);
        let one = |name: &str| (name == "ROCR_VISIBLE_DEVICES").then(|| "1".to_string());
        assert_eq!(environment(one), Some("ROCR_VISIBLE_DEVICES=1".into()));
        let all = environment(|_| Some("0".into())).unwrap();
        assert!(VISIBILITY.iter().all(|name| all.contains(&format!("{name}=0"))));
    }
}
