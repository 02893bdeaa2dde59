//! Tests of points between devices of different APIs, and of points that never pass.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use support::*;

device_bench::point_tests!(subject());
