//! Runs the suite on every CUDA device of this machine.

#![allow(clippy::print_stdout)] // Skips must be visible.

mod support;

#[test]
fn every_cuda_device() {
    support::every_device_of("cuda", "CUDA driver");
}
