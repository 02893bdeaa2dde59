//! The driver, its devices and their properties. The devices look like Intel Arc A770 cards, except for the
//! properties that kernels depend on, which are those of the OpenCL device.

use crate::calls::{entries, lock};
use crate::cl::cl;
use crate::engine::Engine;
use crate::faults::{Call, Record, setting};
use crate::handles::{
    describe, described, extension_at, find, find_all, give, list, put, share, take, text_at,
};
use crate::memory::{
    DMA_BUF, has_dma_bufs, held_bytes, zexDriverImportExternalPointer, zexDriverReleaseImportedPointer,
};
use crate::queue::changed;
use crate::types::code::{DEVICE_LOST, INVALID_ARGUMENT, UNINITIALIZED};
use crate::types::*;
use cl3::device::{CL_DEVICE_GLOBAL_MEM_SIZE, CL_DEVICE_LOCAL_MEM_SIZE};
use std::collections::BTreeMap;
use std::env;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

/// Number of devices.
const DEVICES: usize = 2;
/// Number of the card whose tiles are the devices, if `RAGTAG_FAKE_TILES` is set.
const CARD: usize = DEVICES;
/// Number of the device that shares the host's memory, so that tests cover both kinds.
const INTEGRATED: usize = 1;
/// Version 1.3 of the API, as Intel's driver of the same age reports.
const API: u32 = 0x0001_0003;
/// Frequency of the timestamps, in Hz.
const TIMER_HZ: u64 = 19_200_000;
/// Nanoseconds per tick, for callers of version 1.0 of the properties.
const TIMER_NS: u64 = 52;
/// Numbers of valid bits in timestamps.
const TIMESTAMP_BITS: u32 = 36;
const KERNEL_TIMESTAMP_BITS: u32 = 32;
/// Limit for the number of work items per group.
pub const MAX_GROUP: u32 = 1024;
/// Limit for one allocation without relaxed limits.
const MAX_ALLOCATION: u64 = (4 << 30) - (64 << 10);
/// Ordinals of the queue groups.
pub const COMPUTE: u32 = 0;
pub const COPY: u32 = 1;
/// Maximum size of a fill pattern on copy engines, in bytes.
pub const COPY_PATTERN_BYTES: usize = 16;

/// The only driver.
struct Driver;

/// Device of this driver.
#[derive(Debug)]
pub struct Device {
    pub number: usize,
    record: Mutex<Record>,
    lost: AtomicBool,
    /// Number of queues and immediate lists.
    queues: AtomicUsize,
    pub engines: Mutex<BTreeMap<(u32, u32), Arc<Engine>>>,
}

/// A context, which spans all devices.
pub struct Context;

/// Handles of the driver and its devices.
struct Root {
    driver: usize,
    devices: Vec<Arc<Device>>,
    handles: Vec<usize>,
}

static ROOT: OnceLock<Root> = OnceLock::new();

fn root() -> Result<&'static Root> {
    ROOT.get().ok_or(UNINITIALIZED)
}

/// Returns the indices of the devices that `ZE_AFFINITY_MASK` shows.
fn visible() -> Vec<usize> {
    let Ok(mask) = env::var("ZE_AFFINITY_MASK") else { return (0..DEVICES).collect() };
    let root = |one: &str| one.split('.').next()?.trim().parse().ok();
    let mut shown: Vec<usize> = mask.split(',').filter_map(root).filter(|one| *one < DEVICES).collect();
    shown.sort_unstable();
    shown.dedup();
    shown
}

fn started() -> Instant {
    static STARTED: OnceLock<Instant> = OnceLock::new();
    *STARTED.get_or_init(Instant::now)
}

/// Returns whether the devices are the tiles of one card.
fn has_tiles() -> bool {
    env::var_os("RAGTAG_FAKE_TILES").is_some()
}

/// Returns the number of tiles of a device. A tile has none.
fn tiles_of(device: &Device) -> usize {
    if device.number == CARD { DEVICES } else { 0 }
}

/// Returns all devices.
pub fn devices() -> Result<&'static [Arc<Device>]> {
    root().map(|root| &*root.devices)
}

/// Returns whether each device can access the memory of the other.
pub fn has_peers() -> bool {
    env::var_os("RAGTAG_FAKE_PEERS").is_some() || has_tiles()
}

/// Returns whether the driver refuses to open the memory of another device.
pub fn refuses_peers() -> bool {
    env::var("RAGTAG_FAKE_PEERS").is_ok_and(|peers| peers == "refused")
}

impl Device {
    fn new(number: usize) -> Self {
        Self {
            number,
            record: Mutex::new(Record::new()),
            lost: AtomicBool::new(false),
            queues: AtomicUsize::new(0),
            engines: Mutex::default(),
        }
    }

