//! Tests of points between devices: of two APIs, of two drivers, and of devices that never reach them.

use crate::support::*;

device_bench::point_tests!(subject());
