//! Points between devices: of two APIs, of two drivers, and of devices that never come to them.

use crate::support::*;

device_bench::point_tests!(subject());
