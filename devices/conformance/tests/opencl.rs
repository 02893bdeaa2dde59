//! The suite on every OpenCL device of this machine.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

#[test]
fn every_opencl_device() {
    support::every_device_of("opencl", "OpenCL driver");
}
