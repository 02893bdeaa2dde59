//! Runs the suite through the Level Zero backend: on Intel GPUs, if there are any, and on the test driver, which
//! executes every kernel on Intel's OpenCL runtime behind Level Zero's own loader and validation layer.

#![allow(clippy::print_stdout)] // Skips must be visible.

mod support;

use test_drivers::with_level_zero_on_opencl;

#[test]
fn every_level_zero_device() {
    support::every_device_of("level-zero", "Level Zero driver");
}

#[test]
fn the_test_driver() {
    with_level_zero_on_opencl("the_test_driver", &[], || {
        assert_eq!(support::every_device_of("level-zero", "Level Zero driver"), 2);
    });
}