    pub fn record(&self) -> MutexGuard<'_, Record> {
        lock(&self.record)
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    pub fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
        changed();
    }

    /// Counts a call at which a test may lose the device.
    pub fn passes(&self, call: Call) -> Result<()> {
        if self.record().loses(call) {
            self.lose();
        }
        if self.is_lost() { Err(DEVICE_LOST) } else { Ok(()) }
    }

    pub fn open(&self) {
        self.queues.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts the end of a queue. A lost device works again after its last queue.
    pub fn close(&self) {
        if self.queues.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.lost.store(false, Ordering::SeqCst);
        }
    }

    pub fn is_open(&self) -> bool {
        self.queues.load(Ordering::SeqCst) > 0
    }

    pub fn held_bytes(&self) -> u64 {
        held_bytes(self.number)
    }

    pub fn total_bytes(&self) -> u64 {
        let all = || cl().map_or(0, |cl| cl.number(CL_DEVICE_GLOBAL_MEM_SIZE)) / DEVICES as u64;
        let own = setting("RAGTAG_FAKE_MEMORY_BYTES").unwrap_or_else(all);
        own * tiles_of(self).max(1) as u64
    }

    pub fn max_allocation(&self) -> u64 {
        setting("RAGTAG_FAKE_ALLOCATION_BYTES").unwrap_or(MAX_ALLOCATION).min(self.total_bytes())
    }

    /// Returns the device's clock, in ticks.
    pub fn ticks(&self) -> u64 {
        static FIRST: OnceLock<u64> = OnceLock::new();
        let first = *FIRST.get_or_init(|| setting("RAGTAG_FAKE_TICKS").unwrap_or_default());
        let ns = started().elapsed().as_nanos();
        first + (ns * u128::from(TIMER_HZ) / 1_000_000_000) as u64
    }
}

/// Masks a timestamp of a kernel.
pub fn kernel_ticks(ticks: u64) -> u64 {
    ticks & ((1 << KERNEL_TIMESTAMP_BITS) - 1)
}

fn properties(device: &Device, ns: bool, head: Head) -> DeviceProperties {
    let mut uuid = *b"ragtag on CPU  \0";
    uuid[15] = device.number as u8;
    let is_gpu = env::var_os("RAGTAG_FAKE_GPUS").is_some();
    let is_tile = has_tiles() && device.number != CARD;
    let is_integrated = !is_gpu && !has_tiles() && device.number == INTEGRATED;
    DeviceProperties {
        head,
        kind: if is_gpu { 1 } else { 2 }, // GPU or CPU
        vendor: 0x8086,
        device: 0x56a0,
        flags: u32::from(is_integrated) | u32::from(is_tile) << 1,
        subdevice: if is_tile { device.number as u32 } else { 0 },
        clock_mhz: 2400,
        max_allocation: device.max_allocation(),
        max_contexts: 1 << 16,
        max_priority: 0,
        threads_per_eu: 8,
        simd_width: 8,
        eus_per_subslice: 16,
        subslices_per_slice: 4,
        slices: 8,
        timer: if ns { TIMER_NS } else { TIMER_HZ },
        timestamp_bits: TIMESTAMP_BITS,
        kernel_timestamp_bits: KERNEL_TIMESTAMP_BITS,
        uuid,
        name: text("Level Zero on OpenCL (as Arc A770)"),
    }
}

/// Returns the names and versions of the supported extensions.
fn extensions() -> Vec<Extension> {
    let names = [
        "ZE_experimental_relaxed_allocation_limits",
        "ZE_extension_memory_free_policies",
        "ZE_extension_pci_properties",
        "ZE_intel_experimental_device_module_dp_properties",
    ];
    names.map(|name| Extension { name: text(name), version: 0x1_0000 }).into()
}

