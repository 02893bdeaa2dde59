//! Tests of submissions that wait for devices of other APIs, or for points that never pass.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use support::*;

device_bench::point_tests!(subject());
