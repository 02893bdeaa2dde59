//! Faults on demand.

use crate::client::*;
use crate::types::code::*;
use crate::types::*;
use std::ffi::c_char;
use std::ptr;
use std::time::{Duration, Instant};
use test_drivers::with_level_zero_on_opencl;

const NONE: Handle = ptr::null_mut();

fn barrier(ze: &Client, list: Handle, signal: Handle, waits: &mut [Handle]) -> u32 {
    let count = waits.len() as u32;
    let waits = if waits.is_empty() { ptr::null_mut() } else { waits.as_mut_ptr() };
    ze!(ze, zeCommandListAppendBarrier(list, signal, count, waits))
}

#[test]
fn a_lost_device_fails_its_work_and_spares_the_other() {
    let test = "faults::a_lost_device_fails_its_work_and_spares_the_other";
    with_level_zero_on_opencl(test, &[], || {
        let ze = Client::new();
        let [open, pending, after, free] = ze.events();
        let [sick, well] = [0, 1].map(|device| ze.immediate(device, 0));
        assert_eq!(barrier(&ze, sick, pending, &mut [open]), 0);
        ze.faults::<extern "C" fn(u32, u32, u64)>("faults_lose")(0, 0, 1);
        assert_eq!(barrier(&ze, sick, NONE, &mut []), 0, "one more submission succeeds");
        assert_eq!(barrier(&ze, sick, after, &mut []), DEVICE_LOST);
        assert_eq!(ze!(ze, zeEventHostSynchronize(pending, LONG_NS)), DEVICE_LOST);
        assert_eq!(ze!(ze, zeDeviceGetStatus(ze.devices[0])), DEVICE_LOST);
        assert_eq!(barrier(&ze, sick, NONE, &mut []), DEVICE_LOST);
        let (desc, mut to): (DeviceMemoryDesc, Handle) = (blank(), NONE);
        let (device, place) = (ze.devices[0], &raw mut to);
        let code = ze!(ze, zeMemAllocDevice(ze.context, &raw const desc, 64usize, 64usize, device, place));
        assert_eq!(code, DEVICE_LOST);
        assert_eq!(ze!(ze, zeEventQueryStatus(open)), NOT_READY, "events of the host stay as they are");
        assert_eq!(barrier(&ze, well, free, &mut []), 0);
        ze.wait(free);

        let is_open = ze.faults::<extern "C" fn(u32) -> bool>("faults_is_open");
        assert!(is_open(0));
        // The engine drops its last work before the device closes.
        ok!(ze, zeCommandListDestroy(sick));
        let deadline = Instant::now() + Duration::from_nanos(LONG_NS);
        while is_open(0) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let again = ze.immediate(0, 0);
        ok!(ze, zeEventHostReset(pending));
        assert_eq!(barrier(&ze, again, pending, &mut []), 0);
        ze.wait(pending);
        ze.no_misuse();
    });
}

#[test]
fn a_device_is_lost_while_it_works() {
    with_level_zero_on_opencl("faults::a_device_is_lost_while_it_works", &[], || {
        let ze = Client::new();
        let ([first, second, third], list) = (ze.events(), ze.immediate(0, 0));
        ze.faults::<extern "C" fn(u32, u32, u64)>("faults_lose")(0, 1, 1);
        assert_eq!(barrier(&ze, list, first, &mut []), 0);
        ze.wait(first);
        assert_eq!(barrier(&ze, list, second, &mut []), 0, "the loss comes later");
        assert_eq!(ze!(ze, zeEventHostSynchronize(second, LONG_NS)), DEVICE_LOST);
        assert_eq!(barrier(&ze, list, third, &mut []), DEVICE_LOST);
        ze.wait(first);
        ze.no_misuse();
    });
}

#[test]
fn the_environment_loses_devices_and_refuses_memory() {
    let variables = [("RAGTAG_FAKE_LOST_AFTER", "2"), ("RAGTAG_FAKE_ALLOCATIONS", "1")];
    with_level_zero_on_opencl("faults::the_environment_loses_devices_and_refuses_memory", &variables, || {
        let ze = Client::new();
        let list = ze.immediate(1, 0);
        ze.device_memory(1, 64);
        let (desc, mut to): (DeviceMemoryDesc, Handle) = (blank(), NONE);
        let (device, place) = (ze.devices[1], &raw mut to);
        let code = ze!(ze, zeMemAllocDevice(ze.context, &raw const desc, 64usize, 64usize, device, place));
        assert_eq!(code, OUT_OF_DEVICE_MEMORY);
        let codes = [(); 3].map(|()| barrier(&ze, list, NONE, &mut []));
        assert_eq!(codes, [0, 0, DEVICE_LOST]);
    });
}

#[test]
fn allocations_have_a_limit() {
    with_level_zero_on_opencl("faults::allocations_have_a_limit", &[], || {
        let ze = Client::new();
        let held = ze.faults::<extern "C" fn(u32) -> u64>("faults_held");
        let memory = ze.device_memory(0, 1000);
        assert_eq!((held(0), held(1)), (1000, 0));
        ze.faults::<extern "C" fn(u32, u64)>("faults_limit")(0, 1500);
        let (desc, mut to): (DeviceMemoryDesc, Handle) = (blank(), NONE);
        let (device, place) = (ze.devices[0], &raw mut to);
        let code = ze!(ze, zeMemAllocDevice(ze.context, &raw const desc, 501usize, 64usize, device, place));
        assert_eq!(code, OUT_OF_DEVICE_MEMORY);
        ze.device_memory(0, 500);
        ok!(ze, zeMemFree(ze.context, memory));
        assert_eq!(held(0), 500);
        ze.no_misuse();
    });
}

#[test]
fn copies_may_be_slow() {
    let variables = [("RAGTAG_FAKE_COPY_DELAY_US", "20000")];
    with_level_zero_on_opencl("faults::copies_may_be_slow", &variables, || {
        let ze = Client::new();
        let (memory, list, [done]) = (ze.device_memory(0, 64), ze.immediate(0, 1), ze.events());
        let (from, start) = ([0u8; 64], Instant::now());
        ze.copy(list, memory, from.as_ptr().cast(), 64, done, &[]);
        ze.wait(done);
        assert!(start.elapsed() >= Duration::from_millis(20));
        ze.no_misuse();
    });
}

#[test]
fn calls_are_counted() {
    with_level_zero_on_opencl("faults::calls_are_counted", &[], || {
        let ze = Client::new();
        let calls = ze.faults::<unsafe extern "C" fn(*const c_char) -> u64>("faults_calls");
        // SAFETY: the text ends with zero.
        let made = || unsafe { calls(c"zeCommandListAppendBarrier".as_ptr()) };
        let list = ze.immediate(0, 0);
        assert_eq!(made(), 0);
        assert_eq!(barrier(&ze, list, NONE, &mut []), 0);
        assert_eq!(made(), 1);
    });
}
