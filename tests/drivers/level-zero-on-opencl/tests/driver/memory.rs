//! Allocations, their properties, and access between devices.

use crate::client::*;
use crate::types::code::*;
use crate::types::*;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::ptr;
use test_drivers::with_level_zero_on_opencl;

const NONE: Handle = ptr::null_mut();

#[test]
fn allocations_report_their_properties() {
    with_level_zero_on_opencl("memory::allocations_report_their_properties", &[], || {
        let ze = Client::new();
        let (device, shared) = (ze.device_memory(1, 5000), ze.shared_memory(0, 100));
        let desc: HostMemoryDesc = blank();
        let host = made!(ze, zeMemAllocHost(ze.context, &raw const desc, 100usize, 4096usize));
        let plain = [0u8; 4];
        let plain = plain.as_ptr() as Handle;
        for (address, kind, owner) in
            [(plain, 0, NONE), (host, 1, NONE), (device, 2, ze.devices[1]), (shared, 3, ze.devices[0])]
        {
            let (mut properties, mut on): (AllocationProperties, Handle) = (blank(), NONE);
            let (to, on_device) = (&raw mut properties, &raw mut on);
            ok!(ze, zeMemGetAllocProperties(ze.context, address, to, on_device));
            assert_eq!((properties.kind, on), (kind, owner));
        }
        let (mut start, mut bytes) = (NONE, 0usize);
        let inside = device.wrapping_byte_add(4999);
        ok!(ze, zeMemGetAddressRange(ze.context, inside, &raw mut start, &raw mut bytes));
        assert_eq!((start, bytes), (device, 5000));
        [host, device, shared].iter().for_each(|&address| ok!(ze, zeMemFree(ze.context, address)));
        ze.no_misuse();
    });
}

#[test]
fn sizes_are_limited() {
    let variables = [("RAGTAG_FAKE_MEMORY_BYTES", "1048576"), ("RAGTAG_FAKE_ALLOCATION_BYTES", "524288")];
    with_level_zero_on_opencl("memory::sizes_are_limited", &variables, || {
        let ze = Client::new();
        let (relaxed, mut to) = (RelaxedLimits { flags: 1, ..blank() }, NONE);
        let mut allocate = |bytes: usize, alignment: usize, next: *const Head| {
            let mut desc: DeviceMemoryDesc = blank();
            desc.head.next = next;
            let device = ze.devices[0];
            ze!(ze, zeMemAllocDevice(ze.context, &raw const desc, bytes, alignment, device, &raw mut to))
        };
        let large = (&raw const relaxed).cast::<Head>();
        assert_eq!(allocate(0, 0, ptr::null()), UNSUPPORTED_SIZE);
        assert_eq!(allocate(1 << 19, 0, ptr::null()), 0);
        assert_eq!(allocate((1 << 19) + 1, 0, ptr::null()), UNSUPPORTED_SIZE);
        assert_eq!(allocate((1 << 19) + 1, 0, large), OUT_OF_DEVICE_MEMORY);
        assert_eq!(allocate(100, 3, ptr::null()), UNSUPPORTED_ALIGNMENT);
        ze.no_misuse();
    });
}

/// Copies between the devices' memories on the first device.
fn copy_across(ze: &Client, from: Handle) -> u32 {
    let (mut to, list, [done]) = ([0u8; 64], ze.immediate(0, 0), ze.events());
    let (to, none) = (to.as_mut_ptr(), ptr::null::<Handle>());
    let code = ze!(ze, zeCommandListAppendMemoryCopy(list, to, from, 64usize, done, 0u32, none));
    if code == 0 {
        ze.wait(done);
    }
    code
}

#[test]
fn ipc_handles_open_memory_on_the_other_device() {
    with_level_zero_on_opencl("memory::ipc_handles_open_memory_on_the_other_device", &[], || {
        let ze = Client::new();
        let memory = ze.device_memory(1, 64);
        assert_eq!(copy_across(&ze, memory), INVALID_ARGUMENT);
        let (mut handle, mut opened) = (IpcHandle([0; 64]), NONE);
        ok!(ze, zeMemGetIpcHandle(ze.context, memory, &raw mut handle));
        let device = ze.devices[0];
        ok!(ze, zeMemOpenIpcHandle(ze.context, device, handle, 0u32, &raw mut opened));
        assert_eq!(copy_across(&ze, opened), 0);
        ok!(ze, zeMemCloseIpcHandle(ze.context, opened));
        assert_eq!(copy_across(&ze, memory), INVALID_ARGUMENT);
        ok!(ze, zeMemFree(ze.context, memory));
        let stale = ze!(ze, zeMemOpenIpcHandle(ze.context, device, handle, 0u32, &raw mut opened));
        assert_eq!(stale, INVALID_ARGUMENT);
    });
}

