//! Allocations, and the rules about which device may access which of them.

use crate::calls::{entries, lock};
use crate::cl::{Kind, cl};
use crate::device::{Context, Device, devices, has_peers, is_relaxed, refuses_peers};
use crate::faults::misuse;
use crate::handles::{describe, described, extension_at, find, put};
use crate::types::code::{
    INVALID_ARGUMENT, INVALID_NULL_POINTER, INVALID_SIZE, OUT_OF_DEVICE_MEMORY, UNSUPPORTED_ALIGNMENT,
    UNSUPPORTED_ENUMERATION, UNSUPPORTED_FEATURE, UNSUPPORTED_SIZE,
};
use crate::types::*;
use memmap2::MmapRaw;
use std::collections::BTreeMap;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::{Arc, Mutex};

/// Size of a page, which aligns all allocations.
const PAGE: usize = 4096;
/// Value of new memory, so that no caller relies on zeros.
const GARBAGE: u8 = 0xa5;
/// Maximum number of bytes of new memory that receive [`GARBAGE`].
const GARBAGE_BYTES: usize = 16 << 20;
/// `ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF`.
pub const DMA_BUF: u32 = 2;
/// First bytes of an IPC handle.
const MARK: &[u8; 8] = b"RAGTAG-M";

/// A live allocation.
#[derive(Clone, Debug)]
struct Allocation {
    bytes: usize,
    kind: Kind,
    /// Number of the device that owns the memory. Host memory has none.
    device: Option<usize>,
    context: usize,
    id: u64,
    /// Devices that opened an IPC handle of the allocation.
    opened: Vec<usize>,
    /// The file that stands for a dma-buf, if the memory can be exported or was imported.
    file: Option<Arc<Mapped>>,
}

/// A mapped file.
#[derive(Debug)]
struct Mapped {
    map: MmapRaw,
    file: File,
}

impl Mapped {
    /// Maps the first bytes of a file.
    fn new(file: File, bytes: usize) -> Result<Arc<Self>> {
        let map = memmap2::MmapOptions::new().len(bytes).map_raw(&file);
        let map = map.map_err(|_| OUT_OF_DEVICE_MEMORY)?;
        Ok(Arc::new(Self { map, file }))
    }

    /// Creates and maps a file for an allocation that can be exported.
    fn exportable(bytes: usize) -> Result<Arc<Self>> {
        let file = tempfile::tempfile().map_err(|_| OUT_OF_DEVICE_MEMORY)?;
        let whole = bytes.next_multiple_of(PAGE);
        file.set_len(whole as u64).map_err(|_| OUT_OF_DEVICE_MEMORY)?;
        Self::new(file, whole)
    }

