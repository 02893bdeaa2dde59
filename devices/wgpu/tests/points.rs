//! Tests of points between devices: of two APIs, of two drivers, and of devices that never reach them.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use support::*;

device_bench::point_tests!(subject());
