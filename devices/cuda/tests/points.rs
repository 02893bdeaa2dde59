//! Points between devices: of two APIs, and of devices that never come to them.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use support::*;

device_bench::point_tests!(subject());