    /// Imports a file. Takes the file descriptor only if it succeeds.
    ///
    /// # Safety
    /// The caller gives up the file descriptor if the call succeeds.
    unsafe fn import(fd: i32, bytes: usize) -> Result<Arc<Self>> {
        if fd < 0 {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the value does not close the file descriptor.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        let length = file.metadata().map_err(|_| INVALID_ARGUMENT)?.len();
        if length < bytes as u64 {
            return Err(INVALID_SIZE);
        }
        Self::new(ManuallyDrop::into_inner(file), bytes)
    }
}

/// Returns whether memory can be exported as files, which stand for dma-bufs, and imported from them.
pub fn has_dma_bufs() -> bool {
    std::env::var_os("RAGTAG_FAKE_DMA_BUFS").is_some()
}

/// Returns whether the driver refuses to import a dma-buf.
fn refuses_imports() -> bool {
    std::env::var("RAGTAG_FAKE_DMA_BUFS").is_ok_and(|value| value == "refused")
}

/// Returns the file for an allocation whose description has an extension structure for a dma-buf.
///
/// # Safety
/// `next` must be null or point to a valid chain of structures.
unsafe fn external(next: *const Head, bytes: usize) -> Result<Option<Arc<Mapped>>> {
    // SAFETY: the caller guarantees the chain. A successful import takes the file descriptor.
    unsafe {
        if let Some(export) = extension_at::<ExportDesc>(next) {
            let wanted = (*export).flags == DMA_BUF && has_dma_bufs();
            return if wanted { Mapped::exportable(bytes).map(Some) } else { Err(UNSUPPORTED_ENUMERATION) };
        }
        match extension_at::<ImportFd>(next) {
            None => Ok(None),
            Some(import) if (*import).flags != DMA_BUF || !has_dma_bufs() => Err(UNSUPPORTED_ENUMERATION),
            Some(_) if refuses_imports() => Err(UNSUPPORTED_FEATURE),
            Some(import) => Mapped::import((*import).fd, bytes).map(Some),
        }
    }
}

/// Live allocations by address, and the latest number of an allocation.
static ALLOCATIONS: Mutex<(BTreeMap<usize, Allocation>, u64)> = Mutex::new((BTreeMap::new(), 0));
/// Start and end of the host memory that callers registered.
static IMPORTED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// Returns the allocation that contains an address, and its start.
fn around(address: usize) -> Option<(usize, Allocation)> {
    let table = lock(&ALLOCATIONS);
    let (start, allocation) = table.0.range(..=address).next_back()?;
    (address - start < allocation.bytes).then(|| (*start, allocation.clone()))
}

/// Returns the number of bytes that are allocated on a device.
pub fn held_bytes(device: usize) -> u64 {
    let table = lock(&ALLOCATIONS);
    table.0.values().filter(|one| one.device == Some(device)).map(|one| one.bytes as u64).sum()
}

impl Allocation {
    fn is_usable_on(&self, device: usize) -> bool {
        let is_own = self.device.is_none_or(|owner| owner == device);
        is_own || self.kind == Kind::Shared || self.opened.contains(&device) || has_peers()
    }
}

/// Checks the address of a kernel's argument, which must be in memory that the device can access.
pub fn check_argument(address: usize, device: usize) -> Result<()> {
    match around(address) {
        Some((_, allocation)) if allocation.is_usable_on(device) => Ok(()),
        Some(_) => Err(misuse(INVALID_ARGUMENT, "an argument points to memory of another device")),
        None => Err(misuse(INVALID_ARGUMENT, "an argument points to no allocation")),
    }
}

/// Checks a range of a copy or fill. Ranges outside of all allocations are host memory.
pub fn check_range(address: usize, bytes: usize, device: usize) -> Result<()> {
    let Some((start, allocation)) = around(address) else {
        return if address == 0 { Err(INVALID_NULL_POINTER) } else { Ok(()) };
    };
    if !allocation.is_usable_on(device) {
        return Err(misuse(INVALID_ARGUMENT, "a range is in memory of another device"));
    }
    if address - start + bytes > allocation.bytes {
        return Err(misuse(INVALID_ARGUMENT, "a range ends outside of its allocation"));
    }
    Ok(())
}

/// Allocates memory. The device may be null for host and shared memory. `next` is the chain of extension
/// structures.
unsafe fn allocate(
    kind: Kind,
    context: Handle,
    device: Handle,
    [bytes, alignment]: [usize; 2],
    next: *const Head,
    to: *mut *mut std::ffi::c_void,
) -> Result<()> {
    find::<Context>(context)?;
    let device = if device.is_null() && kind != Kind::Device { None } else { Some(find::<Device>(device)?) };
    // SAFETY: the caller guarantees the chain.
    let relaxed = unsafe { is_relaxed(next) };
    let limit = devices()?.first().map_or(0, |device| device.max_allocation());
    if bytes == 0 || (bytes as u64 > limit && !relaxed && kind != Kind::Host) {
        return Err(UNSUPPORTED_SIZE);
    }
    if alignment != 0 && !alignment.is_power_of_two() {
        return Err(UNSUPPORTED_ALIGNMENT);
    }
    if let Some(device) = &device {
        let held = device.held_bytes();
        let fits = held.saturating_add(bytes as u64) <= device.total_bytes();
        if device.is_lost() {
            return Err(code::DEVICE_LOST);
        }
        if !device.record().allows(held, bytes as u64) || !fits {
            return Err(OUT_OF_DEVICE_MEMORY);
        }
    }
    // SAFETY: the caller guarantees the chain.
    let file = unsafe { external(next, bytes) }?;
    let address = match &file {
        Some(file) => file.map.as_mut_ptr() as usize,
        None => {
            let address = cl()?.allocate(kind, bytes, alignment.max(PAGE))?;
            // SAFETY: the memory is new and large enough.
            unsafe { (address as *mut u8).write_bytes(GARBAGE, bytes.min(GARBAGE_BYTES)) };
            address
        }
    };
    let mut table = lock(&ALLOCATIONS);
    table.1 += 1;
    let (context, id, opened) = (context as usize, table.1, Vec::new());
    let device = device.map(|device| device.number);
    table.0.insert(address, Allocation { bytes, kind, device, context, id, opened, file });
    // SAFETY: the caller guarantees the pointer.
    unsafe { put(to, address as Handle) }
}

fn free(context: Handle, address: usize) -> Result<()> {
    find::<Context>(context)?;
    let mut table = lock(&ALLOCATIONS);
    let is_owned = table.0.get(&address).is_some_and(|one| one.context == context as usize);
    let Some(allocation) = is_owned.then(|| table.0.remove(&address)).flatten() else {
        return Err(misuse(INVALID_ARGUMENT, "freed memory is no allocation of the context"));
    };
    drop(table);
    if allocation.file.is_none() {
        cl()?.free(address);
    }
    Ok(())
}

entries! {
    fn zeMemAllocShared(
        context: Handle,
        on_device: *const DeviceMemoryDesc,
        on_host: *const HostMemoryDesc,
        bytes: usize,
        alignment: usize,
        device: Handle,
        to: *mut Handle,
    ) {
        described(on_host)?;
        let next = described(on_device)?.head.next;
        allocate(Kind::Shared, context, device, [bytes, alignment], next, to)
    }
    fn zeMemAllocDevice(
        context: Handle,
        on_device: *const DeviceMemoryDesc,
        bytes: usize,
        alignment: usize,
        device: Handle,
        to: *mut Handle,
    ) {
        let next = described(on_device)?.head.next;
        allocate(Kind::Device, context, device, [bytes, alignment], next, to)
    }
    fn zeMemAllocHost(
        context: Handle,
        on_host: *const HostMemoryDesc,
        bytes: usize,
        alignment: usize,
        to: *mut Handle,
    ) {
        let next = described(on_host)?.head.next;
        allocate(Kind::Host, context, std::ptr::null_mut(), [bytes, alignment], next, to)
    }
    fn zeMemFree(context: Handle, address: Handle) {
        free(context, address as usize)
    }
    fn zeMemFreeExt(context: Handle, desc: *const FreeDesc, address: Handle) {
        described(desc)?;
        free(context, address as usize)
    }
    fn zeMemGetAllocProperties(
        context: Handle,
        address: Handle,
        to: *mut AllocationProperties,
        device: *mut Handle,
    ) {
        find::<Context>(context)?;
        let (head, found) = (described(to)?.head, around(address as usize));
        let (kind, id) = found.as_ref().map_or((0, 0), |(_, one)| (one.kind as u32, one.id));
        if let Some(export) = extension_at::<ExportFd>(head.next) {
            let file = found.as_ref().and_then(|(_, one)| one.file.as_ref()).ok_or(UNSUPPORTED_FEATURE)?;
            let duplicate = file.file.try_clone().map_err(|_| UNSUPPORTED_FEATURE)?;
            (*export).fd = duplicate.into_raw_fd();
        }
        if !device.is_null() {
            let owner = found.and_then(|(_, one)| one.device);
            put(device, owner.map_or(std::ptr::null_mut(), crate::device::handle_of))?;
        }
        describe(to, AllocationProperties { head, kind, id, page: PAGE as u64 })
    }
    fn zeMemGetAddressRange(context: Handle, address: Handle, start: *mut Handle, bytes: *mut usize) {
        find::<Context>(context)?;
        let (at, allocation) = around(address as usize).ok_or(code::UNKNOWN)?;
        if !start.is_null() {
            put(start, at as Handle)?;
        }
        if bytes.is_null() { Ok(()) } else { put(bytes, allocation.bytes) }
    }
    fn zeMemGetIpcHandle(context: Handle, address: Handle, to: *mut IpcHandle) {
        find::<Context>(context)?;
        let (start, allocation) = around(address as usize).ok_or(INVALID_ARGUMENT)?;
        if allocation.kind != Kind::Device {
            return Err(INVALID_ARGUMENT);
        }
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(MARK);
        bytes[8..16].copy_from_slice(&start.to_ne_bytes());
        bytes[16..24].copy_from_slice(&allocation.id.to_ne_bytes());
        put(to, IpcHandle(bytes))
    }
    fn zeMemOpenIpcHandle(context: Handle, device: Handle, handle: IpcHandle, _flags: u32, to: *mut Handle) {
        find::<Context>(context)?;
        let number = find::<Device>(device)?.number;
        let word = |at: usize| std::array::from_fn(|byte| handle.0[at + byte]);
        let (start, id) = (usize::from_ne_bytes(word(8)), u64::from_ne_bytes(word(16)));
        let mut table = lock(&ALLOCATIONS);
        let allocation = table.0.get_mut(&start).filter(|one| handle.0[..8] == *MARK && one.id == id);
        let allocation = allocation.ok_or(INVALID_ARGUMENT)?;
        if allocation.device != Some(number) && refuses_peers() {
            return Err(UNSUPPORTED_FEATURE);
        }
        allocation.opened.push(number);
        put(to, start as Handle)
    }
    fn zeMemCloseIpcHandle(context: Handle, address: Handle) {
        find::<Context>(context)?;
        let mut table = lock(&ALLOCATIONS);
        let opened = table.0.get_mut(&(address as usize)).and_then(|one| one.opened.pop());
        opened.map(drop).ok_or_else(|| misuse(INVALID_ARGUMENT, "closed memory was not opened"))
    }

    fn zexDriverImportExternalPointer(_driver: Handle, address: Handle, bytes: usize) {
        let (start, mut imported) = (address as usize, lock(&IMPORTED));
        let overlaps = |(&other, &end): (&usize, &usize)| start < end && other < start + bytes;
        if bytes == 0 || imported.iter().any(overlaps) {
            return Err(INVALID_ARGUMENT);
        }
        imported.insert(start, start + bytes);
        Ok(())
    }
    fn zexDriverReleaseImportedPointer(_driver: Handle, address: Handle) {
        lock(&IMPORTED).remove(&(address as usize)).map(drop).ok_or(INVALID_ARGUMENT)
    }
}
