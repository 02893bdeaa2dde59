//! Tests of points between two devices: devices of different APIs, devices of different platforms, and
//! devices that never reach a point.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use support::*;

device_bench::point_tests!(subject());
