//! Test of a device that runs out of memory. The test has its own process, because it uses up the device's
//! memory.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::{BufferId, Device, Error, Limits};
use support::*;

#[test]
fn smaller_allocations_work_after_running_out_of_memory() {
    let backend = backend();
    for adapter in adapters(&backend) {
        let mut device = open(&backend, &adapter, 0, &Limits::default());
        let free = device.memory().unwrap()[0].free_bytes.unwrap();
        match device.create_buffer(BufferId(0), free + (1 << 20)) {
            Err(Error::OutOfMemory { wanted, free: left }) => println!("{wanted} wanted, {left:?} free"),
            other => panic!("{other:?}"),
        }
        device.create_buffer(BufferId(0), free / 2).unwrap();
        device.destroy_buffer(BufferId(0)).unwrap();
        device.create_buffer(BufferId(1), free / 4 * 3).unwrap();
        let less = device.memory().unwrap()[0].free_bytes.unwrap();
        assert!(less <= free / 4 + (1 << 20), "{less} of {free}");
        device.destroy_buffer(BufferId(1)).unwrap();
        let again = device.memory().unwrap()[0].free_bytes.unwrap();
        println!("free: {free} at first, {less} with a large buffer, {again} without");
        assert!(again + (64 << 20) >= free, "{again} of {free}");
    }
}
