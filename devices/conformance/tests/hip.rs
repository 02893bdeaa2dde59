//! The suite through the HIP backend: on AMD's GPUs where there are some, and on a stand-in for AMD's driver that executes
//! on OpenCL devices memory, queues, programs and the text of every kernel.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use test_drivers::with_hip_on_opencl;

#[test]
fn every_hip_device() {
    support::every_device_of("hip");
}

/// One device of the stand-in is enough: OpenCL's own are tried with the OpenCL backend. Where OpenCL devices are wanted,
/// there must be one.
#[test]
fn the_stand_in_on_opencl() {
    with_hip_on_opencl("the_stand_in_on_opencl", &[("HIP_VISIBLE_DEVICES", "0")], || {
        let devices = support::every_device_of("hip");
        assert!(devices == 1 || std::env::var_os("RAGTAG_TEST_OPENCL_ADAPTERS").is_none(), "no device");
    });
}
