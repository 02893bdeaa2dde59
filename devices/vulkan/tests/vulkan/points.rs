//! Tests of waits for points of devices with other APIs or drivers, and of points that never pass.

use crate::support::*;

device_bench::point_tests!(subject());