#[test]
fn peers_access_each_other() {
    with_level_zero_on_opencl("memory::peers_access_each_other", &[("RAGTAG_FAKE_PEERS", "1")], || {
        let ze = Client::new();
        let mut can = 0u8;
        ok!(ze, zeDeviceCanAccessPeer(ze.devices[0], ze.devices[1], &raw mut can));
        assert_eq!(can, 1);
        assert_eq!(copy_across(&ze, ze.device_memory(1, 64)), 0);
        ze.no_misuse();
    });
}

#[test]
fn a_driver_may_refuse_ipc_handles() {
    let variables = [("RAGTAG_FAKE_PEERS", "refused")];
    with_level_zero_on_opencl("memory::a_driver_may_refuse_ipc_handles", &variables, || {
        let ze = Client::new();
        let (mut handle, mut opened) = (IpcHandle([0; 64]), NONE);
        ok!(ze, zeMemGetIpcHandle(ze.context, ze.device_memory(1, 64), &raw mut handle));
        let device = ze.devices[0];
        let code = ze!(ze, zeMemOpenIpcHandle(ze.context, device, handle, 0u32, &raw mut opened));
        assert_eq!(code, UNSUPPORTED_FEATURE);
    });
}

/// Value of the flags for a dma-buf.
const DMA_BUF: u32 = 2;

/// Allocates `bytes` bytes on the first device, with an extension structure. Returns the code and the address.
fn allocated<T: Described>(ze: &Client, bytes: usize, extension: &T) -> (u32, Handle) {
    let (mut desc, mut to): (DeviceMemoryDesc, Handle) = (blank(), NONE);
    desc.head.next = ptr::from_ref(extension).cast();
    let (device, place) = (ze.devices[0], &raw mut to);
    let code = ze!(ze, zeMemAllocDevice(ze.context, &raw const desc, bytes, 64usize, device, place));
    (code, to)
}

#[test]
fn memory_is_exported_and_imported_as_files() {
    let test = "memory::memory_is_exported_and_imported_as_files";
    with_level_zero_on_opencl(test, &[("RAGTAG_FAKE_DMA_BUFS", "1")], || {
        let ze = Client::new();
        let mut external: ExternalMemory = blank();
        ok!(ze, zeDeviceGetExternalMemoryProperties(ze.devices[0], &raw mut external));
        assert_eq!((external.import, external.export), (DMA_BUF, DMA_BUF));
        let (code, memory) = allocated(&ze, 64, &ExportDesc { flags: DMA_BUF, ..blank() });
        assert_eq!(code, 0);
        let mut export = ExportFd { flags: DMA_BUF, fd: -1, ..blank() };
        let mut properties: AllocationProperties = blank();
        properties.head.next = (&raw mut export).cast_const().cast();
        let (to, no_device) = (&raw mut properties, ptr::null_mut::<Handle>());
        ok!(ze, zeMemGetAllocProperties(ze.context, memory, to, no_device));
        // SAFETY: the driver gives up the file descriptor.
        let mut file = unsafe { File::from_raw_fd(export.fd) };
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(b"across").unwrap();

        let import =
            |fd: i32, bytes: usize| allocated(&ze, bytes, &ImportFd { flags: DMA_BUF, fd, ..blank() });
        let (code, imported) = import(file.try_clone().unwrap().into_raw_fd(), 64);
        assert_eq!(code, 0);
        for memory in [memory, imported] {
            let (mut bytes, list, [done]) = ([0u8; 6], ze.immediate(0, 0), ze.events());
            ze.copy(list, bytes.as_mut_ptr().cast(), memory, bytes.len(), done, &[]);
            ze.wait(done);
            assert_eq!(&bytes, b"across");
            ok!(ze, zeMemFree(ze.context, memory));
        }
        // Failed imports leave the file descriptor open.
        assert_eq!(import(file.as_raw_fd(), 1 << 20).0, INVALID_SIZE);
        assert_eq!(import(-1, 64).0, INVALID_ARGUMENT);
        let mut first = [0];
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_exact(&mut first).unwrap();
        let closed = file.as_raw_fd();
        drop(file);
        assert_eq!(import(closed, 64).0, INVALID_ARGUMENT);
        ze.no_misuse();
    });
}

#[test]
fn other_memory_is_not_exported() {
    with_level_zero_on_opencl("memory::other_memory_is_not_exported", &[], || {
        let ze = Client::new();
        let (code, _) = allocated(&ze, 64, &ExportDesc { flags: DMA_BUF, ..blank() });
        assert_eq!(code, UNSUPPORTED_ENUMERATION);
        let mut export = ExportFd { flags: DMA_BUF, fd: -1, ..blank() };
        let mut properties: AllocationProperties = blank();
        properties.head.next = (&raw mut export).cast_const().cast();
        let (memory, to, no_device) =
            (ze.device_memory(0, 64), &raw mut properties, ptr::null_mut::<Handle>());
        let code = ze!(ze, zeMemGetAllocProperties(ze.context, memory, to, no_device));
        assert_eq!((code, export.fd), (UNSUPPORTED_FEATURE, -1));
    });
}
