//! Tests of waits for points of devices with other APIs or platforms, and of points that never pass.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use support::*;

device_bench::point_tests!(subject());
