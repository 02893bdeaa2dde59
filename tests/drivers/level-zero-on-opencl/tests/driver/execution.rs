//! Kernels, copies, fills, events and lists.

use crate::client::*;
use crate::types::*;
use std::ptr;
use test_drivers::with_level_zero_on_opencl;

const COUNT: usize = 1000;
const BYTES: usize = COUNT * 4;
const NONE: Handle = ptr::null_mut();

fn values() -> Vec<f32> {
    (0..COUNT).map(|value| value as f32).collect()
}

#[test]
fn kernels_compute_on_both_devices() {
    with_level_zero_on_opencl("execution::kernels_compute_on_both_devices", &[], || {
        let ze = Client::new();
        assert_eq!(ze.devices.len(), 2);
        for device in 0..2 {
            let memory = ze.device_memory(device, BYTES);
            let kernel = ze.scale(ze.module(device), memory, 3.0, COUNT as u32);
            let [up, run, down] = ze.events();
            let [compute, copy] = [0, 1].map(|ordinal| ze.immediate(device, ordinal));
            let (from, mut to) = (values(), vec![0f32; COUNT]);
            ze.copy(copy, memory, from.as_ptr().cast(), BYTES, up, &[]);
            assert_eq!(ze.launch(compute, kernel, 32, run, &[up]), 0);
            ze.copy(copy, to.as_mut_ptr().cast(), memory, BYTES, down, &[run]);
            ze.wait(down);
            let tripled: Vec<f32> = from.iter().map(|value| value * 3.0).collect();
            assert_eq!(to, tripled);
            let mut stamps = Stamps::default();
            ok!(ze, zeEventQueryKernelTimestamp(run, &raw mut stamps));
            assert!(stamps.global[0] < stamps.global[1]);
        }
        ze.no_misuse();
    });
}
