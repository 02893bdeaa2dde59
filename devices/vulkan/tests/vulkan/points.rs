//! Tests of points between two devices: devices of different APIs or drivers, and devices that never reach a
//! point.

use crate::support::*;

device_bench::point_tests!(subject());