entries! {
    fn zeInit(_flags: u32) {
        cl()?;
        started();
        ROOT.get_or_init(|| {
            let numbers = if has_tiles() { (0..=CARD).collect() } else { visible() };
            let devices: Vec<_> = numbers.into_iter().map(Device::new).map(Arc::new).collect();
            let handles = devices.iter().map(|device| share(Arc::clone(device)) as usize).collect();
            Root { driver: give(Driver) as usize, devices, handles }
        });
        Ok(())
    }
    fn zeDriverGet(count: *mut u32, to: *mut Handle) {
        list(count, to, &[root()?.driver], |to, driver| put(to, driver as Handle))
    }
    fn zeDriverGetApiVersion(driver: Handle, version: *mut u32) {
        find::<Driver>(driver)?;
        put(version, API)
    }
    fn zeDriverGetProperties(driver: Handle, to: *mut DriverProperties) {
        find::<Driver>(driver)?;
        let head = described(to)?.head;
        describe(to, DriverProperties { head, uuid: *b"ragtag ze driver", version: 0x0103_0001 })
    }
    fn zeDriverGetIpcProperties(driver: Handle, to: *mut IpcProperties) {
        find::<Driver>(driver)?;
        let head = described(to)?.head;
        describe(to, IpcProperties { head, flags: 1 })
    }
    fn zeDriverGetExtensionProperties(driver: Handle, count: *mut u32, to: *mut Extension) {
        find::<Driver>(driver)?;
        list(count, to, &extensions(), |to, one| put(to, one))
    }
    fn zeDriverGetExtensionFunctionAddress(driver: Handle, name: *const c_char, to: *mut *const c_void) {
        find::<Driver>(driver)?;
        match text_at(name)?.as_str() {
            "zexDriverImportExternalPointer" => put(to, zexDriverImportExternalPointer as *const c_void),
            "zexDriverReleaseImportedPointer" => put(to, zexDriverReleaseImportedPointer as *const c_void),
            _ => Err(INVALID_ARGUMENT),
        }
    }

    fn zeDeviceGet(driver: Handle, count: *mut u32, to: *mut Handle) {
        find::<Driver>(driver)?;
        let all = &root()?.handles;
        let listed = if has_tiles() { &all[CARD..] } else { all };
        list(count, to, listed, |to, device| put(to, device as Handle))
    }
    fn zeDeviceGetSubDevices(device: Handle, count: *mut u32, to: *mut Handle) {
        let tiles = tiles_of(&*find::<Device>(device)?);
        list(count, to, &root()?.handles[..tiles], |to, device| put(to, device as Handle))
    }
    fn zeDeviceGetProperties(device: Handle, to: *mut DeviceProperties) {
        let device = find::<Device>(device)?;
        let head = described(to)?.head;
        describe(to, properties(&device, head.kind == DeviceProperties::KINDS[0], head))
    }
    fn zeDeviceGetComputeProperties(device: Handle, to: *mut ComputeProperties) {
        find::<Device>(device)?;
        let cl = cl()?;
        let sizes: Vec<u32> = cl.sub_groups().into_iter().filter(|size| [8, 16, 32].contains(size)).collect();
        let mut sub_groups = [0; 8];
        sub_groups[..sizes.len()].copy_from_slice(&sizes);
        describe(to, ComputeProperties {
            head: described(to)?.head,
            max_group: MAX_GROUP,
            max_group_sizes: [MAX_GROUP; 3],
            max_group_counts: [u32::MAX; 3],
            local_bytes: cl.number(CL_DEVICE_LOCAL_MEM_SIZE).min(64 << 10) as u32,
            sub_group_count: sizes.len() as u32,
            sub_groups,
        })
    }
    fn zeDeviceGetModuleProperties(device: Handle, to: *mut ModuleFeatures) {
        find::<Device>(device)?;
        let cl = cl()?;
        let (half, dot) = (cl.has("cl_khr_fp16"), cl.has("cl_khr_integer_dot_product"));
        let units = env::var_os("RAGTAG_FAKE_MATRIX_UNITS").is_some();
        if let Some(extended) = extension_at::<DotProducts>(described(to)?.head.next) {
            let head = described(extended)?.head;
            describe(extended, DotProducts { head, flags: u32::from(dot) | u32::from(units) << 1 })?;
        }
        describe(to, ModuleFeatures {
            head: described(to)?.head,
            spirv: 0x0001_0002,
            flags: u32::from(half) | 4 | u32::from(dot) << 3, // FP16, INT64_ATOMICS, DP4A
            fp16: if half { 0x3f } else { 0 },
            fp32: 0xbf,
            fp64: 0, // as on Arc
            argument_bytes: 2048,
            printf_bytes: 4 << 20,
            native_uuid: *b"ragtag ze native",
        })
    }
    fn zeDeviceGetCommandQueueGroupProperties(device: Handle, count: *mut u32, to: *mut QueueGroup) {
        find::<Device>(device)?;
        // All kinds of work, and copies only.
        let groups = [(0xf, usize::MAX, 1), (2, COPY_PATTERN_BYTES, 1)];
        list(count, to, &groups, |to, (flags, max_pattern, queues)| {
            describe(to, QueueGroup { head: described(to)?.head, flags, max_pattern, queues })
        })
    }
    fn zeDeviceGetMemoryProperties(device: Handle, count: *mut u32, to: *mut MemoryProperties) {
        let bytes = find::<Device>(device)?.total_bytes();
        list(count, to, &[()], |to, ()| {
            let (head, name) = (described(to)?.head, text("GDDR"));
            describe(to, MemoryProperties { head, flags: 0, clock_mhz: 0, bus_width: 64, bytes, name })
        })
    }
    fn zeDeviceGetMemoryAccessProperties(device: Handle, to: *mut MemoryAccess) {
        find::<Device>(device)?;
        let head = described(to)?.head;
        describe(to, MemoryAccess { head, host: 1, device: 3, shared: 3, shared_across: 5, system: 0 })
    }
    fn zeDeviceGetCacheProperties(device: Handle, count: *mut u32, to: *mut CacheProperties) {
        find::<Device>(device)?;
        list(count, to, &[()], |to, ()| {
            describe(to, CacheProperties { head: described(to)?.head, flags: 0, bytes: 16 << 20 })
        })
    }
    fn zeDeviceGetExternalMemoryProperties(device: Handle, to: *mut ExternalMemory) {
        find::<Device>(device)?;
        let head = described(to)?.head;
        let kinds = if has_dma_bufs() { DMA_BUF } else { 0 };
        describe(to, ExternalMemory { head, import: kinds, export: kinds, image_import: 0, image_export: 0 })
    }
    fn zeDeviceGetP2PProperties(device: Handle, peer: Handle, to: *mut PeerProperties) {
        let (device, peer) = (find::<Device>(device)?, find::<Device>(peer)?);
        let can = device.number == peer.number || has_peers();
        describe(to, PeerProperties { head: described(to)?.head, flags: u32::from(can) })
    }
    fn zeDeviceCanAccessPeer(device: Handle, peer: Handle, to: *mut u8) {
        let (device, peer) = (find::<Device>(device)?, find::<Device>(peer)?);
        put(to, u8::from(device.number == peer.number || has_peers()))
    }
    fn zeDeviceGetStatus(device: Handle) {
        if find::<Device>(device)?.is_lost() { Err(DEVICE_LOST) } else { Ok(()) }
    }
    fn zeDeviceGetGlobalTimestamps(device: Handle, host: *mut u64, to: *mut u64) {
        let device = find::<Device>(device)?;
        put(host, started().elapsed().as_nanos() as u64)?;
        put(to, device.ticks() & ((1 << TIMESTAMP_BITS) - 1))
    }
    fn zeDevicePciGetPropertiesExt(device: Handle, to: *mut PciProperties) {
        let device = find::<Device>(device)?;
        let number = if has_tiles() { 0 } else { device.number as u32 };
        let head = described(to)?.head;
        // A domain that no real device of a test machine has.
        let address = [0x7e57, 3 + number, 0, 0];
        describe(to, PciProperties { head, address, generation: 4, width: 16, bandwidth: 32_000_000_000 })
    }

    fn zeContextCreate(driver: Handle, desc: *const ContextDesc, to: *mut Handle) {
        find::<Driver>(driver)?;
        described(desc)?;
        put(to, give(Context))
    }
    fn zeContextCreateEx(
        driver: Handle,
        desc: *const ContextDesc,
        count: u32,
        devices: *const Handle,
        to: *mut Handle,
    ) {
        find::<Driver>(driver)?;
        described(desc)?;
        find_all::<Device>(count, devices)?;
        put(to, give(Context))
    }
    fn zeContextDestroy(context: Handle) {
        take::<Context>(context).map(drop)
    }
    fn zeContextGetStatus(context: Handle) {
        find::<Context>(context)?;
        if devices()?.iter().any(|device| device.is_lost()) { Err(DEVICE_LOST) } else { Ok(()) }
    }
    fn zeContextMakeMemoryResident(context: Handle, device: Handle, _at: *mut c_void, _bytes: usize) {
        find::<Context>(context)?;
        find::<Device>(device).map(drop)
    }
    fn zeContextEvictMemory(context: Handle, device: Handle, _at: *mut c_void, _bytes: usize) {
        find::<Context>(context)?;
        find::<Device>(device).map(drop)
    }
}

/// Returns whether a caller asks for relaxed allocation limits.
///
/// # Safety
/// `next` must be null or point to a valid chain of structures.
pub unsafe fn is_relaxed(next: *const Head) -> bool {
    // SAFETY: the caller guarantees the chain.
    let limits = unsafe { extension_at::<RelaxedLimits>(next).and_then(|limits| limits.as_ref()) };
    limits.is_some_and(|limits| limits.flags & 1 != 0)
}

/// Returns the handle of the device with this number, which is not its index if the affinity mask hides
/// devices.
pub fn handle_of(number: usize) -> Handle {
    let at = |root: &Root| root.devices.iter().position(|device| device.number == number);
    let handle = ROOT.get().and_then(|root| Some(root.handles[at(root)?]));
    handle.unwrap_or_default() as Handle
}
