//! Allocations, their properties, and access between devices.

use crate::client::*;
use crate::types::code::*;
use crate::types::*;
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
